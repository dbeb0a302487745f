"""What producers and operators ask for."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.protocol import verbs
from tests.model.protocol.draft import Draft
from tests.model.protocol.faults import Fault
from tests.model.protocol.state import (
    FAILED_TERMINAL,
    LIVE,
    OUT,
    TERMINAL,
    UNKNOWN,
    Enqueue,
    Replay,
    State,
)
from tests.model.protocol.stepping import Step, World, mishap, script


def producers(world: World, state: State) -> Iterator[Step]:
    for job, aside in enumerate(state.asides):
        if aside.told != UNKNOWN:
            continue
        yield from script(world, state, ("enqueues", job), verbs.enqueue, job)
        if state.faults[Fault.RESEND]:
            draft = Draft(state)
            verbs.enqueue(draft, world.rules, job)
            draft.late.append(Enqueue(job))
            yield mishap(draft, Fault.RESEND, "enqueues, and will again,", job)


def operators(world: World, state: State) -> Iterator[Step]:
    for job, record in enumerate(state.records):
        if record is None:
            continue
        if state.faults[Fault.CANCEL] and record.status not in TERMINAL and not record.cancel:
            yield from script(world, state, ("cancels", job), verbs.cancel, job, spends=Fault.CANCEL)
        if state.faults[Fault.REPLAY] and record.status == FAILED_TERMINAL:
            draft = Draft(state)
            verbs.replay(draft, world.rules, job, record.epoch)
            draft.late.append(Replay(job, record.epoch))
            yield mishap(draft, Fault.REPLAY, "replays, and will again,", job, record.epoch)
        if state.faults[Fault.DEADLINE] and state.asides[job].deadline == LIVE:
            draft = Draft(state)
            draft.set_aside(job, deadline=OUT)
            yield mishap(draft, Fault.DEADLINE, "the deadline passes of", job)
