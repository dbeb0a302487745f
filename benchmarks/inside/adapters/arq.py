"""arq with its defaults."""

from __future__ import annotations

import asyncio
from typing import Any

from arq import create_pool, func  # type: ignore[import-not-found]  # only in its own environment
from arq.connections import RedisSettings  # type: ignore[import-not-found]  # only in its own environment
from arq.worker import Worker  # type: ignore[import-not-found]  # only in its own environment

from benchmarks.inside.peer import Args, AsyncPeer
from benchmarks.inside.tally import Watcher


class Adapter(AsyncPeer):
    async def connect(self, url: str) -> None:
        self.pool = await create_pool(RedisSettings.from_dsn(url))

    async def disconnect(self) -> None:
        await self.pool.aclose()

    async def put(self, args: Args) -> None:
        await self.pool.enqueue_job("job", args)

    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        async def job(ctx: dict[str, Any], args: Args) -> None:
            watcher.ran(args)

        asyncio.set_event_loop(asyncio.new_event_loop())
        settings = RedisSettings.from_dsn(url)
        Worker(functions=[func(job, name="job")], redis_settings=settings, max_jobs=slots).run()
