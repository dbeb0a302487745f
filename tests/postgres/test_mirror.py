"""Mirrors against real servers: Postgres gets exactly what Redis logged, whatever dies meanwhile.

`make chaos` and `make soak` make them longer by STREAMWORKER_MIRROR_JOBS, `_KILLS`, `_RESTARTS` and `_AWAY`.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from streamworker.core.errors import PayloadTooLarge, SerializationError
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.postgres.migrate import migrate
from streamworker.request import Options, new_job
from tests.postgres import tap
from tests.postgres.stage import JOBS, PATIENCE, Probe, Stage
from tests.servers import ServerFactory
from tests.waiting import wait_until_async

KILLS = int(os.environ.get("STREAMWORKER_MIRROR_KILLS", "4"))
RESTARTS = int(os.environ.get("STREAMWORKER_MIRROR_RESTARTS", "2"))
#: Seconds for which Postgres is stopped under load.
AWAY = float(os.environ.get("STREAMWORKER_MIRROR_AWAY", "2"))


@pytest.mark.timeout(PATIENCE * 3)
async def test_postgres_gets_exactly_what_redis_logged_whatever_dies_meanwhile(stage: Stage) -> None:
    """Two mirrors of which one is killed again and again, and a Postgres that is restarted."""
    choose = random.Random(7)
    mirrors = [stage.mirror(), stage.mirror()]
    workers = [stage.worker(), stage.worker()]
    faults = ["mirror"] * KILLS + ["postgres"] * RESTARTS
    choose.shuffle(faults)

    ids: list[str] = []
    share = -(-JOBS // (len(faults) + 1))
    for fault in [*faults, ""]:
        ids += await stage.enqueue(min(share, JOBS - len(ids)))
        before = await stage.unread()
        if fault == "mirror":  # while it has something to do
            await wait_until_async(stage.unread, what=f"the log has entries beyond {before}")
            number = choose.randrange(2)
            mirrors[number].kill()
            mirrors[number] = stage.mirror()
        elif fault == "postgres":
            await asyncio.to_thread(choose.choice([stage.postgres.kill, stage.postgres.shut_down]))
            await asyncio.to_thread(stage.postgres.restart)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="all is over and mirrored")

    assert await stage.differences() == []
    assert await stage.odd_due_times() == []
    dead = len(range(3, JOBS, 4))
    assert len(ids) == JOBS
    assert await stage.statuses() == {"succeeded": JOBS - dead, "failed_terminal": dead}
    async with stage.sql() as sql:
        assert await sql.fetchval("SELECT count(*) FROM streamworker.mirror_conflicts") == 0
        assert await sql.fetchval("SELECT count(*) FROM streamworker.mirror_refused") == 0
        assert await sql.fetchval("SELECT loss FROM streamworker.mirror_offsets") is None
    assert all(worker.returncode is None for worker in workers)


@pytest.mark.timeout(PATIENCE * 3)
async def test_workers_do_not_notice_that_postgres_is_away_and_the_mirror_catches_up(stage: Stage) -> None:
    """B69: jobs go on while Postgres is away; what they came to waits in Redis, and all rows appear once."""
    mirror = stage.mirror("--metrics-port", "0")
    stage.worker()
    await stage.enqueue(100)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="the first jobs are mirrored")
    probe = Probe(mirror)
    assert (await probe.ready())[0] == 200

    await asyncio.to_thread(stage.postgres.kill)
    await stage.enqueue(JOBS)
    await wait_until_async(stage.idle, timeout=PATIENCE, what="all jobs are over without Postgres")

    status, told = await wait_until_async(probe.unready, what="the probe says that Postgres is away")
    assert (status, told["state"]) == (503, "postgres_away")
    assert told["lag_events"] > 0
    assert "streamworker_mirror_state" in await probe.metrics()

    await asyncio.to_thread(stage.postgres.restart)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="everything is mirrored")

    assert await stage.differences() == []
    await wait_until_async(probe.is_ready, what="the probe says that all is well again")
    mirror.terminate()
    assert mirror.wait() == 0


@pytest.mark.timeout((PATIENCE + AWAY) * 3)
async def test_no_job_fails_while_postgres_is_stopped_under_load(stage: Stage) -> None:
    """B69, timed: a producer goes on all the while, and each job ends as if Postgres were there."""
    stage.mirror()
    workers = [stage.worker(), stage.worker()]
    await stage.enqueue(100)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="the first jobs are mirrored")

    await asyncio.to_thread(stage.postgres.shut_down)
    until = asyncio.get_running_loop().time() + AWAY
    while asyncio.get_running_loop().time() < until:
        await stage.enqueue(20)
        await wait_until_async(stage.idle, timeout=PATIENCE, what="they are over without Postgres")
    assert await stage.unread() > 0
    await asyncio.to_thread(stage.postgres.restart)
    await wait_until_async(stage.settled, timeout=PATIENCE + AWAY, what="everything is mirrored")

    assert await stage.differences() == []
    dead = len(range(3, stage.enqueued, 4))
    assert await stage.statuses() == {"succeeded": stage.enqueued - dead, "failed_terminal": dead}
    assert all(worker.returncode is None for worker in workers)


@pytest.mark.timeout(PATIENCE * 3)
async def test_another_mirror_takes_over_from_a_frozen_one_and_nothing_is_written_twice(stage: Stage) -> None:
    first = stage.mirror()
    first.wait_for_log("mirroring")
    second = stage.mirror()
    second.wait_for_log("standing by")
    stage.worker()

    first.pause()
    await stage.enqueue(200)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="the second one has mirrored all")
    first.resume()
    await stage.enqueue(200)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="the rest is mirrored")

    assert await stage.differences() == []
    first.wait_for_log("standing by")


@pytest.mark.timeout(PATIENCE * 3)
async def test_a_postgres_that_takes_no_writes_is_waited_for(stage: Stage) -> None:
    mirror = stage.mirror()
    stage.worker()
    await stage.enqueue(40)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="the first jobs are mirrored")

    async with stage.sql() as sql:
        await sql.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await sql.execute("SELECT pg_reload_conf()")
    await stage.enqueue(40)
    mirror.wait_for_log("takes no writes now", timeout=PATIENCE)
    async with stage.sql() as sql:
        await sql.execute("SET default_transaction_read_only = off")
        await sql.execute("ALTER SYSTEM RESET default_transaction_read_only")
        await sql.execute("SELECT pg_reload_conf()")

    await wait_until_async(stage.settled, timeout=PATIENCE, what="everything is mirrored")
    assert await stage.differences() == []


async def test_a_mirror_without_its_schema_says_what_to_do_and_starts_once_it_is_there(
    own_valkey: ServerFactory, own_postgres: Callable[[], EmbeddedPostgres]
) -> None:
    with ExitStack() as stack:
        stage = Stage(own_valkey(appendonly=True, config=tap.CONFIG), own_postgres(), stack)
        mirror = stage.mirror()
        mirror.wait_for_log("streamworker mirror migrate")
        await stage.enqueue(4)

        async with stage.sql() as sql:
            await migrate(sql)

        async def read() -> bool:
            return await stage.unread() == 0

        await wait_until_async(read, timeout=PATIENCE, what="the log is mirrored")
        assert await stage.differences() == []
        await stage.queue.close()


@pytest.mark.timeout(PATIENCE * 3)
async def test_the_mirror_waits_for_a_redis_that_is_away(stage: Stage) -> None:
    mirror = stage.mirror()
    stage.worker()
    await stage.enqueue(40)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="the first jobs are mirrored")

    stage.server.kill()
    mirror.wait_for_log("trying again", timeout=PATIENCE)
    stage.server.restart()
    await stage.enqueue(40)

    await wait_until_async(stage.settled, timeout=PATIENCE, what="everything is mirrored")
    assert await stage.differences() == []
    async with stage.sql() as sql:
        assert await sql.fetchval("SELECT loss FROM streamworker.mirror_offsets") is None


SQL = "'); DROP TABLE streamworker.jobs; --"
HOSTILE: list[dict[str, Any]] = [
    {"number": 0, "text": "a\x00b"},
    {"number": 0, "text": SQL},
    {"number": 0, "text": "\U0001f98a" * 60_000},
    {"number": -(2**63), "float": 1e308, "text": "\\u0000 \u2028 \ufffe"},
]


async def test_hostile_data_is_stored_byte_for_byte_or_refused_in_the_producer(stage: Stage) -> None:
    stage.mirror_that_is_on()
    sent: dict[str, bytes] = {}
    for number, args in enumerate(HOSTILE):
        options = Options(key=f"{SQL} {number}", tenant="';--", correlation_id='"$1;--')
        job = new_job("good", args, options)
        sent[job.job_id] = job.envelope
        await stage.queue.enqueuer.add(job)
    for value in ("\ud800", float("nan"), 10**30, "x" * 300_000):
        with pytest.raises((SerializationError, PayloadTooLarge)):
            new_job("good", {"number": value}, Options())
    stage.worker()
    await wait_until_async(stage.settled, timeout=PATIENCE, what="all is over and mirrored")

    async with stage.sql() as sql:
        rows = await sql.fetch("SELECT id::text, payload, key, tenant, correlation_id FROM streamworker.jobs")
        assert await sql.fetchval("SELECT count(*) FROM streamworker.mirror_refused") == 0
    assert {row["id"]: row["payload"] for row in rows} == sent
    assert {row["key"] for row in rows} == {f"{SQL} {number}" for number in range(len(HOSTILE))}
    assert {(row["tenant"], row["correlation_id"]) for row in rows} == {("';--", '"$1;--')}
    assert await stage.differences() == []
