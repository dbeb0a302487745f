"""Tasks: a registered function with its policy, its typed calls, and the context its handler gets."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from streamworker.client import Job
from streamworker.core import durations
from streamworker.core.coalesce import Coalesce, Coalescer
from streamworker.core.cron import Cron
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError
from streamworker.core.gates import Gate, Gates
from streamworker.core.lane import Pressure
from streamworker.core.limits import Dependency
from streamworker.core.retry import Retry
from streamworker.core.router import Router
from streamworker.core.template import KeyTemplate, check_task_name
from streamworker.effects.duplicates import DuplicateOn
from streamworker.effects.duplicates import check as check_duplicate_on
from streamworker.request import Options, new_job, with_key_and_deadline
from streamworker.settings import Settings
from streamworker.store.manifest import CronSpec, Declaration
from streamworker.store.scripts import KEY_WINDOW_MS, NewJob

if TYPE_CHECKING:  # a producer does not load what handlers use
    from streamworker.effects.attempt import Effecting, Effects
    from streamworker.effects.operation import Operation
    from streamworker.effects.transaction import Transaction
    from streamworker.flow.cache import Cache
    from streamworker.flow.dependency import Dependencies, DependencyCall
    from streamworker.flow.locks import Lock, Locking, Locks

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds that one attempt may take by default.
DEFAULT_TIMEOUT = 300.0

_handler_log = logging.getLogger("streamworker.job")


@dataclass(slots=True)
class Context:
    """What a handler knows of the attempt it runs. Its first parameter, always."""

    job_id: str
    task: str
    #: The idempotency key, or the job id when none was given: the same for every attempt and replay, so
    #: it is what to send along to a payment provider.
    key: str
    attempt: int
    #: Grows with every claim; a write that names it can be refused when a newer claim has written.
    fence: int
    lane: str
    tenant: str | None
    correlation_id: str
    #: What the app's lifespan yielded.
    state: Any = None
    #: The time for which a cron's job was made, in the cron's time zone; None for other jobs.
    tick: datetime | None = None
    _log: logging.LoggerAdapter[logging.Logger] | None = field(default=None, repr=False)
    _dependencies: Dependencies | None = field(default=None, repr=False)
    _locking: Locking | None = field(default=None, repr=False)
    _locks: Locks | None = field(default=None, repr=False)
    _args: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _effecting: Effecting | None = field(default=None, repr=False)
    _effects: Effects | None = field(default=None, repr=False)
    _stale: set[str] | None = field(default=None, repr=False)
    _cache: Cache | None = field(default=None, repr=False)

    def dependency(self, name: str) -> DependencyCall:
        """One call of a dependency of the app, as `async with ctx.dependency("carrier") as call:`.

        It has the time limits that `Dependency(...)` declares, and is counted by how it went. In a context
        that you made yourself, as in a test, every name has the default limits. Raises ConfigurationError.
        """
        if self._dependencies is not None:
            call = self._dependencies.call(name)
            if self._locks is not None:
                call.also = self._locks.slow_call
            return call
        from streamworker.flow.dependency import DependencyCall

        return DependencyCall(name, Dependency())

    def lock(self, name: str, *, ttl: Duration | None = None, wait: Duration = 10.0, floor: int = 0) -> Lock:
        """A fenced lock for a part of the handler, as `async with ctx.lock(f"order:{order_id}") as lock:`.

        `lock.token` is larger than every one before, for writes that refuse an older one. The lock is
        renewed while it is held and dies with its holder after `ttl` (30 s, or the timeout if that is less).
        A handler waits up to `wait` for it, then LockBusy is raised, which is transient; LockLost when it
        could not be renewed. `floor`: the token is larger than that, such as one that a row has seen before
        Redis lost its data. In a context that you made yourself the lock is always free. Raises
        ConfigurationError for a ttl above the task's timeout.
        """
        if self._locks is None:
            from streamworker.flow.locks import alone

            self._locks = alone(self) if self._locking is None else self._locking.locks(self)
        return self._locks.lock(name, ttl, wait, floor)

    def transaction(self, step: str = "") -> Transaction:
        """A transaction in Postgres that happens once, as `async with ctx.transaction() as tx:`.

        What is written in it, and the requests that `enqueue_in(tx, ...)` adds, commit together with the
        word that this job, or its key, has done it. A later attempt that comes to it leaves the handler,
        and the job succeeds with what `tx.result` was set to. One of them has no name; others of the same
        handler are named steps: a later attempt skips the block of one that is done and goes on behind it,
        with `tx.result`. Raises OperationConflict when the key has done it with other arguments,
        ConfigurationError without a Postgres.
        """
        return self._in_postgres().transaction(step)

    def operation(self, name: str) -> Operation:
        """An effect outside of Postgres, as `async with ctx.operation("charge") as op:`.

        `op.done` says that an earlier attempt did it, with `op.result`; `op.uncertain` that one had begun and
        nobody knows the end. Raises as `transaction`.
        """
        return self._in_postgres().operation(name)

    @property
    def recorded(self) -> Any:
        """What the transaction without a name has recorded in this attempt."""
        return None if self._effects is None else self._effects.result

    def _in_postgres(self) -> Effects:
        if self._effects is None:
            if self._effecting is None:
                raise ConfigurationError(
                    "this context records no effects: give the handler one that runs in a worker, or see "
                    "docs/how-to/effects-once.md for tests"
                )
            if self._stale is None:
                self._stale = set()
            self._effects = self._effecting.effects(self, self._args, self._stale)
        return self._effects

    @property
    def cache(self) -> Cache:
        """The app's cache, as `await ctx.cache.get(f"price:{sku}", load)`; see `Cache.get`.

        A plain function calls `get_sync`. In a context that you made yourself it keeps nothing.
        """
        if self._cache is None:
            from streamworker.flow.cache import Cache

            self._cache = Cache()
        return self._cache

    def invalidate(self, *keys: str) -> None:
        """Have these keys of the cache forgotten once the outcome of this attempt is recorded.

        Whatever the outcome is: what the handler wrote may be there. When the worker dies in between, the old
        values are believed until their time is over. Raises InvalidArgument.
        """
        from streamworker.flow.cache import check_keys

        check_keys(keys)
        if self._stale is None:
            self._stale = set()
        self._stale.update(keys)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry job_id, task, attempt and correlation_id."""
        if self._log is None:
            facts = {
                "job_id": self.job_id,
                "task": self.task,
                "attempt": self.attempt,
                "correlation_id": self.correlation_id,
            }
            self._log = logging.LoggerAdapter(_handler_log, facts)
        return self._log


