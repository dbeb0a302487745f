"""What a worker's planner remembers of its lanes: how old the jobs of those with `aging` are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from streamworker.core.job import Claim
from streamworker.core.lanes import Lane
from streamworker.worker.holdings import Holdings
from streamworker.worker.planner import PASSED_OVER, Planner

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


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


ONE_SLOT = {"often": Lane(weight=4), "rare": Lane(weight=1)}


def asked(planner: Planner) -> list[str]:
    """The lanes that the next plan names."""
    plan = planner.next([], 0, idle_too=False)
    return sorted(row.lane for row in plan.rows) if plan is not None else []


def found_empty(hand: Hand) -> Planner:
    """A planner of one slot whose lane `rare` gave something, and `often` nothing, just now."""
    some = Planner(ONE_SLOT, 1, Holdings(ONE_SLOT), clock=hand)
    plan = some.next([], 0, idle_too=False)
    assert plan is not None
    rows = tuple(row._replace(quota=1) for row in plan.rows)
    some.charge(replace(plan, rows=rows), {"often": 0, "rare": 1})
    return some


def test_a_lane_that_had_nothing_is_passed_over_for_a_moment() -> None:
    hand = Hand()
    some = found_empty(hand)

    assert asked(some) == ["rare"]
    hand.now += PASSED_OVER
    assert asked(some) == ["often", "rare"]


def test_what_is_claimed_meanwhile_does_not_prolong_the_moment() -> None:
    hand = Hand()
    some = found_empty(hand)

    for _ in range(9):
        hand.now += PASSED_OVER / 10
        plan = some.next([], 0, idle_too=False)
        assert plan is not None
        some.charge(plan, {"rare": 1})

    hand.now += PASSED_OVER / 5
    assert asked(some) == ["often", "rare"]


@pytest.mark.parametrize("lanes", [["often"], None])
def test_a_lane_with_news_is_asked_at_once(lanes: list[str] | None) -> None:
    some = found_empty(Hand())

    some.woken(lanes)

    assert asked(some) == ["often", "rare"]


def test_a_lane_is_not_passed_over_when_no_other_has_work() -> None:
    hand = Hand()
    some = found_empty(hand)
    plan = some.next([], 0, idle_too=False)
    assert plan is not None

    some.charge(plan, {"rare": 0})

    assert asked(some) == []  # the reader hears of both
    both = some.next([], 0, idle_too=True)
    assert both is not None
    assert sorted(row.lane for row in both.rows) == ["often", "rare"]


def test_the_slots_of_a_lane_that_is_passed_over_are_not_given_away() -> None:
    lanes = {"often": Lane(weight=4, reserved=2), "rare": Lane(weight=1)}
    some = Planner(lanes, 8, Holdings(lanes), clock=Hand())
    first = some.next([], 0, idle_too=False)
    assert first is not None
    some.charge(first, {"often": 0, "rare": 3})

    plan = some.next([], 0, idle_too=False)

    assert plan is not None
    assert [row.lane for row in plan.rows] == ["rare"]
    assert plan.limit <= plan.shared <= 6


def test_other_figures_of_a_lane_hold_from_the_next_plan_on() -> None:
    holdings = Holdings(LANES)
    some = Planner(LANES, 240, holdings)
    turn(some, empty=["slow"])

    some.take_up({"fast": replace(LANES["fast"], weight=1), "slow": replace(LANES["slow"], reserved=40)})

    plan = some.next([], 0, idle_too=False)
    assert plan is not None
    rows = {row.lane: row for row in plan.rows}
    assert rows["slow"].reserved == 20, "half of them: the other half is for a second call"
    assert part(some) == pytest.approx(1 / 2, abs=0.02), "a lane that had nothing is asked again"


def test_a_lane_keeps_the_weight_of_its_age_when_figures_change() -> None:
    some = planner()
    turn(some, claim("slow", 4000))

    some.take_up({"fast": replace(LANES["fast"], weight=8), "slow": LANES["slow"]})

    assert part(some) == pytest.approx(1 / 2, abs=0.02)
