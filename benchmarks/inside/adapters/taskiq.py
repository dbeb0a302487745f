"""taskiq on the stream broker of taskiq-redis; variant `stream_results`: with results for 10 min."""

from __future__ import annotations

import asyncio
from typing import Any

from taskiq.api import run_receiver_task  # type: ignore[import-not-found]  # only in its own environment
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker  # type: ignore[import-not-found]  # only in its own environment

from benchmarks.inside.peer import Args, AsyncPeer
from benchmarks.inside.tally import Watcher


class Adapter(AsyncPeer):
    def _build(self, url: str, watcher: Watcher | None = None) -> tuple[Any, Any]:
        broker = RedisStreamBroker(url)
        if self.variant == "stream_results":
            broker = broker.with_result_backend(RedisAsyncResultBackend(url, result_ex_time=600))

        async def job(args: dict) -> None:  # type: ignore[type-arg]  # taskiq parses by it
            assert watcher is not None
            watcher.ran(args)

        return broker, broker.register_task(job, task_name="job")

    async def connect(self, url: str) -> None:
        self.broker, self.job = self._build(url)
        await self.broker.startup()

    async def disconnect(self) -> None:
        await self.broker.shutdown()

    async def put(self, args: Args) -> None:
        await self.job.kiq(args)

    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        async def serve() -> None:
            broker, _ = self._build(url, watcher)
            await run_receiver_task(broker, max_async_tasks=slots, run_startup=True)

        asyncio.run(serve())
