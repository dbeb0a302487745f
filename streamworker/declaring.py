"""Makes tasks of handlers and of the options that `app.task` and `app.cron` were given."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from streamworker.context import Context
from streamworker.core.coalesce import Coalesce
from streamworker.core.cron import Cron, Overlap, Schedule
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError
from streamworker.core.gates import declare
from streamworker.core.lane import Lane
from streamworker.core.limits import Dependency, Limit
from streamworker.core.retry import Retry
from streamworker.core.signature import Signature
from streamworker.core.template import check_task_name
from streamworker.effects.duplicates import DuplicateOn
from streamworker.policy import DEFAULT_TIMEOUT, Policy
from streamworker.store.scripts import MAX_STARTS
from streamworker.task import Submitter, Task


class Declaring(Submitter, Protocol):
    """What a task must fit into: the app's lanes, its dependencies, and the tasks that it has already."""

    name: str
    lanes: Mapping[str, Lane]
    backlog: Lane
    dependencies: dict[str, Dependency]
    tasks: dict[str, Task[..., Any]]

    @property
    def default_lane(self) -> str: ...

    def check_lane(self, lane: str, what: str = "lane") -> str: ...


def make_task(
    app: Declaring,
    handler: Callable[..., Any],
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
    coalesce: Coalesce | str | None = None,
    duplicate_on: DuplicateOn | None = None,
) -> Task[..., Any]:
    """The task that the options of `App.task` describe, not registered yet.

    Raises ConfigurationError, DurationError or InvalidArgument for what cannot work in this app.
    """
    handler = _function_of(handler)
    task_name = check_task_name(name or _name_of(handler))
    if task_name in app.tasks:
        way_out = _way_out(app.tasks[task_name], handler)
        raise ConfigurationError(f"task {task_name} is registered twice in app {app.name}; {way_out}")
    chosen_lane = app.check_lane(lane or app.default_lane, f"task {task_name}")
    if not any(app.router.accepts(each, task_name) for each in (chosen_lane, app.default_lane)):
        raise ConfigurationError(
            f"task {task_name}: neither its lane {chosen_lane!r} nor the default lane "
            f"{app.default_lane!r} accepts it; add it to accept=, or name another lane"
        )
    signature = Signature.of(task_name, handler)
    defaults = app.lanes.get(chosen_lane, app.backlog)
    if entity_order not in ("free", "strict"):
        raise ConfigurationError(
            f'task {task_name}: entity_order= is "free" or "strict", not {entity_order!r}'
        )
    gates = declare(
        task_name,
        entity=entity,
        strict=entity_order == "strict",
        uses=uses,
        limits=limits,
        dependencies=app.dependencies,
    )
    policy = Policy.of(
        task_name,
        signature,
        lane=chosen_lane,
        retry=_first(retry, defaults.retry),
        timeout=_first(timeout, defaults.timeout, DEFAULT_TIMEOUT),
        deadline=deadline,
        max_starts=max_starts,
        window=window,
        key=key,
        transient=transient,
        persistent=persistent,
        run_in=run_in,
        gates=gates,
        uses=uses,
        coalesce=Coalesce.of(coalesce),
        duplicate_on=duplicate_on or {},
        of_lane=tuple(
            what
            for what, own, given in (
                ("retry", retry, defaults.retry),
                ("timeout", timeout, defaults.timeout),
            )
            if own is None and given is not None
        ),
    )
    task: Task[..., Any] = Task(task_name, handler, policy, signature, app)
    _check_merging(task)
    return task


#: What `app.task` takes.
OPTIONS = tuple(
    name for name, one in inspect.signature(make_task).parameters.items() if one.kind is one.KEYWORD_ONLY
)
#: What other queues call it, and what it is here.
_ELSEWHERE = {
    "attempts": "retry",
    "autoretry_for": "transient",
    "backoff": "retry",
    "expires": "deadline",
    "max_retries": "retry",
    "max_tries": "retry",
    "priority": "lane",
    "queue": "lane",
    "queue_name": "lane",
    "rate_limit": "limits",
    "retries": "retry",
    "time_limit": "timeout",
    "unique": "key",
}


