"""The producer's side: enqueue jobs, await their results, cancel them. Imports no worker.

`App` and its tasks are built on the same handle and the same verbs; `Client` is for producers that do not
have the task's code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streamworker import settings as settings_module
from streamworker.core import durations
from streamworker.core.durations import Duration
from streamworker.core.errors import JobMissing, JobNotFound
from streamworker.core.ids import check_job_id
from streamworker.core.states import Disposition, Status
from streamworker.core.template import check_task_name
from streamworker.request import (
    JobView,
    Options,
    Patience,
    Request,
    accepted,
    actor,
    check_args,
    declared_job,
    value_of,
)
from streamworker.store.placing import Placed
from streamworker.store.queue import Queue, QueueSource
from streamworker.store.scripts import NewJob

if TYPE_CHECKING:
    from streamworker.postgres.lookup import Remembered

#: Covariant: a list may hold handles on jobs of several tasks.
R_co = TypeVar("R_co", covariant=True)


class Job(Generic[R_co]):
    """A handle on one job."""

    __slots__ = ("_source", "disposition", "id", "retry_after")

    def __init__(
        self, job_id: str, disposition: Disposition, source: QueueSource, retry_after: float | None = None
    ) -> None:
        #: The job that answers for the request: with DUPLICATE and CONFLICT the one that held the key.
        self.id = job_id
        self.disposition = disposition
        #: Seconds after which a rejected request may be tried again.
        self.retry_after = retry_after
        self._source = source

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.disposition}>"

    async def status(self) -> Status:
        """The job's state now. Raises JobNotFound once its record has expired, if Postgres has it not."""
        return (await view_of(self._source.get(), self.id)).status

    async def result(self, timeout: Duration | None = None) -> R_co:
        """What the handler returned, once it has.

        Raises JobFailed, ResultTimeout (the job goes on) or JobNotFound.
        """
        seconds = None if timeout is None else durations.parse(timeout, what="timeout")
        queue, patience = self._source.get(), Patience(seconds)
        while True:
            try:
                ended = await queue.wait(self.id, patience.left())
            except JobNotFound as missing:
                remembered = await _remembered(queue, missing)
                if remembered is None:
                    continue
                if remembered.in_outbox:  # the relay has yet to come
                    await asyncio.sleep(patience.pause(self.id))
                    continue
                ended = remembered.ended()
            return value_of(self.id, ended)  # type: ignore[no-any-return]

    async def cancel(self) -> bool:
        """Cancel the job: True unless it is over already. A running handler is told within a heartbeat.

        Raises JobNotFound, also while it waits in the outbox.
        """
        return await cancel_job(self._source.get(), self.id) != "ALREADY"


async def _remembered(queue: Queue, missing: JobNotFound) -> Remembered | None:
    """What Postgres has of a job that Redis had no record of; None: a relay has told Redis of it meanwhile.

    Raises JobNotFound, PostgresUnavailable.
    """
    if queue.settings.postgres_dsn is None:
        raise missing
    from streamworker.postgres.lookup import remember  # with asyncpg, for those who have the extra

    try:
        return await remember(queue.settings, missing.job_id)
    except JobMissing:
        with suppress(JobNotFound):
            await queue.record(missing.job_id)
            return None
        raise


async def view_of(queue: Queue, job_id: str) -> JobView:
    """What the record says, or Postgres once it has expired. Raises JobNotFound."""
    try:
        return JobView.of(await queue.record(job_id))
    except JobNotFound as missing:
        remembered = await _remembered(queue, missing)
        return JobView.of(await queue.record(job_id)) if remembered is None else remembered.view()


async def cancel_job(queue: Queue, job_id: str) -> str:
    """As `Queue.cancel`, also of jobs that Redis has forgotten, or has not been told of yet."""
    try:
        return await queue.cancel(job_id, actor=actor())
    except JobNotFound as missing:
        remembered = await _remembered(queue, missing)
        if remembered is None:
            return await queue.cancel(job_id, actor=actor())
        remembered.refuse_cancel()
        return "ALREADY"


def handle_of(placed: Placed, job: NewJob, key: str | None, source: QueueSource) -> Job[Any]:
    """A handle, or the refusal as an exception."""
    accepted(placed, job, key)
    return Job(placed.job_id, placed.disposition, source)


