"""The workers of the stateful test: what a pump remembers, without its loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamworker.core.job import Claim
from streamworker.core.outcome import Outcome
from streamworker.store import scripts, settle_rows
from streamworker.store.connection import Argument
from tests.model import settling
from tests.model.claiming import Entry, Room
from tests.model.shard import Shard


@dataclass(frozen=True, slots=True)
class Row:
    """One settle row: a start mark (`outcome` None) or an outcome."""

    claim: Claim
    outcome: Outcome | None
    ran: bool = True

    def words(self) -> tuple[Argument, ...]:
        if self.outcome is None:
            return settle_rows.mark_row(self.claim, 20)
        return settle_rows.outcome_row(self.claim, self.outcome, 5 if self.ran else None)

    def predict(self, shard: Shard) -> str:
        if self.outcome is None:
            return settling.mark(shard, self.claim)
        return settling.settle(shard, self.claim, self.outcome, ran=self.ran)


@dataclass(slots=True, eq=False)
class Held:
    """A claim that a worker knows of, until its settle is acknowledged."""

    claim: Claim
    #: What it came to; sent again until it is answered.
    row: Row | None = None

    @property
    def place(self) -> Entry:
        return (self.claim.lane, self.claim.kind, self.claim.entry)


@dataclass(slots=True, eq=False)
class Hand:
    """One worker process. Its name is never used again (R7)."""

    name: str
    session: int = 0
    held: list[Held] = field(default_factory=list)
    #: Entries that were delivered and are offered in the next claim.
    offers: list[Entry] = field(default_factory=list)
    #: A reply was lost: a new session comes before the next claim (D5).
    broken: bool = True

    def let_go(self, held: Held) -> None:
        if held in self.held:
            self.held.remove(held)

    def places(self) -> set[Entry]:
        return {held.place for held in self.held}


@dataclass(frozen=True, slots=True)
class Asked:
    """An exchange as it was sent; it may execute later, when nobody waits for it any more."""

    worker: str
    session: int
    room: Room
    offers: tuple[Entry, ...]
    rows: tuple[Row, ...]

    def plan(self) -> str:
        """The `plan` argument. Every lane's quota is all that is shared, so that the order decides."""
        lanes = [f"{lane} {free} {self.room.shared} 0" for lane, free in self.room.reserved.items()]
        return "\n".join([*lanes, *map(scripts.quarantine_line, self.room.quarantine)])
