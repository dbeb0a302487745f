"""The scripts that are called, each as a whole. They change a draft and return their reply.

`cut` is the number of writes after which Redis refuses to go on; the reply is then ERROR. Each returns also
how many writes there were to make.
"""

from __future__ import annotations

from tests.model.protocol import claim_step, settle_step
from tests.model.protocol.claim_step import Room
from tests.model.protocol.draft import Draft
from tests.model.protocol.rules import Rules
from tests.model.protocol.script import Script, Write
from tests.model.protocol.state import (
    ACCEPTED,
    DEAD,
    DUPLICATE,
    FAILED_TERMINAL,
    HELD,
    LIVE,
    NO_ENTRY,
    QUEUED,
    READY,
    TERMINAL,
    UNDELIVERED,
    WAITING,
    Answer,
    Candidate,
    Entry,
    Record,
    Request,
)


def exchange(
    draft: Draft, rules: Rules, request: Request, pick: int | None, cut: int | None = None
) -> tuple[Answer, int]:
    """Settle what ended, then claim: the offered entries, and `pick` of those that nobody was given."""
    script = Script(draft, rules)
    row = request.settle
    if row is not None:
        settle_step.settle(script, *row, request.worker)
    asked = bool(request.limit or request.apart or request.offers)
    room = Room(draft, request.worker, request.session, request.limit, request.apart)
    served = asked and _session_holds(draft, rules, request)
    if served:
        for entry in request.offers:
            if entry in draft.entries:
                claim_step.take(script, entry, room, offered=True)
        if pick is not None:
            draft.own(pick, request.worker)
            claim_step.take(script, pick, room, offered=False)
    writes = script.commit(cut)
    settled = row and row[:2]
    if cut is not None and cut < writes:
        return Answer("ERROR", settled, (), asked), writes
    verdict = "OK" if served or not asked else "NOSESSION"
    return Answer(verdict, settled, tuple(room.claims), asked), writes


def _session_holds(draft: Draft, rules: Rules, request: Request) -> bool:
    """Without the worker's own session, a late call finds nothing (D5)."""
    if not rules.session:
        return True
    if request.worker == DEAD:  # its key lives on for a while: the session is 1, or no longer that
        return request.session == 1
    stored = draft.workers[request.worker].stored
    return stored == request.session or (not rules.session_kept and stored == 0)


def heartbeat(draft: Draft, worker: int) -> bool:
    """Renew what is still ours; what is lost and still runs is ended. False: the worker's key is gone."""
    at = draft.workers[worker]
    for job, claim in enumerate(at.claims):
        if claim is None:
            continue
        record = draft.records[job]
        if record is not None and record.status in HELD and record.fence == claim.fence:
            draft.set_record(job, lease=LIVE)
            judged = draft.candidates[job]
            if judged is not None:
                draft.candidates[job] = judged._replace(renewed=True)
            if record.entry in draft.entries and draft.entries[record.entry].owner != UNDELIVERED:
                draft.own(record.entry, worker)
        elif claim.outcome is None:
            draft.set_claim(worker, job, None)
    return at.stored != 0


def sweep(draft: Draft, rules: Rules, entry: int, sweeper: int, cut: int | None = None) -> int:
    """One entry that is pending, taken over by a keeper (D6)."""
    job = draft.entries[entry].job
    script = Script(draft, rules)
    record = draft.records[job]
    draft.own(entry, sweeper)
    if record is None or record.status in TERMINAL or (rules.entry and record.entry != entry):
        script.drop(entry)
    elif record.status in WAITING:
        if record.entry == NO_ENTRY:
            draft.blame(f"job {job} was made ready while it waits in the schedule")
        script.ack_entry(job)
        script.make_ready(job)
    elif record.lease == LIVE:
        draft.own(entry, record.holder)
    else:
        draft.candidates[job] = Candidate(record.fence, record.status)
    return script.commit(cut)


def recover(draft: Draft, rules: Rules, job: int, cut: int | None = None) -> int:
    """What was decided for a candidate, committed through settle."""
    judged = draft.candidates[job]
    assert judged is not None
    script = Script(draft, rules)
    settle_step.recover(script, job, judged)
    writes = script.commit(cut)
    draft.candidates[job] = None
    return writes


