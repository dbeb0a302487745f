"""`doctor` on real servers: what it finds, what it says to do, and how it ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamworker.core.ids import new_job_id
from streamworker.ops.server_checks import (
    CLOCK_TOLERANCE,
    Facts,
    connections,
    eviction,
    memory,
    persistence,
    replication,
    saving,
)
from streamworker.ops.server_checks import server as server_check
from streamworker.store import scripts
from tests.integration.cli_desk import Desk
from tests.servers import BenchServer, ServerFactory

CHECKS = {
    "server", "commands", "eviction", "memory", "persistence", "saving", "replication", "connections",
    "clock", "namespace", "workers", "lanes", "schedule", "counters", "quarantine", "dead letters", "records",
    "fleet", "deaths", "claims", "gates", "pauses", "leaks",
}  # fmt: skip
GOOD = {
    "maxmemory": "1000000000", "maxmemory-policy": "noeviction", "appendonly": "yes",
    "appendfsync": "everysec", "timeout": "0", "tcp-keepalive": "300", "min-replicas-to-write": "1",
}  # fmt: skip
INFO = {"redis_version": "8.2.3", "role": "master", "connected_slaves": "1", "used_memory": "1000000"}


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


@pytest.fixture
def any_desk(server: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(server.url, namespace) as one:
        yield one


def examine(desk: Desk, *arguments: str, code: int = 1) -> dict[str, Any]:
    """The findings by check. The shared servers have no AOF, so 1 is the usual end."""
    found = desk.json("doctor", *arguments, code=code)
    assert set(found) == {"status", "checks"}
    for row in found["checks"]:
        assert set(row) == {"check", "severity", "found", "advice", "fixable"}
        assert bool(row["advice"]) == (row["severity"] != "ok"), row
    return {row["check"]: row for row in found["checks"]}


def open_for_work(desk: Desk) -> None:
    desk.redis.hset(desk.keys.meta, mapping={"schema": "1", "shards": "1"})


def test_every_check_is_made_on_every_server(any_desk: Desk) -> None:
    open_for_work(any_desk)

    found = examine(any_desk)

    assert set(found) == CHECKS
    problems = {name for name, row in found.items() if row["severity"] == "problem"}
    assert problems == {"persistence"}
    assert re.match(r"(Valkey 9|Redis [78])\.", found["server"]["found"])


def test_a_server_that_is_set_up_well_has_no_problem(own_valkey: ServerFactory, namespace: str) -> None:
    settings = {"maxmemory": "200mb", "maxmemory-policy": "noeviction", "appendfsync": "everysec"}
    running = own_valkey(appendonly=True, config=settings)
    with Desk(running.url, namespace) as desk:
        open_for_work(desk)
        desk.put()
        desk.claim()

        found = examine(desk, code=0)

    assert {name: row["severity"] for name, row in found.items() if row["severity"] != "ok"} == {}


def test_bad_settings_are_problems_that_say_what_to_set(own_valkey: ServerFactory, namespace: str) -> None:
    bad = {"maxmemory": "200mb", "maxmemory-policy": "allkeys-lru", "appendfsync": "no", "timeout": "5"}
    running = own_valkey(appendonly=True, config=bad)
    with Desk(running.url, namespace) as desk:
        found = examine(desk)

    assert found["eviction"]["severity"] == found["persistence"]["severity"] == "problem"
    assert "allkeys-lru" in found["eviction"]["found"]
    assert "noeviction" in found["eviction"]["advice"]
    assert "appendfsync everysec" in found["persistence"]["advice"]
    assert found["connections"]["severity"] == "problem"
    assert found["commands"]["severity"] == "ok"


def test_a_user_who_may_not_ask_gets_warnings_and_no_failure(
    own_valkey: ServerFactory, namespace: str
) -> None:
    running = own_valkey()
    with Desk(running.url, namespace) as admin:
        admin.redis.execute_command(
            "ACL", "SETUSER", "shop", "on", ">secret", "~*", "+@all", "-config", "-info"
        )
    with Desk(f"redis://shop:secret@127.0.0.1:{running.port}/0", namespace) as desk:
        found = examine(desk, code=0)

    assert {found[name]["severity"] for name in ("server", "eviction", "memory", "persistence")} == {
        "warning"
    }
    assert "secret" not in str(found)


def test_no_server_cannot_be_checked(desk: Desk) -> None:
    said = desk.refused("doctor", "--redis-url", "redis://127.0.0.1:1/0", code=2)

    assert said.startswith("nothing could be checked: no connection to redis://127.0.0.1:1/0")
    assert "--redis-url" in said


# --- the namespace ---------------------------------------------------------------------------------------


def test_a_name_that_no_worker_has_used_is_asked_about(desk: Desk) -> None:
    row = examine(desk)["namespace"]

    assert row["severity"] == "warning"
    assert "is the name right?" in row["advice"]


def test_a_name_that_workers_have_is_not_asked_about_when_redis_lost_what_they_noted(desk: Desk) -> None:
    desk.put()
    desk.claim()  # makes a worker, and nothing says in which layout it works
    assert "1 worker alive" in examine(desk)["workers"]["found"]

    row = examine(desk)["namespace"]

    assert row["severity"] == "warning"
    assert "Redis lost" in row["found"]
    assert "is the name right?" not in row["advice"]


def test_another_schema_is_a_problem(desk: Desk) -> None:
    desk.redis.hset(desk.keys.meta, mapping={"schema": "99", "shards": "1"})

    row = examine(desk)["namespace"]

    assert row["severity"] == "problem"
    assert "schema 99" in row["found"]


def test_jobs_in_a_lane_that_nobody_serves(desk: Desk) -> None:
    desk.put(lane="priority")
    desk.put(lane="night")
    desk.claim(lane="priority")  # makes a worker for priority and normal

    row = examine(desk)["workers"]

    assert row["severity"] == "problem"
    assert row["found"] == "1 worker alive, serving normal, priority; jobs wait: 1 in night"


def test_what_is_left_in_a_lane_that_a_deploy_removed_is_counted(desk: Desk) -> None:
    """Its backlog was named nowhere, and of its jobs only that they lacked a worker."""
    desk.put(lane="night")
    desk.put(lane="night", delay="1h")
    deferred = scripts.NewJob(
        new_job_id(now_ms=1, random=bytes(8)), "pack", "night", b'{"t":"pack","a":{}}', backlog="asked"
    )
    desk.run(scripts.enqueue(clock="", rows=deferred.row()))
    desk.claim()  # makes a worker for priority and normal
    assert examine(desk)["lanes"]["severity"] == "ok", "nobody has said which lanes there are"
    desk.run(scripts.declare(clock="", lanes="priority normal", rows=()))

    found = examine(desk)

    assert found["workers"]["severity"] == "ok"
    assert found["lanes"]["severity"] == "problem"
    assert found["lanes"]["found"] == (
        "no app has the lane night any more, with 3 jobs in it: 1 queued, 1 for their time, 1 in the backlog"
    )
    *_, advice = found["lanes"]["advice"].split("streamworker ")
    assert desk.json(*advice.split(), "--dry-run")["found"] == 3
    desk.run(scripts.declare(clock="", lanes="priority normal night", rows=()))
    assert examine(desk)["lanes"]["severity"] == "ok"


def test_no_worker_and_nothing_to_do_is_a_warning(desk: Desk) -> None:
    assert examine(desk)["workers"]["severity"] == "warning"


def test_a_schedule_that_nobody_looks_at(desk: Desk) -> None:
    job_id = desk.put(delay="1h")
    assert examine(desk)["schedule"]["severity"] == "ok"
    desk.redis.zadd(desk.keys.schedule, {job_id: 1})

    row = examine(desk)["schedule"]

    assert row["severity"] == "problem"
    assert "1 job in the schedule" in row["found"]


def test_a_counter_that_is_off_is_named_and_set_right(desk: Desk) -> None:
    desk.put()
    desk.put()
    desk.claim()
    assert examine(desk)["counters"]["severity"] == "ok"
    desk.redis.hincrby(desk.keys.stats, "queued:normal", 5)

    row = examine(desk)["counters"]

    assert row["severity"] == "warning"
    assert "counts 6 queued, 1 in flight; its streams hold 2" in row["found"]
    assert row["fixable"] is True
    assert examine(desk, "--fix")["counters"]["severity"] == "ok"
    assert desk.redis.hget(desk.keys.stats, "queued:normal") == b"1"


def test_an_entry_that_was_delivered_and_not_claimed(desk: Desk) -> None:
    desk.put()
    desk.claim()
    desk.put()
    desk.redis.xreadgroup("workers", "w9", {desk.keys.stream("normal"): ">"})

    row = examine(desk)["counters"]

    assert row["found"] == "lane normal: 2 entries are delivered, 1 jobs in flight"


def test_a_schedule_that_does_not_fit_its_counter(desk: Desk) -> None:
    job_id = desk.put(delay="1h")
    desk.redis.zrem(desk.keys.schedule, job_id)

    assert examine(desk)["counters"]["found"] == "1 jobs are counted as scheduled, the schedule holds 0"


def test_dead_letters_are_a_warning(desk: Desk) -> None:
    desk.dead()

    row = examine(desk)["dead letters"]

    assert (row["severity"], row["found"]) == ("warning", "1 dead letter")


def test_jobs_in_quarantine_are_a_warning(desk: Desk) -> None:
    desk.put()
    desk.redis.xadd(desk.keys.stream("normal", "q"), {"id": "x", "env": "y"})

    assert examine(desk)["quarantine"]["severity"] == "warning"


def test_a_record_that_cannot_be_read_is_named(desk: Desk) -> None:
    desk.put()
    damaged = desk.put()
    desk.redis.set(desk.keys.job(damaged), "junk")

    row = examine(desk)["records"]

    assert row["severity"] == "problem"
    assert row["found"] == f"1 of 2 records cannot be read: {damaged}"


# --- the app, and people ---------------------------------------------------------------------------------


def test_an_app_is_checked_for_odd_policies_and_lanes(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_shop.py").write_text(
        "from streamworker import App, Context, Lane, Retry\n"
        "app = App('odd', lanes={'normal': Lane(), 'slow': Lane()})\n"
        "@app.task(retry=Retry.schedule('10ms'))\n"
        "async def hurry(ctx: Context) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)

    found = examine(desk, "odd_shop:app")

    assert "hurry retries after 10ms" in found["tasks"]["found"]
    assert found["counters"]["found"] == "2 lanes: counters and streams agree"
    assert found["namespace"]["found"].startswith(f"namespace {desk.namespace}")


def test_people_see_a_table_and_what_to_do(desk: Desk) -> None:
    desk.dead()

    result = desk.call("doctor", code=1)

    assert re.search(r"^problem +persistence +appendonly no", result.stdout, re.MULTILINE)
    assert "dead letters: look with `streamworker dlq list`" in result.stderr
    assert re.search(r"^1 problem, \d warnings?$", result.stderr, re.MULTILINE)


# --- judgements that need no server ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "settings", "info", "severity"),
    [
        (server_check, {}, {}, "ok"),
        (server_check, {}, {"cluster_enabled": "1"}, "problem"),
        (eviction, {"maxmemory-policy": "volatile-ttl"}, {}, "problem"),
        (eviction, {"maxmemory-policy": ""}, {"maxmemory_policy": "noeviction"}, "ok"),
        (memory, {}, {}, "ok"),
        (memory, {"maxmemory": "0"}, {}, "warning"),
        (memory, {}, {"used_memory": "850000000"}, "warning"),
        (memory, {}, {"used_memory": "960000000"}, "problem"),
        (persistence, {"appendfsync": "always"}, {}, "ok"),
        (persistence, {"appendfsync": "no"}, {}, "problem"),
        (persistence, {"appendonly": ""}, {"aof_enabled": "0"}, "problem"),
        (saving, {}, {}, "ok"),
        (saving, {}, {"aof_last_write_status": "err"}, "problem"),
        (saving, {}, {"rdb_last_bgsave_status": "err"}, "problem"),
        (saving, {}, {"loading": "1"}, "problem"),
        (replication, {}, {}, "ok"),
        (replication, {"min-replicas-to-write": "0"}, {}, "warning"),
        (replication, {"min-replicas-to-write": "0"}, {"connected_slaves": "0"}, "ok"),
        (replication, {}, {"role": "slave", "master_host": "10.0.0.1"}, "problem"),
        (lambda facts: connections(facts, 30), {}, {}, "ok"),
        (lambda facts: connections(facts, 30), {"timeout": "300"}, {}, "warning"),
        (lambda facts: connections(facts, 30), {"timeout": "10"}, {}, "problem"),
        (lambda facts: connections(facts, 30), {"tcp-keepalive": "0"}, {}, "warning"),
    ],
)
def test_a_fact_is_judged(check: Any, settings: dict[str, str], info: dict[str, str], severity: str) -> None:
    found = check(Facts({**GOOD, **settings}, {**INFO, **info}))

    assert found.severity == severity
    assert bool(found.advice) == (severity != "ok")


def test_a_clock_that_is_off_is_a_warning(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    real = time.time
    monkeypatch.setattr("streamworker.ops.server_checks.time.time", lambda: real() + CLOCK_TOLERANCE + 60)

    row = examine(desk)["clock"]

    assert row["severity"] == "warning"
    assert re.match(r"Redis's clock is 6[12]\.\d+ s behind", row["found"])


def test_a_clock_that_was_put_back_is_named_with_what_waits_for_it(desk: Desk) -> None:
    desk.put(delay="1h")
    seconds, _ = desk.redis.time()
    desk.redis.xadd(desk.keys.events, {"n": "9", "t": "1"}, id=f"{(seconds + 4) * 1000}-0")
    assert examine(desk)["clock"]["severity"] == "ok"
    last = desk.redis.xadd(desk.keys.events, {"n": "9", "t": "1"}, id=f"{(seconds + 3600) * 1000}-0")
    desk.redis.xdel(desk.keys.events, last)

    row = examine(desk)["clock"]

    assert row["severity"] == "warning"
    assert re.match(r"Redis's clock was put back: the log has entries of (59m|1h)", row["found"])
    assert "1 job in the schedule" in row["found"]
    assert "jobs hasten" in row["advice"]
