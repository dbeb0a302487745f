"""The scripts, write by write: each decides in memory, then writes in the order of D3.

A script may be cut off after any of its writes (R30), which is why a commit is a list of single writes. The
names are those of `lua/`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.model.protocol.draft import Draft
from tests.model.protocol.rules import Rules
from tests.model.protocol.state import (
    EDGES,
    FAIL,
    FAILED_TERMINAL,
    LIVE,
    NO_ENTRY,
    NOBODY,
    NONE,
    OUT,
    OWN,
    QUARANTINE,
    READY,
    SUCCEEDED,
    UNDELIVERED,
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
        self._effects.append((self._set, (job, "parked", True)))
        self._effects.append((self._set, (job, "scheduled", True)))

    def new_fence(self, job: int) -> int:
        """One more than all before it (D4)."""
        fence = self.draft.asides[job].fences + 1
        self._effects.append((self._set, (job, "fences", fence)))
        return fence

    def record_outcome(self, job: int) -> None:
        """For the judge: the attempt is charged, and this is what it came to."""
        self._outcomes[job] = self.record(job).attempt

    def clear(self, job: int, name: str) -> None:
        """In the clean-up: the job leaves `schedule` or `deadlines`, or its envelope the body."""
        self._clean.append((self._set, (job, name, False)))

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
            self.record_outcome(job)
        self.move(job, to)
        self.close_claim(job, outcome, by)
        if self.draft.key is not None and self.draft.key[0] == job:
            self.give_up_key(job, to)
        aside = self.draft.asides[job]
        if aside.listed:
            self.clear(job, "listed")
        if self.record(job).entry == NO_ENTRY:
            self.clear(job, "scheduled")
        if aside.parked:
            self.clear(job, "parked")
        self.ack_entry(job)

    def fail(self, job: int, by: str = OWN, *, charged: bool = False) -> None:
        self.finish(job, FAILED_TERMINAL, FAIL, by, charged=charged)

    def bury_without_envelope(self, job: int, by: str = OWN, *, charged: bool = False) -> None:
        """`entry_deleted`: nobody has the envelope any more."""
        if not self.draft.asides[job].deleted:
            self.draft.blame(f"job {job} ends entry_deleted, and nobody deleted its entry")
        self.fail(job, by, charged=charged)

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
            draft.candidates[job] = candidate._replace(
                fresh=False, renewed=candidate.renewed or record.lease == LIVE
            )
        if job in self._outcomes:
            bit = 1 << self._outcomes[job]
            recorded = draft.asides[job].recorded
            if recorded & bit:
                draft.blame(f"attempt {self._outcomes[job]} of job {job} has two outcomes")
            draft.set_aside(job, recorded=recorded | bit)

    def _set(self, job: int, name: str, value: object) -> None:
        self.draft.set_aside(job, **{name: value})

    def _add(self, entry: int, job: int, kind: str) -> None:
        self.draft.entries[entry] = Entry(job, kind, UNDELIVERED)

    def _remove(self, entry: int) -> None:
        self.draft.entries.pop(entry, None)

    def _write_key(self, key: tuple[int, bool] | None) -> None:
        self.draft.key = key