async def place_named(
    queue: Queue, task: str, args: Mapping[str, Any], options: Options
) -> tuple[NewJob, str | None, Placed]:
    """Enqueue one job as the manifest declares its task: the job, its key, what became of it."""
    name = check_task_name(task)
    if not queue.unknown([name]):  # the usual case: no turn of the loop, so that many travel together
        if queue.router.by_pressure:
            await queue.feel(queue.router)
        job, key = declared_job(name, args, options, queue.declared(name), queue.router, queue.pressure)
        return job, key, await place_one(queue, job, options.wait)
    check_args(args)
    async with queue.under_way():
        await queue.know([name])
        await queue.feel(queue.router)
        job, key = declared_job(name, args, options, queue.declared(name), queue.router, queue.pressure)
        return job, key, await place_one(queue, job, options.wait)


async def place_one(queue: Queue, job: NewJob, wait: float) -> Placed:
    """What became of one job; if it is refused, it is sent again for up to `wait` seconds."""
    if not wait:
        return await queue.enqueuer.add(job)
    (placed,) = await queue.enqueuer.place([job], wait=wait)
    return placed


async def place_all(
    queue: Queue, jobs: list[NewJob], source: QueueSource, wait: float = 0.0
) -> list[Job[Any]]:
    """A handle for each job, in order; conflicts and rejections say so in their disposition."""
    return [
        Job(placed.job_id, placed.disposition, source, placed.retry_after)
        for placed in await queue.enqueuer.place(jobs, wait=wait)
    ]


class Client:
    """Enqueues by task name, without the task's code.

    A worker that does not know the task hands the job back; after an hour it is a dead letter
    (`unknown_task`). Use it as `async with Client(url, app="shop") as client:`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        app: str,
        namespace: str | None = None,
        postgres_dsn: str | None = None,
    ) -> None:
        self._settings = settings_module.read(
            app, redis_url=url, namespace=namespace, postgres_dsn=postgres_dsn
        )
        self._source = QueueSource(self._settings)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._source.close()

    async def enqueue(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
        delay: Duration | None = None,
        deadline: Duration | None = None,
        correlation_id: str | None = None,
        wait: Duration = 0.0,
    ) -> Job[Any]:
        """Enqueue one job.

        Raises SerializationError, PayloadTooLarge or InvalidArgument before anything is sent;
        IdempotencyConflict when the key is held with other arguments; EnqueueRejected, ConnectionLost, or
        OutcomeUnknown with the job's id when the reply was lost for good.
        """
        options = Options.of(
            key=key,
            lane=lane,
            tenant=tenant,
            delay=delay,
            deadline=deadline,
            correlation_id=correlation_id,
            wait=wait,
        )
        job, key, placed = await place_named(self._source.get(), task, args or {}, options)
        return handle_of(placed, job, key, self._source)

    async def enqueue_many(self, requests: Iterable[Request], *, wait: Duration = 0.0) -> list[Job[Any]]:
        """Enqueue many; one handle each, in order. A conflict or rejection is a disposition, no exception.

        What is refused is sent again for up to `wait`.
        """
        wanted, queue = list(requests), self._source.get()
        async with queue.under_way():
            if unknown := queue.unknown([check_task_name(each.task) for each in wanted]):
                for each in wanted:
                    check_args(each.args)
                await queue.know(unknown)
            await queue.feel(queue.router)
            jobs = [
                declared_job(
                    each.task,
                    each.args,
                    each.options,
                    queue.declared(each.task),
                    queue.router,
                    queue.pressure,
                )[0]
                for each in wanted
            ]
            return await place_all(queue, jobs, self._source, durations.parse(wait, what="wait"))

    async def get(self, job_id: str) -> JobView:
        """What the job's record says now. Raises JobNotFound."""
        return await view_of(self._source.get(), check_job_id(job_id))

    async def result(self, job_id: str, *, timeout: Duration | None = None) -> Any:
        """The job's result, once it is there. Raises JobFailed, ResultTimeout or JobNotFound."""
        job: Job[Any] = Job(check_job_id(job_id), Disposition.ACCEPTED, self._source)
        return await job.result(timeout)

    async def cancel(self, job_id: str) -> bool:
        """Cancel a job: True unless it is over already. Raises JobNotFound."""
        job: Job[Any] = Job(check_job_id(job_id), Disposition.ACCEPTED, self._source)
        return await job.cancel()
