"""An app for the cases: what `chaos_jobs` has not.

CHAOS_JOURNAL and CHAOS_GO are as there. CASE_EFFECTS names a database for effects, CASE_OLD leaves
out the task of the next release.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

from streamworker import App, Context, Retry
from tests.apps.chaos_jobs import LOOK, SHORT, journaled

app = App("chaos")


async def released() -> None:
    """Return once the file is there."""
    go = Path(os.environ["CHAOS_GO"])
    while not go.exists():  # noqa: ASYNC110, ASYNC240 - no other process can set an event
        await asyncio.sleep(LOOK)


@app.task(retry=SHORT)
async def quick(ctx: Context) -> int:
    with journaled(ctx):
        return ctx.attempt


@app.task(retry=SHORT)
async def hold(ctx: Context) -> int:
    with journaled(ctx):
        await released()
        return ctx.attempt


@app.task(retry=Retry.never())
async def hold_once(ctx: Context) -> int:
    """The only attempt that there is."""
    with journaled(ctx):
        await released()
        return ctx.attempt


@app.task(retry=SHORT, entity="order:{order}")
async def serial(ctx: Context, order: int) -> int:
    """One of its order at a time."""
    with journaled(ctx, f"entity:order:{order}"):
        await released()
        return ctx.fence


@app.task(retry=SHORT, timeout="60s")
async def locked(ctx: Context, order: int, ttl: float) -> int:
    """Lock its order, and only then begin; the lock's token."""
    async with ctx.lock(f"order:{order}", ttl=ttl, wait=20) as lock:
        with journaled(ctx):
            await released()
            return lock.token


@app.task(retry=SHORT)
async def insert(ctx: Context) -> int:
    """An effect with a key: a row that a second attempt finds."""
    with journaled(ctx):
        with sqlite3.connect(os.environ["CASE_EFFECTS"], timeout=10) as database:
            database.execute("CREATE TABLE IF NOT EXISTS tried (fence INTEGER)")
            database.execute("CREATE TABLE IF NOT EXISTS effects (key TEXT PRIMARY KEY, attempt INTEGER)")
            database.execute("INSERT INTO tried VALUES (?)", (ctx.fence,))
            database.execute(
                "INSERT INTO effects VALUES (?, ?) ON CONFLICT DO NOTHING", (ctx.key, ctx.attempt)
            )
        database.close()
        await released()
        return ctx.attempt


if not os.environ.get("CASE_OLD"):

    @app.task(retry=SHORT, name="new.task")
    async def new_task(ctx: Context) -> int:
        with journaled(ctx):
            return ctx.attempt
