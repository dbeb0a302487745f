"""Mirrors against real servers: Postgres gets exactly what Redis logged, whatever dies meanwhile.

`STREAMWORKER_MIRROR_JOBS`, `_KILLS` and `_RESTARTS` make them longer; `make chaos` and `make soak` do.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest
import requests

from streamworker.embedded import EmbeddedServer
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.postgres.migrate import migrate
from streamworker.postgres.rows import MoveRow, content_of, identity_of
from streamworker.settings import Settings
from streamworker.store.keys import Keys
from streamworker.store.queue import Queue
from tests.apps import mirror_jobs
from tests.postgres import tap
from tests.processes import WorkerProcess
from tests.servers import ServerFactory
from tests.waiting import wait_until_async

JOBS = int(os.environ.get("STREAMWORKER_MIRROR_JOBS", "1500"))
KILLS = int(os.environ.get("STREAMWORKER_MIRROR_KILLS", "4"))
RESTARTS = int(os.environ.get("STREAMWORKER_MIRROR_RESTARTS", "2"))
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

    async def idle(self) -> bool:
        """Whether no job is open."""
        stats = [f"{what}:normal" for what in ("queued", "scheduled", "in_flight")]
        return [await self.number(each) for each in stats] == [0, 0, 0]

    async def unread(self) -> int:
        return int(await self.queue.caller.command("XLEN", self.keys.events))

    async def settled(self) -> bool:
        """Whether all jobs are over and all moves are mirrored."""
        return await self.idle() and await self.unread() == 0

    async def differences(self) -> list[str]:
        """What Postgres has otherwise than the append-only file of Redis."""
        expected: dict[Any, Any] = {}
        for move in tap.moves(self.server, self.keys.events):
            row = MoveRow.of(move, None)
            expected[identity_of(row)] = content_of(row)
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


@pytest.fixture
async def stage(
    own_valkey: ServerFactory, own_postgres: Callable[[], EmbeddedPostgres]
) -> AsyncIterator[Stage]:
    server = own_valkey(appendonly=True, config=tap.CONFIG)
    postgres = own_postgres()
    connection = await asyncpg.connect(postgres.dsn)
    await migrate(connection)
    await connection.close()
    with ExitStack() as stack:
        made = Stage(server, postgres, stack)
        yield made
        await made.queue.close()


@pytest.mark.timeout(PATIENCE * 3)
async def test_postgres_gets_exactly_what_redis_logged_whatever_dies_meanwhile(stage: Stage) -> None:
    """Two mirrors of which one is killed again and again, and a Postgres that is restarted."""
    choose = random.Random(7)
    mirrors = [stage.mirror(), stage.mirror()]
    workers = [stage.worker(), stage.worker()]
    faults = ["mirror"] * KILLS + ["postgres"] * RESTARTS
    choose.shuffle(faults)

    ids: list[str] = []
    share = -(-JOBS // (len(faults) + 1))
    for fault in [*faults, ""]:
        ids += await stage.enqueue(min(share, JOBS - len(ids)))
        before = await stage.unread()
        if fault == "mirror":  # while it has something to do
            await wait_until_async(stage.unread, what=f"the log has entries beyond {before}")
            number = choose.randrange(2)
            mirrors[number].kill()
            mirrors[number] = stage.mirror()
        elif fault == "postgres":
            await asyncio.to_thread(choose.choice([stage.postgres.kill, stage.postgres.shut_down]))
            await asyncio.to_thread(stage.postgres.restart)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="all is over and mirrored")

    assert await stage.differences() == []
    dead = len(range(3, JOBS, 4))
    assert len(ids) == JOBS
    assert await stage.statuses() == {"succeeded": JOBS - dead, "failed_terminal": dead}
    async with stage.sql() as sql:
        assert await sql.fetchval("SELECT count(*) FROM streamworker.mirror_conflicts") == 0
        assert await sql.fetchval("SELECT count(*) FROM streamworker.mirror_refused") == 0
        assert await sql.fetchval("SELECT loss FROM streamworker.mirror_offsets") is None
    assert all(worker.returncode is None for worker in workers)


@pytest.mark.timeout(PATIENCE * 3)
async def test_workers_do_not_notice_that_postgres_is_away_and_the_mirror_catches_up(stage: Stage) -> None:
    mirror = stage.mirror("--metrics-port", "0")
    stage.worker()
    await stage.enqueue(100)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="the first jobs are mirrored")
    probe = Probe(mirror)
    assert (await probe.ready())[0] == 200

    await asyncio.to_thread(stage.postgres.kill)
    await stage.enqueue(JOBS)
    await wait_until_async(stage.idle, timeout=PATIENCE, what="all jobs are over without Postgres")

    status, told = await wait_until_async(probe.unready, what="the probe says that Postgres is away")
    assert (status, told["state"]) == (503, "postgres_away")
    assert told["lag_events"] > 0
    assert "streamworker_mirror_state" in await probe.metrics()

    await asyncio.to_thread(stage.postgres.restart)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="everything is mirrored")

    assert await stage.differences() == []
    await wait_until_async(probe.is_ready, what="the probe says that all is well again")
    mirror.terminate()
    assert mirror.wait() == 0


@pytest.mark.timeout(PATIENCE * 3)
async def test_another_mirror_takes_over_from_a_frozen_one_and_nothing_is_written_twice(stage: Stage) -> None:
    first = stage.mirror()
    first.wait_for_log("mirroring")
    second = stage.mirror()
    second.wait_for_log("standing by")
    stage.worker()

    first.pause()
    await stage.enqueue(200)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="the second one has mirrored all")
    first.resume()
    await stage.enqueue(200)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="the rest is mirrored")

    assert await stage.differences() == []
    first.wait_for_log("standing by")


@pytest.mark.timeout(PATIENCE * 3)
async def test_a_postgres_that_takes_no_writes_is_waited_for(stage: Stage) -> None:
    mirror = stage.mirror()
    stage.worker()
    await stage.enqueue(40)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="the first jobs are mirrored")

    async with stage.sql() as sql:
        await sql.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await sql.execute("SELECT pg_reload_conf()")
    await stage.enqueue(40)
    mirror.wait_for_log("takes no writes now", timeout=PATIENCE)
    async with stage.sql() as sql:
        await sql.execute("SET default_transaction_read_only = off")
        await sql.execute("ALTER SYSTEM RESET default_transaction_read_only")
        await sql.execute("SELECT pg_reload_conf()")

    await wait_until_async(stage.settled, timeout=PATIENCE, what="everything is mirrored")
    assert await stage.differences() == []


async def test_a_mirror_without_its_schema_says_what_to_do_and_starts_once_it_is_there(
    own_valkey: ServerFactory, own_postgres: Callable[[], EmbeddedPostgres]
) -> None:
    with ExitStack() as stack:
        stage = Stage(own_valkey(appendonly=True, config=tap.CONFIG), own_postgres(), stack)
        mirror = stage.mirror()
        mirror.wait_for_log("streamworker mirror migrate")
        await stage.enqueue(4)

        async with stage.sql() as sql:
            await migrate(sql)

        async def read() -> bool:
            return await stage.unread() == 0

        await wait_until_async(read, timeout=PATIENCE, what="the log is mirrored")
        assert await stage.differences() == []
        await stage.queue.close()


@pytest.mark.timeout(PATIENCE * 3)
async def test_the_mirror_waits_for_a_redis_that_is_away(stage: Stage) -> None:
    mirror = stage.mirror()
    stage.worker()
    await stage.enqueue(40)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="the first jobs are mirrored")

    stage.server.kill()
    mirror.wait_for_log("trying again", timeout=PATIENCE)
    stage.server.restart()
    await stage.enqueue(40)

    await wait_until_async(stage.settled, timeout=PATIENCE, what="everything is mirrored")
    assert await stage.differences() == []
    async with stage.sql() as sql:
        assert await sql.fetchval("SELECT loss FROM streamworker.mirror_offsets") is None
