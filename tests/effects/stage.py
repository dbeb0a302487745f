"""A Redis whose data survives a crash, a Postgres with the tables of the shop, and processes that die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import asyncpg

from streamworker import Client, Status
from streamworker.core.errors import JobNotFound
from streamworker.embedded import EmbeddedServer
from tests.processes import WorkerProcess
from tests.waiting import wait_until_async

NAMESPACE = "effects"
APP = "effects_jobs:app"


class Shop:
    """The servers, the workers, and what can be asked of them."""

    def __init__(
        self, server: EmbeddedServer, dsn: str, sql: asyncpg.Connection, folder: Path, stack: ExitStack
    ):
        self.server = server
        self.dsn = dsn
        self.sql = sql
        self.folder = folder
        self.workers: list[WorkerProcess] = []
        self.deaths = 0
        self._stack = stack

    def start(self, command: str = "run", app: str = APP, *arguments: str, **env: str) -> WorkerProcess:
        return self._stack.enter_context(
            WorkerProcess(
                app,
                *arguments,
                command=command,
                redis_url=self.server.url,
                namespace=NAMESPACE,
                env={
                    "STREAMWORKER_POSTGRES_DSN": self.dsn,
                    "EFFECTS_RUNS": str(self.folder),
                    **env,
                },
            )
        )

    def worker(self, *arguments: str, **env: str) -> WorkerProcess:
        return self.start("run", APP, *arguments, **env)

    def fleet(self, size: int, concurrency: int = 4) -> None:
        """Workers that are started again when they die: call `tend` while waiting."""
        self._concurrency = str(concurrency)
        # One that runs nothing looks for what the dead have left: those that come up and die are never at it
        # for a whole lease (D6).
        self.worker("--lanes", "p0", "--concurrency", "1")
        self.workers = [self.worker("--concurrency", self._concurrency) for _ in range(size)]

    def tend(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker.returncode is not None:
                self.deaths += 1
                self.workers[number] = self.worker("--concurrency", self._concurrency)

    def client(self) -> Client:
        return Client(self.server.url, app="effects", namespace=NAMESPACE)

    async def all_over(self, client: Client, job_ids: Sequence[str], *, timeout: float) -> Counter[Status]:
        """How all of them ended, once they have."""
        left, ended = list(job_ids), Counter[Status]()

        async def over() -> bool:
            self.tend()
            for job_id in left[:50]:  # in turn, so that nobody's record is gone before it is looked at
                left.remove(job_id)
                status = await self._status(client, job_id)
                if status in (Status.SUCCEEDED, Status.FAILED_TERMINAL):
                    ended[status] += 1
                else:
                    left.append(job_id)
            return not left

        await wait_until_async(over, timeout=timeout, what="all jobs are over")
        return ended

    async def _status(self, client: Client, job_id: str) -> Status | None:
        try:
            return (await client.get(job_id)).status
        except JobNotFound:
            return None

    async def invoices(self) -> dict[str, int]:
        rows = await self.sql.fetch("SELECT payment_id, count(*) AS many FROM invoices GROUP BY 1")
        return {row["payment_id"]: row["many"] for row in rows}

    async def reasons(self) -> Counter[str]:
        """Of all moves, why they were made; `job_id reason` as well, so that one can be asked for."""
        from streamworker.store.caller import Caller
        from streamworker.store.events import decode, pairs
        from streamworker.store.keys import Keys

        keys = Keys(NAMESPACE)
        caller = Caller(self.server.url, keys.tag)
        entries: Any = await caller.command("XRANGE", keys.events, "-", "+")
        await caller.close()
        found: Counter[str] = Counter()
        for _, flat in entries:
            for move in decode(pairs(flat)):
                found[move.reason] += 1
                found[f"{move.job_id} {move.reason}"] += 1
        return found
