"""Which dead letters a command is about: by id, by options that several commands share, or all."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.core.states import ErrorClass

if TYPE_CHECKING:
    from streamworker.ops.dlq import Filters
    from streamworker.store.queue import Queue

JobIds = Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Ids of dead jobs.")]


def _option(name: str, metavar: str, text: str, kind: type[str] = str) -> Any:
    return Annotated[kind | None, typer.Option(name, metavar=metavar, help=text)]


#: The options that describe letters, by the names of `Asked`.
OPTIONS: dict[str, Any] = {
    "task": _option("--task", "T", "Only of this task."),
    "code": _option("--code", "C", "Only with this error code."),
    "error_class": _option(
        "--class", "C", "Only of this class: transient, persistent or unknown.", ErrorClass
    ),
    "lane": _option("--lane", "L", "Only of this lane."),
    "tenant": _option("--tenant", "T", "Only of this tenant."),
    "entity": _option("--entity", "E", "Only of this entity, such as order:7."),
    "correlation_id": _option("--correlation-id", "ID", "Only with this correlation id."),
    "text": _option("--text", "TEXT", "Only with this text in the error or the arguments."),
    "older": _option("--older", "TIME", "Dead for longer than this, such as 2h."),
    "newer": _option("--newer", "TIME", "Dead for less long than this, such as 10m."),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What was said of the letters on the command line."""

    task: str | None = None
    code: str | None = None
    error_class: str | None = None
    lane: str | None = None
    tenant: str | None = None
    entity: str | None = None
    correlation_id: str | None = None
    text: str | None = None
    older: str | None = None
    newer: str | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) is not None for each in fields(self))

    async def filters(self, queue: Queue) -> Filters:
        """The same for `ops.dlq`, by Redis's clock. Raises DurationError, ConnectionLost."""
        from streamworker.core import durations
        from streamworker.ops.dlq import Filters
        from streamworker.store.depths import now_ms

        before = after = None
        if self.older is not None or self.newer is not None:
            older = None if self.older is None else durations.parse(self.older, what="--older")
            newer = None if self.newer is None else durations.parse(self.newer, what="--newer")
            now = await now_ms(queue.caller.command)
            before = None if older is None else now - round(older * 1000)
            after = None if newer is None else now - round(newer * 1000)
        return Filters(
            task=self.task,
            code=self.code,
            lane=self.lane,
            tenant=self.tenant,
            entity=self.entity,
            error_class=self.error_class,
            correlation_id=self.correlation_id,
            text=self.text,
            dead_before=before,
            dead_after=after,
        )


def described(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that describe letters; it gets them as `asked`."""
    own = inspect.signature(command, eval_str=True)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in OPTIONS.items()
    ]
    kept = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in own.parameters.items()
        if name != "asked"
    ]
    # Arguments first, then what describes letters, then the command's other options.
    first = [each for each in kept if each.name in ("ids", "file")]
    parameters = [*first, *shared, *(each for each in kept if each not in first)]

    @wraps(command)
    def whole(**given: Any) -> Any:
        asked = Asked(**{name: given.pop(name) for name in OPTIONS})
        return command(asked=asked, **given)

    whole.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    whole.__annotations__ = {each.name: each.annotation for each in parameters}
    return whole


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which letters are to be moved."""

    ids: tuple[str, ...] = ()
    asked: Asked = Asked()

    @classmethod
    def of(cls, ids: list[str] | None, asked: Asked, everything: bool) -> Chosen:
        """Raises CommandFailed unless exactly one way of naming them was used."""
        if bool(ids) + bool(asked) + everything > 1:
            raise CommandFailed(
                "name jobs by id, describe them by options, or say --all: one of them", code=2
            )
        if not ids and not asked and not everything:
            raise CommandFailed(
                "which dead letters? Give their ids, or options such as --task and --code, or --all", code=2
            )
        return cls(tuple(dict.fromkeys(ids or ())), asked)

    @property
    def everything(self) -> bool:
        return not self.ids and not self.asked

    async def which(self, queue: Queue) -> list[str] | Filters:
        """As `ops.dlq` takes it."""
        return list(self.ids) if self.ids else await self.asked.filters(queue)
