from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.durations import MAX_SECONDS, format_ms, parse, to_ms
from streamworker.core.errors import DurationError, StreamworkerError


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        (30, 30.0),
        (0.25, 0.25),
        ("200ms", 0.2),
        ("30s", 30.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        ("1h30m", 5400.0),
        ("1d2h3m4s5ms", 93784.005),
        ("1.5s", 1.5),
        (" 10s ", 10.0),
        ("30", 30.0),
        (timedelta(minutes=2), 120.0),
        (MAX_SECONDS, MAX_SECONDS),
    ],
)
def test_a_duration_is_read_as_seconds(value: float | str | timedelta, seconds: float) -> None:
    assert parse(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        None,
        "",
        "  ",
        "s",
        "-5s",
        "5 s",
        "5x",
        "1m1h",
        "1s1s",
        "1e3s",
        "1,5s",
        "inf",
        "nan",
        "٣s",
        b"5s",
        timedelta(seconds=-1),
        10**400,
        "9" * 400 + "d",
        MAX_SECONDS + 1,
    ],
)
def test_what_is_no_duration_is_refused_by_name_and_with_the_accepted_forms(value: object) -> None:
    with pytest.raises(DurationError, match=r'timeout: .*"30s"') as caught:
        parse(value, what="timeout")  # type: ignore[arg-type]

    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, StreamworkerError)
    assert caught.value.what == "timeout"


def test_milliseconds_are_whole_and_a_positive_duration_never_becomes_zero() -> None:
    assert to_ms("1.5s") == 1500
    assert to_ms(0.1) == 100
    assert to_ms(0.0001) == 1
    assert to_ms(0) == 0


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (200, "200ms"),
        (1500, "1.5s"),
        (30_000, "30s"),
        (120_000, "2m"),
        (150_000, "2m30s"),
        (5_400_000, "1h30m"),
        (86_400_000, "1d"),
        (60_050, "1m0.05s"),
        (-1500, "-1.5s"),
    ],
)
def test_a_duration_is_shown_short(ms: int, text: str) -> None:
    assert format_ms(ms) == text


@given(st.integers(min_value=0, max_value=int(MAX_SECONDS * 1000)))
def test_what_is_shown_reads_back_as_the_same_duration(ms: int) -> None:
    assert to_ms(format_ms(ms)) == ms
