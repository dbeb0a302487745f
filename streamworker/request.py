"""What every producer sends and reads back: options, requests, new jobs, views and results.

No I/O: the asynchronous client, the synchronous one and the tasks of an app share these, so that the same
request is refused with the same words by all of them.
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from streamworker.core import codec, durations
from streamworker.core.clock import SystemClock
from streamworker.core.coalesce import Coalescer
from streamworker.core.durations import Duration
from streamworker.core.errors import (
    DurationError,
    EnqueueRejected,
    IdempotencyConflict,
    InvalidArgument,
    JobFailed,
    PayloadTooLarge,
    ResultTimeout,
)
from streamworker.core.gates import Gates
from streamworker.core.ids import JobIds
from streamworker.core.job import Record, encode_envelope
from streamworker.core.lane import BACKLOG, DEFAULT_LANE, MAX_PAYLOAD_BYTES, Pressure, check_lane_name
from streamworker.core.router import NO_PRESSURE, Decision, Router, Step, Subject
from streamworker.core.states import Disposition, Status
from streamworker.core.template import (
    KeyTemplate,
    check_correlation_id,
    check_key,
    check_task_name,
    check_tenant,
    key_id,
)
from streamworker.store import traces
from streamworker.store.manifest import Declaration
from streamworker.store.placing import Placed
from streamworker.store.routing import NO_RULES
from streamworker.store.scripts import KEY_WINDOW_MS, MAX_STARTS, NewJob
from streamworker.store.watching import Ended

#: The correlation id of the job whose handler is running: what it enqueues inherits it.
current_correlation_id: ContextVar[str | None] = ContextVar("streamworker_correlation_id", default=None)

_ids = JobIds(SystemClock().time_ms)


def actor() -> str:
    """Who acts, for the event log: user@host, one word."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        user = "unknown"
    word = "".join(f"{user}@{socket.gethostname()}".split()) or "unknown"
    return word.encode(errors="replace").decode()  # a name that is no UTF-8 could not be sent


@dataclass(frozen=True, slots=True)
class Options:
    """What may be said of one enqueue. Never in one namespace with the handler's arguments."""

    key: str | None = None
    lane: str | None = None
    tenant: str | None = None
    delay_ms: int = 0
    deadline_ms: int = 0
    correlation_id: str | None = None
    wait: float = 0.0  # seconds for which a refused request is sent again

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
        wait: Duration = 0.0,
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
            durations.parse(wait, what="wait"),
        )


#: Nothing is said.
NO_OPTIONS = Options()


def new_job(
    task: str,
    args: Mapping[str, Any],
    options: Options,
    *,
    own: str = DEFAULT_LANE,
    router: Router = NO_RULES,
    pressure: Mapping[str, Pressure] = NO_PRESSURE,
    gates: Gates | None = None,
    coalescer: Coalescer | None = None,
    manifest: int = 0,
    window_ms: int = KEY_WINDOW_MS,
    max_starts: int = MAX_STARTS,
) -> NewJob:
    """One job ready for Redis; everything that can be refused without Redis is refused here.

    `own` is the task's lane; the router has the last word. `manifest` is the number of the change that
    declared the gates. Raises SerializationError with the path of the bad value, PayloadTooLarge, or
    InvalidArgument for an argument that a gate's template cannot use.
    """
    if options.delay_ms or (coalescer and 0 < options.deadline_ms <= coalescer.declared.window_ms):
        coalescer = None  # it has a time of its own, or none for a window
    lengths: Sequence[int] = ()
    if coalescer is None:
        encoded = codec.encode_args(_plain(args), limit=MAX_PAYLOAD_BYTES)
    else:
        encoded, lengths = coalescer.pack(args, limit=MAX_PAYLOAD_BYTES)
    lane, why, backlog = options.lane or own, "", ""
    if lane == BACKLOG or not router.plain:
        subject = Subject(task, own, options.lane, options.tenant, len(encoded))
        placed = router.decide(subject, pressure)
        lane, why, backlog = placed.lane, placed.why, placed.backlog
    limit = router.limit(lane)
    if len(encoded) > limit:
        raise PayloadTooLarge(len(encoded), limit, "args")
    entity = gates.entity(args) if gates else ""
    correlation_id = options.correlation_id or current_correlation_id.get()
    job_id, sending = _ids.new(), None
    if traces.active is not None:
        sending = traces.active.sending(task, lane, job_id, correlation_id)
        correlation_id = correlation_id or sending.trace_id
    envelope = encode_envelope(
        task,
        encoded,
        key=options.key if coalescer is None else None,  # of several events, none is the job's
        tenant=options.tenant,
        correlation_id=correlation_id,
        delay_ms=options.delay_ms,
        trace=None if sending is None else sending.context,
    )
    keyed = options.key is not None
    return NewJob(
        job_id=job_id,
        task=task,
        lane=lane,
        envelope=envelope,
        key_id=key_id(task, entity, options.key) if options.key is not None else "",
        fingerprint=codec.fingerprint(args) if keyed else "",
        window_ms=window_ms,
        delay_ms=options.delay_ms,
        deadline_ms=options.deadline_ms,
        tenant=options.tenant or "",
        max_starts=max_starts,
        gates=gates.line(args, tenant=options.tenant, lane=lane, number=manifest) if gates else "",
        route=why,
        backlog=backlog,
        coalesce=(
            ""
            if coalescer is None
            else coalescer.word(args, lengths, lane=lane, tenant=options.tenant, limit=limit)
        ),
        sending=sending,
    )


