"""Pauses and limits that operators change at run time."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Success
from tests.lua.driver import Shard, plan_of
from tests.lua.gating import fill, holders, ids, waiters

CARRIER = "0 pause:dependency:carrier"
SCOPES = [("tenant:acme", ""), ("task:add", ""), ("dependency:carrier", CARRIER)]
RAMP = 60_000


def steps(shard: Shard, ms: int, gate: str) -> list[int]:
    """How many still wait at the gate after each quarter of a second, as a keeper wakes them."""
    left = []
    for _ in range(ms // 250):
        shard.elapse(250)
        for _ in range(20):
            if not shard.wake()[0]:
                break
        left.append(len(waiters(shard, gate)))
    return left


@pytest.mark.parametrize(("scope", "gates"), SCOPES)
def test_what_is_paused_parks_and_the_rest_runs(shard: Shard, scope: str, gates: str) -> None:
    shard.tune("pause", scope)
    fill(shard, "a", "b", gates=gates, tenant="acme")
    fill(shard, "other", gates="", tenant="umbrella", task="mail")

    assert ids(shard.claim()) == ["other"]

    assert waiters(shard, f"pause:{scope}") == ["a", "b"]
    shard.check("a", attempt=0, starts=0)


@pytest.mark.parametrize(("scope", "gates"), SCOPES)
def test_a_pause_that_is_lifted_lets_its_waiters_in_at_once_if_asked(
    shard: Shard, scope: str, gates: str
) -> None:
    shard.tune("pause", scope)
    fill(shard, "a", "b", gates=gates, tenant="acme")
    shard.claim()

    shard.tune("resume", scope, 0)
    shard.wake()

    assert ids(shard.claim()) == ["a", "b"]
    assert "pauses" not in shard.look().ttls


def test_a_resume_opens_over_its_ramp(shard: Shard) -> None:
    shard.tune("pause", "task:add")
    fill(shard, *(f"j{i}" for i in range(60)), gates="")
    shard.claim()
    shard.watchful = False

    shard.tune("resume", "task:add", RAMP)
    left = steps(shard, RAMP + 500, "pause:task:add")

    assert 50 <= left[3] < 60, "somebody moved within the first second, and not all"
    assert left[len(left) // 2] in range(20, 40), "half of them in half of the time"
    assert left[-1] == 0


def test_arrivals_do_not_overtake_those_who_waited_for_the_pause(shard: Shard) -> None:
    shard.tune("pause", "tenant:acme")
    fill(shard, "a", "b", gates="", tenant="acme")
    shard.claim()
    shard.tune("resume", "tenant:acme", RAMP)
    fill(shard, "c", gates="", tenant="acme")

    assert shard.claim() == []

    assert "c" in waiters(shard, "pause:tenant:acme")


def test_a_pause_that_runs_out_opens_by_itself(shard: Shard) -> None:
    shard.tune("pause", "tenant:acme", 1000)
    fill(shard, "a", gates="", tenant="acme")
    shard.claim()

    shard.elapse(999)
    shard.wake()
    assert waiters(shard, "pause:tenant:acme") == ["a"]
    left = steps(shard, 61_000, "pause:tenant:acme")

    assert left[-1] == 0
    assert ids(shard.claim()) == ["a"]


def test_a_resume_of_what_is_not_paused_is_nothing(shard: Shard) -> None:
    assert shard.tune("resume", "tenant:acme", 0) == "NOTHING"


def test_who_paused_and_why_is_in_the_log(shard: Shard) -> None:
    shard.tune("pause", "tenant:acme", 1000, "they flood us")

    last = list(shard.look().streams["events"].values())[-1]
    assert (last[b"s"], last[b"w"]) == (b"tune", b"operator")
    assert last[b"a"] == b"- 0 pause tenant:acme 1000 they flood us"


# --- lanes ------------------------------------------------------------------------------------------------


def test_a_paused_lane_is_not_read_and_its_jobs_stay_where_they_are(shard: Shard) -> None:
    fill(shard, "a", "b", gates="")
    fill(shard, "p", gates="", lane="priority")
    shard.tune("pause", "lane:normal")

    assert ids(shard.claim(plan=plan_of("normal", "priority"))) == ["p"]

    shard.check("a", place="a")
    verdict = shard.send(shard.claim_call(plan=plan_of("normal", "priority")))[0]
    assert verdict == b"OK normal", "the worker is told which lanes it need not read"
    shard.tune("resume", "lane:normal", 0)
    assert ids(shard.claim()) == ["a", "b"]


def test_an_entry_of_a_paused_lane_that_was_delivered_goes_back_uncharged(shard: Shard) -> None:
    shard.claim()
    fill(shard, "a", gates="")
    offers = shard.deliver("w1")
    shard.tune("pause", "lane:normal")

    assert shard.claim(offers=offers) == []

    shard.check("a", status="queued", place="r", attempt=0, starts=0, owner=None)


def test_waiters_of_a_paused_lane_do_not_count(shard: Shard) -> None:
    fill(shard, "a", "b")
    (a,) = shard.claim()
    fill(shard, "p", lane="priority")
    shard.tune("pause", "lane:normal")

    shard.settle(a, Success())

    assert holders(shard) == {"p": "granted"}


def test_pausing_a_lane_returns_its_unclaimed_grants_entities_too(shard: Shard) -> None:
    fill(shard, "a", "b")
    fill(shard, "p", lane="priority")
    (a,) = shard.claim()
    assert shard.claim(plan=plan_of("priority")) == []
    shard.settle(a, Success())
    assert holders(shard) == {"b": "granted"}

    shard.tune("pause", "lane:normal")
    shard.wake()

    assert holders(shard) == {"p": "granted"}


def test_a_lane_that_is_resumed_gets_its_turn_at_the_gates(shard: Shard) -> None:
    fill(shard, "a", "b")
    (a,) = shard.claim()
    shard.tune("pause", "lane:normal")
    shard.settle(a, Success())

    shard.tune("resume", "lane:normal", 0)
    shard.wake()

    assert holders(shard) == {"b": "granted"}


def test_the_urgent_lane_goes_first_but_for_every_fourth_grant(shard: Shard) -> None:
    shard.declare("priority normal")
    gates = "0 concurrency:g|1"
    fill(shard, "first", gates=gates)
    (claim,) = shard.claim()
    fill(shard, *(f"n{i}" for i in range(6)), gates=gates)
    shard.claim()
    fill(shard, *(f"p{i}" for i in range(6)), gates=gates, lane="priority")
    shard.claim(plan=plan_of("priority"))
    ran = ""
    claims = [claim]
    while claims:
        shard.settle(claims[0], Success())
        claims = shard.claim(plan=plan_of("priority", "normal"))
        ran += "".join(one.lane[0] for one in claims)

    assert ran == "npppnppp" + "nnnn"


# --- limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["concurrency:task:add", "concurrency:tenant@add"])
def test_a_limit_that_is_raised_moves_waiters_with_the_next_wake(shard: Shard, name: str) -> None:
    gates = "0 concurrency:task:add|1"
    if "@" in name:
        gates += f"|{name}"
    fill(shard, *"abcd", gates=gates)
    assert ids(shard.claim()) == ["a"]

    shard.tune("limit", name, "3")
    shard.wake()

    assert ids(shard.claim()) == ["b", "c"]


def test_a_limit_that_is_lowered_lets_in_nobody_until_there_is_room(shard: Shard) -> None:
    fill(shard, *"abcd", gates="0 concurrency:g|2")
    a, b = shard.claim()
    shard.tune("limit", "concurrency:g", "1")

    shard.settle(a, Success())
    assert shard.claim() == []
    shard.settle(b, Success())

    assert ids(shard.claim()) == ["c"]


def test_who_was_let_in_before_a_limit_was_lowered_keeps_its_place(shard: Shard) -> None:
    """A place that was given to a waiter is held already: nobody is sent back for a lower limit."""
    fill(shard, *"abcd", gates="0 concurrency:g|2")
    for claim in shard.claim():
        shard.settle(claim, Success())

    shard.tune("limit", "concurrency:g", "1")
    c, d = shard.claim()

    assert ids([c, d]) == ["c", "d"]
    shard.settle(c, Success())
    assert holders(shard, "concurrency:g") == {"d": "runs"}


def test_a_reset_limit_is_the_declared_one_again(shard: Shard) -> None:
    shard.declare(**{"concurrency:g": "2"})
    shard.tune("limit", "concurrency:g", "3")
    shard.tune("reset", "concurrency:g")
    fill(shard, *"abcd", gates="0 concurrency:g|1")

    assert ids(shard.claim()) == ["a", "b"]
    assert shard.tune("reset", "concurrency:g") == "NOTHING"


def test_what_is_declared_anew_holds_for_jobs_that_wait(shard: Shard) -> None:
    shard.declare(**{"concurrency:g": "1"})
    fill(shard, *"abcd", gates="0 concurrency:g|1")
    shard.claim()

    assert shard.declare(**{"concurrency:g": "3"}) == 1
    shard.wake()

    assert ids(shard.claim()) == ["b", "c"]
    assert shard.declare(**{"concurrency:g": "3"}) == 0
