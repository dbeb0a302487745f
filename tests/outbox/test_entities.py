"""Requests of one entity are told in their order, whatever becomes of the first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from streamworker import App, Context, enqueue_in
from streamworker.outbox.relay import BEHIND, Relay
from streamworker.postgres.connection import connect
from streamworker.task import Task

NEVER_TOLD = "SELECT id FROM streamworker.outbox WHERE attempted_at IS NULL ORDER BY id"
#: Redis refuses a request by itself that says so.
REFUSED = """UPDATE streamworker.outbox SET extra = '{"tenant": "a\\nb"}'"""


@pytest.fixture
def move(app: App) -> Task[..., Any]:
    @app.task(entity="order:{order}")
    async def move(ctx: Context, order: int, step: int) -> None: ...

    return move


@pytest.fixture
async def relay(app: App, sql: asyncpg.Connection, dsn: str) -> AsyncIterator[Any]:
    """A round of a relay; returns how many requests are over.

    It is given all the time that a busy machine takes: what is not told within that is left to a later round.
    """
    relay, connection = Relay(app.settings, dsn, "r"), await connect(dsn)
    relay._queue.caller.patience = 60
    await relay._queue.caller.command("PING")
    yield lambda: relay.round(connection)
    await connection.close()
    await relay._queue.close()


async def told(app: App, sql: asyncpg.Connection) -> list[int]:
    """The places, from 1, of the requests that Redis knows."""
    rows = await sql.fetch("SELECT job_id::text AS job FROM streamworker.outbox ORDER BY id")
    queue = app.queue()
    there = await queue.caller.command("MGET", *(queue.keys.job(row["job"]) for row in rows))
    return [place for place, raw in enumerate(there, 1) if raw is not None]


async def test_nobody_overtakes_one_of_which_nobody_knows_whether_it_was_told(
    app: App, sql: asyncpg.Connection, relay: Any, move: Task[..., Any]
) -> None:
    for order, step in ((1, 1), (1, 2), (2, 1), (1, 3)):
        await enqueue_in(sql, move.call(order, step))
    await sql.execute(
        "UPDATE streamworker.outbox SET attempted_at = now() - interval '20 min' WHERE id IN (1, 4)"
    )

    assert await relay() == 1

    assert await told(app, sql) == [3]
    assert [row["id"] for row in await sql.fetch(NEVER_TOLD)] == [2], "it may wait long, and is in no doubt"
    row = await sql.fetchrow("SELECT error, attempts FROM streamworker.outbox WHERE id = 2")
    assert row is not None
    assert tuple(row) == (BEHIND, 0)


async def test_nobody_overtakes_one_that_is_rejected_in_another_lane(
    app: App, sql: asyncpg.Connection, relay: Any, move: Task[..., Any]
) -> None:
    queue = app.queue()
    await queue.caller.command("HSET", queue.keys.policies, "declared:admission", "depth normal 0 reject")
    for lane, order in (("normal", 1), ("priority", 1), ("priority", 2)):
        await enqueue_in(sql, move.options(lane=lane).call(order, 1))

    assert await relay() == 1
    assert await told(app, sql) == [3]

    await queue.caller.command("HDEL", queue.keys.policies, "declared:admission")
    assert await relay() == 2
    assert await told(app, sql) == [1, 2, 3]


async def test_nobody_overtakes_one_that_redis_refuses_until_it_is_put_aside(
    app: App, sql: asyncpg.Connection, relay: Any, move: Task[..., Any]
) -> None:
    for order, step in ((1, 1), (1, 2), (2, 1)):
        await enqueue_in(sql, move.call(order, step))
    await sql.execute(REFUSED + " WHERE id = 1")

    await relay()
    assert await told(app, sql) == [3]

    for _ in range(5):
        await relay()
    assert await told(app, sql) == [2, 3]
    assert await sql.fetchval("SELECT refused_at IS NOT NULL FROM streamworker.outbox WHERE id = 1")


async def test_nobody_is_tried_behind_one_of_its_call_that_redis_refuses(
    app: App, sql: asyncpg.Connection, relay: Any, move: Task[..., Any]
) -> None:
    """They are told one by one then, and the second might be taken."""
    for order, step in ((1, 1), (1, 2), (2, 1)):
        await enqueue_in(sql, move.call(order, step))
    await sql.execute(REFUSED + " WHERE id <= 2")

    await relay()

    assert await told(app, sql) == [3]
    assert await sql.fetchval("SELECT error FROM streamworker.outbox WHERE id = 2") == BEHIND


async def test_one_that_is_tried_again_waits_for_none_behind_it(
    app: App, sql: asyncpg.Connection, relay: Any, move: Task[..., Any]
) -> None:
    """It was put aside, so the next one was told, and nobody knows whether that arrived."""
    for step in (1, 2):
        await enqueue_in(sql, move.call(1, step))
    await sql.execute("UPDATE streamworker.outbox SET attempted_at = now() - interval '20 min' WHERE id = 2")

    assert await relay() == 1

    assert await told(app, sql) == [1]
