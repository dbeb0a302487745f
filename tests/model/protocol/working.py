"""What workers do: they claim, run handlers, settle, renew, and find their way back after a failure (D5).

A worker has `Config.flights` calls under way at most. If it is one, nothing can happen between a call and its
answer that matters, so the answer is heard in the same step, or lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.protocol import settle_step, verbs
from tests.model.protocol.draft import Draft
from tests.model.protocol.faults import Fault
from tests.model.protocol.script import Script
from tests.model.protocol.state import (
    CLAIMED,
    CONNECTED,
    CUT,
    DEAD,
    DIED,
    HELD,
    LIVE,
    QUARANTINE,
    RENEWED,
    SUCCESS,
    UNDELIVERED,
    Answer,
    Claim,
    Record,
    Request,
    State,
    Worker,
)
from tests.model.protocol.stepping import Step, World, mishap


def answers(state: State) -> Iterator[Step]:
    for number, worker in enumerate(state.workers):
        if worker.answers:
            draft = Draft(state)
            draft.set_worker(number, answers=worker.answers[1:])
            _hear(draft, number, worker.answers[0])
            yield Step(("hears", number, worker.answers[0]), draft, calm=True)


def _hear(draft: Draft, number: int, answer: Answer) -> None:
    worker = draft.workers[number]
    if answer.verdict == "ERROR":
        draft.cut(number)
        return
    if answer.settle is not None:
        job, fence = answer.settle
        claim = worker.claims[job]
        if claim is not None and claim.fence == fence:
            draft.set_claim(number, job, None)
    for job, given in answer.claims:
        draft.set_claim(number, job, given)
    if answer.verdict == "NOSESSION":
        draft.cut(number)


def sessions(world: World, state: State) -> Iterator[Step]:
    """After a failure: a new session, then a look at what is pending for us."""
    for number, worker in enumerate(state.workers):
        if worker.link == CONNECTED:
            continue
        draft = Draft(state)
        draft.set_worker(number, link=RENEWED if worker.link == CUT else CONNECTED)
        if (worker.link == CUT) == world.rules.list_after:
            own = worker.session if world.rules.session_kept else 0
            session = max(own, worker.stored) + 1
            draft.set_worker(number, session=session, stored=session)
            yield Step(("opens session", number, session), draft, calm=True)
        else:
            offers = _pending(world, state, number)
            kept = tuple(one for one in worker.abandoned if state.entries[one - 1].owner == number)
            draft.set_worker(number, offers=offers, abandoned=kept)
            yield Step(("lists what is pending for it:", number, *offers), draft, calm=True)


def _pending(world: World, state: State, number: int) -> tuple[int, ...]:
    """What is pending for a worker and not known to it."""
    worker = state.workers[number]
    known = {claim.entry for claim in worker.claims if claim is not None and world.rules.offer_unheld}
    if world.rules.abandon:
        known.update(worker.abandoned)
    return tuple(
        entry
        for entry, (_, _, owner) in enumerate(state.entries, 1)
        if owner == number and entry not in known
    )


def readers(world: World, state: State) -> Iterator[Step]:
    """The blocking reader tells the pump what it was given (D7)."""
    for number, worker in enumerate(state.workers):
        if worker.reading and worker.link == CONNECTED:
            draft = Draft(state)
            known = {claim.entry for claim in worker.claims if claim is not None} | {*worker.abandoned}
            told = [one for one in worker.reading if one not in known or not world.rules.read_unheld]
            draft.set_worker(number, reading=(), offers=tuple(sorted((*worker.offers, *told))))
            yield Step(("hears what its reader was given:", number, *worker.reading), draft, calm=True)


def heartbeats(state: State) -> Iterator[Step]:
    """Where one changes something."""
    for number, worker in enumerate(state.workers):
        news = any(
            claim is not None and _is_news(state.records[job], claim)
            for job, claim in enumerate(worker.claims)
        )
        lost_key = worker.stored == 0 and worker.link == CONNECTED
        if news or lost_key:
            draft = Draft(state)
            if not verbs.heartbeat(draft, number) and lost_key:
                draft.cut(number)
            yield Step(("heartbeat", number), draft, calm=True)


def _is_news(record: Record | None, claim: Claim) -> bool:
    if record is None or record.status not in HELD or record.fence != claim.fence:
        return claim.outcome is None
    return record.lease != LIVE


def marks(world: World, state: State) -> Iterator[Step]:
    """The start mark of a handler that runs for a while (D20)."""
    for number, worker in enumerate(state.workers):
        for job, claim in enumerate(worker.claims):
            record = state.records[job]
            if claim is None or claim.outcome is not None or record is None:
                continue
            if record.status == CLAIMED and record.fence == claim.fence:
                draft = Draft(state)
                call = Script(draft, world.rules)
                settle_step.mark(call, job, claim.fence)
                call.commit()
                yield Step(("marks the start", number, job, claim.fence), draft)


def outcomes(world: World, state: State) -> Iterator[Step]:
    """A handler ends, and its outcome is sent at once; after a failure it is sent again."""
    for number, worker in enumerate(state.workers):
        for job, claim in enumerate(worker.claims):
            if claim is None or claim.sent:
                continue
            if claim.outcome is not None:
                yield from _exchanges(world, state, number, (job, claim.fence, claim.outcome), calm=True)
            elif not (world.config.killer and job == 0):
                for outcome in world.config.outcomes:
                    row = (job, claim.fence, outcome)
                    yield from _exchanges(world, state, number, row, calm=outcome == SUCCESS)
            elif claim.apart:
                yield from _exchanges(world, state, number, (job, claim.fence, DIED), calm=True)
            else:
                draft = Draft(state)
                crash(draft, number)
                yield Step(("is killed by job 0", number), draft, calm=True)


def claims(world: World, state: State) -> Iterator[Step]:
    for number in range(len(state.workers)):
        yield from _exchanges(world, state, number, None, calm=True)


def _exchanges(
    world: World, state: State, number: int, row: tuple[int, int, str] | None, *, calm: bool
) -> Iterator[Step]:
    """The calls that a worker may send now: executed at once, or late, or in part."""
    worker = state.workers[number]
    if worker.link != CONNECTED or len(worker.answers) >= world.config.flights:
        return
    request = _request(world, number, worker, row)
    picks = [
        entry
        for entry, (_, kind, owner) in enumerate(state.entries, 1)
        if owner == UNDELIVERED and (request.apart if kind == QUARANTINE else request.limit)
    ]
    if row is None and not worker.offers and not picks:
        return
    for pick in picks if row is None and not worker.offers else [None, *picks]:
        yield from _exchange(world, state, request, pick, calm)
    if state.faults[Fault.LOSS]:
        draft = Draft(state)
        _send(world, draft, request)
        draft.cut(number)
        draft.late.append(request)
        yield mishap(draft, Fault.LOSS, "loses its connection", number, request)


def _request(world: World, number: int, worker: Worker, row: tuple[int, int, str] | None) -> Request:
    """Claims for the slots that are free, the one of this row included."""
    running = [
        claim.apart
        for job, claim in enumerate(worker.claims)
        if claim is not None and claim.outcome is None and (row is None or job != row[0])
    ]
    asked = any(answer.asked for answer in worker.answers)
    limit = 0 if asked else world.config.slots - running.count(False)
    return Request(number, worker.session, row, worker.offers, limit, True not in running and not asked)


def _exchange(world: World, state: State, request: Request, pick: int | None, calm: bool) -> Iterator[Step]:
    def executed(cut: int | None) -> tuple[Draft, Answer, int]:
        draft = Draft(state)
        _send(world, draft, request)
        answer, writes = verbs.exchange(draft, world.rules, request, pick, cut)
        return draft, answer, writes

    def answered(draft: Draft, answer: Answer) -> Draft:
        if world.config.flights == 1:
            _hear(draft, request.worker, answer)
        else:
            under_way = draft.workers[request.worker].answers
            draft.set_worker(request.worker, answers=(*under_way, answer))
        return draft

    draft, answer, writes = executed(None)
    yield Step(("exchange", request, pick, None), answered(draft, answer), calm)
    if state.faults[Fault.LOSS] and world.config.flights == 1:
        draft, _, _ = executed(None)
        draft.cut(request.worker)
        yield mishap(draft, Fault.LOSS, "exchange", request, pick, "lost")
    if state.faults[Fault.ERROR]:
        for cut in range(writes):
            draft, answer, _ = executed(cut)
            yield mishap(answered(draft, answer), Fault.ERROR, "exchange", request, pick, cut)


def _send(world: World, draft: Draft, request: Request) -> None:
    """What the worker remembers of a call under way."""
    number = request.worker
    if world.rules.offer_once:
        draft.set_worker(number, offers=())
    if request.settle is not None:
        job, _, outcome = request.settle
        claim = draft.workers[number].claims[job]
        assert claim is not None
        sent = claim._replace(outcome=outcome, sent=True) if world.rules.hold_outcome else None
        draft.set_claim(number, job, sent)


def crash(draft: Draft, number: int) -> None:
    """The worker is gone, and what it holds is a dead worker's; a new one takes its place."""
    worker = draft.workers[number]
    for entry, (_, _, owner) in draft.entries.items():
        if owner == number:
            draft.own(entry, DEAD)
    for job, record in enumerate(draft.records):
        if record is not None and record.holder == number:
            draft.set_record(job, holder=DEAD, session=1)
    for at, call in enumerate(draft.late):
        if isinstance(call, Request) and call.worker == number:
            valid = call.session == worker.stored
            draft.late[at] = call._replace(worker=DEAD, session=int(valid))
    draft.workers[number] = Worker(claims=(None,) * len(worker.claims))


def attended(state: State, job: int, record: Record) -> bool:
    """Whether a living worker will renew this claim in time: it holds it, or is about to hear of it."""
    if record.holder < 0:
        return False
    worker = state.workers[record.holder]
    return holds(state, job, record) or will_look(worker) or record.entry in worker.offers


def holds(state: State, job: int, record: Record) -> bool:
    """Whether the holder that the record names lives and knows of its claim."""
    if record.holder < 0:
        return False
    claim = state.workers[record.holder].claims[job]
    return claim is not None and claim.fence == record.fence


def will_look(worker: Worker) -> bool:
    """Whether it is about to learn what is pending for it."""
    return worker.link != CONNECTED or bool(worker.answers) or bool(worker.reading)
