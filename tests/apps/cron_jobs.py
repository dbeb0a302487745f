"""An app whose crons say when they ran: two each second, and one whose work takes longer."""

from __future__ import annotations

import asyncio
import os
import time

import redis

from streamworker import App, Context

app = App("crons")
server = redis.Redis.from_url(app.settings.redis_url, protocol=2, socket_timeout=10)
#: Seconds that the slow one works.
WORK = float(os.environ.get("CRON_WORK", "3"))


def note(ctx: Context, what: str) -> None:
    """What happened, for which tick, when, and in which process."""
    assert ctx.tick is not None
    line = f"{what} {round(ctx.tick.timestamp())} {time.time()} {os.getpid()}"
    server.rpush(f"runs:{app.settings.namespace}:{ctx.task}", line)


@app.cron("* * * * * *")
async def each_second(ctx: Context) -> None:
    note(ctx, "ran")


@app.cron("* * * * * *", overlap="queue")
async def always(ctx: Context) -> None:
    note(ctx, "ran")


@app.cron("* * * * * *", overlap="skip")
async def slow(ctx: Context) -> None:
    note(ctx, "began")
    await asyncio.sleep(WORK)
    note(ctx, "ended")
