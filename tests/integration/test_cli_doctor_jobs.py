"""`doctor` on what jobs and workers leave behind: leaks, gates, claims, and fleets that do not agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamworker.core.outcome import Success
from streamworker.store import scripts
from tests.integration.cli_desk import LEASE_MS, Desk
from tests.servers import BenchServer


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


def findings(desk: Desk, check: str, *options: str) -> list[dict[str, Any]]:
    # The shared servers have no AOF, so there is always one problem.
    return [row for row in desk.json("doctor", *options, code=1)["checks"] if row["check"] == check]


def test_what_is_over_and_never_goes_is_found_and_let_go(desk: Desk) -> None:
    over, waiting = desk.put(), desk.put()
    desk.settle(desk.claim()[0], Success(b'"%s"' % (b"x" * 100)))
    for key in (desk.keys.job(over), desk.keys.body(over)):
        assert desk.redis.persist(key)

    (row,) = findings(desk, "leaks")
    (after,) = findings(desk, "leaks", "--fix")

    assert (row["severity"], row["fixable"]) == ("warning", True)
    assert row["found"].startswith("2 of ")
    assert after["severity"] == "ok"
    assert 0 < desk.redis.ttl(desk.keys.job(over)) <= 900
    assert desk.redis.ttl(desk.keys.job(waiting)) == -1


def test_a_fix_stands_in_the_log(desk: Desk) -> None:
    desk.put()
    desk.redis.hincrby(desk.keys.stats, "queued:normal", 5)

    desk.call("doctor", "--fix", code=1)

    ((_, fields),) = desk.redis.xrevrange(desk.keys.events, count=1)
    assert fields[b"a"].decode().startswith("- 0 note doctor:counters fix lane normal counts 6 queued")


def test_keys_of_somebody_else_are_named(desk: Desk) -> None:
    key = f"{desk.keys.tag}:surprise"
    desk.redis.set(key, "x", ex=60)

    (row,) = findings(desk, "leaks")

    assert key in row["found"]
    assert row["fixable"] is False


def test_a_gate_whose_holder_is_gone_is_named(desk: Desk) -> None:
    desk.put(gates="0 entity:order:7")
    (claim,) = desk.claim()
    assert findings(desk, "gates")[0]["severity"] == "ok"
    desk.redis.zadd(desk.keys.gate("entity:order:7"), {"019f8f2e-0000-7000-8000-000000000000": 1})

    (row,) = findings(desk, "gates")

    assert row["severity"] == "warning"
    assert "entity:order:7" in row["found"]
    desk.settle(claim, Success(b""))


def test_a_claim_that_nobody_takes_over_is_a_problem(desk: Desk) -> None:
    job_id = desk.put()
    (claim,) = desk.claim()
    stream = desk.keys.stream("normal")
    idle = 4 * LEASE_MS
    desk.redis.xclaim(stream, "workers", "w1", 0, [claim.entry], idle=idle, justid=True)
    assert findings(desk, "claims")[0]["severity"] == "ok"  # its lease still stands

    desk.age_lease(job_id, 4 * LEASE_MS)

    assert findings(desk, "claims")[0]["severity"] == "problem"


def worker(desk: Desk, name: str, version: str, lease_ms: int, app: str = "shop") -> None:
    """One that lives."""
    facts = ("app", app, "lanes", "normal", "version", version, "lease_ms", str(lease_ms))
    desk.run(scripts.session(worker=name, own=0, liveness_ms=60_000, rows=facts))


def test_workers_that_differ_are_named(desk: Desk) -> None:
    for number, (version, lease) in enumerate([("1.0", 30_000), ("1.0", 30_000), ("1.1", 5_000)]):
        worker(desk, f"w{number}", version, lease)

    versions, leases = findings(desk, "fleet")

    assert versions["found"] == "workers of different versions: 2 run 1.0, 1 run 1.1"
    assert leases["found"] == "workers with different leases: 1 have 5s, 2 have 30s"


def test_apps_that_share_a_namespace_are_named(desk: Desk) -> None:
    for number, app in enumerate(("shop", "mail", "shop")):
        worker(desk, f"w{number}", "1", 30_000, app)

    (row,) = findings(desk, "fleet")

    assert row["found"] == "workers of different apps share this namespace: 1 of mail, 2 of shop"


def test_another_lease_than_the_fleet_has_is_named(desk: Desk) -> None:
    worker(desk, "w1", "1", 5_000)

    (row,) = findings(desk, "fleet")

    assert "the workers' lease is 5s, here it is 30s" in row["found"]


def test_jobs_of_dead_workers_are_counted(desk: Desk) -> None:
    desk.redis.hincrby(desk.keys.stats, "recovered:normal:pay", 3)
    desk.redis.hincrby(desk.keys.stats, "recovered:priority:pay", 1)

    (row,) = findings(desk, "deaths")

    assert row["found"].startswith("4 jobs were taken over from dead workers")
    assert "4 of task pay" in row["found"]
