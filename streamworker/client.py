"""The producer's side: enqueue jobs, await their results, cancel them. Imports no worker.

`App` and its tasks are built on the same handle and the same verbs; `Client` is for producers that do not
have the task's code.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from streamworker import settings as settings_module
from streamworker.core import codec, durations
from streamworker.core.clock import SystemClock
from streamworker.core.durations import Duration
from streamworker.core.errors import DurationError, EnqueueRejected, IdempotencyConflict, JobFailed
from streamworker.core.ids import JobIds, check_job_id
from streamworker.core.job import Record, encode_envelope
from streamworker.core.lanes import check_lane_name
from streamworker.core.states import Disposition, Status
from streamworker.core.template import check_correlation_id, check_key, check_task_name, check_tenant, key_id
from streamworker.store.awaiter import Ended
from streamworker.store.enqueuer import Placed
from streamworker.store.queue import Queue, QueueSource
from streamworker.store.scripts import KEY_WINDOW_MS, MAX_STARTS, NewJob

R = TypeVar("R")

#: The correlation id of the job whose handler is running: what it enqueues inherits it.
current_correlation_id: ContextVar[str | None] = ContextVar("streamworker_correlation_id", default=None)
#: Lane of a job for which nobody named one.
DEFAULT_LANE = "normal"

_ids = JobIds(SystemClock().time_ms)


def actor() -> str:
    """Who acts, for the event log: user@host, one word."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        user = "unknown"
    return "".join(f"{user}@{socket.gethostname()}".split()) or "unknown"


@dataclass(frozen=True, slots=True)
class Options:
    """What may be said of one enqueue. Never in one namespace with the handler's arguments."""

    key: str | None = None
    lane: str | None = None
    tenant: str | None = None
    delay_ms: int = 0
    deadline_ms: int = 0
    correlation_id: str | None = None

    @classmethod
    def of(
        cls,
        *,
        key: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
        delay: Duration | None = None,
        deadline: Duration | None = None,
        correlation_id: str | None = None,
    ) -> Options:
        """Checked options. Raises InvalidArgument or DurationError, both ValueErrors."""
        delay_ms = 0 if delay is None else durations.to_ms(delay, what="delay")
        deadline_ms = 0 if deadline is None else durations.to_ms(deadline, what="deadline")
        if deadline is not None and deadline_ms <= delay_ms:
            raise DurationError(
                "deadline", deadline, "is not after the delay: the job would expire before it could run"
            )
        return cls(
            None if key is None else check_key(key),
            None if lane is None else check_lane_name(lane),
            None if tenant is None else check_tenant(tenant),
            delay_ms,
            deadline_ms,
            None if correlation_id is None else check_correlation_id(correlation_id),
        )


def new_job(
    task: str,
    args: Mapping[str, Any],
    options: Options,
    *,
    lane: str = DEFAULT_LANE,
    payload_limit: int = codec.PAYLOAD_LIMIT_BYTES,
    window_ms: int = KEY_WINDOW_MS,
    max_starts: int = MAX_STARTS,
) -> NewJob:
    """One job ready for Redis; everything that can be refused without Redis is refused here.

    Raises SerializationError with the path of the bad value, or PayloadTooLarge.
    """
    encoded = codec.encode_args(dict(args), limit=payload_limit)
    correlation_id = options.correlation_id or current_correlation_id.get()
    envelope = encode_envelope(
        task, encoded, key=options.key, tenant=options.tenant, correlation_id=correlation_id
    )
    keyed = options.key is not None
    return NewJob(
        job_id=_ids.new(),
        task=task,
        lane=options.lane or lane,
        envelope=envelope,
        key_id=key_id(task, "", options.key) if options.key is not None else "",
        fingerprint=codec.fingerprint(args) if keyed else "",
        window_ms=window_ms,
        delay_ms=options.delay_ms,
        deadline_ms=options.deadline_ms,
        tenant=options.tenant or "",
        max_starts=max_starts,
    )


@dataclass(frozen=True, slots=True)
class JobView:
    """What a job's record says. Times are ms since the epoch, by Redis's clock."""

    id: str
    task: str
    lane: str
    tenant: str | None
    status: Status
    attempt: int
    error_class: str | None
    error_code: str | None
    enqueued_at: int | None
    started_at: int | None
    finished_at: int | None

    @classmethod
    def of(cls, record: Record) -> JobView:
        error_class, _, error_code = (record.text("ec") or "").partition(" ")
        shown = record.status is not Status.SUCCEEDED
        return cls(
            id=record.job_id,
            task=record.task,
            lane=record.lane,
            tenant=record.text("tn"),
            status=record.status,
            attempt=record.attempt,
            error_class=(error_class or None) if shown else None,
            error_code=(error_code or None) if shown else None,
            enqueued_at=record.number("at"),
            started_at=record.started_at,
            finished_at=record.finished_at,
        )