def check_args(args: Mapping[str, Any]) -> None:
    """Refuse arguments that no lane can take, before anything is sent. Raises as `new_job`."""
    codec.encode_args(_plain(args), limit=MAX_PAYLOAD_BYTES)


def _plain(args: Mapping[str, Any]) -> dict[str, Any]:
    if type(args) is dict:
        return args
    if not isinstance(args, Mapping):
        raise InvalidArgument("args", args, 'are a mapping of names to values, such as {"order": 7}')
    return dict(args)


def with_key_and_deadline(
    options: Options, args: Mapping[str, Any], template: KeyTemplate | None, deadline_ms: int
) -> Options:
    """The options with what the task declares where they say nothing.

    Raises InvalidArgument for the key, DurationError for a delay that the deadline does not leave time for.
    """
    key = options.key
    if key is None and template is not None:
        key = template.render(args)
    deadline_ms = options.deadline_ms or deadline_ms
    if 0 < deadline_ms <= options.delay_ms:
        raise DurationError(
            "delay",
            durations.format_ms(options.delay_ms),
            f"is not before the deadline that the task declares ({durations.format_ms(deadline_ms)}): the "
            "job would expire before it could run; give it a deadline of its own",
        )
    if key == options.key and deadline_ms == options.deadline_ms:
        return options
    return replace(options, key=key, deadline_ms=deadline_ms)


def declared_job(
    task: str,
    args: Mapping[str, Any],
    options: Options,
    declared: Declaration | None,
    router: Router,
    pressure: Mapping[str, Pressure] = NO_PRESSURE,
) -> tuple[NewJob, str | None]:
    """One job as its task declares it and the router decides, and its key; what the options say wins (D17).

    `declared` None: nobody has declared the task, so nothing but the options is known. Raises as `new_job`.
    """
    check_task_name(task)
    if declared is None:
        job = new_job(task, args, options, own=router.default, router=router, pressure=pressure)
        return job, options.key
    options = with_key_and_deadline(options, args, declared.template, declared.deadline_ms)
    job = new_job(
        task,
        args,
        options,
        own=declared.lane,
        router=router,
        pressure=pressure,
        gates=declared.ready,
        coalescer=declared.coalescer,
        manifest=declared.number,
        window_ms=declared.window_ms,
        max_starts=declared.max_starts,
    )
    return job, options.key


def explain_route(
    task: str,
    args: Mapping[str, Any],
    options: Options,
    declared: Declaration | None,
    router: Router,
    pressure: Mapping[str, Pressure] = NO_PRESSURE,
) -> tuple[Decision, list[Step]]:
    """Where `declared_job` would let the job wait, and what was looked at. Raises SerializationError."""
    own = router.default if declared is None else declared.lane
    size = len(codec.encode_args(_plain(args), limit=MAX_PAYLOAD_BYTES))
    return router.explain(Subject(task, own, options.lane, options.tenant, size), pressure)


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


#: Why a request is refused, by the script's word.
_REFUSALS = {
    "lane_full": "lane {lane} is full",
    "backlog_full": "the backlog of lane {lane} is full",
    "throttled": "its lane or tenant is throttled (see streamworker throttle)",
    "log_full": "the mirror is behind, and the log has reached its bound",
}


def accepted(placed: Placed, job: NewJob, key: str | None) -> None:
    """Raise the refusal of one enqueue: IdempotencyConflict or EnqueueRejected."""
    if placed.disposition is Disposition.CONFLICT:
        raise IdempotencyConflict(placed.job_id, key or "", job.task)
    if placed.disposition is Disposition.REJECTED:
        raise EnqueueRejected(_REFUSALS[placed.reason].format(lane=job.lane), placed.retry_after)


def value_of(job_id: str, ended: Ended) -> Any:
    """The result of a finished job, or its failure raised as JobFailed."""
    if ended.status is Status.SUCCEEDED:
        return codec.decode(ended.result) if ended.result else None
    raise JobFailed(job_id, ended.error_code, ended.error_class, ended.error)


class Patience:
    """How long somebody waits for a result whose job is not in Redis yet."""

    #: Seconds between two looks.
    LOOK_EVERY = 0.2

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._until = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds that are left; None: there is no limit."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def pause(self, job_id: str) -> float:
        """Seconds until the next look. Raises ResultTimeout when there is none."""
        left = self.left()
        if left == 0.0:
            raise ResultTimeout(job_id, self._seconds or 0.0, Status.QUEUED)
        return self.LOOK_EVERY if left is None else min(self.LOOK_EVERY, left)


@dataclass(frozen=True, slots=True)
class Request:
    """One job for `Client.enqueue_many`."""

    task: str
    args: Mapping[str, Any]
    options: Options = NO_OPTIONS
