"""When a cron runs: expressions, time zones, changes of the clock, missed ticks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from streamworker.core.cron import LATE_WITHIN_MS, Cron, Overlap, Schedule
from streamworker.core.errors import ConfigurationError
from streamworker.core.ids import check_job_id

BERLIN = "Europe/Berlin"
DAY = 24 * 3600 * 1000


def ms(text: str) -> int:
    """A moment in UTC, or with its offset."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def ticks(spec: str, tz: str, start: str, count: int) -> list[str]:
    """The next ticks as clocks in that zone show them, with their offset."""
    schedule, at, found = Schedule.parse(spec, tz), ms(start), []
    for _ in range(count):
        at = schedule.next_after(at)
        found.append(schedule.moment(at).strftime("%m-%d %H:%M:%S%z"))
    return found


@pytest.mark.parametrize(
    ("spec", "tz", "start", "expected"),
    [
        ("*/5 * * * *", "UTC", "2026-01-01T00:00:00", ["01-01 00:05:00+0000", "01-01 00:10:00+0000"]),
        ("*/5 * * * *", "UTC", "2026-01-01T00:04:59.999", ["01-01 00:05:00+0000"]),
        ("* * * * * *", "UTC", "2026-01-01T00:00:00.500", ["01-01 00:00:01+0000", "01-01 00:00:02+0000"]),
        ("0 30 3 * * MON", "UTC", "2026-01-01T00:00:00", ["01-05 03:30:00+0000", "01-12 03:30:00+0000"]),
        ("0 9 * * *", BERLIN, "2026-01-01T12:00:00", ["01-02 09:00:00+0100", "01-03 09:00:00+0100"]),
        ("0 9 * * *", "America/New_York", "2026-07-01T14:00:00", ["07-02 09:00:00-0400"]),
        ("0 0 L * *", "UTC", "2026-01-31T00:00:00", ["02-28 00:00:00+0000"]),
        ("*/60 */24 * * *", "UTC", "2026-01-01T12:00:00", ["01-02 00:00:00+0000"]),
        ("0 0 * * 0", "UTC", "2026-05-01T00:00:00", ["05-03 00:00:00+0000", "05-10 00:00:00+0000"]),
        ("0 0 * * 7", "UTC", "2026-05-01T00:00:00", ["05-03 00:00:00+0000", "05-10 00:00:00+0000"]),
        ("0 0 2 * MON", "UTC", "2026-05-01T00:00:00", ["05-02 00:00:00+0000", "05-04 00:00:00+0000"]),
        ("0 0 */2 * MON", "UTC", "2026-05-01T00:00:00", ["05-11 00:00:00+0000", "05-25 00:00:00+0000"]),
    ],
)
def test_ticks_come_when_the_expression_says(spec: str, tz: str, start: str, expected: list[str]) -> None:
    assert ticks(spec, tz, start, len(expected)) == expected


@pytest.mark.parametrize("spec", ["30 2 * * *", "0 30 2 * * *"])
def test_a_time_that_spring_leaves_out_runs_right_after_the_gap(spec: str) -> None:
    assert ticks(spec, BERLIN, "2026-03-28T12:00:00", 2) == ["03-29 03:00:00+0200", "03-30 02:30:00+0200"]


@pytest.mark.parametrize("spec", ["30 2 * * *", "0 30 2 * * *"])
def test_a_time_that_comes_twice_in_autumn_runs_the_first_time(spec: str) -> None:
    expected = ["10-25 02:30:00+0200", "10-26 02:30:00+0100"]

    assert ticks(spec, BERLIN, "2026-10-24T12:00:00", 2) == expected
    assert ticks(spec, BERLIN, "2026-10-25T02:15:00+01:00", 1) == expected[1:], "not again an hour later"


def test_two_times_in_the_gap_are_one_tick() -> None:
    assert ticks("15,45 2 * * *", BERLIN, "2026-03-28T12:00:00", 2) == [
        "03-29 03:00:00+0200",
        "03-30 02:15:00+0200",
    ]


def test_every_quarter_of_an_hour_goes_on_through_both_changes() -> None:
    for start in ("2026-03-29T00:00:00", "2026-10-25T00:00:00"):
        schedule, at = Schedule.parse("*/15 * * * *", BERLIN), ms(start)
        moments = [at := schedule.next_after(at) for _ in range(20)]
        assert {after - before for before, after in pairwise(moments)} == {900_000}


@pytest.mark.parametrize(
    ("spec", "tz", "said"),
    [
        ("* * * *", "UTC", "'* * * *' is no cron expression"),
        ("61 * * * *", "UTC", "Bad minute"),
        ("* * * * * * *", "UTC", "no cron expression"),
        ("0 0 31 2 *", "UTC", "no cron expression"),
        ("", "UTC", "no cron expression"),
        ("@daily", "UTC", "no cron expression"),
        ("*/90 * * * *", "UTC", "a step of 90 minutes, of which there are 60"),
        ("*/60 0 0 1,*/40 * *", "UTC", "a step of 40 days"),
        (7, "UTC", "is a text such as"),
        ("* * * * *", "Europe/Nowhere", "no time zone 'Europe/Nowhere'"),
        ("* * * * *", "../../etc/passwd", "no time zone"),
        ("* * * * *", "", "no time zone"),
        ("* * * * *", None, "no time zone"),
    ],
)
def test_what_cannot_run_is_refused(spec: str, tz: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match="cron sweep: ") as refused:
        Schedule.parse(spec, tz, what="cron sweep")

    assert said in str(refused.value)


