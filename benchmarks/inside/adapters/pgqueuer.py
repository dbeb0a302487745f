"""pgqueuer on Postgres with its defaults; variant `batches`: in batches of half of the slots, its most."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries  # type: ignore[import-not-found]  # only in its own environment
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]  # only in its own environment

from benchmarks.inside.peer import Args, AsyncPeer
from benchmarks.inside.tally import Watcher


class Adapter(AsyncPeer):
    async def prepare(self, url: str) -> None:
        await self.connect(url)
        await self.queries.install()
        await self.disconnect()

    async def connect(self, url: str) -> None:
        # Statements of one connection wait for each other, as its documentation has it.
        self.connection = await asyncpg.connect(url)
        self.queries = Queries(AsyncpgDriver(self.connection))

    async def disconnect(self) -> None:
        await self.connection.close()

    async def put(self, args: Args) -> None:
        await self.queries.enqueue("job", json.dumps(args).encode())

    async def put_many(self, many: Sequence[Args]) -> None:
        payloads = [json.dumps(args).encode() for args in many]
        await self.queries.enqueue(["job"] * len(many), payloads, [0] * len(many))

    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        async def serve() -> None:
            queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

            @queuer.entrypoint("job")  # type: ignore[untyped-decorator]  # only in its own environment
            async def job(job: Any) -> None:
                watcher.ran(json.loads(job.payload))

            if self.variant == "batches":
                await queuer.run(batch_size=max(1, slots // 2), max_concurrent_tasks=max(2, slots))
            else:
                await queuer.run()

        uvloop.run(serve())
