"""procrastinate with its defaults, on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]  # only in its own environment

from benchmarks.inside.peer import Args, AsyncPeer
from benchmarks.inside.tally import Watcher


class Adapter(AsyncPeer):
    def _build(self, url: str, watcher: Watcher | None = None) -> tuple[Any, Any]:
        app = App(connector=PsycopgConnector(conninfo=url))

        async def job(args: Args) -> None:
            assert watcher is not None
            watcher.ran(args)

        return app, app.task(name="job")(job)

    async def prepare(self, url: str) -> None:
        app, _ = self._build(url)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def connect(self, url: str) -> None:
        self.app, self.job = self._build(url)
        await self.app.open_async()

    async def disconnect(self) -> None:
        await self.app.close_async()

    async def put(self, args: Args) -> None:
        await self.job.defer_async(args=args)

    async def put_many(self, many: Sequence[Args]) -> None:
        await self.job.batch_defer_async(*({"args": args} for args in many))

    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        app, _ = self._build(url, watcher)
        app.run_worker(concurrency=slots)
