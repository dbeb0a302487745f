"""What was shut opens by and by: pauses, lanes, and a mass of overdue jobs."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Success
from tests.lua.driver import Shard, job, plan_of
from tests.lua.gating import fill, ids

MINUTE = 60_000


def waken(shard: Shard) -> None:
    """As a keeper does, until nothing is due."""
    for _ in range(100):
        if not shard.wake()[0]:
            return
    raise AssertionError("the timers never end")


def started(shard: Shard, seconds: int, lane: str = "normal") -> list[int]:
    """How many start in each second, by a worker that asks ten times a second and ends its jobs at once."""
    counts = []
    for _ in range(seconds):
        count = 0
        for _ in range(10):
            shard.elapse(100)
            waken(shard)
            for claim in shard.claim(plan=plan_of(lane)):
                shard.settle(claim, Success())
                count += 1
        counts.append(count)
    return counts


# --- pauses -----------------------------------------------------------------------------------------------


def test_those_who_waited_come_in_evenly(shard: Shard) -> None:
    shard.tune("pause", "task:add")
    fill(shard, *(f"j{i}" for i in range(30)), gates="")
    shard.claim()
    shard.watchful = False

    shard.tune("resume", "task:add", 10_000)

    assert all(2 <= count <= 4 for count in started(shard, 10))
    assert "pauses" not in shard.look().ttls


@pytest.mark.parametrize("scope", ["task:add", "lane:normal"])
def test_a_ramp_makes_no_queue_of_what_comes_meanwhile(shard: Shard, scope: str) -> None:
    """Each who comes lets one in: the queue that a short pause left does not grow by its ramp."""
    shard.tune("pause", scope)
    fill(shard, "a", "b", gates="")
    shard.claim()
    shard.tune("resume", scope, MINUTE)
    shard.watchful = False
    waken(shard)

    ran = []
    for number in range(40):
        fill(shard, f"j{number}", gates="")
        for _ in range(2):
            for claim in shard.claim():
                shard.settle(claim, Success())
                ran.append(claim.job_id)

    assert len(ran) >= 40
    assert ran[:3] == ["a", "b", "j0"], "in the order in which they came"


def test_one_who_waits_alone_comes_in_at_once(shard: Shard) -> None:
    shard.tune("pause", "tenant:acme")
    fill(shard, "a", gates="", tenant="acme")
    shard.claim()
    shard.tune("resume", "tenant:acme", MINUTE)
    waken(shard)

    assert ids(shard.claim()) == ["a"]


def test_a_ramp_is_over_when_the_last_who_waits_is_cancelled(shard: Shard) -> None:
    """The lane of those who wait is paused, so the ramp stands still, with no timer; then nobody is left."""
    shard.tune("pause", "task:add")
    fill(shard, "a", "b", gates="")
    shard.claim()
    shard.tune("pause", "lane:normal")
    shard.tune("resume", "task:add", 10_000)
    waken(shard)
    for job_id in ("a", "b"):
        shard.cancel(job_id)

    shard.tune("resume", "lane:normal", 0)
    waken(shard)

    assert "pauses" not in shard.look().ttls


# --- lanes ------------------------------------------------------------------------------------------------


def test_a_lane_starts_its_jobs_evenly_over_the_ramp(shard: Shard) -> None:
    shard.tune("pause", "lane:normal")
    fill(shard, *(f"j{i}" for i in range(100)), gates="")
    shard.watchful = False

    shard.tune("resume", "lane:normal", 10_000)

    assert all(9 <= count <= 11 for count in started(shard, 10))
    assert "pauses" not in shard.look().ttls


def test_a_lane_that_has_given_its_share_says_so(shard: Shard) -> None:
    shard.claim()
    shard.tune("pause", "lane:normal")
    fill(shard, *"abcd", gates="")
    shard.tune("resume", "lane:normal", MINUTE)

    verdict, claims = shard.send(shard.claim_call())

    assert verdict == b"OK normal~"
    assert claims[1::3] == [b"a"]


def test_the_other_lanes_are_read_as_ever(shard: Shard) -> None:
    shard.tune("pause", "lane:normal")
    fill(shard, *"ab", gates="")
    fill(shard, *"pqr", gates="", lane="priority")
    shard.tune("resume", "lane:normal", MINUTE)

    assert ids(shard.claim(plan=plan_of("normal", "priority"))) == ["a", "p", "q", "r"]


def test_an_entry_that_was_delivered_too_early_goes_back_uncharged(shard: Shard) -> None:
    shard.claim()
    shard.tune("pause", "lane:normal")
    fill(shard, *"abc", gates="")
    shard.tune("resume", "lane:normal", MINUTE)
    assert ids(shard.claim()) == ["a"]
    offers = shard.deliver("w1", count=1)

    assert shard.claim(offers=offers) == []
    shard.check("b", status="queued", place="r", attempt=0, starts=0, owner=None)


@pytest.mark.parametrize("jobs", [0, 3])
def test_a_lane_that_is_opened_at_once_has_no_ramp(shard: Shard, jobs: int) -> None:
    shard.tune("pause", "lane:normal")
    fill(shard, *(f"j{i}" for i in range(jobs)), gates="")

    shard.tune("resume", "lane:normal", 0)

    assert "pauses" not in shard.look().ttls
    assert len(shard.claim()) == jobs


def test_a_lane_in_which_nobody_waited_has_no_ramp(shard: Shard) -> None:
    shard.tune("pause", "lane:normal")
    shard.tune("resume", "lane:normal", MINUTE)

    assert "pauses" not in shard.look().ttls


def test_the_ramp_of_a_lane_is_over_in_time_though_nobody_claims(shard: Shard) -> None:
    shard.tune("pause", "lane:normal")
    fill(shard, *"abc", gates="")
    shard.tune("resume", "lane:normal", MINUTE)

    shard.elapse(MINUTE - 1)
    waken(shard)
    assert b"ramp,3,60000" in shard.look().strings["pauses"]
    shard.elapse(1)
    waken(shard)

    assert "pauses" not in shard.look().ttls
    assert len(shard.claim()) == 3


def test_a_resume_may_shorten_a_ramp(shard: Shard) -> None:
    shard.tune("pause", "lane:normal")
    fill(shard, *"abcd", gates="")
    shard.tune("resume", "lane:normal", MINUTE)
    assert len(shard.claim()) == 1

    assert shard.tune("resume", "lane:normal", 0) == "OK"

    assert len(shard.claim()) == 3


# --- overdue jobs -----------------------------------------------------------------------------------------


def overdue(shard: Shard, jobs: int, ms: int = 10_000) -> None:
    """So many jobs that have been due for so long, since nobody was there."""
    shard.watchful = False
    shard.enqueue(*(job(f"late{i}", delay_ms=1) for i in range(jobs)))
    shard.elapse(ms + 1)


def promoted(shard: Shard, seconds: int) -> list[int]:
    """How many come back in each second, by a keeper that looks at its end."""
    counts = []
    for _ in range(seconds):
        shard.elapse(1000)
        counts.append(sum(shard.promote()[0] for _ in range(3)))
    return counts


def test_a_mass_of_overdue_jobs_comes_back_over_a_minute(shard: Shard) -> None:
    overdue(shard, 1200)
    shard.promote()

    counts = promoted(shard, 61)

    assert all(19 <= count <= 21 for count in counts[:59]), counts
    assert sum(counts) == 1199
    assert shard.redis("HGET", shard.keys.sweep, "overdue") is None


@pytest.mark.parametrize(("jobs", "ms"), [(1000, 10_000), (1200, 9_990)], ids=["few", "not late"])
def test_what_is_no_mass_or_not_late_comes_back_at_once(shard: Shard, jobs: int, ms: int) -> None:
    overdue(shard, jobs, ms)

    assert sum(shard.promote()[0] for _ in range(3)) == jobs


def test_what_becomes_due_meanwhile_goes_behind_and_lets_one_in(shard: Shard) -> None:
    overdue(shard, 1200)
    shard.promote()
    before = shard.promote()[0]
    shard.enqueue(*(job(f"new{i}", delay_ms=1) for i in range(50)))
    shard.elapse(1)

    assert before == 0
    assert shard.promote()[0] == 50
    shard.check("new0", place="schedule")


def test_deadlines_pass_during_the_ramp(shard: Shard) -> None:
    overdue(shard, 1200)
    shard.promote()
    shard.put("short", delay_ms=200, deadline_ms=100)
    shard.elapse(100)
    shard.promote()

    shard.check("short", status="failed_terminal", dead="expired")


def test_the_log_says_that_a_mass_comes_back(shard: Shard) -> None:
    overdue(shard, 1200)
    shard.promote()

    (_, fields), *_ = shard.redis("XREVRANGE", shard.keys.events, "+", "-", "COUNT", "1")
    assert b"- 0 ramp overdue 60000 1200 jobs are overdue" in fields


@pytest.mark.parametrize(("over", "within"), [(0, 1), (5000, 6)])
def test_an_operator_lets_them_in_sooner(shard: Shard, over: int, within: int) -> None:
    assert shard.tune("resume", "overdue", over) == "NOTHING"
    overdue(shard, 1200)
    shard.promote()

    assert shard.tune("resume", "overdue", over) == "OK"

    assert sum(promoted(shard, within)) == 1199


# --- a clock that is put back -----------------------------------------------------------------------------


def test_a_ramp_from_a_clock_that_was_ahead_keeps_no_due_job_waiting(shard: Shard) -> None:
    """Its end is an hour away: until then nothing that was due came back."""
    overdue(shard, 1200)
    shard.promote()
    shard.now -= 60 * MINUTE

    shard.put("retry", delay_ms=1)
    shard.elapse(1)

    assert shard.promote()[0] == 1
    shard.check("retry", place="r")


@pytest.mark.parametrize("scope", ["task:add", "lane:normal"])
def test_a_pause_that_was_lifted_by_a_clock_that_was_ahead_keeps_nobody_out(shard: Shard, scope: str) -> None:
    shard.tune("pause", scope)
    fill(shard, *(f"j{i}" for i in range(30)), gates="")
    shard.claim()
    shard.watchful = False
    shard.tune("resume", scope, MINUTE)
    shard.now -= 60 * MINUTE

    fill(shard, "late", gates="")
    ran = [claim.job_id for _ in range(2) for claim in shard.claim()]

    assert len(ran) == 31
