"""drain: from the backlog into the lanes, by a token bucket, in order, while there is room."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from streamworker.core.outcome import Retry, Success
from streamworker.core.states import ErrorClass
from tests.lua.driver import Shard, job, plan_of
from tests.lua.gating import ids
from tests.waiting import wait_until

FAST = "1000,1000,1000"
SOON = Retry(100, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")


def defer(shard: Shard, *names: str, lane: str = "normal", **more: Any) -> None:
    replies = shard.enqueue(*(job(name, lane=lane, backlog="asked", **more) for name in names))
    assert set(replies) == {"DEFERRED"}


def names(count: int, prefix: str = "j") -> list[str]:
    return [f"{prefix}{i:03}" for i in range(count)]


def ms_of(shard: Shard) -> int:
    seconds, micros = shard.redis("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def is_later(shard: Shard, than_ms: int) -> bool:
    return ms_of(shard) > than_ms


def test_no_worker_takes_from_the_backlog(shard: Shard) -> None:
    defer(shard, "a", "b")

    assert shard.claim(plan=plan_of("normal", "backlog")) == []

    shard.check("a", status="queued", place="b")
    assert shard.stats() == {"backlog:normal": 2, "enqueued:normal:add": 2, "deferred:normal:asked": 2,
                             "sequence": 1}  # fmt: skip


def test_what_is_drained_runs_in_the_order_in_which_it_came(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, *names(40))

    assert shard.drain() == (40, 100)

    assert ids(shard.claim()) == names(40)
    assert "backlog:normal" not in shard.stats()


def test_it_stands_behind_what_is_in_the_lane(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, "late")
    shard.put("first")

    shard.drain()

    assert ids(shard.claim()) == ["first", "late"]


def test_each_job_takes_a_token(shard: Shard) -> None:
    shard.declare(drain="10,1000,5")
    defer(shard, *names(30))

    drained = [shard.drain()[0]]
    for _ in range(20):
        shard.elapse(100)
        drained.append(shard.drain()[0])

    assert drained == [5] + [1] * 20


def test_a_call_moves_no_more_than_it_may(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, *names(30))

    assert [shard.drain(limit=20)[0], shard.drain(limit=20)[0]] == [20, 10]


def test_it_stops_by_itself_over_the_high_water_and_goes_on_after(shard: Shard) -> None:
    shard.declare(drain=FAST)
    shard.put("ahead")
    defer(shard, *names(10))

    assert shard.drain(("normal", 4))[0] == 3
    assert shard.drain(("normal", 4))[0] == 0

    for claim in shard.claim(limit=2):
        shard.settle(claim, Success())
    assert shard.drain(("normal", 4))[0] == 2


def test_jobs_at_gates_and_behind_turnstiles_take_room(shard: Shard) -> None:
    shard.declare(drain=FAST)
    shard.put("holds", gates="0 entity:o")
    shard.put("parked", gates="0 entity:o")
    shard.enqueue(*(job(f"t{i}", tenant="acme") for i in range(18)))
    defer(shard, *names(10))

    assert shard.drain(("normal", 22))[0] == 2


def test_a_lane_that_is_full_holds_up_no_other(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, *names(3))
    defer(shard, *names(3, "u"), lane="urgent")
    shard.put("ahead")

    assert shard.drain(("normal", 1), ("urgent", 10))[0] == 3

    assert ids(shard.claim(plan=plan_of("urgent"))) == names(3, "u")


def test_the_earliest_goes_first_whatever_its_lane(shard: Shard) -> None:
    shard.declare(drain="1,1000,1")
    for name, lane in [("n1", "normal"), ("u1", "urgent"), ("n2", "normal")]:
        defer(shard, name, lane=lane)
        came = ms_of(shard)
        wait_until(partial(is_later, shard, came), what="the next ms has come: it is in the entries' ids")

    moved = []
    for _ in range(3):
        shard.drain(("urgent", 10), ("normal", 10))
        moved.append(ids(shard.claim(plan=plan_of("urgent", "normal"))))
        shard.elapse(1000)

    assert moved == [["n1"], ["u1"], ["n2"]]


@pytest.mark.parametrize("scope", ["lane:backlog", "lane:normal"])
def test_a_pause_of_the_backlog_or_of_the_lane_holds_it(shard: Shard, scope: str) -> None:
    shard.declare(drain=FAST)
    defer(shard, "a")
    shard.tune("pause", scope)

    assert shard.drain()[0] == 0

    shard.tune("resume", scope, 0)
    shard.wake()
    assert shard.drain()[0] == 1


def test_an_operator_turns_it_off_and_on_and_sets_its_rate(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, *names(10))

    assert shard.tune("drain", "backlog", "off -") == "OK"
    assert shard.drain() == (0, None)
    assert shard.tune("drain", "backlog", "on 2,1000,2") == "OK"
    assert shard.drain()[0] == 2
    assert shard.tune("drain", "backlog") == "OK"
    shard.elapse(1000)
    assert shard.drain()[0] == 8
    assert shard.tune("drain", "backlog") == "NOTHING"

    said = [fields[b"a"].decode() for fields in shard.look().streams["events"].values() if b"a" in fields]
    assert said == [
        "- 0 drain backlog off - because",
        "- 0 drain backlog on 2,1000,2 because",
        "- 0 drain backlog - because",
    ]


def test_without_a_rate_nothing_is_drained(shard: Shard) -> None:
    defer(shard, "a")

    assert shard.drain() == (0, None)


def test_the_history_tells_why_it_waited_and_when_it_was_drained(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, "a")
    shard.drain()
    shard.settle(shard.claim_one(), Success())

    assert [line.reason for line in shard.history("a")] == [
        "deferred",
        "drained",
        "claimed",
        "started",
        "returned",
    ]
    assert shard.history("a")[0].details["backlog"] == "asked"


def test_a_retry_does_not_go_back_to_the_backlog(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, "a")
    shard.drain()
    shard.settle(shard.claim_one(), SOON)

    shard.elapse(100)
    shard.promote()

    shard.check("a", place="r")


def test_a_delay_comes_before_the_backlog(shard: Shard) -> None:
    shard.declare(drain=FAST)
    (reply,) = shard.enqueue(job("a", backlog="asked", delay_ms=500))
    assert reply == f"SCHEDULED {shard.now + 500}"

    shard.elapse(500)
    shard.promote()
    shard.check("a", place="b")

    shard.drain()
    shard.check("a", place="a")


def test_a_cancelled_job_leaves_the_backlog(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, "a", "b", key_id="")
    assert shard.cancel("a") == "OK"

    assert shard.drain()[0] == 1
    assert ids(shard.claim()) == ["b"]


def test_a_deadline_ends_a_job_in_the_backlog(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, "a", deadline_ms=500)

    shard.elapse(500)

    assert shard.promote()[:2] == (0, 1)
    assert shard.drain()[0] == 0


def test_an_entry_that_no_record_honours_costs_no_token(shard: Shard) -> None:
    shard.declare(drain="1,1000,1")
    defer(shard, "gone", "there")
    shard.tampered.add("gone")
    shard.forget_record("gone")

    assert shard.drain()[0] == 1

    shard.check("there", place="a")


def test_a_record_that_cannot_be_read_is_buried(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, "a")
    shard.damage("a")
    shard.tampered.add("a")

    assert shard.drain()[0] == 0

    assert [one["code"] for one in shard.look().dead_letters().values()] == ["bad_record"]
    assert shard.stats()["backlog:normal"] == 0


def test_a_tenants_jobs_pass_the_turnstile_when_they_are_drained(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, *names(30), tenant="acme")

    shard.drain()

    assert shard.stats()["queued:normal"] == 16
    assert shard.stats()["turned:normal"] == 14
    ran = []
    while claims := shard.claim(limit=5):
        ran += ids(claims)
        for claim in claims:
            shard.settle(claim, Success())
    assert ran == names(30)


def test_an_entity_is_free_while_its_job_waits_in_the_backlog(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, "patient", gates="0 entity:order:7")
    shard.put("urgent", gates="0 entity:order:7")
    shard.settle(shard.claim_one(), Success())

    shard.drain()

    assert ids(shard.claim()) == ["patient"]


def test_a_job_that_was_started_does_not_go_to_the_backlog(shard: Shard) -> None:
    """As one that Postgres brings back: its record says what it was enqueued with."""
    shard.declare(drain=FAST)
    defer(shard, "a")
    shard.drain()
    shard.settle(shard.claim_one(), SOON)
    shard.rewrite("a", bl="asked")
    shard.elapse(100)

    shard.promote()

    shard.check("a", place="r")


def test_what_was_drained_does_not_go_back(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, "a")
    assert shard.claim() == []  # which makes the group
    shard.drain()
    offers = shard.deliver("w1")

    shard.claim(limit=0, offers=offers)

    shard.check("a", place="r", starts=0)


def test_a_delayed_job_of_a_tenant_does_not_stand_while_it_is_in_the_backlog(shard: Shard) -> None:
    shard.declare(drain=FAST)
    shard.enqueue(job("a", backlog="asked", delay_ms=500, tenant="acme"))

    shard.elapse(500)
    shard.promote()

    assert "turnstile" not in shard.look().hashes


def test_an_entry_that_its_record_does_not_honour_moves_nothing(shard: Shard) -> None:
    shard.declare(drain=FAST)
    defer(shard, "a")
    stream = shard.keys.stream("normal", "b")
    shard.redis("XADD", stream, "*", "id", "a", "env", "another")

    assert shard.drain()[0] == 1

    assert ids(shard.claim()) == ["a"]
    assert shard.redis("XLEN", stream) == 0
