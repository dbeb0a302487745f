"""What the pump claims next: the plan of the slots, and what it remembers between claims."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from streamworker.core import lanes as lane_plan
from streamworker.core.job import Claim
from streamworker.core.lanes import Lane, Plan, Slots
from streamworker.worker.holdings import Holdings

#: Seconds for which a lane that had nothing is passed over while another one has work: with one slot, to ask
#: it in each call would cost the server two reads a job. A job that comes meanwhile is served as if it had
#: come so much later.
PASSED_OVER = 0.002
#: Seconds after which a lane that was paused is asked for again.
PAUSED_LOOK = 0.5
#: The same for a lane that opens by a ramp and has given its share: finer, so that its starts are even.
RAMP_LOOK = 0.1


class Planner:
    """Plans claims for one worker's slots, as far as they are free."""

    def __init__(
        self,
        lanes: Mapping[str, Lane],
        concurrency: int,
        holdings: Holdings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.concurrency = concurrency
        self._lanes = lanes
        self._declared = self._slots = Slots.of(lanes, concurrency)
        #: How long the jobs that came last from each lane with `aging` had waited, in ms.
        self._ages = {name: 0 for name, lane in lanes.items() if lane.aging is not None}
        self._state = lane_plan.State()
        self._emptied: dict[str, float] = {}  # when each lane was last asked in vain
        self._holdings = holdings
        self._paused: frozenset[str] = frozenset()
        self._clock = clock

    def take_up(self, lanes: Mapping[str, Lane]) -> None:
        """Other figures of the same lanes hold from the next plan on; what runs goes on."""
        self._lanes = lanes
        self._declared = Slots.of(lanes, self.concurrency)
        self._slots = self._declared.aged(lanes, self._ages) if self._ages else self._declared
        self.woken()

    def woken(self, lanes: Collection[str] | None = None) -> None:
        """These lanes (None: all) may have work again."""
        self._state = self._state.woken(lanes)

    def pause(self, lanes: Collection[str]) -> float:
        """These lanes are not read for now, as a claim has said: paused, or, as `lane~`, opening by a ramp.

        Returns the seconds after which to ask for them again.
        """
        self._paused = frozenset([lane.removesuffix("~") for lane in lanes])
        return RAMP_LOOK if any(lane.endswith("~") for lane in lanes) else PAUSED_LOOK

    def ask_paused(self) -> None:
        """They may run again: the next claim asks."""
        paused, self._paused = self._paused, frozenset()
        if paused:
            self.woken(paused)

    def eligible(self) -> list[str]:
        """Lanes with a free slot that are not paused."""
        found = lane_plan.eligible(self._slots, self._holdings.busy)
        return [lane for lane in found if lane not in self._paused] if self._paused else found

    def empty(self, lanes: Collection[str]) -> bool:
        """None of these lanes had work when it was last asked."""
        return self._state.idle.issuperset(lanes)

    def free(self, asked: int) -> int:
        """Slots that are free beside `asked`, the claims that calls under way may bring."""
        return self.concurrency - self._holdings.busy_slots - asked

    def next(self, under_way: Sequence[Plan | None], asked: int, *, idle_too: bool) -> Plan | None:
        """What to claim beside these calls, which may bring `asked` claims; None: nothing.

        Lanes that had nothing when last asked are not asked alone, unless `idle_too`: the reader hears of
        what comes, and the next call that asks another lane asks them as well.
        """
        free = self.free(asked)
        if free <= 0:
            return None
        plans = [plan for plan in under_way if plan is not None]
        without = () if idle_too else self._passed_over()
        plan = lane_plan.plan(
            self._slots, self._state, self._holdings.busy, free, under_way=plans, without=without
        )
        if not idle_too and self.empty([row.lane for row in plan.rows]):
            return None
        if not under_way and free * 4 > self.concurrency * 3:
            plan = plan.half()  # the other half is left to the next call, so that two are under way
        return plan if plan.limit > 0 else None

    def _passed_over(self) -> Collection[str]:
        """Lanes that had nothing a moment ago, and of which nothing was heard since."""
        idle = self._state.idle
        if not idle:
            return ()
        since = self._clock() - PASSED_OVER
        return [lane for lane in idle if self._emptied.get(lane, since) > since]

    def charge(self, plan: Plan, taken: Mapping[str, int], claims: Iterable[Claim] = ()) -> None:
        """Note what each lane got of a plan, and by its claims how old its jobs are."""
        self._state = lane_plan.charge(self._state, plan, taken)
        if self._state.emptied:
            self._emptied.update(dict.fromkeys(self._state.emptied, self._clock()))
        if self._ages:
            self._note_ages(taken, claims)

    def _note_ages(self, taken: Mapping[str, int], claims: Iterable[Claim]) -> None:
        """Weigh lanes anew. A lane that was asked and had nothing is young; one that was not asked stays.

        Only arrivals tell: what comes from ready waited for a time or a gate, not for its lane.
        """
        for lane, count in taken.items():
            if lane in self._ages and not count:
                self._ages[lane] = 0
        oldest: dict[str, int] = {}
        for claim in claims:
            if claim.kind == "a" and claim.lane in self._ages:
                oldest[claim.lane] = max(claim.age_ms, oldest.get(claim.lane, 0))
        self._ages.update(oldest)
        self._slots = self._declared.aged(self._lanes, self._ages)
