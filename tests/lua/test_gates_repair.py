"""Holders, waiters and counts that disagree with the records are put right (D13)."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Success
from tests.lua.driver import Shard
from tests.lua.gating import (
    LIMIT,
    fill,
    holders,
    ids,
)


def test_a_holder_whose_record_disagrees_is_dropped(shard: Shard) -> None:
    shard.tampered.add("ghost")
    shard.redis("ZADD", f"{shard.keys.tag}:gate:concurrency:g", 1, "ghost")
    fill(shard, "a", gates="0 concurrency:g|1")

    assert ids(shard.claim()) == ["a"]

    assert holders(shard, "concurrency:g") == {"a": "runs"}


def test_a_grant_that_its_record_does_not_know_is_dropped(shard: Shard) -> None:
    fill(shard, "other", gates="")
    shard.tampered.add("other")
    shard.redis("ZADD", f"{shard.keys.tag}:gate:concurrency:g", -5, "other")
    fill(shard, "a", gates="0 concurrency:g|1")

    assert ids(shard.claim()) == ["other", "a"]


def test_a_limit_is_not_passed_by_dropping_true_holders(shard: Shard) -> None:
    fill(shard, *"abcd", gates=LIMIT)
    shard.claim(limit=2)

    assert shard.claim() == []

    assert len(holders(shard, "concurrency:task:add")) == 2


def test_an_entity_that_nobody_holds_is_given_by_repair(shard: Shard) -> None:
    shard.tampered.add("ghost")
    shard.redis("ZADD", f"{shard.keys.tag}:gate:entity:order:7", 1, "ghost")
    fill(shard, "a")

    shard.repair("a")

    assert holders(shard) == {"a": "granted"}


def test_repair_lets_in_who_waits_at_a_gate_that_is_free(shard: Shard) -> None:
    fill(shard, "a", "b")
    shard.claim()
    shard.forget_record("a")
    shard.tampered.add("a")
    shard.redis("DEL", f"{shard.keys.tag}:lane:normal")

    shard.repair("b")

    assert holders(shard) == {"b": "granted"}


def test_repair_brings_back_a_waiter_that_no_gate_knows(shard: Shard) -> None:
    fill(shard, "a", "b")
    shard.claim()
    shard.watchful = False
    shard.redis("ZREM", f"{shard.keys.tag}:waiting:normal:entity:order:7", "b")

    assert shard.repair("b")[0] == 1

    shard.check("b", place="r")
    assert shard.claim() == []
    shard.check("b", place="entity:order:7")


def test_repair_leaves_alone_who_waits(shard: Shard) -> None:
    fill(shard, "a", "b")
    shard.claim()

    assert shard.repair("a", "b") == (0, [])

    shard.check("b", place="entity:order:7")


def test_a_dead_waiter_is_passed_over(shard: Shard) -> None:
    fill(shard, "a", "b", "c")
    (a,) = shard.claim()
    shard.tampered.add("b")
    shard.forget_record("b")

    shard.settle(a, Success())

    assert holders(shard) == {"c": "granted"}


@pytest.mark.parametrize("status", ["succeeded", "queued"])
def test_a_waiter_that_is_over_or_elsewhere_is_passed_over(shard: Shard, status: str) -> None:
    fill(shard, "a", "b", "c")
    (a,) = shard.claim()
    shard.tampered.add("b")
    shard.rewrite("b", status, en="-")

    shard.settle(a, Success())

    assert holders(shard) == {"c": "granted"}


def test_a_parked_job_that_is_still_scheduled_stays_parked(shard: Shard) -> None:
    fill(shard, "a", "b")
    shard.claim()
    shard.watchful = False
    shard.redis("ZADD", shard.keys.schedule, shard.now, "b")

    shard.promote()
    shard.watchful = True

    shard.check("b", place="entity:order:7")
