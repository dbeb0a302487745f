"""What was shut opens by and by: pauses, lanes, and a mass of overdue jobs."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Success
from tests.lua.driver import Shard, plan_of
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
