"""A job's life cut into holdings: from each claim to the edge that ended it, with the handlers in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from streamworker.core.states import HELD, Reason, Status
from streamworker.store.events import Transition
from tests.chaos.history import End, Life, Start

#: Reasons of edges by which a holding ends although no handler came to an outcome.
NO_OUTCOME = frozenset({Reason.RECOVERED, Reason.NO_SLOT})


@dataclass(slots=True)
class Holding:
    """One claim of a job. Its fence may rise without an edge, when a lost reply is made up for (D5)."""

    claim: Transition
    #: The edge by which it ended; None while it lasts.
    over: Transition | None = None
    starts: list[Start] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)

    @property
    def since(self) -> float:
        """When it began, in seconds since the epoch."""
        return self.claim.at_ms / 1000

    @property
    def newest_fence(self) -> int:
        """The newest fence that anybody is known to have held it by."""
        return max([self.claim.fence, *(start.fence for start in self.starts)])

    @property
    def has_outcome(self) -> bool:
        """Whether its owner said what the attempt came to."""
        return self.over is not None and self.over.reason not in NO_OUTCOME


def holdings(life: Life) -> list[Holding]:
    """The holdings of one job, oldest first; starts and ends under no claim's fence belong to none."""
    found: list[Holding] = []
    for edge in life.edges:
        if edge.to_status is Status.CLAIMED:
            found.append(Holding(edge))
        elif edge.from_status in HELD and edge.to_status not in HELD and found and found[-1].over is None:
            found[-1].over = edge
    for start in life.starts:
        if (holding := _of(found, start.fence)) is not None:
            holding.starts.append(start)
    for end in life.ends:
        if (holding := _of(found, end.fence)) is not None:
            holding.ends.append(end)
    return found


def strays(life: Life, found: list[Holding]) -> Iterator[Start]:
    """The starts under a fence that is older than every claim."""
    for start in life.starts:
        if _of(found, start.fence) is None:
            yield start


def _of(found: list[Holding], fence: int) -> Holding | None:
    """The newest claim that is not newer than this fence."""
    return next((holding for holding in reversed(found) if holding.claim.fence <= fence), None)
