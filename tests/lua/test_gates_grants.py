"""Grants: who is given what was freed, who gives it back, and who takes it over (D12)."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Release, Success
from streamworker.core.states import Reason
from tests.lua.driver import Shard, plan_of
from tests.lua.gating import (
    APART,
    BACK,
    LOCK,
    RETRY,
    UNCLAIMED,
    die,
    fill,
    granted,
    holders,
    ids,
    places,
    waiters,
)

GATE = "concurrency:g"


def test_a_grant_that_nobody_claims_goes_to_the_next(shard: Shard) -> None:
    granted(shard)
    assert holders(shard, GATE) == {"b": "granted"}

    shard.elapse(UNCLAIMED - 1)
    assert shard.wake()[0] == 0
    shard.elapse(1)
    shard.wake()

    assert holders(shard, GATE) == {"c": "granted"}
    assert places(shard, "b", "c") == {"b": "r", "c": "r"}


def test_the_earlier_place_takes_over_a_later_grant_that_is_not_claimed(shard: Shard) -> None:
    granted(shard)
    shard.elapse(UNCLAIMED)
    shard.wake()

    assert ids(shard.claim()) == ["b"]

    assert holders(shard, GATE) == {"b": "runs"}
    shard.check("c", place=GATE, attempt=0)


def test_a_later_place_takes_nothing_over(shard: Shard) -> None:
    granted(shard)
    shard.elapse(UNCLAIMED)
    shard.wake()
    fill(shard, "d", gates="0 concurrency:g|1")

    (b,) = shard.claim(limit=1)
    shard.settle(b, Success())

    assert holders(shard, GATE) == {"c": "granted"}


def test_who_loses_two_grants_waits_once(shard: Shard) -> None:
    """b stands in ready with a token and the entity when a comes back, whose place is earlier."""
    gates = "0 rate:r|1,1000,1 entity:order:7"
    fill(shard, "a", "b", gates=gates)
    shard.settle(shard.claim_one(), RETRY)
    assert shard.claim() == [], "b waits for a token"
    shard.elapse(1000)
    shard.promote()
    shard.wake()
    assert (holders(shard), holders(shard, "rate:r")) == ({"b": "granted"}, {"b": "granted"})

    (a,) = shard.claim()

    assert (a.job_id, a.attempt) == ("a", 2)
    assert holders(shard) == {"a": "runs"}
    shard.check("b", place="rate:r")


def test_arrivals_do_not_take_over(shard: Shard) -> None:
    granted(shard)
    fill(shard, "d", gates="0 concurrency:g|1")

    assert ids(shard.claim(plan=plan_of(("normal", 0, 1, 3)), limit=1)) == ["b"], "d was read first"

    shard.check("d", place=GATE)
    assert holders(shard, GATE) == {"b": "runs"}


def test_arrivals_do_not_take_over_where_nobody_waits(shard: Shard) -> None:
    gates = "0 concurrency:g|1"
    fill(shard, "a", "b", gates=gates)
    (a,) = shard.claim()
    shard.settle(a, Success())
    assert holders(shard, GATE) == {"b": "granted"}
    fill(shard, "d", gates=gates)

    assert ids(shard.claim(plan=plan_of(("normal", 0, 1, 3)), limit=1)) == ["b"], "d was read first"

    shard.check("d", place=GATE)


def test_a_later_place_does_not_take_over_an_earlier_grant(shard: Shard) -> None:
    granted(shard)
    for _ in range(2):  # b's grant goes to c, and c's to nobody: both stand in ready without
        shard.elapse(UNCLAIMED)
        shard.wake()
    fill(shard, "x", gates="0 concurrency:g|1")
    (x,) = shard.claim(limit=1, plan=plan_of(("normal", 0, 1, 3)))
    b, c = shard.deliver("w1", kind="r")
    assert shard.claim(offers=[b]) == []
    shard.settle(x, Success())
    assert holders(shard, GATE) == {"b": "granted"}

    assert ids(shard.claim(limit=1, offers=[c])) == ["b"], "c was looked at first"

    shard.check("c", place=GATE)


def test_a_grant_of_an_entity_does_not_go_back(shard: Shard) -> None:
    granted(shard, LOCK)

    shard.elapse(10 * UNCLAIMED)

    assert shard.wake()[0] == 0
    assert holders(shard) == {"b": "granted"}


def test_a_claimed_grant_does_not_go_back(shard: Shard) -> None:
    granted(shard)
    shard.claim()
    shard.elapse(UNCLAIMED)

    assert shard.wake()[0] == 0

    assert holders(shard, GATE) == {"b": "runs"}


def test_a_job_that_is_stopped_later_keeps_the_locks_before_and_gives_back_the_rest(shard: Shard) -> None:
    two = "0 concurrency:a|1 concurrency:b|1 concurrency:c|1"
    fill(shard, "has-a", gates="0 concurrency:a|1")
    (has_a,) = shard.claim()
    fill(shard, "j", gates=two)
    shard.claim()
    fill(shard, "has-b", gates="0 concurrency:b|1")
    shard.claim()

    shard.settle(has_a, Success())
    assert shard.claim() == []

    assert holders(shard, "concurrency:a") == {"j": "granted"}
    shard.check("j", place="concurrency:b")
    shard.elapse(UNCLAIMED)
    shard.wake()
    assert holders(shard, "concurrency:a") == {"j": "granted"}


def test_a_grant_that_waits_at_a_later_gate_is_kept(shard: Shard) -> None:
    fill(shard, "has-a", gates="0 concurrency:a|1")
    (has_a,) = shard.claim()
    fill(shard, "has-b", gates="0 concurrency:b|1")
    shard.claim()
    fill(shard, "j", gates="0 concurrency:a|1 concurrency:b|1")
    shard.claim()
    shard.settle(has_a, Success())
    shard.claim()
    shard.check("j", place="concurrency:b")

    shard.redis("ZADD", f"{shard.keys.tag}:timers", shard.now, "grant:j")
    shard.wake()

    assert holders(shard, "concurrency:a") == {"j": "granted"}


def test_a_grant_in_quarantine_goes_back_too(shard: Shard) -> None:
    """Only the entity of a struck job waits with it for the child (D22)."""
    fill(shard, "a", "b", "c", gates="0 concurrency:g|1")
    die(shard)
    (b,) = shard.claim()
    assert shard.claim(plan=plan_of(APART)) == []
    shard.settle(b, Success())
    assert (holders(shard, GATE), shard.state("a")["place"]) == ({"a": "granted"}, "q")

    shard.elapse(UNCLAIMED)
    shard.wake()

    assert holders(shard, GATE) == {"c": "granted"}
    assert ids(shard.claim(plan=plan_of(APART))) == ["a"], "it takes over what c has not claimed"


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_waiter_that_ends_leaves_the_queue(shard: Shard, end: str) -> None:
    fill(shard, "a")
    (a,) = shard.claim()
    fill(shard, "b", deadline_ms=100)
    fill(shard, "c")
    shard.claim()

    if end == "cancel":
        assert shard.cancel("b") == "OK"
    else:
        shard.elapse(100)
        shard.promote()

    assert waiters(shard) == ["c"]
    shard.settle(a, Success())
    assert ids(shard.claim()) == ["c"]


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_granted_job_that_ends_wakes_the_next(shard: Shard, end: str) -> None:
    fill(shard, "a")
    (a,) = shard.claim()
    fill(shard, "b", deadline_ms=100)
    fill(shard, "c")
    shard.claim()
    shard.settle(a, Success())

    if end == "cancel":
        shard.cancel("b")
    else:
        shard.elapse(100)
        shard.promote()

    assert holders(shard) == {"c": "granted"}


def test_who_comes_back_takes_no_grant_over_while_an_earlier_place_waits(shard: Shard) -> None:
    """The grant went to the urgent lane, but `b` would have been the next of those behind it."""
    gates = "0 concurrency:g|1"
    shard.declare(lanes="priority normal")
    a = granted(shard, gates)
    (b,) = shard.claim()
    assert (a.job_id, b.job_id) == ("a", "b")
    shard.settle(b, Release(Reason.SNOOZED, 100))
    (c,) = shard.claim()
    shard.elapse(100)
    shard.promote()
    assert shard.claim() == []
    fill(shard, "u", gates=gates, lane="priority")
    assert shard.claim(plan=plan_of("priority")) == []

    shard.settle(c, BACK)

    assert holders(shard, GATE) == {"u": "granted"}
    assert shard.claim() == []
    assert waiters(shard, GATE) == ["b", "c"]
    (u,) = shard.claim(plan=plan_of("priority"))
    shard.settle(u, Success())
    assert ids(shard.claim()) == ["b"]
