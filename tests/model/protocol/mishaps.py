"""What goes wrong."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.protocol import verbs
from tests.model.protocol.draft import Draft
from tests.model.protocol.faults import Fault
from tests.model.protocol.state import (
    DEAD,
    LIVE,
    OUT,
    READY,
    SLOW,
    TERMINAL,
    UNDELIVERED,
    Replay,
    Request,
    State,
)
from tests.model.protocol.stepping import Step, World, mishap
from tests.model.protocol.working import crash


def late(world: World, state: State) -> Iterator[Step]:
    """Calls of connections that broke, executed after all."""
    for at, call in enumerate(state.late):
        picks: list[int | None] = [None]
        if isinstance(call, Request) and call.limit:
            picks += _unread(state)
        for pick in picks:
            draft = Draft(state)
            del draft.late[at]
            if isinstance(call, Request):
                verbs.exchange(draft, world.rules, call, pick)
                if call.worker >= 0:
                    draft.excuse(call.worker)
            elif isinstance(call, Replay):
                verbs.replay(draft, world.rules, call.job, call.epoch)
            else:
                verbs.enqueue(draft, world.rules, call.job)
            yield Step(("late", call, pick), draft)


def forget_late(draft: Draft) -> None:
    """Calls that do nothing whenever they are executed: their session is over, and so is their claim."""
    draft.late = [call for call in draft.late if not isinstance(call, Request) or _matters(draft, call)]


def _matters(draft: Draft, call: Request) -> bool:
    session = 1 if call.worker == DEAD else draft.workers[call.worker].stored
    if call.session == session:
        return True
    if call.settle is None:
        return False
    record = draft.records[call.settle[0]]
    return record is not None and record.fence == call.settle[1]


def of_workers(state: State) -> Iterator[Step]:
    left = state.faults
    for number, worker in enumerate(state.workers):
        if left[Fault.LOSS] and worker.answers:
            draft = Draft(state)
            draft.cut(number)
            yield mishap(draft, Fault.LOSS, "loses its answers", number)
        if left[Fault.CRASH]:
            draft = Draft(state)
            crash(draft, number)
            yield mishap(draft, Fault.CRASH, "is killed", number)
        if left[Fault.EXPIRY] and worker.stored:
            draft = Draft(state)
            draft.set_worker(number, stored=0)
            yield mishap(draft, Fault.EXPIRY, "has no key in Redis any more", number)
        if left[Fault.READ]:
            yield from _reads(state, number)
        if left[Fault.REFUSAL]:
            yield from _refusals(state, number)


def _reads(state: State, number: int) -> Iterator[Step]:
    """The blocking reader is given an entry; it tells the pump later, or fails (D7, R18)."""
    for entry in _unread(state):
        draft = Draft(state)
        draft.own(entry, number)
        draft.set_worker(number, reading=tuple(sorted((*draft.workers[number].reading, entry))))
        yield mishap(draft, Fault.READ, "reads", number, entry)
        draft = Draft(state)
        draft.own(entry, number)
        draft.cut(number)
        yield mishap(draft, Fault.READ, "fails to read what it was given:", number, entry)


def _refusals(state: State, number: int) -> Iterator[Step]:
    for job, claim in enumerate(state.workers[number].claims):
        record = state.records[job]
        if claim is not None and record is not None and record.fence == claim.fence and claim.entry > 0:
            draft = Draft(state)
            draft.cut(number)
            draft.set_claim(number, job, None)
            abandoned = (*draft.workers[number].abandoned, claim.entry)
            draft.set_worker(number, abandoned=tuple(sorted(abandoned)))
            draft.set_record(job, lease=SLOW)
            yield mishap(draft, Fault.REFUSAL, "cannot settle, and leaves to recovery, job", number, job)


def of_jobs(state: State) -> Iterator[Step]:
    left = state.faults
    for job, record in enumerate(state.records):
        if record is None:
            continue
        if left[Fault.PAUSE] and record.lease == LIVE and record.holder != DEAD:
            draft = Draft(state)
            draft.set_record(job, lease=SLOW)
            yield mishap(draft, Fault.PAUSE, "its holder lives, and is too slow for the lease of", job)
        if left[Fault.RETENTION] and record.status in TERMINAL:
            draft = Draft(state)
            draft.records[job] = None
            draft.set_aside(job, expired=True, parked=False)
            yield mishap(draft, Fault.RETENTION, "the record expires of", job)
        if left[Fault.DELETION] and record.entry > 0:
            draft = Draft(state)
            verbs.delete_entry(draft, record.entry)
            if record.holder >= 0:
                draft.excuse(record.holder)
            yield mishap(draft, Fault.DELETION, "the entry is deleted of", job)


def of_redis(world: World, state: State) -> Iterator[Step]:
    left = state.faults
    if left[Fault.GROUP] and any(owner != UNDELIVERED for _, _, owner in state.entries):
        draft = Draft(state)
        for entry in draft.entries:
            draft.own(entry, UNDELIVERED)
        for number in range(len(draft.workers)):
            draft.excuse(number)
        yield mishap(draft, Fault.GROUP, "the group is made again at 0")
    if left[Fault.OUTAGE] and any(record is not None and record.lease == LIVE for record in state.records):
        draft = Draft(state)
        for job, record in enumerate(state.records):
            if record is not None and record.lease == LIVE:
                draft.set_record(job, lease=OUT)
        for number in range(len(draft.workers)):
            draft.cut(number)
        draft.hold = True
        yield mishap(draft, Fault.OUTAGE, "Redis is away for longer than a lease")
    if left[Fault.COUNTER]:
        draft = Draft(state)
        if not world.rules.fence_grows:  # with the rule, the clock makes the next fence greater
            for job in range(len(draft.asides)):
                draft.set_aside(job, fences=0)
        yield mishap(draft, Fault.COUNTER, "the fence counter is lost")


def _unread(state: State) -> list[int]:
    """Entries of the lanes' streams that nobody was given."""
    return [
        entry
        for entry, (_, kind, owner) in enumerate(state.entries, 1)
        if owner == UNDELIVERED and kind == READY
    ]
