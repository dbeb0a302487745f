"""Lanes as they are declared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.errors import ConfigurationError, DurationError, InvalidArgument
from streamworker.core.lane import MAX_AGING_FACTOR, Lane, Pressure, check_lane_name
from streamworker.core.retry import Retry


@pytest.mark.parametrize("name", ["priority", "normal", "0", "a-b_c", "x" * 32])
def test_a_lane_name_is_taken(name: str) -> None:
    assert check_lane_name(name) == name


@pytest.mark.parametrize("name", ["", "A", "-a", "_a", "a b", "a:b", "x" * 33, "é", "a\n", None])
def test_another_lane_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidArgument, match="lane name"):
        check_lane_name(name)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"reserved": -1}, "reserved"),
        ({"reserved": 1.5}, "reserved"),
        ({"reserved": True}, "reserved"),
        ({"weight": 0}, "weight"),
        ({"weight": "4"}, "weight"),
        ({"aging": 0}, "aging"),
        ({"aging": "soon"}, "aging"),
        ({"max_age": 0}, "max_age"),
        ({"target": -1}, "target"),
        ({"timeout": 0}, "timeout"),
        ({"pressure": 100}, "two depths"),
        ({"pressure": (1, 2, 3)}, "two depths"),
        ({"pressure": (0, 5)}, "pressure mark"),
        ({"pressure": (5, 1)}, "high comes before over"),
        ({"payload_limit": 0}, "payload_limit"),
        ({"payload_limit": 1 << 30}, "payload_limit"),
        ({"retry": 3}, "Retry policy"),
        ({"accept": "pay"}, "list of task names"),
        ({"accept": 5}, "list of task names"),
        ({"accept": ["no task"]}, "task name"),
    ],
)
def test_a_lane_that_cannot_work_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises((ConfigurationError, DurationError, InvalidArgument), match=named):
        Lane(**options)


def test_a_lane_takes_the_tasks_that_it_accepts() -> None:
    by_name, by_rule = Lane(accept=["pay"]), Lane(accept=lambda task: task.startswith("pay"))

    assert [by_name.accepts(task) for task in ("pay", "pay.later", "mail")] == [True, False, False]
    assert [by_rule.accepts(task) for task in ("pay", "pay.later", "mail")] == [True, True, False]
    assert Lane().accepts("anything")


# --- ageing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "factor"),
    [(0, 1), (29_999, 1), (30_000, 2), (59_999, 2), (60_000, 4), (119_999, 4), (120_000, 8), (10**12, 8)],
)
def test_a_lane_whose_jobs_are_old_gains_weight_by_steps(age: int, factor: int) -> None:
    assert Lane(weight=3, aging="30s").aged_weight(age) == 3 * factor


@given(st.integers(0, 10**12), st.integers(1, 1000))
def test_ageing_is_off_until_it_is_asked_for(age: int, weight: int) -> None:
    assert Lane(weight=weight).aged_weight(age) == weight


@given(st.integers(1, 10**7), st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 1000))
def test_ageing_is_bounded_and_never_falls_with_age(aging_ms: int, age: int, more: int, weight: int) -> None:
    lane = Lane(weight=weight, aging=aging_ms / 1000)

    assert weight <= lane.aged_weight(age) <= lane.aged_weight(age + more) <= weight * MAX_AGING_FACTOR


# --- pressure --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "age", "pressure"),
    [
        (0, 0, Pressure.OK),
        (99, 5000, Pressure.OK),
        (100, 0, Pressure.HIGH),
        (0, 5001, Pressure.HIGH),
        (999, 10_000, Pressure.HIGH),
        (1000, 0, Pressure.OVER),
        (0, 10_001, Pressure.OVER),
    ],
)
def test_pressure_follows_from_depth_against_marks_and_age_against_target(
    depth: int, age: int, pressure: Pressure
) -> None:
    assert Lane(pressure=(100, 1000), target="5s").pressure_at(depth, age) is pressure


def test_a_lane_without_marks_and_target_is_under_no_pressure() -> None:
    assert Lane().pressure_at(10**9, 10**9) is Pressure.OK
    assert Lane(target=1).pressure_at(10**9, 0) is Pressure.OK
    assert Lane(pressure=(1, 2)).pressure_at(0, 10**9) is Pressure.OK


def test_a_level_of_pressure_reaches_those_below_it() -> None:
    reached = {each: [other for other in Pressure if each.reaches(other)] for each in Pressure}

    assert reached == {
        Pressure.OK: [Pressure.OK],
        Pressure.HIGH: [Pressure.OK, Pressure.HIGH],
        Pressure.OVER: list(Pressure),
    }


def test_the_defaults_of_a_lane_for_its_tasks_are_kept() -> None:
    retry = Retry.fixed(2, 5)

    lane = Lane(retry=retry, timeout="20s", payload_limit=1000)

    assert (lane.retry, lane.timeout, lane.payload_limit) == (retry, "20s", 1000)
