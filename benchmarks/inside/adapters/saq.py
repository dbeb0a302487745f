"""saq with its defaults."""

from __future__ import annotations

import asyncio
from typing import Any

from saq import Queue, Worker  # type: ignore[import-not-found]  # only in its own environment

from benchmarks.inside.peer import Args, AsyncPeer
from benchmarks.inside.tally import Watcher


class Adapter(AsyncPeer):
    async def connect(self, url: str) -> None:
        self.queue = Queue.from_url(url)
        await self.queue.connect()

    async def disconnect(self) -> None:
        await self.queue.disconnect()

    async def put(self, args: Args) -> None:
        await self.queue.enqueue("job", args=args)

    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        async def job(ctx: Any, *, args: Args) -> None:
            watcher.ran(args)

        async def serve() -> None:
            queue = Queue.from_url(url)
            await queue.connect()
            await Worker(queue, functions=[("job", job)], concurrency=slots).start()

        asyncio.run(serve())