def repair(draft: Draft, rules: Rules, job: int, cut: int | None = None) -> int:
    """One record of the slow scan: a job that is nowhere (D3, D8), or a key that an error left."""
    script = Script(draft, rules)
    record = script.record(job)
    if record.status in TERMINAL:
        script.give_up_key(job, record.status)
    elif record.status in HELD:
        draft.candidates[job] = Candidate(record.fence, record.status)
    elif draft.asides[job].parked:
        script.make_ready(job)
        script.clear(job, "scheduled")
        script.clear(job, "parked")
    else:
        script.bury_without_envelope(job)
    return script.commit(cut)


def promote(draft: Draft, rules: Rules, job: int, cut: int | None = None) -> int:
    """A due job to its ready stream; a due id that is not waiting is dropped."""
    script = Script(draft, rules)
    record = script.load(job)
    if record is not None and record.status in WAITING and record.entry == NO_ENTRY:
        if draft.asides[job].parked:
            script.make_ready(job)
            script.clear(job, "scheduled")
            script.clear(job, "parked")
        else:
            script.bury_without_envelope(job)
    else:
        script.clear(job, "scheduled")
    return script.commit(cut)


def expire(draft: Draft, rules: Rules, job: int, cut: int | None = None) -> int:
    """A passed deadline: terminal where nobody holds the job, else a flag (D9)."""
    script = Script(draft, rules)
    record = script.load(job)
    if record is not None and record.status in WAITING:
        script.fail(job)
    else:
        if record is not None and record.status in HELD:
            script.put(job, cancel=True)
        script.clear(job, "listed")
    return script.commit(cut)


def cancel(draft: Draft, rules: Rules, job: int, cut: int | None = None) -> int:
    """At once where nobody holds the job, else a flag."""
    script = Script(draft, rules)
    if script.record(job).status in WAITING:
        script.fail(job)
    else:
        script.put(job, cancel=True)
    return script.commit(cut)


def replay(draft: Draft, rules: Rules, job: int, epoch: int, cut: int | None = None) -> int:
    """failed_terminal -> queued in a new epoch, named by the epoch that is meant (D23)."""
    script = Script(draft, rules)
    record = script.load(job)
    if record is None or record.status != FAILED_TERMINAL:
        return 0
    if record.epoch != epoch:
        if rules.epoch:
            return 0
        draft.blame(f"a replay of epoch {epoch} of job {job} was done again in epoch {record.epoch}")
    if draft.asides[job].keyed:
        if rules.replay_key and draft.key is not None and draft.key[0] != job and key_holds(draft, rules):
            return 0
        if rules.replay_key:
            script.set_key((job, True))
    script.move(
        job,
        QUEUED,
        epoch=record.epoch + 1,
        attempt=0,
        starts=0,
        strikes=0,
        settled=None,
        cancel=False,
    )
    script.make_ready(job)
    return script.commit(cut)


def key_holds(draft: Draft, rules: Rules) -> bool:
    """Whether the idempotency key is taken: by a job that is not over, or by one that succeeded."""
    if draft.key is None:
        return False
    job, is_open = draft.key
    record = draft.records[job]
    if not is_open:
        return True
    return not rules.open_key if record is None else record.status != FAILED_TERMINAL


def enqueue(draft: Draft, rules: Rules, job: int, cut: int | None = None) -> int:
    """A new job; sent again it changes nothing. Begins with the growing write (R31)."""
    if draft.records[job] is not None:
        draft.set_aside(job, told=ACCEPTED)
        return 0
    keyed = draft.asides[job].keyed
    if keyed and draft.key is not None and key_holds(draft, rules):
        draft.set_aside(job, told=ACCEPTED if draft.key[0] == job else DUPLICATE)
        return 0
    entry = draft.next_entry
    draft.next_entry += 1
    place: list[Write] = [(draft.entries.__setitem__, (entry, Entry(job, READY, UNDELIVERED)))]
    key: list[Write] = [(setattr, (draft, "key", (job, True)))] if keyed else []
    record: list[Write] = [(draft.records.__setitem__, (job, Record(QUEUED, entry=entry)))]
    writes = [*place, *key, *record] if rules.record_after else [*record, *place, *key]
    for write, arguments in writes[:cut]:
        write(*arguments)
    if cut is None or cut >= len(writes):
        draft.set_aside(job, told=ACCEPTED)
    return len(writes)


def delete_entry(draft: Draft, entry: int) -> None:
    """Somebody deletes an entry under us (D8)."""
    job = draft.entries.pop(entry).job
    draft.set_aside(job, deleted=True)
