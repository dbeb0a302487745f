"""Compares the model with what Redis holds; every difference is a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

from streamworker.core.job import Record
from streamworker.store.keys import is_live_state
from tests.model.job import Job, Move
from tests.model.letting_in import follow
from tests.model.seen import Seen
from tests.model.shard import Shard

#: Counters of `stats` that must equal a recount of the records.
DEPTHS = ("queued", "scheduled", "in_flight", "parked", "turned", "backlog")


def adopt(shard: Shard, seen: Seen) -> Iterator[str]:
    """Learn where gates have moved jobs, and the ids that Redis gave to entries and dead letters."""
    for job in shard.jobs.values():
        record = seen.records.get(job.id)
        if record is not None:
            follow(shard, job, record)
        if job.entry is None or job.entry[1]:
            continue
        kind = job.entry[0]
        found, entry = (record and record.entry) or ("", "")
        if found != kind or entry in shard.stream_of(job).entries:
            yield f"{job.id} must get a new entry of kind {kind}, its record names {found} {entry}"
            continue
        job.entry = (kind, entry)
        shard.stream_of(job).entries[entry] = (job.id, job.envelope)
    named = {letter.entry for letter in shard.letters.values()}
    for entry, fields in seen.letters.items():
        if entry in named:
            continue
        letter = shard.letters.get((fields["id"], int(fields["epoch"])))
        if letter is None or letter.entry:
            yield f"nobody expected the dead letter {entry} {fields}"
        else:
            letter.entry = entry


def differences(shard: Shard, seen: Seen) -> Iterator[str]:
    """What is not as the model says."""
    yield from _moves(shard.moves, seen)
    for job_id in shard.jobs.keys() | seen.records.keys():
        yield from _record(shard, seen, job_id)
    yield from _same("schedule", shard.schedule, seen.schedule)
    yield from _same("deadlines", shard.deadlines, seen.deadlines)
    for lane, kind in shard.streams.keys() | seen.streams.keys():
        stream, expected = seen.stream(lane, kind), shard.streams[lane, kind]
        contents = {entry: (one[b"id"].decode(), one[b"env"]) for entry, one in stream.entries.items()}
        yield from _same(f"entries of {lane} {kind}", expected.entries, contents)
        yield from _same(f"pending entries of {lane} {kind}", expected.pending, stream.pending)
    for at in shard.turns.keys() | seen.turns.keys():
        turned = shard.turns[at].entries if at in shard.turns else {}
        contents = {
            entry: (one[b"id"].decode(), one[b"env"]) for entry, one in seen.turns.get(at, {}).items()
        }
        yield from _same(f"who stands behind the turnstile of {at}", turned, contents)
    locks = {name: f"{holder} {token}" for name, (holder, token) in shard.locks.items()}
    yield from _same("locks", locks, seen.locks)
    yield from _letters(shard, seen)
    keys = {name: f"{key.job_id} {key.fingerprint} {key.state}" for name, key in shard.keys.items()}
    yield from _same("idempotency keys", keys, seen.keys)
    for job_id, count in shard.wakes.items():
        found = len(seen.others.get(f"done:{job_id}", ()))
        if found < count:  # more is harmless: who is woken looks
            yield f"{found} wake-ups for {count} who await {job_id}"
    yield from _lives(shard, seen)
    depths = Counter(place for job in shard.jobs.values() if (place := _depth(job)))
    counted = {
        name: count for name, count in seen.stats.items() if count and name.partition(":")[0] in DEPTHS
    }
    yield from _same("depth counters", dict(depths), counted)


def _same(what: str, expected: object, found: object) -> Iterator[str]:
    if expected != found:
        yield f"{what}: expected {expected}, found {found}"


def _moves(moves: list[Move], seen: Seen) -> Iterator[str]:
    found = [
        Move(
            line.job_id,
            line.epoch,
            line.version,
            line.from_status or "-",
            line.to_status,
            line.attempt,
            line.fence,
            line.reason,
        )
        for line in seen.lines
    ]
    yield from _same("moves", sorted(moves, key=_by_version), sorted(found, key=_by_version))


def _by_version(move: Move) -> tuple[str, int]:
    return move.job_id, move.version


def _record(shard: Shard, seen: Seen, job_id: str) -> Iterator[str]:
    job, record = shard.jobs.get(job_id), seen.records.get(job_id)
    if job is None or record is None:
        yield f"record of {job_id}: expected {job}, found {record}"
        return
    expected, found = _expected(job), _found(record)
    if expected != found:
        words = [
            f"{name} {expected[name]!r} != {found[name]!r}"
            for name in expected
            if expected[name] != found[name]
        ]
        yield f"record of {job_id} (expected != found): {', '.join(words)}"
    if not 0 <= record.attempt <= record.starts <= job.request.max_starts:
        yield f"{job_id} had {record.attempt} attempts in {record.starts} of {job.request.max_starts} starts"
    body = seen.bodies.get(job_id, {})
    parked = job.envelope if job.parked or job.gate else None
    yield from _same(f"parked envelope of {job_id}", parked, body.get(b"env"))


def _expected(job: Job) -> dict[str, object]:
    settled = job.settled
    return {
        "status": job.status,
        "attempt": job.attempt,
        "starts": job.starts,
        "strikes": job.strikes,
        "version": job.version,
        "epoch": job.epoch,
        "fence": job.fence,
        "lease_until": job.lease_until,
        "lane": job.lane,
        "task": job.request.task,
        "entry": job.entry,
        "gate": job.gate,
        "grants": job.grants,
        "tenant": job.request.tenant,
        "gates": job.request.gates,
        "holder": f"{job.holder} {job.session}" if job.held else None,
        "settled": None if settled is None else f"{settled.fence} {settled.outcome} {settled.by}",
        "deadline": job.deadline,
        "cancel": job.cancel or None,
        "key": job.request.key or None,
        "error": job.error or None,
        "unknown_since": job.unknown_since,
    }


def _found(record: Record) -> dict[str, object]:
    held = record.fence > 0
    settled = (record.text("sd") or "").split(" ")
    return {
        "status": record.status,
        "attempt": record.attempt,
        "starts": record.starts,
        "strikes": record.strikes,
        "version": record.version,
        "epoch": record.epoch,
        "fence": record.fence,
        "lease_until": record.lease_until,
        "lane": record.lane,
        "task": record.task,
        "entry": record.entry,
        "gate": record.gate or "",
        "grants": tuple((record.text("hg") or "").split()),
        "tenant": record.text("tn") or "",
        "gates": record.text("ga") or "",
        "holder": record.text("ow") if held else None,
        "settled": " ".join(settled[:3]) or None,
        "deadline": record.number("dl"),
        "cancel": record.text("cx"),
        "key": record.text("ky"),
        "error": record.text("ec"),
        "unknown_since": record.number("ut"),
    }


def _letters(shard: Shard, seen: Seen) -> Iterator[str]:
    expected = {
        letter.entry: (job_id, epoch, letter.code, letter.envelope.decode())
        for (job_id, epoch), letter in shard.letters.items()
    }
    found = {
        entry: (one["id"], int(one["epoch"]), one["code"], one["env"]) for entry, one in seen.letters.items()
    }
    yield from _same("dead letters", expected, found)


def _lives(shard: Shard, seen: Seen) -> Iterator[str]:
    """What is open has no TTL; of what is over, everything has one."""
    for name, ttl in seen.ttls.items():
        family, _, rest = name.partition(":")
        if family in ("job", "body"):
            job = shard.jobs.get(rest)
            lasting = job is not None and not job.over
        elif family == "key":
            lasting = seen.keys[rest].endswith(" open")
        elif family == "lock":
            lasting = False
        else:
            if ttl == -1 and not _may_stay(name):
                yield f"{name} has no TTL and is no live state"
            continue
        if lasting != (ttl == -1):
            yield f"{name} lives for {ttl} ms"


@cache
def _may_stay(name: str) -> bool:
    return is_live_state(f"{{shard:0}}:{name}")


def _depth(job: Job) -> str | None:
    if job.held:
        return f"in_flight:{job.lane}"
    if job.waiting:
        if job.gate:
            return f"parked:{job.lane}"
        if job.entry is None:
            return f"scheduled:{job.lane}"
        return f"{ {'t': 'turned', 'b': 'backlog'}.get(job.entry[0], 'queued') }:{job.lane}"
    return None
