"""Runs an app's jobs inside a test: real scripts, the real runner, no worker process and no waiting."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from streamworker.app import App
from streamworker.client import Job
from streamworker.core import codec
from streamworker.core.durations import Duration, parse
from streamworker.core.errors import StreamworkerError
from streamworker.core.states import TERMINAL, Status
from streamworker.store.keys import Keys
from streamworker.task import Task
from streamworker.testing.clock import HandClock
from streamworker.testing.links import RealServer, Server, Shard
from streamworker.testing.memory import MemoryServer
from streamworker.testing.records import Records
from streamworker.testing.seen import SeenJob, Witness
from streamworker.testing.source import Drains, HandSource
from streamworker.testing.worker import HandWorker

#: Jobs that run at once.
CONCURRENCY = 10
#: Real seconds that a `drain` waits for handlers.
PATIENCE = 10.0


@asynccontextmanager
async def harness(
    app: App,
    *,
    redis_url: str | None = None,
    postgres_dsn: str | None = None,
    concurrency: int = CONCURRENCY,
    start: datetime | None = None,
) -> AsyncIterator[Harness]:
    """The app with a server of its own: what is enqueued runs when the test says so.

    In memory, or on the real server at `redis_url`; in a namespace that nobody else has and that is removed
    at the end, from the Postgres at `postgres_dsn`, else the app's, as well. Postgres is asked only if the
    test has effects or calls of `enqueue_in`. The clock begins at `start`, else now, and stands still until
    it is moved. The app's lifespan is entered, and its producers, `async with app:` included, use this server
    until the end.

    Raises ConfigurationError when fakeredis is missing; ConnectionLost or ServerUnsuitable for a real one.
    """
    clock = HandClock(start or datetime.now(UTC))
    namespace = f"{app.settings.namespace[:30]}-test-{secrets.token_hex(4)}"
    server: Server = MemoryServer(clock) if redis_url is None else RealServer(redis_url, clock)
    settings = replace(
        app.settings,
        namespace=namespace,
        redis_url=server.url,
        postgres_dsn=postgres_dsn or app.settings.postgres_dsn,
    )
    drains, records = Drains(), Records(settings, server.opens)
    source = HandSource(settings, drains, opens=server.opens)
    keys = Keys(namespace)
    shard = Shard(server, keys.tag, clock)
    witness = Witness(shard, keys)
    clock.on_move = shard.age
    try:
        with app.connected_by(source, records.promise):
            async with app.lifespan(app) as state:
                worker = HandWorker(
                    app,
                    shard,
                    keys,
                    witness,
                    drains,
                    records,
                    concurrency=concurrency,
                    lease_ms=settings.lease_ms,
                    state=state,
                )
                try:
                    yield Harness(app, worker, witness, records, clock, state)
                finally:
                    await worker.end()
                    await app.cache.close()
    finally:
        await source.close()
        await records.remove()
        with suppress(StreamworkerError):  # a server that went away has failed the test already
            shard.wipe()
        server.close()


class Harness:
    """What a test holds: the clock, `drain`, and assertions on what became of the jobs.

    The assertions take a task, or its name, and narrow it: `args` are some of the job's arguments, `times` is
    how many there must be (None: at least one). Each returns the jobs it found, and raises AssertionError
    with all that the task's jobs came to when there are not so many.
    """

    def __init__(
        self,
        app: App,
        worker: HandWorker,
        witness: Witness,
        records: Records,
        clock: HandClock,
        state: Any,
    ) -> None:
        self.app = app
        self.clock = clock
        #: What the app's lifespan yielded.
        self.state = state
        self._worker = worker
        self._witness = witness
        self._records = records

    # --- running jobs

    async def drain(self, *, until_idle: bool = False, patience: Duration = PATIENCE) -> int:
        """Run every job that is due, and what those enqueue, until nothing more is; the attempts made.

        Requests that were committed to the outbox are told to Redis first, as a relay does. A retry that is
        due later waits for the clock. With `until_idle` the clock is moved on from one due time to the next
        until no job waits for any. Raises AssertionError when handlers have not ended after `patience` of
        real time, PostgresUnavailable when there are requests and the outbox cannot be read.
        """
        return await self._worker.drain(until_idle=until_idle, patience=parse(patience, what="patience"))

    # --- what became of them

    def jobs(self, task: Task[..., Any] | str | None = None) -> list[SeenJob]:
        """All jobs so far, or those of one task, in the order they were enqueued. Asserts nothing."""
        name = None if task is None else self._name(task)
        return [job for job in self._witness.jobs() if name is None or job.task == name]

    def job(self, job: Job[Any] | str) -> SeenJob:
        """One job, by its handle or id. Raises AssertionError for one that was not enqueued here."""
        job_id = job if isinstance(job, str) else job.id
        for seen in self._witness.jobs():
            if seen.id == job_id:
                return seen
        raise AssertionError(f"job {job_id} was not enqueued in this test{self._records.note()}")

    def enqueued(
        self,
        task: Task[..., Any] | str,
        *,
        args: Mapping[str, Any] | None = None,
        times: int | None = None,
    ) -> list[SeenJob]:
        """Jobs that were enqueued; a duplicate of a key is none."""
        return self._expect("enqueued", task, args, times, lambda job: 1)

    def succeeded(
        self,
        task: Task[..., Any] | str,
        *,
        args: Mapping[str, Any] | None = None,
        times: int | None = None,
    ) -> list[SeenJob]:
        """Jobs that succeeded."""
        return self._expect("succeeded", task, args, times, lambda job: int(job.status is Status.SUCCEEDED))

    def retried(
        self,
        task: Task[..., Any] | str,
        *,
        args: Mapping[str, Any] | None = None,
        code: str | None = None,
        times: int | None = None,
    ) -> list[SeenJob]:
        """Jobs that failed and were scheduled again; `times` counts the retries, `code` their error."""

        def count(job: SeenJob) -> int:
            return sum(code is None or each.error_code == code for each in job.retries)

        return self._expect("retried", task, args, times, count, code)

    def dead_lettered(
        self,
        task: Task[..., Any] | str,
        *,
        args: Mapping[str, Any] | None = None,
        code: str | None = None,
        times: int | None = None,
    ) -> list[SeenJob]:
        """Jobs that are dead letters now, all or those with this error code."""

        def count(job: SeenJob) -> int:
            return int(job.dead and (code is None or job.error_code == code))

        return self._expect("dead-lettered", task, args, times, count, code)

    def idle(self) -> None:
        """Every job is over: none waits, none is scheduled, and none was left in the outbox."""
        left = [job for job in self.jobs() if job.status not in TERMINAL]
        count = len(left) + self._records.waiting
        if count:
            listed = f":\n{_listed(left)}" if left else ""
            said = "1 job is" if count == 1 else f"{count} jobs are"
            raise AssertionError(f"{said} not over{listed}{self._records.note()}")

    def _expect(
        self,
        what: str,
        task: Task[..., Any] | str,
        args: Mapping[str, Any] | None,
        times: int | None,
        count: Callable[[SeenJob], int],
        code: str | None = None,
    ) -> list[SeenJob]:
        name, wanted = self._name(task), codec.decode(codec.encode_args(dict(args or {})))
        of_task = self.jobs(name)
        found = [job for job in of_task if wanted.items() <= job.args.items() and count(job)]
        total = sum(map(count, found))
        if (total if times is None else total == times) or (times == 0 and not total):
            return found
        described = name + (f" with {wanted!r}" if wanted else "") + (f" by {code}" if code else "")
        expected = "at least once" if times is None else "once" if times == 1 else f"{times} times"
        rest = f"the jobs of {name}:\n{_listed(of_task)}" if of_task else f"no job of {name} was enqueued"
        note = self._records.note()
        raise AssertionError(f"{described} was {what} {_times(total)}, expected {expected}; {rest}{note}")

    def _name(self, task: Task[..., Any] | str) -> str:
        return self.app.find(task).name if isinstance(task, str) else task.name


def _times(count: int) -> str:
    return "not at all" if count == 0 else "once" if count == 1 else f"{count} times"


def _listed(jobs: list[SeenJob]) -> str:
    return "\n".join(f"  {job}" for job in jobs)
