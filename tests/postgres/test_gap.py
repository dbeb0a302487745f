"""Postgres has lost the last that was committed, by a backup or a failover: Redis knows what it had told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from streamworker.postgres.mirror import Mirror
from streamworker.settings import Settings
from streamworker.store.queue import Queue
from tests.apps import mirror_jobs
from tests.servers import BenchServer
from tests.waiting import wait_until_async

TABLES = ("jobs", "job_transitions", "mirror_offsets", "operator_actions")


@asynccontextmanager
async def mirroring(settings: Settings, dsn: str) -> AsyncIterator[Mirror]:
    mirror = Mirror(settings, dsn, "m")
    running = asyncio.create_task(mirror.run())
    yield mirror
    mirror.stop()
    await running


async def test_what_ended_in_the_part_that_was_lost_does_not_run_again(
    dsn: str, sql: asyncpg.Connection, valkey: BenchServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They were open in Postgres for ever, and ran once more when Redis lost its data as well."""
    caplog.set_level("INFO")
    settings = Settings(namespace, valkey.url)
    queue = Queue(settings)
    command, keys = queue.caller.command, queue.keys

    async def place(count: int) -> list[str]:
        return [
            each.job_id
            for each in await queue.enqueuer.place([mirror_jobs.good.call(n).job for n in range(count)])
        ]

    async def mirrored() -> bool:
        return int(await command("XLEN", keys.events)) == 0

    async def statuses() -> dict[str, str]:
        rows = await sql.fetch("SELECT id::text, status, task FROM streamworker.jobs WHERE task IS NOT NULL")
        return {row["id"]: row["status"] for row in rows}

    async with mirroring(settings, dsn):
        await wait_until_async(lambda: "it is on" in caplog.text, what="it is on")
        waits, expired, known = await place(3)
        await wait_until_async(mirrored, what="they are mirrored")
        for table in TABLES:
            await sql.execute(f"CREATE TABLE public.{table} AS SELECT * FROM streamworker.{table}")
        for job_id in (expired, known):
            assert await queue.cancel(job_id, actor="ann@ops") == "OK"
        (later,) = await place(1)
        await wait_until_async(mirrored, what="their ends are mirrored")
    for table in TABLES:
        await sql.execute(f"DELETE FROM streamworker.{table}")
        more = "OVERRIDING SYSTEM VALUE" if table == "operator_actions" else ""
        await sql.execute(f"INSERT INTO streamworker.{table} {more} SELECT * FROM public.{table}")
    await command("DEL", keys.job(expired))

    async with mirroring(settings, dsn):
        (newest,) = await place(1)
        await wait_until_async(lambda: "1 jobs ended while" in caplog.text, what="it looks at what it missed")
        await wait_until_async(
            lambda: "1 jobs that Postgres has as open" in caplog.text, what="and marks the rest"
        )
    assert await statuses() == {
        waits: "queued", expired: "queued", known: "failed_terminal", later: "queued", newest: "queued",
    }  # fmt: skip

    await command("DEL", *(await command("KEYS", f"{{{namespace}*")))
    restored = (await Mirror(settings, dsn, "m").reconcile()).restored

    assert sorted(restored) == sorted([waits, later, newest])
    await queue.close()