class BadArguments(TypeError):
    """The arguments do not fit the handler's signature; the message names what is wrong."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A handler's parameters after the context, for binding without `inspect` on the hot path."""

    names: tuple[str, ...]
    required: frozenset[str]
    allowed: frozenset[str]
    #: The handler takes **kwargs, so that any further name is allowed.
    open: bool
    #: How many of `names` may be given by position.
    positional: int
    #: Name of the context parameter, which no argument may have; '' if it is positional-only.
    context: str

    @classmethod
    def of(cls, name: str, handler: Callable[..., Any]) -> Signature:
        """Raises ConfigurationError for a handler that cannot be called by names."""
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise ConfigurationError(f"task {name}: a handler returns its result, it does not yield")
        parameters = list(inspect.signature(handler).parameters.values())
        kinds = inspect.Parameter
        if not parameters or parameters[0].kind not in (
            kinds.POSITIONAL_OR_KEYWORD,
            kinds.POSITIONAL_ONLY,
        ):
            raise ConfigurationError(
                f"task {name}: the first parameter of a handler is its context: "
                f"def {getattr(handler, '__name__', name)}(ctx: Context, ...)"
            )
        names: list[str] = []
        required: set[str] = set()
        is_open = False
        positional = 0
        for parameter in parameters[1:]:
            if parameter.kind is kinds.VAR_KEYWORD:
                is_open = True
                continue
            if parameter.kind in (kinds.VAR_POSITIONAL, kinds.POSITIONAL_ONLY):
                raise ConfigurationError(
                    f"task {name}: parameter {parameter.name!r} cannot be passed by name; arguments travel "
                    "as JSON with their names, so use plain or keyword-only parameters"
                )
            names.append(parameter.name)
            positional += parameter.kind is kinds.POSITIONAL_OR_KEYWORD
            if parameter.default is kinds.empty:
                required.add(parameter.name)
        context = "" if parameters[0].kind is kinds.POSITIONAL_ONLY else parameters[0].name
        return cls(tuple(names), frozenset(required), frozenset(names), is_open, positional, context)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, defaults not applied. Raises BadArguments."""
        if len(args) > self.positional:
            raise BadArguments(f"takes {self.positional} arguments by position, {len(args)} were given")
        bound = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name in bound:
                raise BadArguments(f"argument {name!r} was given twice")
            bound[name] = value
        self.check(bound)
        return bound

    def check(self, args: Mapping[str, Any]) -> None:
        """Raises BadArguments when a name is missing or not known."""
        names = args.keys()
        missing = self.required - names
        if missing:
            raise BadArguments(f"missing: {', '.join(sorted(missing))}")
        if self.open and self.context in names:
            raise BadArguments(f"{self.context!r} is the name of the handler's context")
        if not self.open and not self.allowed >= names:
            unknown = ", ".join(sorted(names - self.allowed))
            raise BadArguments(f"unknown: {unknown}; it takes {', '.join(self.names) or 'none'}")


@dataclass(frozen=True, slots=True)
class Policy:
    """What a task declares; all that is not said has a safe default."""

    lane: str
    retry: Retry
    timeout: float  # seconds for one attempt
    deadline_ms: int  # for the whole job from enqueue; 0: none
    max_starts: int
    window_ms: int  # how long a key is held after success
    key: KeyTemplate | None
    transient: tuple[type[BaseException], ...]
    persistent: tuple[type[BaseException], ...]
    in_process: bool = False  # run in a child process, not in the worker's loop or a thread of it
    gates: tuple[Gate, ...] = ()  # what its jobs must pass to start
    uses: tuple[str, ...] = ()  # names of the dependencies that it calls
    coalesce: Coalesce | None = None  # how its jobs are merged
    duplicate_on: DuplicateOn = field(default_factory=dict)  # errors that mean that the effect is there
    of_lane: tuple[str, ...] = ()  # of `retry` and `timeout`, those that its lane declares for it

    @classmethod
    def of(
        cls,
        name: str,
        signature: Signature,
        *,
        lane: str,
        retry: Retry | None,
        timeout: Duration,
        deadline: Duration | None,
        max_starts: int,
        window: Duration | None,
        key: str | None,
        transient: tuple[type[BaseException], ...],
        persistent: tuple[type[BaseException], ...],
        run_in: str = "thread",
        gates: tuple[Gate, ...] = (),
        uses: Sequence[str] = (),
        coalesce: Coalesce | None = None,
        duplicate_on: DuplicateOn | None = None,
        of_lane: tuple[str, ...] = (),
    ) -> Policy:
        """Checked values. Raises ConfigurationError or DurationError."""
        retry = retry or Retry()
        seconds = durations.parse(timeout, what=f"task {name}: timeout")
        if seconds <= 0:
            raise ConfigurationError(f"task {name}: timeout must be above 0")
        window_ms = KEY_WINDOW_MS if window is None else durations.to_ms(window, what=f"task {name}: window")
        if window_ms < retry.span_ms:
            raise ConfigurationError(
                f"task {name}: the key window ({durations.format_ms(window_ms)}) is shorter than its retries "
                f"may take ({durations.format_ms(retry.span_ms)}), so a duplicate could run beside them"
            )
        if type(max_starts) is not int or max_starts < 1:
            raise ConfigurationError(f"task {name}: max_starts must be 1 or more, not {max_starts!r}")
        if run_in not in ("thread", "process"):
            raise ConfigurationError(f'task {name}: run_in= is "thread" or "process", not {run_in!r}')
        for kind, types in (("transient", transient), ("persistent", persistent)):
            for each in types:
                if not _is_exception_type(each):
                    raise ConfigurationError(f"task {name}: {kind}= takes exception types, not {each!r}")
        return cls(
            lane,
            retry,
            seconds,
            0 if deadline is None else durations.to_ms(deadline, what=f"task {name}: deadline"),
            max_starts,
            window_ms,
            KeyTemplate.parse(key, signature.names, what=f"task {name}: key") if key is not None else None,
            tuple(transient),
            tuple(persistent),
            run_in == "process",
            gates,
            tuple(uses),
            coalesce,
            check_duplicate_on(name, duplicate_on or {}),
            of_lane,
        )

    def warnings(self, task: str) -> list[str]:
        """What is allowed and probably not meant, a sentence each; for start-up and `doctor`."""
        found = self.retry.warnings(task)
        if self.uses and self.key is None:
            found.append(
                f"task {task} uses {', '.join(self.uses)} and has no key=: two jobs for the same thing would "
                "both call it"
            )
        return found


def _is_exception_type(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


class Submitter(Protocol):
    """What a task needs of its app to enqueue: the app's own producer, its router, and what that asks for."""

    router: Router
    pressure: Mapping[str, Pressure]
    settings: Settings

    def handle(self, job_id: str) -> Job[Any]: ...

    async def feel(self) -> None: ...

    async def submit(self, job: NewJob, key: str | None, wait: float = 0.0) -> Job[Any]: ...


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A task with its arguments, encoded and checked, not yet enqueued."""

    job: NewJob
    key: str | None
    app: Submitter = field(repr=False, compare=False)

    @property
    def namespace(self) -> str:
        """Whose job it is."""
        return self.app.settings.namespace

    def handle(self) -> Job[R]:
        """A handle on the job, which somebody else sees to."""
        return self.app.handle(self.job.job_id)


class Task(Generic[P, R]):
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

    def __call__(self, ctx: Context, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the handler itself: what it gives is R, or an awaitable of R for a coroutine function."""
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
    ) -> BoundTask[P, R]:
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

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call for `app.enqueue_many`. Raises BadArguments, SerializationError or PayloadTooLarge."""
        return self._call(Options(), args, kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue one job. Raises as `Client.enqueue`, and BadArguments."""
        return await self._enqueue(Options(), args, kwargs)

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

    async def _enqueue(self, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Job[R]:
        if self._app.router.by_pressure:
            await self._app.feel()
        call = self._call(options, args, kwargs)
        return await self._app.submit(call.job, call.key, options.wait)

    def _call(self, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call[R]:
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
class BoundTask(Generic[P, R]):
    """A task with options."""

    task: Task[P, R]
    chosen: Options

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call for `app.enqueue_many`."""
        return self.task._call(self.chosen, args, kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue one job."""
        return await self.task._enqueue(self.chosen, args, kwargs)


Handler = Callable[Concatenate[Context, P], Any]
