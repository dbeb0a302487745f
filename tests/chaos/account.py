"""The rules about the whole run: what was accepted against the log, and the log against what Redis holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from streamworker.core.states import QUIET_CODES, TERMINAL, Disposition, Status
from tests.chaos.history import Accepted, History, Life
from tests.chaos.rules import GIVEN_BACK, shown, starts_counted, strikes_after
from tests.chaos.verdict import Kind, Violation

#: What an enqueue answers when a job stands for the request.
_NEW = frozenset({Disposition.ACCEPTED, Disposition.SCHEDULED, Disposition.DEFERRED, Disposition.PARKED})
_TAKEN = _NEW | {Disposition.COALESCED, Disposition.DUPLICATE}


def nothing_lost(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Every accepted job is in the log; what is in the log came to an end."""
    for one in history.accepted:
        if one.disposition in _TAKEN and (one.job_id not in jobs or not jobs[one.job_id].edges):
            yield Violation(Kind.LOST, one.job_id, f"accepted, and the log does not know it: {one}")
    for life in jobs.values():
        if life.edges and life.edges[-1].to_status not in TERMINAL:
            yield Violation(Kind.LOST, life.job_id, f"came to no end: {shown(life.edges[-1])}")


def nothing_unasked(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """No job comes from nowhere."""
    asked = {one.job_id for one in history.accepted} | set(history.maybe)
    for job_id in jobs.keys() - asked:
        yield Violation(Kind.UNASKED, job_id, "nobody enqueued it")


def all_read(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """The log was read without a gap; else the other rules have not seen everything."""
    if history.unread:
        evidence = f"{history.unread} entries of the log were gone before they were read"
        yield Violation(Kind.UNREAD, None, evidence)


def keys_held_once(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Of the jobs that were accepted under one key, no two are open at once (D11)."""
    by_key: dict[tuple[str, str], list[Accepted]] = defaultdict(list)
    for one in history.accepted:
        if one.key is not None and one.disposition in _NEW:
            by_key[one.task, one.key].append(one)
    for (task, key), holders in by_key.items():
        free_at = 0
        for life in sorted(
            (jobs[one.job_id] for one in holders if one.job_id in jobs and jobs[one.job_id].edges),
            key=lambda life: life.edges[0].at_ms,
        ):
            first, last = life.edges[0], life.edges[-1]
            if first.at_ms < free_at:
                evidence = f"accepted under the key {key!r} of {task} at {first.at_ms}, held until {free_at}"
                yield Violation(Kind.SHARED_KEY, life.job_id, evidence)
            free_at = max(free_at, last.at_ms)


def empty_at_the_end(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Streams, pending lists, schedule, gates and depth counters are empty, and nothing stays for ever."""
    if history.final is None:
        return
    final = history.final
    for name, (length, pending) in final.streams.items():
        if length or pending:
            yield Violation(Kind.LEFT_OVER, None, f"{name} holds {length} entries, {pending} of them pending")
    for name, members in final.waiting.items():
        if members:
            yield Violation(Kind.LEFT_OVER, None, f"{name} holds {members}")
    for name, value in final.counters.items():
        if value:
            yield Violation(Kind.LEFT_OVER, None, f"stats say {name} = {value}, and nothing is open")
    for name in final.immortal:
        yield Violation(Kind.LEFT_OVER, None, f"{name} has no TTL, and no job is open")


def records_agree(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """A record that is still there says what the log says, its counters are those of a recount."""
    if history.final is None:
        return
    for job_id, record in history.final.records.items():
        life = jobs.get(job_id)
        if life is None or not life.edges:
            yield Violation(Kind.WRONG_RECORD, job_id, f"has a record and no line in the log: {record}")
            continue
        last = life.edges[-1]
        strikes = [count for _, count in strikes_after(life)][-1]
        if last.reason in GIVEN_BACK:  # a cancel or a deadline is the reason, whether or not the holder died
            strikes = record.strikes
        wanted = (last.to_status, last.version, last.epoch, last.attempt, starts_counted(life), strikes)
        found = (
            *(record.status, record.version, record.epoch, record.attempt),
            *(record.starts, record.strikes),
        )
        if found != wanted:
            evidence = f"{record}, but its history ends with {shown(last)} and strikes = {strikes}"
            yield Violation(Kind.WRONG_RECORD, job_id, evidence)


def letters_agree(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Each job that failed for a reason that somebody must look at has one dead letter, others none."""
    if history.final is None:
        return
    letters = Counter(history.final.dead_letters)
    for job_id, life in jobs.items():
        last = life.edges[-1] if life.edges else None
        dead = (
            last is not None
            and last.to_status is Status.FAILED_TERMINAL
            and last.facts.get("code") not in QUIET_CODES
        )
        if letters.pop(job_id, 0) != dead:
            evidence = f"should have {int(dead)} dead letters: {'no edges' if last is None else shown(last)}"
            yield Violation(Kind.WRONG_LETTER, job_id, evidence)
    for job_id, count in letters.items():
        yield Violation(Kind.WRONG_LETTER, job_id, f"{count} dead letters, and no line in the log")
