"""Who was let in, parked or moved by gates and turnstiles: followed by the records, and judged.

After each call every job is where its record says, and that was allowed:

- a gate that got a holder has no more of them than it lets in, and a rate had a token;
- nobody of the same queue with an earlier place was passed over;
- nothing that is paused was claimed;
- whoever waits, waits for something: there is no room, or a timer stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamworker.core.job import Record
from streamworker.ops.tune import read_pauses
from tests.lua import gate_invariants
from tests.model.gates import LOCKS, Before, Pause, holders, kind_of, scopes, waiting, words
from tests.model.job import Job
from tests.model.seen import Seen
from tests.model.shard import Shard

#: Streams that a job enters when it is let in.
LET_IN = ("r", "q")


def follow(shard: Shard, job: Job, record: Record) -> None:
    """Put the job where its record says, if gates may have moved it there; a difference is found later."""
    job.place = record.number("pl")
    if not job.waiting:
        job.grants = ()
        return
    granted_before = bool(job.grants)
    job.grants = tuple((record.text("hg") or "").split())
    gate, entry = record.gate or "", record.entry
    if job.gate:
        if not gate and entry is not None and entry[0] in LET_IN:
            job.gate, job.entry = "", (entry[0], "")
    elif job.entry is not None and job.entry[1] == "":
        _follow_new(job, gate, entry)
    elif job.entry is not None and gate and granted_before:  # another one has taken its grant over
        shard.drop_entry(job)
        job.gate = gate
    elif job.entry is not None and job.entry[0] == "t" and entry is not None and entry[0] == "a":
        shard.drop_entry(job)
        job.entry = ("a", "")


def _follow_new(job: Job, gate: str, entry: tuple[str, str] | None) -> None:
    """The job was to get a new entry of a kind, or of any (`?`)."""
    assert job.entry is not None
    kind = job.entry[0]
    if gate and (kind == "?" or (kind == "a" and job.entity)):
        job.entry, job.gate = None, gate
    elif kind == "?" and entry is not None and entry[0] in LET_IN:
        job.entry = (entry[0], "")  # parked, and let in at once
    elif entry is not None and entry[0] == "t" and job.request.tenant and kind != "q":
        job.entry = ("t", "")


def wrong(shard: Shard, before: Before, seen: Seen) -> Iterator[str]:
    """What gates and turnstiles must not have done."""
    yield from gate_invariants.violations(seen.kept, seen.records, ())
    now_held = [
        job
        for job in shard.jobs.values()
        if job.held and not (job.id in before.jobs and before.jobs[job.id].held)
    ]
    yield from _pauses_hold(shard, now_held)
    yield from _tokens(shard, now_held)
    yield from _room(shard, before)
    yield from _order(shard, before, seen, now_held)
    yield from _places_stay(shard, before)
    yield from _locks_are_kept(shard, before)
    yield from _nobody_is_forgotten(shard, seen)
    yield from _follow_pauses(shard, seen)


def _pauses_hold(shard: Shard, claimed: list[Job]) -> Iterator[str]:
    for job in claimed:
        for scope in scopes(job):
            if shard.gates.paused(scope):
                yield f"{job.id} was claimed while {scope} is paused"


def _tokens(shard: Shard, claimed: list[Job]) -> Iterator[str]:
    for job in claimed:
        for name in words(job):
            if kind_of(name) == "rate" and not shard.gates.take_token(name, job, shard.now):
                yield f"{job.id} was claimed, and {name} had no token"


def _room(shard: Shard, before: Before) -> Iterator[str]:
    for name, members in holders(shard.jobs.values()).items():
        fresh = members - before.holders.get(name, set())
        if fresh and kind_of(name) in LOCKS:
            most = max(shard.gates.most(name, shard.jobs[job_id]) for job_id in fresh)
            if len(members) > most:
                yield f"{name} lets in {most}, and is held by {sorted(members)}; new: {sorted(fresh)}"


def _order(shard: Shard, before: Before, seen: Seen, claimed: list[Job]) -> Iterator[str]:
    """Whoever waited before the call and still waits was not passed over by a later place of its lane."""
    still = {
        (gate, lane): {one: place for one, place in members.items() if one in before.waiting[gate, lane]}
        for (gate, lane), members in waiting(seen.kept.zsets)
        if (gate, lane) in before.waiting and not shard.gates.paused(f"lane:{lane}")
    }
    for job_id, stood in before.jobs.items():  # let in by a grant
        job = shard.jobs.get(job_id)
        if job is not None and stood.gate and job.waiting and not job.gate and job.entry is not None:
            place = before.waiting.get((stood.gate, job.lane), {}).get(job_id)
            for (gate, lane), members in still.items():
                mine = gate == stood.gate and (lane == job.lane or kind_of(gate) == "entity")
                earlier = [one for one, at in members.items() if mine and place is not None and at < place]
                if earlier:
                    yield f"{gate} let {job_id} in before {earlier}"
    for job in shard.jobs.values():  # given to one that has just come
        for (gate, lane), members in still.items():
            if job.id not in before.jobs and gate in job.grants and members:
                yield f"{gate} was given to {job.id}, which has just come, before {sorted(members)} of {lane}"
    for job in claimed:  # passed by without waiting
        granted = before.jobs[job.id].grants if job.id in before.jobs else ()
        place = job.place or _first_place(seen.records[job.id])
        for name in words(job):
            if name in granted or kind_of(name) not in LOCKS:
                continue
            for (gate, lane), members in still.items():
                if gate == name and (lane == job.lane or kind_of(gate) == "entity"):
                    earlier = [one for one, at in members.items() if place is None or at < place]
                    if earlier:
                        yield f"{job.id} passed {gate} by {earlier}"


def _first_place(record: Record) -> int | None:
    """Of one that comes back and never had to wait: when it came, in 1/1024 ms (decision 0017)."""
    if record.text("sd") is None:
        return None
    due = (record.text("di") or "").removeprefix("SCHEDULED ")
    return int(due if due.isdecimal() else record.fields["at"]) * 1024


def _locks_are_kept(shard: Shard, before: Before) -> Iterator[str]:
    """Who is stopped at a later gate keeps the locks before it, and waiting for a token an entity too.

    The rest goes back, and all of it where something is paused (D12). An earlier place may take over several
    of its grants at once: then it keeps none of those.
    """
    held = holders(shard.jobs.values())
    for job_id, stood in before.jobs.items():
        job = shard.jobs.get(job_id)
        if job is None or not (stood.grants and job.gate) or stood.gate or stood.held:
            continue
        names, at = list(words(job)), kind_of(job.gate)
        kept = {
            name
            for name in stood.grants
            if kind_of(name) in LOCKS
            and at != "pause"
            and (names.index(name) < names.index(job.gate) or (kind_of(name), at) == ("entity", "rate"))
        }
        taken = {name for name in kept if held.get(name, set()) - before.holders.get(name, set())}
        if not kept - taken <= set(job.grants) <= kept:
            yield f"{job_id}, stopped at {job.gate}, keeps {job.grants} of {stood.grants}: should be {kept}"


def _places_stay(shard: Shard, before: Before) -> Iterator[str]:
    for job_id, stood in before.jobs.items():
        job = shard.jobs.get(job_id)
        if job is None or stood.place is None or job.over or job.epoch != stood.epoch:
            continue
        if job.place != stood.place:
            yield f"{job_id} had the place {stood.place}, and has {job.place}"


def _nobody_is_forgotten(shard: Shard, seen: Seen) -> Iterator[str]:
    timers = seen.kept.zsets.get("timers", {})
    held = holders(shard.jobs.values())
    for (gate, lane), members in waiting(seen.kept.zsets):
        if not members or shard.gates.paused(f"lane:{lane}"):
            continue
        kind = kind_of(gate)
        if {gate, f"limits:{kind}", f"lane:{lane}"} & timers.keys():
            continue
        first = shard.jobs.get(min(members, key=lambda one: members[one]))
        if first is None:
            yield f"{gate} is waited for by {min(members)}, which has no record"
        elif kind in LOCKS:
            if len(held.get(gate, ())) < shard.gates.most(gate, first):
                yield f"{gate} has room, {sorted(members)} wait there, and nobody will look"
        elif kind == "rate":
            yield f"{gate} gets tokens, {sorted(members)} wait there, and nobody will look"
        elif not shard.gates.paused(gate.removeprefix("pause:")):
            yield f"{gate} is open, {sorted(members)} wait there, and nobody will look"


def _follow_pauses(shard: Shard, seen: Seen) -> Iterator[str]:
    """A pause that runs out becomes a ramp, and a ramp ends when nobody waits any more."""
    found = {one.scope: Pause(one.state, one.until or 0) for one in read_pauses(seen.pauses)}
    pauses = shard.gates.pauses
    for scope in pauses.keys() | found.keys():
        expected, is_now = pauses.get(scope), found.get(scope)
        if expected == is_now:
            continue
        waits = any(job.gate == f"pause:{scope}" for job in shard.jobs.values())
        ran_out = expected is not None and expected.state == "paused" and 0 < expected.till <= shard.now
        if is_now is not None and is_now.state == "ramp" and ran_out:
            pauses[scope] = is_now
        elif is_now is None and expected is not None and not waits and (expected.state == "ramp" or ran_out):
            del pauses[scope]
        else:
            yield f"pause of {scope}: expected {expected}, found {is_now}"
