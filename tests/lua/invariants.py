"""What holds after every call of every script, whatever the test is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from streamworker.core.job import Record
from streamworker.core.states import HELD, TERMINAL, TRANSITIONS, WAITING, Status
from streamworker.store.keys import is_live_state
from tests.lua import gate_invariants
from tests.lua.snapshot import Line, Snapshot

#: Counters of `stats` that must equal a recount of the records.
DEPTHS = ("queued", "turned", "scheduled", "parked", "backlog", "in_flight")


def violations(before: Snapshot, after: Snapshot, *, tampered: Collection[str] = ()) -> list[str]:
    """Return what is wrong; nothing is said about jobs whose state the test itself damaged."""
    records = {job_id: one for job_id, one in after.records().items() if job_id not in tampered}
    return [
        *_places(after, records),
        *_entries(after, records, tampered),
        *_lives(after, records, tampered),
        *_keys(after, records, tampered),
        *_depths(after, tampered),
        *_log(before, after, records, tampered),
        *_fences(before, after, tampered),
        *gate_invariants.violations(after, records, tampered),
    ]


def _places(after: Snapshot, records: dict[str, Record]) -> Iterator[str]:
    """An open job is in one place that its record honours, a finished one in none."""
    schedule = after.zsets.get("schedule", {})
    deadlines = after.zsets.get("deadlines", {})
    for job_id, record in records.items():
        named = after.named_entry(record)
        if record.status in TERMINAL:
            if named or job_id in schedule or job_id in deadlines:
                yield f"{job_id} is over but still in {named or 'the schedule or the deadlines'}"
            if record.fence or record.lease_until:
                yield f"{job_id} is over but still held under fence {record.fence}"
            continue
        if record.status in HELD:
            if job_id in schedule:
                yield f"{job_id} is {record.status} and scheduled as well"
            if not (record.fence and record.lease_until and record.worker):
                yield f"{job_id} is {record.status} by nobody: {record}"
        elif record.fence or record.lease_until:
            yield f"{job_id} is {record.status} but held under fence {record.fence}"
        if named is None and record.gate:
            if record.status not in WAITING or after.waiting(record).get(job_id) != record.number("pl"):
                yield f"{job_id} is {record.status} and does not wait at {record.gate}"
            if b"env" not in after.body(job_id):
                yield f"{job_id} is parked without its envelope"
            if job_id in schedule:
                yield f"{job_id} waits at a gate and is scheduled as well"
        elif named is None:
            if record.status not in WAITING or job_id not in schedule:
                yield f"{job_id} is {record.status} and nowhere"
            elif b"env" not in after.body(job_id):
                yield f"{job_id} is parked without its envelope"
            elif schedule[job_id] != record.number("du"):
                yield f"{job_id} is due {record.number('du')} but scheduled for {schedule[job_id]}"
        else:
            if not after.entry_stands(record):
                yield f"{job_id} is {record.status} and its entry {named} is gone"
            if job_id in schedule:
                yield f"{job_id} has the entry {named} and is scheduled as well"
            if b"env" in after.body(job_id):
                yield f"{job_id} has the entry {named} and its envelope in the body as well"
        deadline = record.number("dl")
        listed = deadline is not None and not (record.text("cx") or record.text("bu"))
        if listed and deadlines.get(job_id) != deadline:
            yield f"{job_id} has the deadline {deadline} but is listed with {deadlines.get(job_id)}"
    for name in ("schedule", "deadlines"):
        for job_id in after.zsets.get(name, {}):
            if f"job:{job_id}" not in after.strings:
                yield f"{name} names {job_id}, which has no record"


def _entries(after: Snapshot, records: dict[str, Record], tampered: Collection[str]) -> Iterator[str]:
    """Every entry of a lane is the one that its record honours, and quarantine holds the struck."""
    for stream, lane, kind in after.lane_streams():
        for entry, fields in after.streams[stream].items():
            job_id = fields.get(b"id", b"").decode()
            if job_id in tampered:
                continue
            record = records.get(job_id)
            if record is None or record.lane != lane or record.entry != (kind, entry):
                yield f"{stream} holds {entry} of {job_id}, which its record does not honour: {record}"
            elif kind == "q" and not record.strikes:
                yield f"{job_id} stands in quarantine without a strike"
        if not tampered:
            for entry in after.pending[stream]:
                if entry not in after.streams[stream]:
                    yield f"{stream} has {entry} pending but no longer holds it"


def _lives(after: Snapshot, records: dict[str, Record], tampered: Collection[str]) -> Iterator[str]:
    """State that is open has no TTL, everything else has one."""
    for name, ttl in after.ttls.items():
        kind, _, job_id = name.partition(":")
        if kind in ("job", "body"):
            record = records.get(job_id)
            if job_id in tampered:
                continue
            if record is None:
                yield f"{name} belongs to no readable record"
            elif (ttl == -1) != (record.status not in TERMINAL):
                yield f"{name} lives for {ttl} ms while the job is {record.status}"
        elif ttl == -1 and not is_live_state(f"{{any:0}}:{name}"):
            yield f"{name} has no TTL and is no live state"


def _keys(after: Snapshot, records: dict[str, Record], tampered: Collection[str]) -> Iterator[str]:
    """An open key belongs to an open job and never expires; a final one does."""
    for name, value in after.strings.items():
        if not name.startswith("key:"):
            continue
        job_id, _, state = value.decode().split(" ")
        if job_id in tampered:
            continue
        record = records.get(job_id)
        if (state == "open") != (after.ttls[name] == -1):
            yield f"{name} says {state} and lives for {after.ttls[name]} ms"
        if state == "open" and (record is None or record.status in TERMINAL):
            yield f"{name} is open for {job_id}, which is {record and record.status}"
        if state not in ("open", Status.SUCCEEDED):
            yield f"{name} is kept for a job that is {state}"
    for job_id, record in records.items():
        held = after.strings.get(f"key:{record.text('ky')}", b"").decode().split(" ")[0]
        if record.text("ky") and record.status not in TERMINAL and held != job_id:
            yield f"{job_id} is open and its key {record.text('ky')} belongs to {held or 'nobody'}"


def depth_of(record: Record) -> str | None:
    """The depth counter that counts this record."""
    if record.status in HELD:
        return f"in_flight:{record.lane}"
    if record.status in WAITING:
        if record.entry and record.entry[0] in "tb":
            return f"{'turned' if record.entry[0] == 't' else 'backlog'}:{record.lane}"
        place = "queued" if record.entry else "parked" if record.gate else "scheduled"
        return f"{place}:{record.lane}"
    return None


def _depths(after: Snapshot, tampered: Collection[str]) -> Iterator[str]:
    """The depth counters equal a recount."""
    counted = Counter(place for one in after.records().values() if (place := depth_of(one)))
    kept = {name: n for name, n in after.stats().items() if name.partition(":")[0] in DEPTHS}
    if not tampered and kept != counted:
        yield f"stats count {kept}, the records are {dict(counted)}"
    by_task = Counter(f"{place}:{one.task}" for one in after.records().values() if (place := depth_of(one)))
    found = depths_by_task(after)
    if not tampered and found != by_task:
        yield f"depths by task are {found}, the records are {dict(by_task)}"


def depths_by_task(after: Snapshot) -> dict[str, int]:
    """Who waits and runs by place, lane and task, as the counters say: what was enqueued was queued first."""
    counted = Counter({name.decode(): int(n) for name, n in after.hashes.get("depths", {}).items()})
    for name, n in after.stats().items():
        if name.startswith("enqueued:"):
            counted["queued:" + name.removeprefix("enqueued:")] += n
    return {name: n for name, n in counted.items() if n}


def _log(
    before: Snapshot, after: Snapshot, records: dict[str, Record], tampered: Collection[str]
) -> Iterator[str]:
    """Each new line raises the job's version by one along a legal edge, and ends where the record is."""
    numbers = [int(fields[b"n"]) for fields in after.streams.get("events", {}).values()]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the log's sequence numbers are {numbers}"
    last: dict[str, Line] = {}
    for line in after.lines():
        if line.job_id not in tampered:
            yield from _step(last.get(line.job_id), line)
        last[line.job_id] = line
    if before.lines() != after.lines()[: len(before.lines())]:
        yield "the log was rewritten"
    for job_id, record in records.items():
        if job_id not in last:
            yield f"{job_id} has a record and no line in the log"
            continue
        end = last[job_id]
        if (end.epoch, end.version, end.target) != (record.epoch, record.version, record.status):
            yield f"{job_id} is {record}, but its last line is {end}"


