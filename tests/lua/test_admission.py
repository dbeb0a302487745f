"""Admission in enqueue: bounds of depth, throttles, and what becomes of what is over them."""

from __future__ import annotations

from typing import Any

from streamworker.core.outcome import Success
from tests.lua.driver import Shard, job

KEYED: dict[str, Any] = {"key_id": "add::k", "fingerprint": "f", "deadline_ms": 90_000}


def names(count: int, prefix: str = "j") -> list[str]:
    return [f"{prefix}{i:03}" for i in range(count)]


def bound(shard: Shard, *lines: str) -> None:
    shard.declare(admission="\n".join(lines))


def send(shard: Shard, *jobs: str, **more: Any) -> list[str]:
    return shard.enqueue(*(job(name, **more) for name in jobs))


def test_what_is_over_the_mark_waits_in_the_backlog(shard: Shard) -> None:
    bound(shard, "depth normal 3 backlog")

    assert send(shard, *names(2)) == ["ACCEPTED"] * 2
    assert send(shard, *names(3, "k")) == ["ACCEPTED", "DEFERRED", "DEFERRED"]

    shard.check("k001", status="queued", place="b")
    stats = shard.stats()
    assert (stats["queued:normal"], stats["backlog:normal"]) == (3, 2)
    assert stats["deferred:normal:lane_full"] == 2


def test_or_is_refused_and_nothing_of_it_stays(shard: Shard) -> None:
    bound(shard, "depth normal 1 reject")
    send(shard, "first")
    before = shard.look().without_times()

    assert send(shard, "over", tenant="acme", **KEYED) == ["REJECTED 1000 lane_full"]

    after = shard.look().without_times()
    assert after["hashes"]["stats"].pop(b"rejected:normal:lane_full") == b"1"
    assert after == before


def test_a_key_that_was_refused_is_free(shard: Shard) -> None:
    bound(shard, "depth normal 1 reject")
    send(shard, "first")

    assert send(shard, "a", "b", **KEYED) == ["REJECTED 1000 lane_full"] * 2

    shard.settle(shard.claim_one(), Success())
    assert send(shard, "c", **KEYED) == ["ACCEPTED"]
    assert send(shard, "d", **KEYED) == ["DUPLICATE c queued"]


def test_a_refusal_may_be_sent_again_and_a_deferred_job_is_answered_the_same(shard: Shard) -> None:
    bound(shard, "depth normal 1 backlog")
    assert send(shard, "a", "b") == ["ACCEPTED", "DEFERRED"]
    shard.settle(shard.claim_one(), Success())

    assert send(shard, "a", "b") == ["ACCEPTED", "DEFERRED"]
    assert shard.stats()["deferred:normal:lane_full"] == 1


def test_jobs_at_gates_and_behind_turnstiles_count(shard: Shard) -> None:
    bound(shard, "depth normal 20 reject")
    send(shard, "holds", "parked", gates="0 entity:o")
    send(shard, *names(18), tenant="acme")

    assert shard.stats()["turned:normal"] == 2
    assert send(shard, "over") == ["REJECTED 1000 lane_full"]


def test_delays_and_other_lanes_do_not(shard: Shard) -> None:
    bound(shard, "depth normal 1 reject")
    send(shard, "first")

    (delayed,) = send(shard, "later", delay_ms=500)
    assert delayed.startswith("SCHEDULED ")
    assert send(shard, "elsewhere", lane="urgent") == ["ACCEPTED"]


def test_the_backlog_is_bounded_too(shard: Shard) -> None:
    bound(shard, "depth normal 1 backlog", "backlog normal 2 reject")

    assert send(shard, *names(5)) == ["ACCEPTED", "DEFERRED", "DEFERRED", *["REJECTED 1000 backlog_full"] * 2]
    assert shard.enqueue(job("asks", backlog="asked")) == ["REJECTED 1000 backlog_full"]
    assert shard.stats()["rejected:normal:backlog_full"] == 3


