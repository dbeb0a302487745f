from __future__ import annotations

from collections.abc import Mapping

import pytest

from streamworker.core.lanes import Lane
from streamworker.worker.holdings import Holdings
from streamworker.worker.planner import Planner


def planner(lanes: Mapping[str, Lane], concurrency: int) -> tuple[Planner, dict[str, int]]:
    """A planner, and the slots in use by lane, to be changed."""
    holdings = Holdings(lanes)
    return Planner(lanes, concurrency, holdings), holdings.busy


def test_a_worker_without_work_claims_for_half_of_its_slots_and_then_for_the_others() -> None:
    one, _ = planner({"urgent": Lane(reserved=4), "normal": Lane(reserved=4)}, 64)

    first = one.next([], 0, idle_too=False)
    assert first is not None
    second = one.next([first], first.limit, idle_too=False)

    assert second is not None
    assert (first.limit, second.limit) == (32, 32)


@pytest.mark.parametrize("used", [16, 32, 60])
def test_one_call_claims_for_all_slots_that_became_free(used: int) -> None:
    one, busy = planner({"urgent": Lane(reserved=4), "normal": Lane(reserved=4)}, 64)
    busy["normal"] = used

    proposal = one.next([], 0, idle_too=False)

    assert proposal is not None
    assert proposal.limit == 64 - used


def test_the_reserved_slots_of_a_lane_without_work_are_no_call_of_their_own() -> None:
    """It would bring nothing, and stand in the way of one that does."""
    one, busy = planner({"urgent": Lane(reserved=8), "normal": Lane()}, 64)
    first = one.next([], 0, idle_too=False)
    assert first is not None
    one.charge(first, {"normal": 28})
    busy["normal"] = 56

    assert one.next([], 0, idle_too=False) is None

    offered = one.next([], 0, idle_too=True)
    assert offered is not None
    assert [(row.lane, row.reserved) for row in offered.rows] == [("urgent", 8)]
