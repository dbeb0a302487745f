"""The producer's side without an event loop: for Django, Flask, scripts and threads. Imports no worker."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

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
from streamworker.store.sync_queue import SyncQueue

if TYPE_CHECKING:
    from streamworker.postgres.lookup import Remembered


def _remembered(queue: SyncQueue, missing: JobNotFound) -> Remembered | None:
    """What Postgres has of a job that Redis had no record of; None: a relay has told Redis of it meanwhile.

    Raises JobNotFound, PostgresUnavailable.
    """
    if queue.settings.postgres_dsn is None:
        raise missing
    from streamworker.postgres.lookup import remember, run_apart  # with asyncpg, an extra

    try:
        return run_apart(remember(queue.settings, missing.job_id))
    except JobMissing:
        with suppress(JobNotFound):
            queue.record(missing.job_id)
            return None
        raise


def _warn_in_a_loop(method: str) -> None:
    """Once for each line that calls it, as warnings are shown: an error would break what works, if slowly."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    warnings.warn(
        f"{method} blocks the event loop that it is called in, and all that runs there: use Client in "
        "coroutines, or asyncio.to_thread",
        RuntimeWarning,
        stacklevel=3,
    )


def _result_of(queue: SyncQueue, job_id: str, timeout: Duration | None) -> Any:
    seconds = None if timeout is None else durations.parse(timeout, what="timeout")
    patience = Patience(seconds)
    while True:
        try:
            ended = queue.wait(job_id, patience.left())
        except JobNotFound as missing:
            remembered = _remembered(queue, missing)
            if remembered is None:
                continue
            if remembered.in_outbox:  # the relay has yet to come
                time.sleep(patience.pause(job_id))
                continue
            ended = remembered.ended()
        return value_of(job_id, ended)


def view_of(queue: SyncQueue, job_id: str) -> JobView:
    """What the record says, or Postgres once it has expired. Raises JobNotFound."""
    try:
        return JobView.of(queue.record(job_id))
    except JobNotFound as missing:
        remembered = _remembered(queue, missing)
        return JobView.of(queue.record(job_id)) if remembered is None else remembered.view()


class SyncJob:
    """A handle on one job. Its methods block the calling thread."""

    __slots__ = ("_queue", "disposition", "id", "retry_after")

    def __init__(
        self, job_id: str, disposition: Disposition, queue: SyncQueue, retry_after: float | None = None
    ) -> None:
        #: The job that answers for the request: with DUPLICATE and CONFLICT the one that held the key.
        self.id = job_id
        self.disposition = disposition
        #: Seconds after which a rejected request may be tried again.
        self.retry_after = retry_after
        self._queue = queue

    def __repr__(self) -> str:
        return f"<SyncJob {self.id} {self.disposition}>"

    def status(self) -> Status:
        """The job's state now. Raises JobNotFound once its record has expired, if Postgres has it not."""
        _warn_in_a_loop("SyncJob.status")
        return view_of(self._queue, self.id).status

    def result(self, timeout: Duration | None = None) -> Any:
        """What the handler returned, once it has.

        Raises JobFailed, ResultTimeout (the job goes on) or JobNotFound.
        """
        _warn_in_a_loop("SyncJob.result")
        return _result_of(self._queue, self.id, timeout)

    def cancel(self) -> bool:
        """Cancel the job: True unless it is over already. A running handler is told within a heartbeat.

        Raises JobNotFound, also while it waits in the outbox.
        """
        _warn_in_a_loop("SyncJob.cancel")
        return _cancel(self._queue, self.id)


def _cancel(queue: SyncQueue, job_id: str) -> bool:
    try:
        return queue.cancel(job_id, actor=actor())
    except JobNotFound as missing:
        remembered = _remembered(queue, missing)
        if remembered is None:
            return queue.cancel(job_id, actor=actor())
        remembered.refuse_cancel()
        return False


class SyncClient:
    """`Client` for programs without an event loop: the same verbs, which block.

    One object serves all threads of a process, and may be made before a server forks: each process makes
    connections of its own when it first needs them. Use it as `with SyncClient(url, app="shop") as client:`,
    or make it at import time and never close it. In a running event loop each method warns that it blocks it.
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
        self._queue = SyncQueue(self._settings)

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close this process's connections; those in use when their calls end."""
        self._queue.close()

    def enqueue(
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
    ) -> SyncJob:
        """Enqueue one job. Raises as `Client.enqueue`."""
        _warn_in_a_loop("SyncClient.enqueue")
        options = Options.of(
            key=key,
            lane=lane,
            tenant=tenant,
            delay=delay,
            deadline=deadline,
            correlation_id=correlation_id,
            wait=wait,
        )
        name = check_task_name(task)
        if unknown := self._queue.unknown([name]):
            check_args(args or {})
            self._queue.know(unknown)
        router = self._queue.router
        self._queue.feel(router)
        declared, pressure = self._queue.declared(name), self._queue.pressure
        job, held = declared_job(name, args or {}, options, declared, router, pressure)
        (placed,) = self._queue.place([job], wait=options.wait)
        accepted(placed, job, held)
        return SyncJob(placed.job_id, placed.disposition, self._queue)

    def enqueue_many(self, requests: Iterable[Request], *, wait: Duration = 0.0) -> list[SyncJob]:
        """Enqueue many; one handle each, in order. A conflict or rejection is a disposition, no exception.

        What is refused is sent again for up to `wait`.
        """
        _warn_in_a_loop("SyncClient.enqueue_many")
        wanted = list(requests)
        if unknown := self._queue.unknown([check_task_name(each.task) for each in wanted]):
            for each in wanted:
                check_args(each.args)
            self._queue.know(unknown)
        router = self._queue.router
        self._queue.feel(router)
        jobs = [
            declared_job(
                each.task,
                each.args,
                each.options,
                self._queue.declared(each.task),
                router,
                self._queue.pressure,
            )[0]
            for each in wanted
        ]
        return [
            SyncJob(placed.job_id, placed.disposition, self._queue, placed.retry_after)
            for placed in self._queue.place(jobs, wait=durations.parse(wait, what="wait"))
        ]

    def get(self, job_id: str) -> JobView:
        """What the job's record says now. Raises JobNotFound."""
        _warn_in_a_loop("SyncClient.get")
        return view_of(self._queue, check_job_id(job_id))

    def result(self, job_id: str, *, timeout: Duration | None = None) -> Any:
        """The job's result, once it is there. Raises JobFailed, ResultTimeout or JobNotFound."""
        _warn_in_a_loop("SyncClient.result")
        return _result_of(self._queue, check_job_id(job_id), timeout)

    def cancel(self, job_id: str) -> bool:
        """Cancel a job: True unless it is over already. Raises JobNotFound."""
        _warn_in_a_loop("SyncClient.cancel")
        return _cancel(self._queue, check_job_id(job_id))
