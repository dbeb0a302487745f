"""streamworker as `Worker(app).run()` runs it, with its metrics served.

Variant `bare`: without metrics; variant `logs`: with them, and a line of JSON for each move, to a file.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence

from benchmarks.inside.peer import Args, AsyncPeer
from benchmarks.inside.tally import Watcher
from streamworker import App, Context, Task, Worker
from streamworker.telemetry.logs import LogFormat, configure


class Adapter(AsyncPeer):
    def _build(self, url: str, watcher: Watcher | None = None) -> tuple[App, Task[[Args], None]]:
        app = App("bench", redis_url=url)

        @app.task
        async def job(ctx: Context, args: Args) -> None:
            assert watcher is not None
            watcher.ran(args)

        return app, job

    async def connect(self, url: str) -> None:
        self.app, self.job = self._build(url)

    async def disconnect(self) -> None:
        await self.app.close()

    async def put(self, args: Args) -> None:
        await self.job.enqueue(args)

    async def put_many(self, many: Sequence[Args]) -> None:
        await self.app.enqueue_many([self.job.call(args) for args in many])

    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        app, _ = self._build(url, watcher)
        port = None if self.variant == "bare" else 0
        with tempfile.TemporaryFile("w+", encoding="utf-8") as lines:
            if self.variant == "logs":
                configure(LogFormat.JSON, logging.INFO, stream=lines)
            Worker(app, concurrency=slots, metrics_port=port).run()
