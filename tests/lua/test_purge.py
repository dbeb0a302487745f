"""Purge: jobs of a lane that nobody has end as cancelled, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import pytest

from streamworker.core.outcome import Release, Success
from streamworker.core.states import Reason
from streamworker.store import scripts
from tests.lua.driver import RETENTION, Shard, job
from tests.lua.gating import fill, waiters

ALL = "rqatg-b"


def purge(shard: Shard, *names: str, places: str = "rqat", lane: str = "normal", epoch: int = 0) -> list[str]:
    rows = [word for name in names for word in (name, str(epoch))]
    call = scripts.purge(
        clock=shard.clock,
        actor="operator",
        retention_ms=RETENTION,
        lane=lane,
        places=places,
        why="purged by operator: a flood",
        rows=rows,
    )
    return [reply.decode() for reply in shard.send(call)]


def is_purged(shard: Shard, name: str) -> bool:
    record = shard.record(name)
    return record.status == "failed_terminal" and record.text("ec") == "persistent cancelled"


def test_waiting_jobs_end_as_cancelled_with_who_and_why(shard: Shard) -> None:
    shard.enqueue(job("a", key_id="add::k", fingerprint="f"), job("b"), job("stays"))

    assert purge(shard, "a", "b") == ["OK", "OK"]

    assert is_purged(shard, "a")
    line = next(line for line in shard.look().lines() if line.job_id == "a" and line.reason == "purged")
    assert (line.target, line.actor, line.details["code"]) == ("failed_terminal", "operator", "cancelled")
    assert shard.look().body("a")[b"error"] == b"purged by operator: a flood"
    assert shard.look().dead_letters() == {}, "nobody has to look at them"
    assert "key:add::k" not in shard.look().strings
    assert [claim.job_id for claim in shard.claim()] == ["stays"]


def test_what_runs_is_not_touched(shard: Shard) -> None:
    claim = shard.take("a")

    assert purge(shard, "a", places=ALL + "-") == ["MOVED"]

    assert shard.settle(claim, Success()) == "OK"


def test_what_was_delivered_and_is_not_claimed_yet_leads_nowhere(shard: Shard) -> None:
    shard.claim()
    shard.put("a")
    offers = shard.deliver("w1")

    assert purge(shard, "a") == ["OK"]

    assert shard.claim(offers=offers) == []
    assert is_purged(shard, "a")


def test_other_lanes_are_not_touched(shard: Shard) -> None:
    shard.put("a", lane="priority")

    assert purge(shard, "a") == ["MOVED"]
    assert not is_purged(shard, "a")


PLACES: list[tuple[str, dict[str, Any]]] = [("-", {"delay_ms": 500}), ("b", {"backlog": "asked"})]


@pytest.mark.parametrize(("place", "options"), PLACES)
def test_only_jobs_in_the_places_that_are_meant(shard: Shard, place: str, options: dict[str, Any]) -> None:
    shard.put("a", **options)

    assert purge(shard, "a") == ["MOVED"]
    assert purge(shard, "a", places="rqat" + place) == ["OK"]

    assert is_purged(shard, "a")


def test_one_that_waits_at_a_gate_leaves_it(shard: Shard) -> None:
    gates = "0 concurrency:g|1"
    fill(shard, "a", "b", "c", gates=gates)
    shard.claim()
    assert waiters(shard, "concurrency:g") == ["b", "c"]

    assert purge(shard, "b", "c") == ["MOVED", "MOVED"]
    assert purge(shard, "b", places="g") == ["OK"]

    assert waiters(shard, "concurrency:g") == ["c"]


def test_those_behind_a_turnstile_leave_it(shard: Shard) -> None:
    shard.enqueue(*(job(f"j{i}", tenant="acme") for i in range(20)))

    assert purge(shard, *(f"j{i}" for i in range(20))) == ["OK"] * 20

    assert shard.look().hashes.get("turnstile", {}) == {}


def test_a_job_that_lives_anew_is_not_meant(shard: Shard) -> None:
    shard.put("a")

    assert purge(shard, "a", epoch=1) == ["MOVED"]
    assert not is_purged(shard, "a")


def test_one_that_is_gone_or_over(shard: Shard) -> None:
    claim = shard.take("a")
    shard.settle(claim, Success())

    assert purge(shard, "a", "unknown") == ["MOVED", "GONE"]


def test_one_whose_effect_may_be_committed_is_looked_at_first(shard: Shard) -> None:
    shard.redis("HSET", shard.keys.policies, "effects:add", "1")
    claim = shard.take("a")
    shard.settle(claim, Release(Reason.SHUTDOWN))

    assert purge(shard, "a") == ["FLAGGED"]
    version = shard.record("a").version
    assert purge(shard, "a") == ["FLAGGED"], "and once is enough"

    assert shard.record("a").version == version
    assert shard.record("a").text("bu") == "purged persistent cancelled"