SPECS = [
    "30 2 * * *",
    "0 30 2 * * *",
    "*/20 * * * *",
    "15,45 1-3 * * *",
    "0 */2 * * *",
    "59 2 * * SUN",
    "*/7 2 * * *",
]
#: Around both changes of the clock in Berlin, New York and Lord Howe (half an hour), and elsewhere.
AROUND = [
    ms(f"2026-{each}")
    for each in (
        "03-29T01:00:00",
        "10-25T01:00:00",
        "03-08T07:00:00",
        "11-01T06:00:00",
        "04-04T15:00:00",
        "10-03T15:30:00",
        "06-15T00:00:00",
    )
]


@settings(max_examples=300, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    tz=st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "UTC"]),
    around=st.sampled_from(AROUND),
    shift=st.integers(-6 * 3_600_000, 6 * 3_600_000),
    span=st.integers(0, DAY),
)
def test_forward_and_back_know_the_same_ticks(spec: str, tz: str, around: int, shift: int, span: int) -> None:
    """What `latest` finds is the last of what `next_after` gives, at every change of the clock."""
    schedule, upto = Schedule.parse(spec, tz), around + shift
    at, forward = upto - span, None
    while (at := schedule.next_after(at)) <= upto:
        assert forward is None or at > forward
        forward = at

    assert schedule.latest(after_ms=upto - span, upto_ms=upto) == forward


def cron(spec: str = "* * * * * *", overlap: Overlap = Overlap.SKIP) -> Cron:
    return Cron("sweep", Schedule.parse(spec), overlap)


def test_of_missed_ticks_the_latest_of_one_day_is_made_up_for() -> None:
    now = ms("2026-01-10T12:00:30")

    assert cron("*/5 * * * *").missed(last_ms=now - 3_600_000, now_ms=now) == ms("2026-01-10T12:00:00")
    assert cron("0 9 * * *").missed(last_ms=now - 5 * DAY, now_ms=now) == ms("2026-01-10T09:00:00")
    assert cron("0 9 * * *").missed(last_ms=ms("2026-01-10T09:00:00"), now_ms=now) is None
    assert cron("0 9 5 * *").missed(last_ms=now - 30 * DAY, now_ms=now) is None, "older than a day"


def test_a_short_pause_loses_no_tick_and_after_a_long_one_only_the_latest_runs() -> None:
    every_second, start = cron(), ms("2026-01-10T12:00:00")

    assert every_second.following(start, now_ms=start) == start + 1000
    assert every_second.following(start, now_ms=start + LATE_WITHIN_MS) == start + 1000
    assert every_second.following(start, now_ms=start + 60_500) == start + 60_000
    assert cron("0 9 * * *").following(start - 40 * DAY, now_ms=start) == ms("2026-01-10T09:00:00")
    assert cron("0 0 1 1 *").following(start - 40 * DAY, now_ms=start) == ms("2027-01-01T00:00:00")


@pytest.mark.parametrize(
    ("said", "anew"),
    [
        ("", False),
        ("UTC 0 9 * * *", False),
        ("UTC 0 3 * * *", True),
        ("Europe/Berlin 0 9 * * *", True),
        ("UTC 30 9 * * *", False),
        ("Mars/Olympus 0 9 * * *", True),
        ("nonsense", True),
    ],
)
def test_a_schedule_that_changed_begins_anew_unless_a_tick_of_the_old_one_was_missed(
    said: str, anew: bool
) -> None:
    last, now = ms("2026-01-10T09:00:00"), ms("2026-01-10T12:00:00")

    assert cron("0 9 * * *").begins_anew(said, last_ms=last, now_ms=now) is anew


def test_the_key_of_a_tick_outlives_what_clocks_may_differ_by() -> None:
    assert cron().ttl_ms(ms("2026-01-10T12:00:00")) == 60_000
    assert cron("*/5 * * * *").ttl_ms(ms("2026-01-10T12:00:00")) == 600_000
    assert cron("0 0 1 * *").ttl_ms(ms("2026-01-01T00:00:00")) == DAY


def test_a_tick_has_one_job_id_whoever_makes_it() -> None:
    tick = ms("2026-01-10T12:00:00")

    assert cron().job_id(tick, namespace="a") == cron("*/5 * * * *").job_id(tick, namespace="a")
    assert len({cron().job_id(tick + n * 1000, namespace="a") for n in range(100)}) == 100
    assert check_job_id(cron().job_id(tick, namespace="a"))


@settings(max_examples=100, deadline=None)
@given(
    spec=st.sampled_from(["*/20 * * * *", "0 */2 * * *", "30 */3 * * *", "*/7 1-2 * * *", "* 2 * * SUN"]),
    tz=st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe"]),
    around=st.sampled_from(AROUND),
    shift=st.integers(-4 * 60, 0),
)
def test_by_the_time_that_passes_every_moment_that_fits_is_a_tick(
    spec: str, tz: str, around: int, shift: int
) -> None:
    """Compared with asking each minute of five hours whether clocks on the wall show a time that fits."""
    schedule, start = Schedule.parse(spec, tz), around + shift * 60_000
    end, at, found = start + 5 * 3_600_000, start, []
    while (at := schedule.next_after(at)) <= end:
        found.append(at)

    def fits(moment: int) -> bool:
        wall = schedule.moment(moment).replace(tzinfo=None)
        return bool(next(CronSim(spec, wall - timedelta(seconds=1))) == wall)

    assert found == [moment for moment in range(start + 60_000, end + 1, 60_000) if fits(moment)]
