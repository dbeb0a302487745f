"""The rules about merged events: each is in the job that answered for it, once, and no window takes too many.

An event is known by its key: it is one of the items of a task that collects, `item:<key>` among what its
handler names, or the event that a handler of the latest one has got, `event:<key>`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from streamworker.core.coalesce import COLLECT
from streamworker.core.states import Disposition, Status
from tests.chaos.history import Accepted, History, Life
from tests.chaos.verdict import Kind, Violation

#: How a handler names an item that it works on, and the event whose arguments it has.
ITEM, EVENT = "item:", "event:"
#: What an enqueue answers when this request, and no other one, went into the job.
_WENT_IN = frozenset({Disposition.SCHEDULED, Disposition.ACCEPTED, Disposition.COALESCED})
_TOLD = _WENT_IN | {Disposition.DUPLICATE}


def events_are_where_told(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Each handler of a job that succeeded had every event for which the job answered, or a later one."""
    answered: dict[tuple[str, str], float] = {}
    for one in told(history):
        known = answered.get((one.job_id, one.key or ""), one.answered)
        answered[one.job_id, one.key or ""] = min(known, one.answered)
    for one in told(history):
        life = jobs.get(one.job_id)
        if life is None or not _succeeded(life):
            continue
        missing = _not_collected if _collects(history, one.task) else _outdone
        if evidence := missing(one, life, answered):
            yield Violation(
                Kind.LOST_ITEM, one.job_id, f"answered {one.disposition} for {one.key!r}, {evidence}"
            )


def _not_collected(one: Accepted, life: Life, _: Mapping[tuple[str, str], float]) -> str:
    for start in life.starts:
        if f"{ITEM}{one.key}" not in start.holds:
            return f"and worked on {sorted(start.holds)}"
    return "" if life.starts else "and has not begun"


def _outdone(one: Accepted, life: Life, answered: Mapping[tuple[str, str], float]) -> str:
    """Whatever was answered before this one was sent is older, so no handler may have that instead."""
    ran = {name for start in life.starts for name in start.holds if name.startswith(EVENT)}
    if len(ran) != 1:
        return f"and ran with {sorted(ran)}"
    key = ran.pop().removeprefix(EVENT)
    at = answered.get((one.job_id, key))
    if key != one.key and at is not None and at < one.sent:
        return f"sent at {one.sent:.3f}, and ran with {key!r}, which was answered at {at:.3f}"
    return ""


def events_are_there_once(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """No handler has an item twice, and no event is in two jobs that succeeded.

    A job that was replayed is not counted: the keys of its events were free meanwhile.
    """
    keys = {(one.task, one.key) for one in told(history)}
    found: dict[tuple[str, str], str] = {}
    for life in jobs.values():
        if life.task not in history.limits.merging:
            continue
        for start in life.starts:
            if len(set(start.holds)) < len(start.holds):
                yield Violation(Kind.DOUBLE_ITEM, life.job_id, f"has an item twice: {sorted(start.holds)}")
        if not _succeeded(life) or life.edges[-1].epoch:
            continue
        for name in {name for start in life.starts for name in start.holds}:
            event = life.task, name.partition(":")[2]
            if event in keys and found.setdefault(event, life.job_id) != life.job_id:
                evidence = f"has {event[1]!r}, which {found[event]} has too"
                yield Violation(Kind.DOUBLE_ITEM, life.job_id, evidence)


def windows_are_not_too_full(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """As many items, or events, as the task says at most."""
    for job_id, count in sizes(history, jobs).items():
        limit = history.limits.merging[jobs[job_id].task][1]
        if count > limit:
            yield Violation(Kind.OVERFULL, job_id, f"has {count}, and a window takes {limit}")


def sizes(history: History, jobs: Mapping[str, Life]) -> dict[str, int]:
    """By job: the items that its handlers had, or the events that are known to have gone into it."""
    keys: dict[str, set[str | None]] = defaultdict(set)
    for one in told(history):
        if one.disposition in _WENT_IN:
            keys[one.job_id].add(one.key)
    found = {}
    for life in jobs.values():
        if life.task not in history.limits.merging:
            continue
        if _collects(history, life.task):
            found[life.job_id] = max((len(set(start.holds)) for start in life.starts), default=0)
        else:
            found[life.job_id] = len(keys[life.job_id])
    return found


def told(history: History) -> Iterator[Accepted]:
    """The events with a key for which some job answers."""
    for one in history.accepted:
        if one.task in history.limits.merging and one.key is not None and one.disposition in _TOLD:
            yield one


def _collects(history: History, task: str) -> bool:
    return history.limits.merging[task][0] == COLLECT


def _succeeded(life: Life) -> bool:
    return bool(life.edges) and life.edges[-1].to_status is Status.SUCCEEDED
