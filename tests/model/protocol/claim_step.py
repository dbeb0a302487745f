"""claim: what becomes of an entry that was delivered to a worker, offered by it or just read (D5's table)."""

from __future__ import annotations

from tests.model.protocol.draft import Draft
from tests.model.protocol.script import Script
from tests.model.protocol.state import (
    CLAIMED,
    DEAD,
    HELD,
    LIVE,
    MAX_STARTS,
    NO_ENTRY,
    OWN,
    PROCESSING,
    QUARANTINE,
    QUEUED,
    READY,
    RELEASE,
    UNDELIVERED,
    WAITING,
    Claim,
    Record,
)


class Room:
    """The slots that one claim call may fill, and what it filled them with."""

    def __init__(self, draft: Draft, worker: int, session: int, limit: int, apart: bool) -> None:
        self.worker = worker
        self.session = session
        self.claims: list[tuple[int, Claim]] = []
        self._left = {READY: limit, QUARANTINE: int(apart)}
        self._knows = None if worker == DEAD else draft.workers[worker]

    def fits(self, kind: str) -> bool:
        return self._left[kind] > 0

    def fill(self, job: int, claim: Claim) -> None:
        self._left[QUARANTINE if claim.apart else READY] -= 1
        self.claims.append((job, claim))

    # --- for the judge: what the worker knows

    def holds(self, job: int, fence: int) -> bool:
        if any(one == job for one, _ in self.claims):
            return True
        claim = None if self._knows is None else self._knows.claims[job]
        return claim is not None and claim.fence == fence

    def abandoned(self, entry: int) -> bool:
        return self._knows is not None and entry in self._knows.abandoned


def take(script: Script, entry: int, room: Room, *, offered: bool) -> None:
    """What becomes of one entry that was delivered to this worker."""
    job, _, _ = script.draft.entries[entry]
    record = script.load(job)
    if record is None or record.status not in WAITING | HELD:
        return script.drop(entry)
    if script.rules.entry and record.entry != entry:
        return script.drop(entry)
    if record.status in WAITING:
        return _take_waiting(script, job, entry, record, room, offered)
    return _take_held(script, job, entry, record, room, offered)


def _take_waiting(script: Script, job: int, entry: int, record: Record, room: Room, offered: bool) -> None:
    if script.deadline_passed(job) or record.starts >= MAX_STARTS:
        return script.fail(job)
    if not room.fits(script.draft.entries[entry].kind):
        script.ack_entry(job)
        return script.make_ready(job)
    if record.entry == NO_ENTRY:
        script.draft.blame(f"job {job} was claimed while it waits in the schedule")
    if record.cancel:
        script.draft.blame(f"job {job} was claimed although its cancel was accepted")
    script.move(job, CLAIMED, attempt=record.attempt + 1, starts=record.starts + 1)
    return _grant(script, job, entry, room, offered)


def _take_held(script: Script, job: int, entry: int, record: Record, room: Room, offered: bool) -> None:
    if record.holder != room.worker:
        if not script.rules.give_back:
            return script.drop(entry)
        return script.draft.own(entry, record.holder)
    older = record.session < room.session or not script.rules.older_session
    mine = record.status == CLAIMED or not script.rules.processing
    if not (older and mine and (offered or not script.rules.offered_only)):
        return None
    if not room.fits(script.draft.entries[entry].kind):
        return _hand_back(script, job, record)
    if record.status == PROCESSING:
        script.draft.blame(f"the handler of job {job} has begun, and it is given again as if it had not")
    if room.abandoned(entry):
        script.draft.blame(f"job {job} was left to recovery, and is given again for nothing")
    if room.holds(job, record.fence):
        script.draft.blame(f"worker {room.worker} holds job {job} and was given it again")
    return _grant(script, job, entry, room, offered)


def _hand_back(script: Script, job: int, record: Record) -> None:
    script.put(job, attempt=max(0, record.attempt - 1))
    if script.overruled(job):
        return script.fail(job)
    script.move(job, QUEUED)
    script.close_claim(job, RELEASE, OWN)
    script.ack_entry(job)
    return script.make_ready(job)


def _grant(script: Script, job: int, entry: int, room: Room, offered: bool) -> None:
    if offered and script.rules.own_offered and script.draft.entries[entry].owner != UNDELIVERED:
        script.draft.own(entry, room.worker)  # a sweep may have taken it over
    fence = script.new_fence(job)
    script.put(job, fence=fence, lease=LIVE, holder=room.worker, session=room.session)
    apart = script.draft.entries[entry].kind == QUARANTINE
    room.fill(job, Claim(fence, entry, apart))