class Job(Generic[R]):
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
        """The job's state now. Raises JobNotFound once its record has expired."""
        return (await self._source.get().record(self.id)).status

    async def result(self, timeout: Duration | None = None) -> R:
        """What the handler returned, once it has.

        Raises JobFailed, ResultTimeout (the job goes on) or JobNotFound.
        """
        seconds = None if timeout is None else durations.parse(timeout, what="timeout")
        return value_of(self.id, await self._source.get().wait(self.id, seconds))  # type: ignore[no-any-return]

    async def cancel(self) -> bool:
        """Cancel the job: True unless it is over already. A running handler is told within a heartbeat."""
        return await self._source.get().cancel(self.id, actor=actor()) != "ALREADY"


def value_of(job_id: str, ended: Ended) -> Any:
    """The result of a finished job, or its failure raised as JobFailed."""
    if ended.status is Status.SUCCEEDED:
        return codec.decode(ended.result) if ended.result else None
    raise JobFailed(job_id, ended.error_code, ended.error_class, ended.error)


def handle_of(placed: Placed, job: NewJob, key: str | None, source: QueueSource) -> Job[Any]:
    """A handle, or the refusal as an exception."""
    if placed.disposition is Disposition.CONFLICT:
        raise IdempotencyConflict(placed.job_id, key or "", job.task)
    if placed.disposition is Disposition.REJECTED:
        raise EnqueueRejected("the lane is full")
    return Job(placed.job_id, placed.disposition, source)


async def place_all(queue: Queue, jobs: list[NewJob], source: QueueSource) -> list[Job[Any]]:
    """A handle for each job, in order; conflicts and rejections say so in their disposition."""
    return [Job(placed.job_id, placed.disposition, source) for placed in await queue.enqueuer.place(jobs)]


@dataclass(frozen=True, slots=True)
class Request:
    """One job for `Client.enqueue_many`."""

    task: str
    args: Mapping[str, Any]
    options: Options = Options()


class Client:
    """Enqueues by task name, without the task's code.

    A worker that does not know the task hands the job back; after an hour it is a dead letter
    (`unknown_task`). Use it as `async with Client(url, app="shop") as client:`.
    """

    def __init__(self, url: str | None = None, *, app: str, namespace: str | None = None) -> None:
        self._settings = settings_module.read(app, redis_url=url, namespace=namespace)
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
    ) -> Job[Any]:
        """Enqueue one job.

        Raises SerializationError, PayloadTooLarge or InvalidArgument before anything is sent;
        IdempotencyConflict when the key is held with other arguments; EnqueueRejected, ConnectionLost, or
        OutcomeUnknown with the job's id when the reply was lost for good.
        """
        options = Options.of(
            key=key, lane=lane, tenant=tenant, delay=delay, deadline=deadline, correlation_id=correlation_id
        )
        job = new_job(check_task_name(task), args or {}, options)
        placed = await self._source.get().enqueuer.add(job)
        return handle_of(placed, job, key, self._source)

    async def enqueue_many(self, requests: Iterable[Request]) -> list[Job[Any]]:
        """Enqueue many; one handle each, in order. A conflict or rejection is a disposition, no exception."""
        jobs = [new_job(check_task_name(each.task), each.args, each.options) for each in requests]
        return await place_all(self._source.get(), jobs, self._source)

    async def get(self, job_id: str) -> JobView:
        """What the job's record says now. Raises JobNotFound."""
        return JobView.of(await self._source.get().record(check_job_id(job_id)))

    async def result(self, job_id: str, *, timeout: Duration | None = None) -> Any:
        """The job's result, once it is there. Raises JobFailed, ResultTimeout or JobNotFound."""
        job: Job[Any] = Job(check_job_id(job_id), Disposition.ACCEPTED, self._source)
        return await job.result(timeout)

    async def cancel(self, job_id: str) -> bool:
        """Cancel a job: True unless it is over already. Raises JobNotFound."""
        job: Job[Any] = Job(check_job_id(job_id), Disposition.ACCEPTED, self._source)
        return await job.cancel()
