"""The app: tasks, lanes and settings in one place. Imports no worker."""

from __future__ import annotations

import logging
import sys
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from streamworker import settings as settings_module
from streamworker.client import Job, handle_of, place_all, place_one
from streamworker.context import Context
from streamworker.core import admission, durations
from streamworker.core.coalesce import Coalesce
from streamworker.core.cron import Cron
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError, InvalidArgument, UnknownTask
from streamworker.core.gates import breaker_of
from streamworker.core.ids import check_job_id
from streamworker.core.lane import BACKLOG, DEFAULT_LANE, DEFAULT_LANES, Lane, Pressure, check_lane_name
from streamworker.core.limits import Dependency, Limit, check_dependencies
from streamworker.core.outcome import Skip, Snooze
from streamworker.core.retry import Retry
from streamworker.core.router import Route, Router
from streamworker.core.states import Disposition
from streamworker.declaring import check_options, make_cron, make_task
from streamworker.effects.duplicates import DuplicateOn
from streamworker.settings import Settings
from streamworker.store.keys import Keys
from streamworker.store.manifest import Declaration
from streamworker.store.queue import Queue, QueueSource
from streamworker.store.scripts import MAX_STARTS, NewJob
from streamworker.task import Call, Task, jobs_of

if TYPE_CHECKING:
    from streamworker.flow.cache import Cache

P = ParamSpec("P")
R = TypeVar("R")
#: What a plain function may return. Bounded to what JSON holds, so that a coroutine function never counts as
#: a plain one, not even where its parameters are Any.
J = TypeVar("J", bound="bool | int | float | str | Mapping[str, Any] | Sequence[Any] | Snooze | Skip | None")
log = logging.getLogger("streamworker")

Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def _no_lifespan(_: App) -> AsyncIterator[None]:
    yield None


