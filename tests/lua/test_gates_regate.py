"""A release with reason `regated`: the job passes other gates from now on (D17)."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Release, Success
from streamworker.core.states import Reason
from tests.lua.driver import Shard, job

OLD = "0 entity:order:7"
NEW = "5 concurrency:task:add|1"


def regated(gates: str) -> Release:
    return Release(Reason.REGATED, gates=gates)


def holders(shard: Shard, gate: str) -> list[str]:
    return list(shard.look().holders(gate))


def test_the_job_waits_for_the_gates_of_today_and_is_not_charged(shard: Shard) -> None:
    claim = shard.take("j", gates=OLD)

    assert shard.settle(claim, regated(NEW), ago=None) == "OK"

    shard.check("j", status="queued", place="r", attempt=0)
    assert holders(shard, "entity:order:7") == []
    again = shard.claim_one()
    assert (again.gates, again.attempt, again.starts) == (NEW, 1, 2)
    assert holders(shard, "concurrency:task:add") == ["j"]
    shard.settle(again, Success())
    assert holders(shard, "concurrency:task:add") == []


def test_a_job_without_gates_gets_some(shard: Shard) -> None:
    claim = shard.take("j")
    shard.take("first", gates=NEW)

    shard.settle(claim, regated(NEW), ago=None)

    assert shard.claim() == [], "the new gate is full"
    assert shard.state("j")["place"] == "concurrency:task:add"


def test_a_job_with_gates_loses_them(shard: Shard) -> None:
    claim = shard.take("j", gates=OLD)

    shard.settle(claim, regated(""), ago=None)

    assert holders(shard, "entity:order:7") == []
    again = shard.claim_one()
    assert again.gates == ""
    assert "ga" not in shard.record("j").fields
    shard.settle(again, Success())


def test_who_waited_at_the_old_gate_is_next_there(shard: Shard) -> None:
    shard.enqueue(job("j", gates=OLD), job("next", gates=OLD))
    claim = shard.claim_one()
    assert shard.claim() == []

    shard.settle(claim, regated(NEW), ago=None)

    assert {one.job_id for one in shard.claim(limit=2)} == {"j", "next"}
    assert holders(shard, "entity:order:7") == ["next"]


def test_a_strict_lock_is_not_kept_for_a_job_that_needs_it_no_more(shard: Shard) -> None:
    shard.enqueue(job("j", gates="0 entity:order:7|strict"), job("next", gates=OLD))
    claim = shard.claim_one()
    assert shard.claim() == []

    shard.settle(claim, regated(NEW), ago=None)

    assert {one.job_id for one in shard.claim(limit=2)} == {"j", "next"}


@pytest.mark.parametrize("gates", ["", NEW])
def test_sent_twice_it_has_the_effect_of_once(shard: Shard, gates: str) -> None:
    claim = shard.take("j", gates=OLD)
    shard.settle(claim, regated(gates), ago=None)
    once = shard.look().without_times()

    assert shard.settle(claim, regated(gates), ago=None) == "ALREADY released"

    assert shard.look().without_times() == once
