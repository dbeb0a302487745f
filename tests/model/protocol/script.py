"""The scripts, write by write: each decides in memory, then writes in the order of D3.

A script may be cut off after any of its writes (R30), which is why a commit is a list of single writes. The
names are those of `lua/`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.model.protocol.draft import Draft
from tests.model.protocol.policy import decided, fate
from tests.model.protocol.rules import Rules
from tests.model.protocol.state import (
    CLAIMED,
    DEAD,
    DIED,
    EDGES,
    FAIL,
    FAILED_TERMINAL,
    HELD,
    LIVE,
    MAX_STARTS,
    NO_ENTRY,
    NOBODY,
    NONE,
    OUT,
    OWN,
    PROCESSING,
    QUARANTINE,
    QUEUED,
    READY,
    RECOVERED,
    RELEASE,
    RETRY,
    RETRY_SCHEDULED,
    SUCCEEDED,
    SUCCESS,
    UNDELIVERED,
    WAITING,
    Candidate,
    Claim,
    Entry,
    Record,
    Settled,
)

Write = tuple[Callable[..., None], tuple[Any, ...]]


class Script:
    """One call of a script: its decisions, and the writes that they come to."""

    def __init__(self, draft: Draft, rules: Rules) -> None:
        self.draft = draft
        self.rules = rules
        self._records: dict[int, Record] = {}
        self._moved: set[int] = set()
        self._outcomes: dict[int, int] = {}  # job -> attempt whose outcome is recorded
        self._effects: list[Write] = []
        self._clean: list[Write] = []
        self._drops: list[Write] = []
        self._logged = False

    # --- deciding

    def load(self, job: int) -> Record | None:
        return self._records.get(job) or self.draft.records[job]

    def record(self, job: int) -> Record:
        record = self.load(job)
        assert record is not None
        return record

    def put(self, job: int, **changes: Any) -> Record:
        record = self._records[job] = self.record(job)._replace(**changes)
        return record

    def move(self, job: int, to: str, **changes: Any) -> None:
        """One step along an edge, with the line of the log."""
        source = self.record(job).status
        if (source, to) not in EDGES:
            self.draft.blame(f"job {job} moved {source} -> {to}, which is no edge")
        self.put(job, status=to, **changes)
        self._moved.add(job)

    def deadline_passed(self, job: int) -> bool:
        return self.draft.asides[job].deadline == OUT

    def overruled(self, job: int) -> bool:
        """Whether the cancel flag or the deadline wins over anything but a success (D9)."""
        return self.record(job).cancel or self.deadline_passed(job)

    def standing(self, entry: int) -> bool:
        return entry in self.draft.entries

    def envelope(self, job: int, carried: bool) -> bool:
        """Whether anybody still has it: the worker, the entry, the body (D8)."""
        if carried and self.rules.carry:
            return True
        return self.standing(self.record(job).entry) or self.draft.asides[job].parked

    def drop(self, entry: int) -> None:
        """XACK and XDEL."""
        self._drops.append((self._remove, (entry,)))

    def ack_entry(self, job: int) -> None:
        entry = self.record(job).entry
        if entry != NO_ENTRY:
            self.drop(entry)
            self.put(job, entry=NO_ENTRY)

    def make_ready(self, job: int) -> None:
        """To the ready stream, or to quarantine with strikes (D22)."""
        entry = self.draft.next_entry
        self.draft.next_entry += 1
        kind = QUARANTINE if self.record(job).strikes and self.rules.quarantine else READY
        self._effects.append((self._add, (entry, job, kind)))
        self.put(job, entry=entry)

    def park(self, job: int) -> None:
        """To the schedule, the envelope to the body (D8)."""
        self._effects.append((self.draft.set_aside_pair, (job, "parked", True)))
        self._effects.append((self.draft.set_aside_pair, (job, "scheduled", True)))

    def unschedule(self, job: int) -> None:
        self._clean.append((self.draft.set_aside_pair, (job, "scheduled", False)))

    def unlist(self, job: int) -> None:
        self._clean.append((self.draft.set_aside_pair, (job, "listed", False)))

    def unpark(self, job: int) -> None:
        self._clean.append((self.draft.set_aside_pair, (job, "parked", False)))

    def set_key(self, key: tuple[int, bool] | None) -> None:
        self._effects.append((self._write_key, (key,)))

    def give_up_key(self, job: int, final: str) -> None:
        """A success keeps the key for its window, anything else frees it (D11)."""
        if final == SUCCEEDED:
            self.set_key((job, False))
        elif self.rules.key_after:
            self._clean.append((self._write_key, (None,)))
        else:
            self.set_key(None)

    def close_claim(self, job: int, outcome: str, by: str) -> None:
        record = self.record(job)
        if record.fence:
            self.put(
                job,
                settled=Settled(record.fence, outcome, by),
                fence=0,
                lease=NONE,
                holder=NOBODY,
                session=0,
            )

    def finish(self, job: int, to: str, outcome: str, by: str, *, charged: bool) -> None:
        """succeeded or failed_terminal: frees or keeps the key, leaves schedule, deadlines and stream."""
        if charged:
            self._outcomes[job] = self.record(job).attempt
        self.move(job, to)
        self.close_claim(job, outcome, by)
        if self.draft.key is not None and self.draft.key[0] == job:
            self.give_up_key(job, to)
        aside = self.draft.asides[job]
        if aside.listed:
            self.unlist(job)
        if self.record(job).entry == NO_ENTRY:
            self.unschedule(job)
        if aside.parked:
            self.unpark(job)
        self.ack_entry(job)

    def fail(self, job: int, by: str = OWN, *, charged: bool = False) -> None:
        self.finish(job, FAILED_TERMINAL, FAIL, by, charged=charged)

    def bury_without_envelope(self, job: int, by: str = OWN, *, charged: bool = False) -> None:
        """`entry_deleted`: nobody has the envelope any more."""
        if not self.draft.asides[job].deleted:
            self.draft.blame(f"job {job} ends entry_deleted, and nobody deleted its entry")
        self.fail(job, by, charged=charged)

    # --- settle

    def settle(self, job: int, fence: int, outcome: str, worker: int) -> str:
        """An owner's outcome."""
        record = self.load(job)
        if record is None:
            return "GONE"
        if record.status not in HELD or record.fence != fence:
            if self.rules.fence or record.status not in HELD:
                return self._refusal(job, record, fence)
            self.draft.blame(f"an outcome under fence {fence} of job {job} was accepted under {record.fence}")
        if record.holder != worker:
            self.draft.blame(f"worker {record.holder} holds job {job}, and worker {worker} settles it")
        sent = decided(outcome, record.attempt, record.strikes)
        if record.status == CLAIMED:
            self.move(job, PROCESSING)  # it ended before its start mark: both edges
        if sent == RELEASE:
            self.put(job, attempt=max(0, record.attempt - 1))
        else:  # only a handler that ran to an end clears the strikes (D22)
            self.put(job, strikes=record.strikes + 1 if outcome == DIED else 0)
        if sent == SUCCESS:
            self.finish(job, SUCCEEDED, SUCCESS, OWN, charged=True)
        else:
            delayed = sent == RETRY and outcome != DIED
            self._end(job, sent, OWN, charged=sent != RELEASE, delayed=delayed, carried=True)
        return "OK"

    def _refusal(self, job: int, record: Record, fence: int) -> str:
        last = record.settled
        if last is None or last.fence != fence:
            return "STALE"
        if not self.rules.settled:
            if last.by == OWN:
                self.draft.blame(f"the owner of fence {fence} hears STALE of the outcome that is recorded")
            return "STALE"
        if last.by == RECOVERED:
            if self.rules.recovered:
                return "STALE"
            self.draft.blame(f"the owner of fence {fence} hears ALREADY of what a recovery recorded")
        return "ALREADY"

    def recover(self, job: int, judged: Candidate) -> str:
        """What a keeper decided for a claim that it found dead."""
        record = self.load(job)
        if record is None or record.status not in HELD or record.fence != judged.fence:
            return "STALE"
        if self.rules.lease and record.lease == LIVE:
            return "STALE"
        if self.rules.version and not judged.fresh:
            return "STALE"
        if record.lease == LIVE:
            self.draft.blame(f"job {job} was recovered while its lease was live")
        if record.status != judged.status:
            self.draft.blame(f"job {job} was judged as {judged.status} and recovered as {record.status}")
        if record.lease == OUT and record.holder != DEAD:
            self.draft.blame(f"job {job} was recovered from worker {record.holder}, which lives")
        charged = record.status == PROCESSING
        outcome = fate(judged.status, record.attempt, record.strikes)
        attempt = record.attempt if charged else max(0, record.attempt - 1)
        self.put(job, strikes=record.strikes + 1, attempt=attempt)
        self._end(job, outcome, RECOVERED, charged=charged, delayed=False, carried=False)
        return "OK"

    def _end(self, job: int, outcome: str, by: str, *, charged: bool, delayed: bool, carried: bool) -> None:
        if outcome == FAIL or (self.rules.flag and self.overruled(job)):
            return self.fail(job, by, charged=charged)
        if not self.envelope(job, carried):
            if carried:
                self.draft.blame(f"job {job} ends entry_deleted, and its worker has the envelope")
            return self.bury_without_envelope(job, by, charged=charged)
        if charged:
            self._outcomes[job] = self.record(job).attempt
        self.move(job, RETRY_SCHEDULED if outcome == RETRY else QUEUED)
        self.close_claim(job, outcome, by)
        self.ack_entry(job)
        return self.park(job) if delayed else self.make_ready(job)

    def mark(self, job: int, fence: int) -> None:
        """The start mark, which extends the lease."""
        record = self.load(job)
        if record is not None and record.status == CLAIMED and record.fence == fence:
            self.move(job, PROCESSING, lease=LIVE)

    # --- claim: D5's table

    def take(self, entry: int, room: Room, *, offered: bool) -> None:
        """What becomes of one entry that was delivered to this worker."""
        job, _, _ = self.draft.entries[entry]
        record = self.load(job)
        if record is None or record.status not in WAITING | HELD:
            return self.drop(entry)
        if self.rules.entry and record.entry != entry:
            return self.drop(entry)
        if record.status in WAITING:
            return self._take_waiting(job, entry, record, room)
        return self._take_held(job, entry, record, room, offered)

    def _take_waiting(self, job: int, entry: int, record: Record, room: Room) -> None:
        if self.deadline_passed(job) or record.starts >= MAX_STARTS:
            return self.fail(job)
        if not room.fits(self.draft.entries[entry].kind):
            self.ack_entry(job)
            return self.make_ready(job)
        if record.entry == NO_ENTRY:
            self.draft.blame(f"job {job} was claimed while it waits in the schedule")
        if record.cancel:
            self.draft.blame(f"job {job} was claimed although its cancel was accepted")
        self.move(job, CLAIMED, attempt=record.attempt + 1, starts=record.starts + 1)
        return self._grant(job, entry, room)

    def _take_held(self, job: int, entry: int, record: Record, room: Room, offered: bool) -> None:
        if record.holder != room.worker:
            if not self.rules.give_back:
                return self.drop(entry)
            return self.draft.own(entry, record.holder)
        older = record.session < room.session or not self.rules.older_session
        mine = record.status == CLAIMED or not self.rules.processing
        if not (older and mine and (offered or not self.rules.offered_only)):
            return None
        if not room.fits(self.draft.entries[entry].kind):
            return self._hand_back(job, record)
        if record.status == PROCESSING:
            self.draft.blame(f"the handler of job {job} has begun, and it is given again as if it had not")
        if room.abandoned(entry):
            self.draft.blame(f"job {job} was left to recovery, and is given again for nothing")
        if room.holds(job, record.fence):
            self.draft.blame(f"worker {room.worker} holds job {job} and was given it again")
        return self._grant(job, entry, room)

    def _hand_back(self, job: int, record: Record) -> None:
        self.put(job, attempt=max(0, record.attempt - 1))
        if self.overruled(job):
            return self.fail(job)
        self.move(job, QUEUED)
        self.close_claim(job, RELEASE, OWN)
        self.ack_entry(job)
        return self.make_ready(job)

    def _grant(self, job: int, entry: int, room: Room) -> None:
        fence = self.draft.asides[job].fences + 1
        self._effects.append((self.draft.set_aside_pair, (job, "fences", fence)))
        self.put(job, fence=fence, lease=LIVE, holder=room.worker, session=room.session)
        apart = self.draft.entries[entry].kind == QUARANTINE
        room.fill(job, Claim(fence, entry, apart))

    # --- writing

    def commit(self, cut: int | None = None) -> int:
        """Write in the order of D3, as far as write number `cut`; how many writes there were to make."""
        rules = self.rules
        events: list[Write] = [(self._log, ())] if self._moved else []
        records: list[Write] = [(self._save, (job,)) for job in self._records]
        body = [*self._effects, *records] if rules.record_after else [*records, *self._effects]
        body = [*events, *body] if rules.event_first else [*body, *events]
        if not rules.add_first:
            body = [*self._clean, *body]
        else:
            body += self._clean
        writes = [*body, *self._drops] if rules.entry_last else [*self._drops, *body]
        for write, arguments in writes[:cut]:
            write(*arguments)
        if not self._logged and any(job in self._moved for job in self._saved()):
            self.draft.blame("a record moved, and the log does not show it")
        return len(writes)

    def _saved(self) -> list[int]:
        return [job for job, record in self._records.items() if self.draft.records[job] == record]

    def _log(self) -> None:
        self._logged = True

    def _save(self, job: int) -> None:
        draft = self.draft
        before, record = draft.records[job], self._records[job]
        draft.records[job] = record
        if before is not None and before.epoch != record.epoch:
            draft.set_aside(job, recorded=0, deadline=NONE)
        candidate = draft.candidates[job]
        if job in self._moved and candidate is not None:
            draft.candidates[job] = candidate._replace(fresh=False)
        if job in self._outcomes:
            bit = 1 << self._outcomes[job]
            recorded = draft.asides[job].recorded
            if recorded & bit:
                draft.blame(f"attempt {self._outcomes[job]} of job {job} has two outcomes")
            draft.set_aside(job, recorded=recorded | bit)

    def _add(self, entry: int, job: int, kind: str) -> None:
        self.draft.entries[entry] = Entry(job, kind, UNDELIVERED)

    def _remove(self, entry: int) -> None:
        self.draft.entries.pop(entry, None)

    def _write_key(self, key: tuple[int, bool] | None) -> None:
        self.draft.key = key


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