def _step(previous: Line | None, line: Line) -> Iterator[str]:
    if line.script == "restore":  # along no edge: Redis lost what came before
        return
    if line.source == "-":
        if previous is not None or (line.epoch, line.version) != (0, 1):
            yield f"{line.job_id} came into being twice: {line}"
        return
    moved_on = (
        line.reason in ("drained", "merged") and line.source == line.target
    )  # along no edge, from place to place
    if (line.source, line.target) not in TRANSITIONS and not moved_on:
        yield f"no edge leads from {line.source} to {line.target}: {line}"
    if previous is None:
        yield f"{line.job_id} has no beginning: {line}"
        return
    replayed = line.reason == "replayed"
    if line.version != previous.version + 1 or line.epoch != previous.epoch + replayed:
        yield f"the version does not follow: {previous} then {line}"
    if line.source != previous.target:
        yield f"{line.job_id} jumped: {previous} then {line}"
    if line.target == Status.CLAIMED and line.fence == 0:
        yield f"claimed without a fence: {line}"


def _fences(before: Snapshot, after: Snapshot, tampered: Collection[str]) -> Iterator[str]:
    """The counter never falls, and no two jobs share a fence."""
    counter = int(after.strings.get("fence", b"0"))
    if "fence" in tampered:
        return
    if counter < int(before.strings.get("fence", b"0")):
        yield f"the fence fell from {before.strings['fence']!r} to {counter}"
    held = [one.fence for one in after.records().values() if one.fence]
    if len(held) != len(set(held)):
        yield f"two jobs are held under one fence: {sorted(held)}"
    if held and counter < max(held):
        yield f"the fence stands at {counter}, but {max(held)} is in use"
