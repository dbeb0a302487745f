"""Oban for Python with its defaults, on Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from oban import Oban, schema, worker  # type: ignore[import-not-found]  # only in its own environment

from benchmarks.inside.peer import Args, AsyncPeer
from benchmarks.inside.tally import Watcher

WATCHERS: list[Watcher] = []


@worker(queue="default")
class Noop:
    async def process(self, job: Any) -> None:
        WATCHERS[0].ran(job.args)


class Adapter(AsyncPeer):
    async def prepare(self, url: str) -> None:
        pool = await Oban.create_pool(url)
        await schema.install(pool)
        await pool.close()

    async def connect(self, url: str) -> None:
        self.pool = await Oban.create_pool(url)
        self.oban = Oban(pool=self.pool)

    async def disconnect(self) -> None:
        await self.pool.close()

    async def put(self, args: Args) -> None:
        await self.oban.enqueue(Noop.new(dict(args)))  # type: ignore[attr-defined]  # the decorator's

    async def put_many(self, many: Sequence[Args]) -> None:
        await self.oban.enqueue_many([Noop.new(dict(args)) for args in many])  # type: ignore[attr-defined]  # the decorator's

    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        WATCHERS.append(watcher)

        async def serve() -> None:
            pool = await Oban.create_pool(url)
            async with Oban(pool=pool, queues={"default": slots}):
                await asyncio.Event().wait()

        asyncio.run(serve())
