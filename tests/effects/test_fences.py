"""Writes with a fence: a row that has seen a newer one refuses the older, also before the newer wrote."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
import pytest

from streamworker import App, Context, FencedOut, InvalidArgument, Retry, fenced_update, touch
from streamworker.core.errors import ConfigurationError
from streamworker.effects.fences import Fence
from tests.integration.serving import failure, serving

OLD, NEW = Fence(5, "a:5"), Fence(6, "b:6")
ROW = {"id": 7}


@pytest.fixture
async def row(shop: asyncpg.Connection) -> asyncpg.Connection:
    await shop.execute("INSERT INTO orders (id) VALUES (7)")
    return shop


async def status(row: asyncpg.Connection) -> Any:
    return await row.fetchval("SELECT status FROM orders WHERE id = 7")


async def test_a_holder_may_write_more_than_once(row: asyncpg.Connection) -> None:
    for word in ("packed", "shipped"):
        await fenced_update(row, "orders", ROW, {"status": word}, NEW)

    assert await status(row) == "shipped"


async def test_an_overtaken_holder_is_refused_once_the_newer_has_touched_the_row(
    row: asyncpg.Connection,
) -> None:
    await fenced_update(row, "orders", ROW, {"status": "packed"}, OLD)
    await touch(row, "orders", ROW, NEW)

    with pytest.raises(FencedOut, match="has seen a newer one"):
        await fenced_update(row, "orders", ROW, {"status": "lost"}, OLD)

    assert await status(row) == "packed"


async def test_another_holder_of_the_same_token_is_refused(row: asyncpg.Connection) -> None:
    """B39: after a failover the same number may be given twice (R41)."""
    await touch(row, "orders", ROW, NEW)

    with pytest.raises(FencedOut):
        await touch(row, "orders", ROW, Fence(6, "c:6"))


async def test_a_token_can_be_above_what_a_row_has_seen_before_redis_went_back(
    app: App, row: asyncpg.Connection
) -> None:
    """B39: the server of before had a clock ahead; the one of now gives tokens that were given already."""
    seen = 2**52
    await touch(row, "orders", ROW, Fence(seen, "before"))

    @app.task(retry=Retry.never())
    async def ship(ctx: Context, careful: bool) -> Any:
        floor = await row.fetchval("SELECT fence_token FROM orders WHERE id = 7") if careful else 0
        async with ctx.lock("order:7", floor=floor) as lock:
            await fenced_update(row, "orders", ROW, {"status": "shipped"}, lock)

    async with serving(app):
        assert (await failure(await ship.enqueue(False))).code == "fenced_out"
        await (await ship.enqueue(True)).result(10)

    assert await row.fetchval("SELECT fence_token FROM orders") > seen


def test_a_connection_that_blocks_is_not_awaited(row: asyncpg.Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        fenced_update(connection, "public.orders", ROW, {"status": "packed"}, NEW)
        with pytest.raises(FencedOut):
            touch(connection, "orders", ROW, OLD)


async def test_in_pipeline_mode_no_overtaken_holder_is_told_that_it_wrote(
    row: asyncpg.Connection, dsn: str
) -> None:
    """There psycopg says of each statement that it touched -1 rows."""
    await touch(row, "orders", ROW, NEW)
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        with pytest.raises(ConfigurationError, match="pipeline mode"):
            async with connection.pipeline():
                await fenced_update(connection, "orders", ROW, {"status": "lost"}, OLD)
        await connection.rollback()


async def test_a_row_that_is_not_named_is_not_every_row(row: asyncpg.Connection) -> None:
    with pytest.raises(InvalidArgument, match="say which row"):
        fenced_update(row, "orders", {}, {"status": "lost"}, NEW)


@pytest.mark.parametrize("name", ["orders; DROP TABLE orders", 'a"b', "", "1a"])
async def test_names_are_names(row: asyncpg.Connection, name: str) -> None:
    with pytest.raises(InvalidArgument):
        fenced_update(row, name, ROW, {}, NEW)
    with pytest.raises(InvalidArgument):
        fenced_update(row, "orders", ROW, {name: 1}, NEW)


async def test_the_fence_is_that_of_a_lock_or_of_the_claim(app: App, row: asyncpg.Connection) -> None:
    seen: list[Fence] = []

    @app.task(retry=Retry.never())
    async def ship(ctx: Context) -> Any:
        await fenced_update(row, "orders", ROW, {"status": "packed"}, ctx)
        async with ctx.lock("order:7", floor=2**52) as lock:
            await fenced_update(row, "orders", ROW, {"status": "shipped"}, lock)
            seen.extend([Fence.of(ctx), Fence.of(lock)])

    async with serving(app):
        await (await ship.enqueue()).result(10)

    by_claim, by_lock = seen
    assert by_claim.holder == by_lock.holder
    assert by_lock.token > 2**52, "above what a row had seen before"
    assert await row.fetchval("SELECT fence_token FROM orders") == by_lock.token
