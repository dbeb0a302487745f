"""Cached values that an effect has made old are dropped by whoever finds it: its worker may have died."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from streamworker import App, Context, PersistentError
from tests.effects.reading import operations
from tests.integration.serving import serving
from tests.waiting import wait_until_async


async def test_the_keys_commit_with_the_effect(app: App, shop: asyncpg.Connection) -> None:
    @app.task
    async def pay(ctx: Context) -> Any:
        ctx.invalidate("order:7")
        async with ctx.transaction():
            ctx.invalidate("order:8")

    async with serving(app):
        await (await pay.enqueue()).result(10)

    (row,) = await operations(shop)
    assert row["cache_keys"] == ["order:7", "order:8"]


@pytest.mark.parametrize("how", ["by the next attempt", "before it is buried"])
async def test_who_finds_the_effect_drops_them(app: App, shop: asyncpg.Connection, how: str) -> None:
    """A worker had committed it, and died."""
    stored: list[str] = []

    @app.task
    async def pay(ctx: Context, payment: str) -> Any:
        if how == "before it is buried":
            raise PersistentError("no")
        async with ctx.transaction():
            stored.append("again")

    await shop.execute(
        "INSERT INTO streamworker.processed_operations (namespace, operation_type, idempotency_key, status, "
        "fingerprint, fence, cache_keys) VALUES ($1, 'pay', 'p1', 'succeeded', $2, 1, '{order:7}')",
        app.settings.namespace,
        pay.options(key="p1").call("p1").job.fingerprint,
    )
    queue = app.queue()
    await queue.caller.command("HSET", queue.keys.policies, "effects:pay", 1)
    async with serving(app):
        assert await app.cache.get("order:7", lambda: "old") == "old"
        await (await pay.options(key="p1").enqueue("p1")).result(10)

        async def renewed() -> bool:
            return bool(await app.cache.get("order:7", lambda: "new") == "new")

        await wait_until_async(renewed, what="the old value is gone")

    assert stored == []
