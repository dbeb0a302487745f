"""The mirror is turned on late: jobs that ended before that do not run again after a loss of Redis (D19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from streamworker import App, Client, Context, Job, JobNotFound, enqueue_in
from streamworker.outbox.relay import relay_all
from streamworker.postgres import offsets
from streamworker.postgres.connection import PostgresUnavailable
from streamworker.postgres.mirror import Mirror
from streamworker.postgres.switch import Switch
from streamworker.postgres.verify import Verifier
from tests.integration.serving import serving
from tests.servers import ServerFactory
from tests.waiting import wait_until_async


@pytest.fixture
async def shop(dsn: str, sql: asyncpg.Connection, own_valkey: ServerFactory) -> AsyncIterator[App]:
    """An app on a Redis of its own, which may lose everything."""
    url = own_valkey().url
    async with App("shop", redis_url=url, namespace="late", postgres_dsn=dsn, lease="3s") as app:

        @app.task
        async def ship(ctx: Context, order: int) -> int:
            return order

        yield app


async def committed(app: App, sql: asyncpg.Connection, dsn: str, order: int) -> Job[int]:
    """A request that was committed and told to Redis."""
    async with sql.transaction():
        job: Job[int] = await enqueue_in(sql, app.tasks["ship"].call(order))
    await relay_all(app.settings, dsn, "test")
    return job


async def run_and_forget(app: App, job: Job[int]) -> None:
    """The job ends, and Redis keeps nothing of it: neither its record nor the log."""
    queue = app.queue()
    async with serving(app):
        await job.result(10)
    await queue.caller.command("DEL", queue.keys.job(job.id), queue.keys.body(job.id), queue.keys.events)


@asynccontextmanager
async def mirroring(app: App, dsn: str) -> AsyncIterator[None]:
    """The mirror is on, and has taken in what there was."""
    mirror = Mirror(app.settings, dsn, "m")
    running = asyncio.create_task(mirror.run())

    async def on() -> bool:
        connection = await asyncpg.connect(dsn)
        try:
            offset = await offsets.read(connection, app.settings.namespace, 0)
        finally:
            await connection.close()
        return offset is not None and offset.on

    try:
        await wait_until_async(on, what="the mirror is on")
        yield
    finally:
        mirror.stop()
        await running


async def lose(app: App, dsn: str) -> list[str]:
    """Redis loses everything; the jobs that a reconcile brings back."""
    await app.queue().caller.command("FLUSHALL")
    return (await Mirror(app.settings, dsn, "m").reconcile()).restored


async def test_a_request_that_was_done_before_the_mirror_was_first_on_does_not_run_again(
    shop: App, sql: asyncpg.Connection, dsn: str
) -> None:
    done = await committed(shop, sql, dsn, 1)
    await run_and_forget(shop, done)
    still_open = await committed(shop, sql, dsn, 2)
    async with sql.transaction():
        waiting = await enqueue_in(sql, shop.tasks["ship"].call(3))

    async with mirroring(shop, dsn):
        pass
    restored = await lose(shop, dsn)

    assert sorted(restored) == sorted([still_open.id, waiting.id])
    assert await sql.fetchval("SELECT reason FROM streamworker.jobs WHERE id = $1::uuid", done.id) == "unseen"
    async with Client(shop.settings.redis_url, app="late", postgres_dsn=dsn) as client:
        with pytest.raises(JobNotFound, match="while the mirror was off"):
            await client.get(done.id)
    queue = shop.queue()
    assert (await Verifier(sql, queue.caller, queue.keys).run(patience=0.1)).unseen == 1


async def test_a_job_that_ended_while_the_mirror_was_off_does_not_run_again(
    shop: App, sql: asyncpg.Connection, dsn: str
) -> None:
    queue = shop.queue()
    async with mirroring(shop, dsn):
        done = await shop.tasks["ship"].enqueue(1)

        async def read() -> bool:
            known = "SELECT EXISTS (SELECT 1 FROM streamworker.jobs WHERE id = $1::uuid)"
            return bool(await sql.fetchval(known, done.id))

        await wait_until_async(read, what="Postgres has it as open")
    await offsets.end(sql, "late", 0)
    await Switch(queue.caller, queue.keys).off()
    await run_and_forget(shop, done)
    between = await shop.tasks["ship"].enqueue(2)
    await queue.caller.command("DEL", queue.keys.events)  # as a keeper might have

    with pytest.raises(PostgresUnavailable, match="the mirror of late is off"):
        await Mirror(shop.settings, dsn, "m").reconcile()
    async with mirroring(shop, dsn):
        pass

    assert await lose(shop, dsn) == [between.id]