class App:
    """A named set of tasks and lanes.

    `App("shop")` alone is complete: lanes `priority` and `normal` with reserved slots, 4 attempts with
    stepped back-off, a dead-letter queue that nothing turns off. Settings given here win over
    `STREAMWORKER_*` variables.

    Raises ConfigurationError, InvalidArgument or DurationError for what cannot work.
    """

    def __init__(
        self,
        name: str,
        *,
        lanes: Mapping[str, Lane] | None = None,
        routes: Sequence[Route] | None = None,
        sla: Mapping[str, Collection[str]] | None = None,
        dependencies: Mapping[str, Dependency] | None = None,
        redis_url: str | None = None,
        namespace: str | None = None,
        lease: Duration | None = None,
        postgres_dsn: str | None = None,
        lifespan: Lifespan | None = None,
        cache: Cache | None = None,
    ) -> None:
        self.name = name
        #: The module that made this app: where child processes look for it.
        self.module = _module_of_caller(self)
        self.settings = settings_module.read(
            name, redis_url=redis_url, namespace=namespace, lease=lease, postgres_dsn=postgres_dsn
        )
        Keys(self.settings.namespace)  # refuses a name that cannot be a namespace
        if not isinstance(lanes, Mapping | None):
            raise ConfigurationError('lanes= is a mapping, such as {"priority": Lane(), "normal": Lane()}')
        chosen = dict(settings_module.read_lanes() or DEFAULT_LANES if lanes is None else lanes)
        for lane, spec in chosen.items():
            check_lane_name(lane)
            if not isinstance(spec, Lane):
                raise ConfigurationError(f"lane {lane!r} is declared by a Lane(...), not {spec!r}")
        #: What may wait, waits here; drained into the lanes.
        self.backlog = admission.check_backlog(chosen.pop(BACKLOG, Lane()))
        for lane, spec in chosen.items():
            admission.check_lane(lane, spec)
        if not chosen:
            raise ConfigurationError(f"app {name!r} needs at least one lane")
        #: The lanes that workers take from.
        self.lanes: Mapping[str, Lane] = chosen
        #: Which lane each job waits in.
        self.router = Router(
            chosen,
            self.default_lane,
            routes=settings_module.read_routes() if routes is None else routes,
            sla=settings_module.read_sla() if sla is None else sla,
        )
        #: What handlers call, by name.
        self.dependencies = check_dependencies(dependencies or {})
        self.tasks: dict[str, Task[..., Any]] = {}
        #: The tasks that run by themselves, by name.
        self.crons: dict[str, Cron] = {}
        #: By which change of the manifest each task stands there, once a worker has published them.
        self.published: Mapping[str, int] = {}
        #: What was heard last of the pressure in the lanes.
        self.pressure: Mapping[str, Pressure] = {}
        self.lifespan: Lifespan = lifespan or _no_lifespan
        self._source = QueueSource(self.settings)
        self._promised: Callable[[str], None] = lambda job_id: None
        self._cache = cache
        if cache is not None:
            cache.attach(self.settings)

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self.tasks)} tasks, lanes {', '.join(self.lanes)}>"

    @property
    def default_lane(self) -> str:
        """`normal` where there is one, else the first lane that takes every task, else the first."""
        if DEFAULT_LANE in self.lanes:
            return DEFAULT_LANE
        return next(
            (name for name, lane in self.lanes.items() if lane.accept is None), next(iter(self.lanes))
        )

    async def __aenter__(self) -> App:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._source.close()
        if self._cache is not None:
            await self._cache.close()

    @property
    def cache(self) -> Cache:
        """What handlers have as `ctx.cache`, for other readers and writers of the same values."""
        if self._cache is None:
            from streamworker.flow.cache import Cache  # a producer does not load what handlers use

            self._cache = Cache()
            self._cache.attach(self.settings)
        return self._cache

    def use_settings(self, settings: Settings) -> None:
        """Take another process's settings, before anything is connected: a worker's children do."""
        self.settings = settings
        self._source = QueueSource(settings)

    def queue(self) -> Queue:
        """The verbs over the running loop's connections."""
        return self._source.get()

    @contextmanager
    def connected_by(self, source: QueueSource, promised: Callable[[str], None]) -> Iterator[None]:
        """For tests: the app has this source, with its settings. `promised` hears of jobs left to a relay."""
        usual = self.settings, self._source, self._promised, self._cache
        cache = self.cache.elsewhere(source.settings, source.opens)
        self.settings, self._source, self._promised, self._cache = source.settings, source, promised, cache
        try:
            yield
        finally:
            self.settings, self._source, self._promised, self._cache = usual

    # The async overload comes first: a coroutine function is a plain callable as well.
    @overload
    def task(
        self, handler: Callable[Concatenate[Context, P], Coroutine[Any, Any, R | Snooze | Skip]], /
    ) -> Task[P, R]: ...

    @overload
    def task(self, handler: Callable[Concatenate[Context, P], J | Snooze | Skip], /) -> Task[P, J]: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        lane: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        deadline: Duration | None = None,
        key: str | None = None,
        window: Duration | None = None,
        max_starts: int = MAX_STARTS,
        transient: tuple[type[BaseException], ...] = (),
        persistent: tuple[type[BaseException], ...] = (),
        run_in: Literal["thread", "process"] = "thread",
        entity: str | None = None,
        entity_order: Literal["free", "strict"] = "free",
        uses: Sequence[str] = (),
        limits: Sequence[Limit] = (),
        coalesce: Coalesce | Literal["latest", "collect"] | None = None,
        duplicate_on: DuplicateOn | None = None,
    ) -> TaskDecorator: ...

    def task(  # type: ignore[misc]  # options are checked by make_task
        self, handler: Any = None, /, **options: Any
    ) -> Any:
        """Register a handler, as `@app.task` or `@app.task(lane=..., retry=..., ...)`.

        The handler's first parameter is its `Context`; the others travel as JSON by name. `timeout` is for
        one attempt, `deadline` for the whole job from enqueue, `key` a template over the arguments,
        `window` how long a key is held after success, `run_in="process"` for a handler that computes: it runs
        in a child process instead of the worker's loop or a thread of it. `entity` is a template over the
        arguments: jobs of one entity run one at a time, in order; with `entity_order="strict"` also while
        one of them waits for a retry. `uses` names dependencies of the app, `limits` are `Rate(...)` and
        `Concurrency(...)`. `coalesce`: jobs that come within a window become one, see `Coalesce`. Raises
        ConfigurationError, DurationError or InvalidArgument.
        """
        check_options(options)
        if handler is not None:
            return self._register(handler)
        return TaskDecorator(self, options)

    def _register(self, handler: Callable[..., Any], **options: Any) -> Task[..., Any]:
        task = make_task(self, handler, **options)
        self.tasks[task.name] = task
        return task

    def cron(
        self, spec: str, *, overlap: str = "skip", tz: str = "UTC", **options: Any
    ) -> Callable[[Callable[[Context], Any]], Task[[], Any]]:
        """Register a handler that runs by itself, as `@app.cron("*/5 * * * *", tz="Europe/Berlin")`.

        One run per tick across all workers. `spec` has five fields, or six with the second first. While the
        job of an earlier tick is open, `overlap` says what becomes of a tick: "skip", "queue", or "replace"
        the earlier job. Ticks that no worker was up for run once, if they are not older than a day. Options
        are those of `task`; the handler takes its context, whose `tick` is the time it was due. Raises
        ConfigurationError, DurationError or InvalidArgument.
        """
        check_options(options)

        def register(handler: Callable[[Context], Any]) -> Task[[], Any]:
            task, cron = make_cron(self, handler, spec, overlap=overlap, tz=tz, **options)
            self.tasks[task.name], self.crons[task.name] = task, cron
            return task

        return register

    def check_lane(self, lane: str, what: str = "lane") -> str:
        """Return the lane if this app has it, or the backlog. Raises InvalidArgument."""
        if lane not in self.lanes and lane != BACKLOG:
            raise InvalidArgument(what, lane, f"is no lane of this app; it has: {', '.join(self.lanes)}")
        return lane

    def find(self, name: str) -> Task[..., Any]:
        """The task of that name. Raises UnknownTask, with the nearest name."""
        try:
            return self.tasks[name]
        except KeyError:
            raise UnknownTask(name, self.tasks) from None

    async def submit(self, job: NewJob, key: str | None, wait: float = 0.0) -> Job[Any]:
        """Enqueue one prepared job; tasks call this."""
        self.check_lane(job.lane)
        placed = await place_one(self._source.get(), job, wait)
        return handle_of(placed, job, key, self._source)

    def handle(self, job_id: str) -> Job[Any]:
        """A handle on a job that is there, or will be. Raises InvalidArgument for what is no job id."""
        return Job(check_job_id(job_id), Disposition.ACCEPTED, self._source)

    def promise(self, job_id: str) -> Job[Any]:
        """A handle on a job that a relay enqueues, once the request for it is committed."""
        self._promised(job_id)
        return self.handle(job_id)

    async def feel(self) -> None:
        """Hear of the pressure in the lanes, once a second at most, if a rule asks for it."""
        queue = self._source.get()
        await queue.feel(self.router)
        self.pressure = queue.pressure

    async def enqueue(self, name: str, args: Mapping[str, Any], **options: Any) -> Job[Any]:
        """Enqueue by name; options as in `Task.options`. Raises UnknownTask for a name nobody registered."""
        return await self.find(name).options(**options).enqueue(**args)

    async def enqueue_many(self, calls: Iterable[Call[R]], *, wait: Duration = 0.0) -> list[Job[R]]:
        """Enqueue many; one handle for each call, in order. What is refused is sent again for up to `wait`.

        A conflict or rejection is a disposition here, no exception: the others of the batch stand.
        """
        if self.router.by_pressure:
            await self.feel()
        jobs = jobs_of(calls, self.settings.namespace)
        for lane in {job.lane for job in jobs}:
            self.check_lane(lane)
        return await place_all(self._source.get(), jobs, self._source, durations.parse(wait, what="wait"))

    def declarations(self) -> dict[str, Declaration]:
        """What each task declares, as workers publish it."""
        return {name: task.declaration() for name, task in self.tasks.items()}

    def limits(self) -> dict[str, str]:
        """The figures that its tasks declare, by the name of their limit, and those of its breakers."""
        found = {
            limit: figures
            for task in self.tasks.values()
            if task.gates is not None
            for limit, figures in task.gates.figures().items()
        }
        for name, dependency in self.dependencies.items():
            if dependency.breaker is not None:
                found[breaker_of(name)] = dependency.breaker.figures
        return found

    def bounds(self) -> dict[str, str]:
        """The drain and target of the backlog, what the lanes take, and their slots, as others read them."""
        slots = {f"slots:{name}": f"{lane.reserved},{lane.weight}" for name, lane in self.lanes.items()}
        return {
            **slots,
            "drain": admission.drain_figures(self.backlog),
            "backlog_target": admission.target_ms(self.backlog),
            "admission": admission.rules(self.lanes, self.backlog),
        }

    def breakers(self) -> dict[str, str]:
        """The breaker's gate of each dependency that has one."""
        return {
            name: breaker_of(name)
            for name, dependency in self.dependencies.items()
            if dependency.breaker is not None
        }

    def warnings(self) -> list[str]:
        """What is allowed but odd, one line each; printed when a worker starts."""
        found = [line for task in self.tasks.values() for line in task.policy.warnings(task.name)]
        if not self.tasks:
            found.append(
                f"app {self.name} has no task: is the module imported that declares them, and with this app?"
            )
        found += [
            f"task {task.name} declares lane {task.policy.lane}, which does not accept it: its jobs go to "
            f"{self.default_lane}"
            for task in self.tasks.values()
            if not self.router.accepts(task.policy.lane, task.name)
        ]
        return found


def _module_of_caller(app: App) -> str:
    frame = sys._getframe(2)
    # The constructors of subclasses are part of the making.
    while (
        frame.f_back is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is app
    ):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


class TaskDecorator:
    """What `app.task(...)` returns: applied to a handler, it gives the typed task."""

    def __init__(self, app: App, options: Mapping[str, Any]) -> None:
        self._app = app
        self._options = options

    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context, P], Coroutine[Any, Any, R | Snooze | Skip]], /
    ) -> Task[P, R]: ...

    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], J | Snooze | Skip], /) -> Task[P, J]: ...

    def __call__(self, handler: Any, /) -> Any:
        return self._app._register(handler, **self._options)
