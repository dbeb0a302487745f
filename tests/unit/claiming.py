"""A worker in memory that claims by plan, for the tests of the plan."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from streamworker.core.lanes import Lane, Plan, Slots, State, charge, plan

ENDLESS = 10**9
LANES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]),
    st.builds(Lane, reserved=st.integers(0, 20), weight=st.integers(1, 8)),
    min_size=1,
)


def run_script(plan: Plan, work: dict[str, int]) -> dict[str, int]:
    """Claim from `work` in the two passes of the claim script; return what each lane got."""
    left, shared = plan.limit, plan.shared
    own = {row.lane: row.reserved for row in plan.rows}
    taken = dict.fromkeys(own, 0)
    for first in (True, False):
        for row in plan.rows:
            extra = min(shared, row.quota) if first else shared
            got = min(left, own[row.lane] + extra, work[row.lane])
            from_own = min(got, own[row.lane])
            own[row.lane] -= from_own
            shared -= got - from_own
            left -= got
            work[row.lane] -= got
            taken[row.lane] += got
    return taken


class Worker:
    """A worker that claims by plan and ends jobs when told; `work` is what waits in each lane."""

    def __init__(self, lanes: Mapping[str, Lane], concurrency: int, work: Mapping[str, int]) -> None:
        self.slots = Slots.of(lanes, concurrency)
        self.state = State()
        self.work = {lane: work.get(lane, 0) for lane in lanes}
        self.running: list[str] = []
        self.started = dict.fromkeys(lanes, 0)

    def in_flight(self) -> dict[str, int]:
        return {lane: self.running.count(lane) for lane in self.slots.reserved}

    def borrowed(self, lane: str) -> int:
        return max(0, self.running.count(lane) - self.slots.reserved[lane])

    def share(self, lane: str) -> float:
        return self.slots.shared * self.slots.weight[lane] / sum(self.slots.weight.values())

    def claim(self, limit: int) -> dict[str, int]:
        proposal = plan(self.slots, self.state, self.in_flight(), limit)
        taken = run_script(proposal, self.work)
        self.state = charge(self.state, proposal, taken)
        for lane, count in taken.items():
            self.running += [lane] * count
            self.started[lane] += count
        return taken

    def fill(self, limit: int = 64) -> None:
        while any(self.claim(limit).values()):
            pass


def everything(lanes: Mapping[str, Lane]) -> dict[str, int]:
    return dict.fromkeys(lanes, ENDLESS)
