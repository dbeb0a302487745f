"""What is wrong, seen once for all steps: late lanes, ill dependencies, floods and storms. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from streamworker.core.breaker import BreakerState
from streamworker.core.lane import BACKLOG
from streamworker.ops.runbook.answer import Command, Kind
from streamworker.ops.runbook.sight import Crowd, Service, Sight
from streamworker.ops.top import LaneRow

#: Jobs that wait, from which on a lane without a target is looked at, and a tenant or a task may be a flood.
CROWD = 100
#: Part of what waits in a lane that one tenant has, from which on it is a flood.
FLOOD_SHARE = 0.5
#: Part of the calls that fail, and how many calls there must be, before a dependency is ill whose breaker
#: nobody declares: one that is declared says both itself.
FAILED_SHARE, FEWEST_CALLS = 0.2, 10
#: Part of all slots that the jobs of one dependency hold while others wait for a slot: it hangs.
HELD_SHARE = 0.6
#: Retries of one task and code that wait, and their part of all that waits for its time, to be a storm.
STORM, STORM_SHARE = 50, 0.25
#: Dead letters of one cause in an hour, and letters a second, that are a surge.
SURGE, SURGE_RATE = 20, 0.5
#: How long what the runbook proposes holds, unless somebody takes it back before.
FOR = "30m"


class Illness(StrEnum):
    """What is wrong with a dependency."""

    OPEN = "open"  # its breaker has seen it, and holds its jobs back
    FAILING = "failing"
    SLOW = "slow"
    PAUSED = "paused"  # by an operator


#: Those that somebody has to do something about.
ACUTE = frozenset({Illness.FAILING, Illness.SLOW})


@dataclass(frozen=True, slots=True)
class Case:
    """One look, judged."""

    sight: Sight
    critical: str | None
    late: tuple[LaneRow, ...]  # over their target, or growing; none that is paused
    deserted: tuple[LaneRow, ...]  # jobs are ready, and nobody serves them
    ill: Mapping[str, Illness]  # by dependency
    floods: tuple[tuple[str, str, int], ...]  # lane, tenant, how many wait: what still comes in
    storms: tuple[tuple[str, str, int], ...]  # task, code, how many wait for their retry

    @property
    def pressed(self) -> bool:
        """Something has to get better before anything more is let in."""
        return bool(self.late or self.deserted or ACUTE.intersection(self.ill.values()))

    def services_of(self, task: str) -> list[Service]:
        """The dependencies that a task uses."""
        return [each for each in self.sight.services if task in each.tasks]

    def look(self, *words: str, why: str) -> Command:
        """A command that changes nothing."""
        return Command(Kind.LOOK, (*words, "--app", self.sight.app), why)

    def change(self, *words: str, why: str) -> Command:
        """A command that helps now. It names its reason, and ends by itself where `words` say so."""
        return Command(Kind.CHANGE, (*words, "--reason", f"runbook: {why}", "--app", self.sight.app), why)

    def later(self, words: tuple[str, ...], why: str) -> Command:
        """A command that takes something back."""
        return Command(Kind.LATER, (*words, "--app", self.sight.app), why)


def judge(sight: Sight, critical: str | None = None) -> Case:
    """What is wrong.

    `critical` is the lane that matters most, by default `priority`, else the most urgent one.
    """
    return Case(
        sight=sight,
        critical=critical or critical_of(sight),
        late=tuple(row for row in sight.lanes if not row.paused and is_late(row)),
        deserted=tuple(row for row in sight.lanes if row.ready and not sight.serving.get(row.lane)),
        ill={each.name: found for each in sight.services if (found := illness(sight, each)) is not None},
        floods=tuple(floods(sight)),
        storms=tuple(storms(sight)),
    )


def critical_of(sight: Sight) -> str | None:
    """`priority` if there is such a lane, else the one with the shortest target, else the first."""
    if sight.lane("priority") is not None:
        return "priority"
    urgent = sorted(sight.lanes, key=lambda row: (row.target is None, row.target or 0.0, row.lane))
    return urgent[0].lane if urgent else None


def is_late(row: LaneRow) -> bool:
    """Whether a lane is over its target; one without is late when many wait and they become more."""
    if row.target is not None:
        return row.oldest is not None and row.oldest > row.target
    return row.ready + row.parked >= CROWD and (row.came_in or 0.0) > (row.went_out or 0.0)


def illness(sight: Sight, service: Service) -> Illness | None:
    """What is wrong with a dependency; None: nothing that can be seen."""
    if sight.paused(f"dependency:{service.name}") is not None:
        return Illness.PAUSED
    if service.state in (BreakerState.OPEN, BreakerState.HALF_OPEN):
        return Illness.OPEN
    share = FAILED_SHARE if service.share is None else service.share
    fewest = FEWEST_CALLS if service.fewest is None else service.fewest
    if service.failed and service.ok + service.failed >= fewest and service.failed_share >= share:
        return Illness.FAILING
    if sight.slots and sight.ready and service.running >= HELD_SHARE * sight.slots:
        return Illness.SLOW
    return None


def floods(sight: Sight) -> list[tuple[str, str, int]]:
    """Tenants that are most of what waits in a lane that is still being filled, the largest first."""
    found = []
    for lane, crowd in sight.crowds.items():
        row = sight.lane(lane)
        comes = sight.deferred if lane == BACKLOG else 0.0 if row is None else row.came_in or 0.0
        for tenant, count in crowd.tenants.items():
            if tenant and comes > 0 and count >= CROWD and count > FLOOD_SHARE * _all(sight, lane, crowd):
                found.append((lane, tenant, count))
    return sorted(found, key=lambda one: -one[2])


def _all(sight: Sight, lane: str, crowd: Crowd) -> int:
    row = sight.lane(lane)
    depth = 0 if lane == BACKLOG or row is None else row.ready + row.parked
    return max(depth, sum(crowd.tenants.values()))


def storms(sight: Sight) -> list[tuple[str, str, int]]:
    """Tasks and codes with many retries, the most first."""
    seen = sight.retries
    found = [
        (task, code, seen.estimate(count))
        for (task, code), count in seen.by_code.items()
        if seen.estimate(count) >= STORM and count >= STORM_SHARE * seen.sampled
    ]
    return sorted(found, key=lambda one: (-one[2], one[0], one[1]))
