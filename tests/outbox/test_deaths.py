"""Requests of many connections arrive once each, whatever dies on the way.

`STREAMWORKER_OUTBOX_ROWS` says how many requests, `STREAMWORKER_OUTBOX_KILLS` how often the relay is killed.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import ExitStack

import asyncpg
import pytest

from streamworker import App, Context, enqueue_in
from tests.processes import WorkerProcess
from tests.servers import ServerFactory
from tests.waiting import wait_until_async

ROWS = int(os.environ.get("STREAMWORKER_OUTBOX_ROWS", "800"))
KILLS = int(os.environ.get("STREAMWORKER_OUTBOX_KILLS", "2"))
CONNECTIONS = 8
#: Seconds that everything may take, whatever was ordered.
PATIENCE = 60 + ROWS / 50
pytestmark = pytest.mark.timeout(3 * PATIENCE)


async def test_each_committed_request_arrives_once(
    sql: asyncpg.Connection, dsn: str, own_valkey: ServerFactory, namespace: str
) -> None:
    """Redis is away for a while, relays are killed, and every tenth transaction is rolled back."""
    server = own_valkey(appendonly=True)
    app = App("shop", redis_url=server.url, namespace=namespace, postgres_dsn=dsn)

    @app.task
    async def ship(ctx: Context, order: int) -> None: ...

    committed: list[str] = []
    redis_is_dead = asyncio.Event()

    async def produce(number: int) -> None:
        connection = await asyncpg.connect(dsn)
        for order in range(number, ROWS, CONNECTIONS):
            if order >= ROWS / 2:  # else all may be told before that
                await redis_is_dead.wait()
            transaction = connection.transaction()
            await transaction.start()
            job = await enqueue_in(connection, ship.call(order))
            if order % 10 == 9:
                await transaction.rollback()
            else:
                await transaction.commit()
                committed.append(job.id)
        await connection.close()

    async def told(part: float) -> bool:
        count = await sql.fetchval("SELECT count(*) FROM streamworker.outbox WHERE published_at IS NOT NULL")
        return bool(count >= part * ROWS * 0.9)

    with ExitStack() as stack:

        def relay() -> WorkerProcess:
            return stack.enter_context(
                WorkerProcess(
                    "relay",
                    "--app",
                    namespace,
                    command="outbox",
                    redis_url=server.url,
                    env={"STREAMWORKER_POSTGRES_DSN": dsn},
                )
            )

        running = [relay(), relay()]
        if not KILLS:
            redis_is_dead.set()
        async with app, asyncio.TaskGroup() as group:
            for number in range(CONNECTIONS):
                group.create_task(produce(number))
            for kill in range(KILLS):
                part = (kill + 0.5) / (KILLS + 1)
                await wait_until_async(lambda part=part: told(part), timeout=PATIENCE, what="some arrived")  # type: ignore[misc]
                running[kill % 2].kill()
                running[kill % 2] = relay()
                if kill == 0:
                    server.kill()
                    redis_is_dead.set()
                    # Whoever has rows left notices; the other may have none.
                    await wait_until_async(
                        lambda: any("trying again" in one.log() for one in running),
                        timeout=30,
                        what="a relay notices that Redis is away",
                    )
                    server.restart()
        await wait_until_async(lambda: told(1), timeout=PATIENCE, what="all arrived")
        for one in running:
            one.wait_for_log("relaying", timeout=30)
            one.terminate()
            assert one.wait() == 0

        queue = app.queue()
        entries = await queue.caller.command("XRANGE", queue.keys.stream("normal", "a"), "-", "+")
        await app.close()
    arrived = Counter(flat[1].decode() for _, flat in entries)
    assert arrived == dict.fromkeys(committed, 1)
    assert len(committed) == ROWS - ROWS // 10


async def test_a_relay_runs_beside_a_worker(
    sql: asyncpg.Connection, dsn: str, own_valkey: ServerFactory, namespace: str
) -> None:
    server = own_valkey()
    from tests.apps import mirror_jobs

    with WorkerProcess(
        "mirror_jobs:app",
        "--with-relay",
        redis_url=server.url,
        namespace=mirror_jobs.app.settings.namespace,
        env={"STREAMWORKER_POSTGRES_DSN": dsn},
    ) as worker:
        async with sql.transaction():
            job = await enqueue_in(sql, mirror_jobs.good.call(7))

        async def told() -> bool:
            return bool(await sql.fetchval("SELECT published_at IS NOT NULL FROM streamworker.outbox"))

        await wait_until_async(told, timeout=30, what="the relay has told Redis")
        worker.terminate()
        assert worker.wait() == 0
    assert job.id
