"""What keepers do: any worker, at any time, and two at once (D6)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.protocol import verbs
from tests.model.protocol.draft import Draft
from tests.model.protocol.faults import Fault
from tests.model.protocol.state import (
    DEAD,
    HELD,
    LIVE,
    OUT,
    SLOW,
    TERMINAL,
    UNDELIVERED,
    WAITING,
    Record,
    State,
)
from tests.model.protocol.stepping import Step, World, script
from tests.model.protocol.working import attended, will_look


def verdicts(world: World, state: State) -> Iterator[Step]:
    """What was decided about claims found dead, and the end of the hold after an outage."""
    for job, candidate in enumerate(state.candidates):
        if candidate is not None:
            yield from script(world, state, ("recovers", job), verbs.recover, job)
    if state.hold and not any(
        record is not None and record.lease == OUT and attended(state, job, record)
        for job, record in enumerate(state.records)
    ):
        draft = Draft(state)
        draft.hold = False
        yield Step(("the hold is over",), draft, calm=True)


def rounds(world: World, state: State) -> Iterator[Step]:
    """Deadlines, the schedule, leases that run out, the slow scan, and the sweep."""
    holding = state.hold and world.rules.outage
    for job, (aside, record) in enumerate(zip(state.asides, state.records, strict=True)):
        if aside.listed and (aside.deadline == OUT or record is None or record.status in TERMINAL):
            yield from script(world, state, ("expires", job), verbs.expire, job)
        if aside.scheduled:
            yield from script(world, state, ("promotes", job), verbs.promote, job)
        if record is None:
            continue
        if record.lease == LIVE and not attended(state, job, record):
            draft = Draft(state)
            draft.set_record(job, lease=OUT)
            yield Step(("the lease runs out of", job), draft, calm=True)
        if world.rules.repair and _to_repair(state, job, record, holding):
            yield from script(world, state, ("repairs", job), verbs.repair, job)
    if not holding:
        yield from _sweeps(world, state)


def _to_repair(state: State, job: int, record: Record, holding: bool) -> bool:
    """Whether the job is nowhere, or is over and has left its key open."""
    if record.status in TERMINAL:
        return state.key == (job, True)
    if record.entry > 0 or state.asides[job].scheduled:
        return False
    if record.status in HELD:
        return record.lease in (OUT, SLOW) and not holding and state.candidates[job] is None
    return record.status in WAITING


def _sweeps(world: World, state: State) -> Iterator[Step]:
    """Of entries that were idle for a lease, where a sweep changes something."""
    for entry, (job, _, owner) in enumerate(state.entries, 1):
        if owner == UNDELIVERED or state.candidates[job] is not None:
            continue
        record = state.records[job]
        honoured = record is not None and record.entry == entry
        if honoured and record is not None:
            if record.status in WAITING and _looked_after(state, entry, owner):
                continue
            if record.lease == LIVE and owner == record.holder:
                continue
        for sweeper in range(len(state.workers)):
            yield from script(world, state, ("sweeps", sweeper, entry), verbs.sweep, entry, sweeper)
            if not honoured or record is None or record.status not in HELD:
                break  # it goes, and who removes it makes no difference


def _looked_after(state: State, entry: int, owner: int) -> bool:
    """Whether a living worker will offer this entry in time."""
    if owner == DEAD or state.faults[Fault.PAUSE]:
        return False
    worker = state.workers[owner]
    return will_look(worker) or entry in worker.offers
