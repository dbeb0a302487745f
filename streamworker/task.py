"""Tasks: a registered handler with what it declares, and its typed calls."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from streamworker.client import Job
from streamworker.context import Context as Context
from streamworker.core.coalesce import Coalescer
from streamworker.core.cron import Cron
from streamworker.core.durations import Duration
from streamworker.core.errors import InvalidArgument
from streamworker.core.gates import Gates
from streamworker.core.lane import Pressure
from streamworker.core.router import Router
from streamworker.core.signature import BadArguments as BadArguments
from streamworker.core.signature import Signature
from streamworker.core.template import check_task_name
from streamworker.policy import Policy
from streamworker.request import NO_OPTIONS, Options, new_job, with_key_and_deadline
from streamworker.settings import Settings
from streamworker.store.manifest import CronSpec, Declaration
from streamworker.store.scripts import NewJob

P = ParamSpec("P")
#: Covariant: one list may hold calls of several tasks.
R_co = TypeVar("R_co", covariant=True)


class Submitter(Protocol):
    """What a task needs of its app to enqueue: the app's own producer, its router, and what that asks for."""

    router: Router
    pressure: Mapping[str, Pressure]
    settings: Settings

    def promise(self, job_id: str) -> Job[Any]: ...

    async def feel(self) -> None: ...

    async def submit(self, job: NewJob, key: str | None, wait: float = 0.0) -> Job[Any]: ...


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A task with its arguments, encoded and checked, not yet enqueued."""

    job: NewJob
    key: str | None
    app: Submitter = field(repr=False, compare=False)

    @property
    def namespace(self) -> str:
        """Whose job it is."""
        return self.app.settings.namespace

    def handle(self) -> Job[R_co]:
        """A handle on the job, which somebody else sees to."""
        return self.app.promise(self.job.job_id)


def jobs_of(calls: Iterable[Call[Any]], namespace: str) -> list[NewJob]:
    """The jobs of a list of calls.

    Raises InvalidArgument for what is no call, a call that stands there twice, and one of another namespace.
    """
    made = list(calls)
    for call in made:
        if not isinstance(call, Call):
            raise InvalidArgument("call", call, "is none: make it by task.call(...)")
        if call.namespace != namespace:
            raise InvalidArgument(
                "call",
                call.job.task,
                f"is of namespace {call.namespace}, not {namespace}: enqueue it by the app that has the task",
            )
    jobs = [call.job for call in made]
    if len({job.job_id for job in jobs}) < len(jobs):
        (job_id, _), *_ = Counter(job.job_id for job in jobs).most_common(1)
        raise InvalidArgument(
            "call", job_id, "stands twice in the list: a call is one job, so make one for each"
        )
    return jobs


class Task(Generic[P, R_co]):
    """A registered handler. Calling it runs the handler itself, as in a unit test."""

    def __init__(
        self, name: str, handler: Callable[..., Any], policy: Policy, signature: Signature, app: Submitter
    ) -> None:
        self.name = check_task_name(name)
        self.handler = handler
        self.policy = policy
        self.signature = signature
        #: What its jobs must pass to start; None for a task without gates.
        self.gates = Gates(name, signature.names, policy.gates) if policy.gates else None
        #: What merges its jobs; None for a task whose jobs stay apart.
        self.coalescer = (
            None
            if policy.coalesce is None
            else Coalescer(name, signature.names, sorted(signature.required), policy.coalesce)
        )
        #: When it runs by itself; None for a task that somebody has to enqueue.
        self.cron: Cron | None = None
        self.is_async = inspect.iscoroutinefunction(handler)
        self._app = app
        self.__doc__ = handler.__doc__
        self.__wrapped__ = handler

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __call__(self, /, ctx: Context, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the handler itself: what it gives is R_co, or an awaitable of it for a coroutine function."""
        return self.handler(ctx, *args, **kwargs)

    def options(
        self,
        *,
        key: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
        delay: Duration | None = None,
        deadline: Duration | None = None,
        correlation_id: str | None = None,
        wait: Duration = 0.0,
    ) -> BoundTask[P, R_co]:
        """The same task with options for one enqueue.

        `wait`: how long a request that is refused is sent again. Raises InvalidArgument or DurationError."""
        return BoundTask(
            self,
            Options.of(
                key=key,
                lane=lane,
                tenant=tenant,
                delay=delay,
                deadline=deadline,
                correlation_id=correlation_id,
                wait=wait,
            ),
        )

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """A call for `app.enqueue_many`. Raises BadArguments, SerializationError or PayloadTooLarge."""
        return self._call(NO_OPTIONS, args, kwargs)

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Enqueue one job. Raises as `Client.enqueue`, and BadArguments."""
        return await self._enqueue(NO_OPTIONS, args, kwargs)

    def declaration(self) -> Declaration:
        """What producers without the code have to know of this task (D17)."""
        policy, cron = self.policy, self.cron
        return Declaration(
            lane=policy.lane,
            key=None if policy.key is None else policy.key.text,
            arguments=self.signature.names,
            required=tuple(sorted(self.signature.required)),
            takes_more=self.signature.open,
            deadline_ms=policy.deadline_ms,
            window_ms=policy.window_ms,
            max_starts=policy.max_starts,
            timeout=policy.timeout,
            retry=policy.retry.describe(),
            cron=None if cron is None else CronSpec(cron.schedule.spec, cron.schedule.tz, cron.overlap),
            gates=policy.gates,
            coalesce=policy.coalesce,
            of_lane=policy.of_lane,
        )

    def moment(self, tick_ms: int | None) -> datetime | None:
        """The time of a tick in the time zone of this task's cron."""
        if tick_ms is None:
            return None
        moment = datetime.fromtimestamp(tick_ms / 1000, UTC)
        return moment if self.cron is None else moment.astimezone(self.cron.schedule.zone)

    async def _enqueue(self, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Job[R_co]:
        if self._app.router.by_pressure:
            await self._app.feel()
        call = self._call(options, args, kwargs)
        return await self._app.submit(call.job, call.key, options.wait)

    def _call(self, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call[R_co]:
        try:
            bound = self.signature.bind(args, kwargs)
        except BadArguments as error:
            raise BadArguments(f"task {self.name}: {error}") from None
        policy = self.policy
        options = with_key_and_deadline(options, bound, policy.key, policy.deadline_ms)
        job = new_job(
            self.name,
            bound,
            options,
            own=policy.lane,
            router=self._app.router,
            pressure=self._app.pressure,
            gates=self.gates,
            coalescer=self.coalescer,
            window_ms=policy.window_ms,
            max_starts=policy.max_starts,
        )
        return Call(job, options.key, self._app)


@dataclass(frozen=True, slots=True)
class BoundTask(Generic[P, R_co]):
    """A task with options."""

    task: Task[P, R_co]
    chosen: Options

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """A call for `app.enqueue_many`."""
        return self.task._call(self.chosen, args, kwargs)

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Enqueue one job."""
        return await self.task._enqueue(self.chosen, args, kwargs)


Handler = Callable[Concatenate[Context, P], Any]
