"""Limits and dependencies as people declare them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.errors import ConfigurationError, DurationError
from streamworker.core.limits import MAX_FIGURE, Concurrency, Dependency, Rate, check_dependency_name


@pytest.mark.parametrize(
    ("rate", "burst", "figures"),
    [
        ("50/s", 20, "50,1000,20"),
        ("50/s", None, "50,1000,50"),
        ("300/m", None, "300,60000,5"),
        ("10/h", None, "10,3600000,1"),
        ("5/10s", None, "5,10000,1"),
        ("1/500ms", None, "1,500,2"),
        ("1000000/ms", None, f"1000000,1,{MAX_FIGURE}"),
        (" 200 / s ", 1, "200,1000,1"),
    ],
)
def test_a_rate_is_read_as_it_is_written(rate: str, burst: int | None, figures: str) -> None:
    assert Rate("task", rate, burst=burst).figures == figures


@given(st.integers(1, MAX_FIGURE), st.sampled_from(["s", "m", "h", "2m30s"]))
def test_the_burst_is_what_one_second_gives(tokens: int, period: str) -> None:
    given, period_ms, burst = map(int, Rate("task", f"{tokens}/{period}").figures.split(","))

    assert given == tokens
    assert burst == max(1, int(tokens * 1000 / period_ms))


@pytest.mark.parametrize(
    "rate", ["", "50", "s", "/s", "50/", "0/s", "1.5/s", "-1/s", "50/x", "50/0s", "9999999/s", 5]
)
def test_what_is_no_rate_is_refused(rate: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"200/s|whole number"):
        Rate("task", rate)


@pytest.mark.parametrize("burst", [0, -1, 1.5, True, "20", MAX_FIGURE + 1])
def test_a_burst_that_cannot_work_is_refused(burst: Any) -> None:
    with pytest.raises(ConfigurationError, match="burst must be a whole number"):
        Rate("task", "50/s", burst=burst)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "5", None, MAX_FIGURE + 1])
def test_a_concurrency_that_cannot_work_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="the limit must be a whole number"):
        Concurrency("task", limit)


@pytest.mark.parametrize("scope", ["", None, 5])
def test_a_limit_has_a_scope(scope: Any) -> None:
    with pytest.raises(ConfigurationError, match="a scope is"):
        Rate(scope, "50/s")
    with pytest.raises(ConfigurationError, match="a scope is"):
        Concurrency(scope, 5)


def test_the_limits_of_a_dependency_are_its_own() -> None:
    with pytest.raises(ConfigurationError, match=r"Dependency\(\.\.\.\)"):
        Rate("dependency:carrier", "50/s")


def test_a_dependency_says_what_it_bears() -> None:
    carrier = Dependency(concurrency=20, rate="100/s", connect_timeout=1, timeout="5s")

    assert (carrier.connect_seconds, carrier.seconds) == (1.0, 5.0)
    assert Dependency().seconds > Dependency().connect_seconds > 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": "20"}, "concurrency"),
        ({"rate": "fast"}, "rate"),
        ({"burst": 5}, "burst belongs to a rate"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": 1, "connect_timeout": 2}, r"connect_timeout \(2\) is longer than its timeout \(1\)"),
        ({"timeout": 2, "connect_timeout": 5.0}, "is longer than its timeout"),
    ],
)
def test_a_dependency_that_cannot_work_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Dependency(**options)


def test_a_time_limit_of_a_dependency_is_a_duration() -> None:
    with pytest.raises(DurationError, match="connect_timeout"):
        Dependency(connect_timeout="soon")


@pytest.mark.parametrize("name", ["", "Carrier", "a b", "a:b", "-a", "x" * 33, None])
def test_a_dependency_has_a_plain_name(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="dependency name"):
        check_dependency_name(name)


@pytest.mark.parametrize(("timeout", "connecting"), [(2, 2), (5, 5), ("30s", 5), (60, 5)])
def test_connecting_takes_no_longer_than_a_short_call(timeout: float | str, connecting: float) -> None:
    assert Dependency(timeout=timeout).connect_seconds == connecting