def test_a_throttle_refuses_what_has_no_token_and_says_when(shard: Shard) -> None:
    shard.tune("throttle", "lane:normal", "10,1000,2 reject")

    assert send(shard, *names(4)) == [
        "ACCEPTED",
        "ACCEPTED",
        "REJECTED 100 throttled",
        "REJECTED 200 throttled",
    ]

    shard.elapse(99)
    assert send(shard, "early") == ["REJECTED 1 throttled"]
    shard.elapse(1)
    assert send(shard, "punctual", "late") == ["ACCEPTED", "REJECTED 100 throttled"]
    assert shard.stats()["rejected:normal:throttled"] == 4


def test_a_throttle_defers_what_has_no_token(shard: Shard) -> None:
    shard.tune("throttle", "tenant:acme", "10,1000,1 backlog")

    assert send(shard, *names(2), tenant="acme") == ["ACCEPTED", "DEFERRED"]
    assert send(shard, "other", tenant="umbrella") == ["ACCEPTED"]
    assert send(shard, "nobody") == ["ACCEPTED"]


def test_a_throttle_of_every_tenant_counts_each_apart_and_a_tenants_own_wins(shard: Shard) -> None:
    shard.tune("throttle", "tenant:*", "10,1000,1 reject")
    shard.tune("throttle", "tenant:acme", "10,1000,2 reject")

    replies = [send(shard, *names(3, tenant), tenant=tenant) for tenant in ("acme", "umbrella", "initech")]

    assert [sum(word == "ACCEPTED" for word in each) for each in replies] == [2, 1, 1]


def test_a_token_is_spent_only_where_all_throttles_have_one(shard: Shard) -> None:
    shard.tune("throttle", "lane:normal", "10,1000,2 reject")
    shard.tune("throttle", "tenant:acme", "10,1000,1 reject")

    assert [word.split()[0] for word in send(shard, *names(3), tenant="acme")] == [
        "ACCEPTED",
        *["REJECTED"] * 2,
    ]

    assert send(shard, "other") == ["ACCEPTED"]


def test_a_delayed_job_that_is_throttled_goes_to_the_backlog_when_its_time_comes(shard: Shard) -> None:
    shard.tune("throttle", "lane:normal", "10,1000,1 backlog")
    send(shard, "first")

    (reply,) = send(shard, "later", delay_ms=500)
    assert reply.startswith("SCHEDULED ")

    shard.elapse(500)
    shard.promote()
    shard.check("later", place="b")


def test_a_duplicate_costs_no_token(shard: Shard) -> None:
    shard.tune("throttle", "lane:normal", "10,1000,1 reject")
    send(shard, "a", **KEYED)

    assert send(shard, "b", **KEYED) == ["DUPLICATE a queued"]


def test_a_throttle_is_lifted(shard: Shard) -> None:
    assert shard.tune("throttle", "lane:normal") == "NOTHING"
    shard.tune("throttle", "lane:normal", "10,1000,1 reject")
    shard.tune("throttle", "lane:urgent", "10,1000,1 reject")

    assert shard.tune("throttle", "lane:normal") == "OK"

    assert send(shard, *names(3)) == ["ACCEPTED"] * 3
    assert send(shard, *names(2, "u"), lane="urgent") == ["ACCEPTED", "REJECTED 100 throttled"]


def test_what_an_operator_set_stands_with_who_and_why(shard: Shard) -> None:
    shard.tune("throttle", "lane:normal", "10,1000,1 reject", "their import loops")
    shard.tune("throttle", "lane:normal", "20,1000,1 reject", "less")

    kept = shard.look().hashes["policies"][b"throttles"].decode()
    assert kept == f"throttle lane:normal 20,1000,1 reject operator {shard.now} less"


def test_a_bucket_that_is_full_again_takes_no_room_for_ever(shard: Shard) -> None:
    shard.tune("throttle", "tenant:*", "10,1000,1 reject")
    send(shard, "a", tenant="acme")

    assert 0 < shard.look().ttls["bucket:throttle:tenant:acme"] <= 61_000


def test_two_of_a_key_in_one_call_are_one_job(shard: Shard) -> None:
    bound(shard, "depth normal 5 reject")

    assert send(shard, "a", "b", **KEYED) == ["ACCEPTED", "DUPLICATE a queued"]
