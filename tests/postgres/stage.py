"""A Redis whose every write is on file, a Postgres, and the processes between."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import asyncpg
import requests

from streamworker.core.retry import recompute_delay_ms
from streamworker.core.states import TERMINAL
from streamworker.embedded import EmbeddedServer
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.postgres.rows import content_of, identity_of
from streamworker.settings import Settings
from streamworker.store.keys import Keys
from streamworker.store.queue import Queue
from tests.apps import mirror_jobs
from tests.postgres import tap
from tests.processes import WorkerProcess

JOBS = int(os.environ.get("STREAMWORKER_MIRROR_JOBS", "1500"))
#: Seconds that everything may take, whatever was ordered.
PATIENCE = 60 + JOBS / 100
NAMESPACE = "mirrored"


class Stage:
    """A Redis whose every write is on file, a Postgres, and the processes between."""

    def __init__(self, server: EmbeddedServer, postgres: EmbeddedPostgres, stack: ExitStack) -> None:
        self.server = server
        self.postgres = postgres
        self.keys = Keys(NAMESPACE)
        self.queue = Queue(Settings(NAMESPACE, server.url))
        self.enqueued = 0
        self._stack = stack

    def process(self, command: str, app: str, *arguments: str, **env: str) -> WorkerProcess:
        return self._stack.enter_context(
            WorkerProcess(
                app,
                *arguments,
                command=command,
                redis_url=self.server.url,
                namespace=NAMESPACE,
                env={"STREAMWORKER_POSTGRES_DSN": self.postgres.dsn, **env},
            )
        )

    def mirror(self, *arguments: str) -> WorkerProcess:
        return self.process("mirror", "run", *arguments)

    def mirror_that_is_on(self) -> WorkerProcess:
        """Envelopes are in the log from now on, and a marker that is gone proves a loss."""
        mirror = self.mirror()
        mirror.wait_for_log("it is on", timeout=PATIENCE)
        return mirror

    def worker(self, **env: str) -> WorkerProcess:
        return self.process("run", "mirror_jobs:app", "--concurrency", "32", STREAMWORKER_LEASE="3", **env)

    @asynccontextmanager
    async def sql(self) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(self.postgres.dsn)
        try:
            yield connection
        finally:
            await connection.close()

    async def enqueue(self, count: int) -> list[str]:
        """Jobs of all three kinds; their ids."""
        tasks: list[Any] = [mirror_jobs.good, mirror_jobs.good, mirror_jobs.flaky, mirror_jobs.bad]
        numbers = range(self.enqueued, self.enqueued + count)
        self.enqueued += count
        calls = [tasks[number % 4].call(number) for number in numbers]
        placed = await self.queue.enqueuer.place([call.job for call in calls])
        return [each.job_id for each in placed]

    async def number(self, counter: str) -> int:
        return int(await self.queue.caller.command("HGET", self.keys.stats, counter) or 0)

    async def over(self, job_id: str) -> bool:
        return (await self.queue.record(job_id)).status in TERMINAL

    async def idle(self) -> bool:
        """Whether no job is open. All at one moment: one that is tried again goes back while we look."""
        stats = [f"{what}:normal" for what in ("queued", "scheduled", "in_flight")]
        counts = await self.queue.caller.command("HMGET", self.keys.stats, *stats)
        return not any(int(each or 0) for each in counts)

    async def unread(self) -> int:
        return int(await self.queue.caller.command("XLEN", self.keys.events))

    async def settled(self) -> bool:
        """Whether all jobs are over and all moves are mirrored."""
        return await self.idle() and await self.unread() == 0

    async def differences(self) -> list[str]:
        """What Postgres has otherwise than the append-only file of Redis."""
        expected: dict[Any, Any] = {}
        for move in tap.moves(self.server, self.keys.events):
            expected[identity_of(move)] = content_of(move)
        async with self.sql() as sql:
            found = await stored(sql)
            jobs = await sql.fetch("SELECT id::text, status, version FROM streamworker.jobs")
        wrong = compare(expected, found)
        last: dict[str, tuple[int, int, str]] = {}
        for (job_id, epoch, version), (_, to, *_) in expected.items():
            last[job_id] = max(last.get(job_id, (-1, 0, "")), (epoch, version, to))
        rows = {job_id: (status, version) for job_id, status, version in jobs}
        wrong += [
            f"job {job_id} is {rows.get(job_id)}, not {to} {version}"
            for job_id, (_, version, to) in last.items()
            if rows.get(job_id) != (to, version)
        ]
        return wrong

    async def odd_due_times(self) -> list[str]:
        """Retries in Postgres whose due time does not follow from the policy and factor beside it."""
        async with self.sql() as sql:
            rows = await sql.fetch(
                "SELECT job_id::text, attempt, policy, (extract(epoch FROM due_at - at) * 1000)::bigint "
                "FROM streamworker.job_transitions WHERE to_status = 'retry_scheduled'"
            )
        assert rows, "nothing was tried again"
        return [
            f"{job_id}, attempt {attempt}: {delay} ms by {policy}"
            for job_id, attempt, policy, delay in rows
            if delay != recompute_delay_ms(policy, job_id, attempt)
        ]

    async def statuses(self) -> Counter[str]:
        async with self.sql() as sql:
            rows = await sql.fetch("SELECT status, count(*) AS many FROM streamworker.jobs GROUP BY 1")
        return Counter({row["status"]: row["many"] for row in rows})


class Probe:
    """Asks a mirror's endpoint."""

    def __init__(self, mirror: WorkerProcess) -> None:
        mirror.wait_for_log("/metrics on")
        self._url = "http://" + re.findall(r"/metrics on (\S+)", mirror.log())[-1]

    async def ready(self) -> tuple[int, dict[str, Any]]:
        answer = await asyncio.to_thread(requests.get, f"{self._url}/readyz", timeout=5)
        return answer.status_code, answer.json()

    async def is_ready(self) -> bool:
        return (await self.ready())[0] == 200

    async def unready(self) -> tuple[int, dict[str, Any]] | None:
        status, told = await self.ready()
        return (status, told) if status != 200 and told["lag_events"] else None

    async def metrics(self) -> str:
        return (await asyncio.to_thread(requests.get, f"{self._url}/metrics", timeout=5)).text


async def stored(sql: asyncpg.Connection) -> list[tuple[Any, Any]]:
    """Identity and content of each move in Postgres."""
    rows = await sql.fetch(
        "SELECT job_id::text, epoch, version, from_status, to_status, "
        "(extract(epoch FROM at) * 1000)::bigint, attempt, fence, reason, worker, error_code "
        "FROM streamworker.job_transitions"
    )
    return [(tuple(row)[:3], tuple(row)[3:]) for row in rows]


def compare(expected: dict[Any, Any], found: Iterable[tuple[Any, Any]]) -> list[str]:
    """Each difference, as a sentence."""
    wrong, seen = [], dict[Any, Any]()
    for identity, content in found:
        if identity in seen:
            wrong.append(f"{identity} is there twice")
        seen[identity] = content
    wrong += [f"{each} is missing" for each in expected if each not in seen]
    wrong += [f"{each} was never made" for each in seen if each not in expected]
    wrong += [
        f"{each} is {seen[each]}, not {content}"
        for each, content in expected.items()
        if each in seen and seen[each] != content
    ]
    return wrong
