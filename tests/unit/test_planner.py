"""What a worker's planner remembers of its lanes: how old the jobs of those with `aging` are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from streamworker.core.job import Claim
from streamworker.core.lanes import Lane
from streamworker.worker.holdings import Holdings
from streamworker.worker.planner import Planner

LANES = {"fast": Lane(weight=4), "slow": Lane(weight=1, aging="1s")}


def claim(lane: str, age_ms: int, *, kind: str = "a") -> Claim:
    return Claim("id", 7, 1, 1, 0, 0, lane, kind, "1-0", age_ms, None, None, b"")


def planner(slots: int = 240) -> Planner:
    return Planner(LANES, slots, Holdings(LANES))


def part(planner: Planner) -> float:
    """The part of the next plan that is the slow lane's."""
    plan = planner.next([], 0, idle_too=True)
    assert plan is not None
    quota = {row.lane: row.quota for row in plan.rows}
    return quota["slow"] / sum(quota.values())


def turn(
    planner: Planner, *claims: Claim, asked: Collection[str] = LANES, empty: Collection[str] = ()
) -> None:
    """One call in which each lane that was asked gave all that it was asked for, or nothing."""
    plan = planner.next([], 0, idle_too=True)
    assert plan is not None
    rows = tuple(row for row in plan.rows if row.lane in asked)
    taken = {row.lane: 0 if row.lane in empty else row.quota for row in rows}
    planner.charge(replace(plan, rows=rows), taken, claims)


@pytest.mark.parametrize(("age", "weight"), [(0, 1), (999, 1), (1000, 2), (2000, 4), (4000, 8), (10**9, 8)])
def test_a_lane_whose_jobs_come_old_gets_more_of_the_next_plan(age: int, weight: int) -> None:
    some = planner()

    turn(some, claim("slow", age), claim("fast", 10**9))

    assert part(some) == pytest.approx(weight / (4 + weight), abs=0.02)


def test_the_oldest_of_a_call_counts() -> None:
    some = planner()

    turn(some, claim("slow", 10), claim("slow", 4000), claim("slow", 0))

    assert part(some) == pytest.approx(8 / 12, abs=0.02)


@pytest.mark.parametrize("young", [{"empty": ["slow"]}, {"young": True}])
def test_a_lane_that_has_caught_up_is_young_again(young: dict[str, list[str]]) -> None:
    some = planner()
    turn(some, claim("slow", 4000))
    assert part(some) > 0.6

    turn(some, *([claim("slow", 3)] if "young" in young else []), empty=young.get("empty", ()))
    some.woken()

    assert part(some) == pytest.approx(1 / 5, abs=0.02)


def test_a_lane_that_was_not_asked_keeps_its_age() -> None:
    some = planner()
    turn(some, claim("slow", 4000))

    turn(some, claim("fast", 3), asked=["fast"])

    assert part(some) > 0.6


def test_jobs_that_waited_for_something_else_do_not_make_a_lane_old() -> None:
    """A retry or delay was enqueued long ago, and came to its lane just now."""
    some = planner()

    turn(some, claim("slow", 10**9, kind="r"))

    assert part(some) == pytest.approx(1 / 5, abs=0.02)


def test_no_lane_ages_unless_it_asks_for_it() -> None:
    lanes = {"fast": Lane(weight=4), "slow": Lane(weight=1)}
    some = Planner(lanes, 240, Holdings(lanes))

    turn(some, claim("slow", 10**9))

    assert part(some) == pytest.approx(1 / 5, abs=0.02)