def check_options(given: Iterable[str]) -> None:
    """Raises ConfigurationError for an option that no task has, with the one that was probably meant."""
    for name in given:
        if name in OPTIONS:
            continue
        near = _ELSEWHERE.get(name) or next(iter(difflib.get_close_matches(name, OPTIONS, n=1)), None)
        hint = f"did you mean {near}=?" if near else f"there are: {', '.join(OPTIONS)}"
        raise ConfigurationError(f"a task has no option {name}=; {hint}")


def make_cron(
    app: Declaring, handler: Callable[[Context], Any], spec: str, *, overlap: str, tz: str, **options: Any
) -> tuple[Task[[], Any], Cron]:
    """The task that the options of `App.cron` describe and when it runs. Raises as `make_task`."""
    handler = _function_of(handler)
    name = check_task_name(options.get("name") or _name_of(handler))
    schedule = Schedule.parse(spec, tz, what=f"cron {name}")
    if overlap not in list(Overlap):
        raise ConfigurationError(f"cron {name}: overlap is one of {', '.join(Overlap)}, not {overlap!r}")
    if missing := Signature.of(name, handler).required:
        raise ConfigurationError(
            f"cron {name}: nobody gives {', '.join(sorted(missing))}; the handler of a cron takes "
            "its context, and what else it takes has defaults"
        )
    if options.get("coalesce") is not None:
        raise ConfigurationError(f"cron {name}: its ticks are not merged; see overlap=")
    task: Task[[], Any] = make_task(app, handler, **options)
    if task.gates is not None and task.gates.fields:
        raise ConfigurationError(
            f"cron {name}: nobody gives {', '.join(task.gates.fields)}, which its gates name"
        )
    task.cron = Cron(name, schedule, Overlap(overlap))
    return task, task.cron


def _function_of(handler: Any) -> Callable[..., Any]:
    """What is behind a task: a second decorator, such as another schedule, declares the same function."""
    return handler.handler if isinstance(handler, Task) else handler


def _name_of(handler: Callable[..., Any]) -> str:
    """Raises ConfigurationError for what has no name of its own, such as a partial."""
    name = getattr(handler, "__name__", None)
    if not isinstance(name, str):
        raise ConfigurationError(f"{handler!r} has no name of its own; give the task one: name=")
    return name


def _way_out(known: Task[..., Any], handler: Callable[..., Any]) -> str:
    """What is to be done about a name that is there already."""
    file, other = (
        getattr(getattr(each, "__code__", None), "co_filename", None) for each in (known.handler, handler)
    )
    if file is not None and file == other and known.handler.__module__ != handler.__module__:
        names = f"{known.handler.__module__} and {handler.__module__}"
        return f"{file} is imported twice, as {names}: import it by one name everywhere"
    return "give one of them another name="


def _check_merging(task: Task[..., Any]) -> None:
    """Raises ConfigurationError if jobs that must pass different gates would be merged, or none could run."""
    if task.coalescer is None:
        return
    if 0 < task.policy.deadline_ms <= task.coalescer.declared.window_ms:
        raise ConfigurationError(
            f"task {task.name}: its deadline is not longer than the window of coalesce=: each of its jobs "
            "would expire while it waits for that"
        )
    if task.gates is None:
        return
    apart = sorted(set(task.gates.fields) - set(task.coalescer.fields))
    if apart:
        raise ConfigurationError(
            f"task {task.name}: its gates name {', '.join(apart)}, which coalesce by= does not: jobs of "
            "different ones would be merged"
        )


def _first(*values: Any) -> Any:
    """The first that somebody gave; None if nobody did."""
    return next((value for value in values if value is not None), None)
