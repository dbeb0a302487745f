"""What holds of gates and turnstiles after every call: the records decide, and all else agrees with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from streamworker.core.job import Record
from streamworker.core.states import HELD, TERMINAL, WAITING
from tests.lua.snapshot import Snapshot

#: Kinds of gates whose holders run.
LOCKS = ("entity", "concurrency")
#: More jobs of a tenant behind its turnstile are a flood (decision 0025).
FLOOD = 256


def words(record: Record) -> dict[str, str]:
    """Name and figures of each gate of a job."""
    named = (word.split("|") for word in (record.text("ga") or "").split(" ")[1:])
    return {name: rest[0] if rest else "" for name, *rest in named}


def granted(record: Record) -> list[str]:
    """The gates that a waiting job holds already."""
    return (record.text("hg") or "").split()


def violations(after: Snapshot, records: Mapping[str, Record], tampered: Collection[str]) -> Iterator[str]:
    yield from _holders(after, records, tampered)
    yield from _waiters(after, records, tampered)
    yield from _turnstiles(after, records, tampered)


def _holders(after: Snapshot, records: Mapping[str, Record], tampered: Collection[str]) -> Iterator[str]:
    expected: dict[str, dict[str, bool]] = {}
    for job_id, record in records.items():
        if record.status in HELD and not record.text("bu"):
            if any(not name.startswith("breaker:") for name in granted(record)):
                yield f"{job_id} is {record.status} and still granted {granted(record)}"
            for name in words(record):
                if name.split(":")[0] in LOCKS:
                    expected.setdefault(name, {})[job_id] = True
        for name in granted(record):
            expected.setdefault(name, {})[job_id] = record.status in HELD  # it tries a dependency
            if record.status in TERMINAL:
                yield f"{job_id} is {record.status} and granted {name}"
    found: dict[str, dict[str, bool]] = {}
    for key, scores in after.zsets.items():
        if key.startswith("gate:"):
            runs = {job_id: score > 0 for job_id, score in scores.items() if job_id not in tampered}
            if runs:
                found[key.removeprefix("gate:")] = runs
    if expected != found:
        yield f"the records hold gates as {expected}, the gates say {found}"
    for name, members in sorted(found.items()):
        if name.startswith("entity:") and len(members) > 1:
            yield f"{name} is held by {sorted(members)}"
    for job_id, record in records.items():
        standing = record.status in WAITING and record.entry is not None and granted(record)
        watched = f"grant:{job_id}" in after.zsets.get("timers", {})
        if standing and not watched and not _is_strict(record):
            yield f"nobody looks after the grants of {job_id}"


def _is_strict(record: Record) -> bool:
    return all(words(record).get(name) == "strict" for name in granted(record))


def _waiters(after: Snapshot, records: Mapping[str, Record], tampered: Collection[str]) -> Iterator[str]:
    if tampered:
        return
    counted: dict[str, Counter[str]] = {}
    for job_id, record in records.items():
        gate = record.gate
        if gate is None:
            continue
        counted.setdefault(gate, Counter())[record.lane] += 1
        if record.entry is not None:
            yield f"{job_id} waits at {gate} and has the entry {record.entry}"
    kept = {}
    for name, text in after.hashes.get("waiting", {}).items():
        flat = text.decode().split()
        kept[name.decode()] = Counter(
            {lane: int(n) for lane, n in zip(flat[::2], flat[1::2], strict=True) if n != "0"}
        )
    if counted != kept:
        yield f"the records wait as {counted}, the index says {kept}"
    for key, members in after.zsets.items():
        if not key.startswith("waiting:"):
            continue
        _, lane, gate = key.split(":", 2)
        for job_id in members:
            found = records.get(job_id)
            if found is None or found.lane != lane or found.gate != gate:
                yield f"{key} names {job_id}, which is {found}"


def _turnstiles(after: Snapshot, records: Mapping[str, Record], tampered: Collection[str]) -> Iterator[str]:
    if tampered:
        return
    stand: Counter[str] = Counter()
    wait: Counter[str] = Counter()
    for record in records.values():
        if record.text("tn") and record.entry and record.status in WAITING:
            where = f"{record.lane} {record.text('tn')}"
            if record.entry[0] == "t":
                wait[where] += 1
            elif record.entry[0] in "ar":
                stand[where] += 1
    expected = {where: f"{stand[where]} {wait[where]}" for where in stand | wait}
    calm: Counter[str] = Counter()
    for where, count in stand.items():
        if wait[where] <= FLOOD:
            calm[where.split(" ")[0]] += count
    expected |= {lane: str(count) for lane, count in calm.items()}
    found = {name.decode(): text.decode() for name, text in after.hashes.get("turnstile", {}).items()}
    if expected != found:
        yield f"at the turnstiles are {expected}, counted were {found}"
    for name, entries in after.streams.items():
        if ":turn:" not in name:
            continue
        for entry, fields in entries.items():
            one = records.get(fields[b"id"].decode())
            if one is None or one.entry != ("t", entry):
                yield f"{name} holds {entry} of {fields[b'id']!r}, which its record does not honour"
