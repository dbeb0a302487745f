"""The manifest: what an app declares, published by workers, read by producers without the code (D17).

Each task has a field `task:<name>` in `meta`, and the router one named `routing`: the number of the change
that wrote it, and a JSON object. What a reader does not know in it is ignored, so that newer workers may say
more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from streamworker.core.coalesce import Coalesce, Coalescer
from streamworker.core.errors import ConfigurationError
from streamworker.core.gates import Gate, GateKind, Gates
from streamworker.core.router import Router
from streamworker.core.template import KeyTemplate
from streamworker.store import routing, scripts
from streamworker.store.connection import Argument, Link, ReplyError
from streamworker.store.keys import Keys
from streamworker.store.scripts import KEY_WINDOW_MS, MAX_STARTS

log = logging.getLogger("streamworker")

FIELD = "task:"
ROUTING = "routing"
#: Seconds after which a producer reads a task's declaration again.
FRESH = 60.0
#: The same for a task that was not in the manifest: its first worker may be starting.
FRESH_UNKNOWN = 1.0
#: Names of tasks that are not in the manifest, of which a producer keeps that they are not.
UNKNOWN = 1000


@dataclass(frozen=True, slots=True)
class CronSpec:
    """When a task runs by itself."""

    spec: str
    tz: str
    overlap: str


@dataclass(frozen=True, slots=True)
class Declaration:
    """What one task declares, as far as a producer or an operator may need it."""

    lane: str
    #: The template as it was written, over the arguments named below.
    key: str | None = None
    arguments: tuple[str, ...] = ()
    #: Those of them without a default, and whether the handler takes any others too.
    required: tuple[str, ...] = ()
    takes_more: bool = False
    deadline_ms: int = 0  # 0: none
    window_ms: int = KEY_WINDOW_MS
    max_starts: int = MAX_STARTS
    timeout: float = 0.0  # seconds for one attempt
    retry: str = ""  # the policy in words
    cron: CronSpec | None = None
    gates: tuple[Gate, ...] = ()
    coalesce: Coalesce | None = None
    #: Of `retry` and `timeout`, those that come from its lane.
    of_lane: tuple[str, ...] = ()
    #: Which change of the manifest wrote it; 0 for one that was not read from there.
    number: int = 0
    template: KeyTemplate | None = None
    #: The gates, ready to be named; None when there are none.
    ready: Gates | None = field(default=None, compare=False, repr=False)
    #: What merges its jobs; None when nothing does.
    coalescer: Coalescer | None = field(default=None, compare=False, repr=False)

    def encode(self) -> bytes:
        """As it is published: the same declaration always gives the same bytes."""
        raw: dict[str, Any] = {
            "lane": self.lane,
            "key": self.key,
            "arguments": self.arguments,
            "deadline_ms": self.deadline_ms,
            "window_ms": self.window_ms,
            "max_starts": self.max_starts,
            "timeout": self.timeout,
            "retry": self.retry,
        }
        if self.required:
            raw["required"] = self.required
        if self.takes_more:
            raw["takes_more"] = True
        if self.cron is not None:
            raw["cron"] = {"spec": self.cron.spec, "tz": self.cron.tz, "overlap": self.cron.overlap}
        if self.gates:
            raw["gates"] = [[gate.kind, gate.scope, gate.figures] for gate in self.gates]
        if self.coalesce is not None:
            raw["coalesce"] = self.coalesce.raw()
        if self.of_lane:
            raw["of_lane"] = self.of_lane
        return orjson.dumps(raw, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def decode(cls, task: str, value: bytes) -> Declaration:
        """Raises ValueError for what no version of ours has written."""
        number, _, text = value.partition(b" ")
        raw = orjson.loads(text)
        if not isinstance(raw, dict) or not isinstance(raw.get("lane"), str):
            raise ValueError(f"a declaration is an object with a lane, not {value[:80]!r}")
        cron = raw.get("cron")
        found = cls(
            lane=raw["lane"],
            key=raw.get("key"),
            arguments=tuple(raw.get("arguments") or ()),
            required=tuple(raw.get("required") or ()),
            takes_more=bool(raw.get("takes_more")),
            deadline_ms=int(raw.get("deadline_ms", 0)),
            window_ms=int(raw.get("window_ms", KEY_WINDOW_MS)),
            max_starts=int(raw.get("max_starts", MAX_STARTS)),
            timeout=float(raw.get("timeout", 0)),
            retry=str(raw.get("retry", "")),
            cron=None if cron is None else CronSpec(str(cron["spec"]), str(cron["tz"]), str(cron["overlap"])),
            gates=tuple(
                Gate(GateKind(kind), scope, figures) for kind, scope, figures in raw.get("gates", ())
            ),
            coalesce=_coalesce(raw.get("coalesce")),
            of_lane=tuple(raw.get("of_lane") or ()),
            number=int(number),
        )
        template = None if found.key is None else KeyTemplate.parse(found.key, found.arguments, what="key")
        ready = Gates(task, found.arguments, found.gates) if found.gates else None
        merging = (
            None
            if found.coalesce is None
            else Coalescer(task, found.arguments, found.required, found.coalesce)
        )
        return replace(found, template=template, ready=ready, coalescer=merging)


def _coalesce(raw: Mapping[str, Any] | None) -> Coalesce | None:
    """What it says that this version knows."""
    if raw is None:
        return None
    return Coalesce(
        str(raw["mode"]),
        window=float(raw["window"]),
        by=raw.get("by"),
        items=raw.get("items"),
        limit=int(raw["limit"]),
        when=str(raw["when"]),
    )


def publish_call(declared: Mapping[str, Declaration], router: Router) -> scripts.Call:
    """The script call that publishes tasks and router. It is sent under the namespace's own tag."""
    rows: list[Argument] = [ROUTING, routing.encode(router, declared)]
    for name, declaration in sorted(declared.items()):
        rows += (FIELD + name, declaration.encode())
    return scripts.publish(rows=rows)


async def publish(
    link: Link, keys: Keys, declared: Mapping[str, Declaration], router: Router
) -> dict[str, int]:
    """Publish tasks and router; returns for each task the number of the change that wrote its declaration.

    What cannot be published is warned of, and has no number: the worker serves it all the same. Raises
    ConnectionLost.
    """
    call = publish_call(declared, router)
    try:
        _, *numbers = await link.script(call.script, keys.namespace_tag, *call.argv)
    except ReplyError as error:  # no memory, or no right
        log.warning("what the tasks declare was not published, so clients do not apply it: %s", error)
        return {}
    return dict(zip(sorted(declared), map(int, numbers), strict=True))


def read(task: str, value: bytes | None) -> Declaration | None:
    """What stands in the manifest for a task; None for what is not there or cannot be read."""
    if value is None:
        return None
    try:
        return Declaration.decode(task, value)
    except (ValueError, TypeError, KeyError, ConfigurationError) as error:
        log.warning("task %s: its declaration cannot be read, so it is not applied: %s", task, error)
        return None


def read_router(value: bytes | None) -> Router | None:
    """The router that stands in the manifest; None for what is not there or cannot be read."""
    if value is None:
        return None
    try:
        return routing.decode(value.partition(b" ")[2])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("the rules of the router cannot be read, so they are not applied: %s", error)
        return None


class Cache:
    """What a producer knows of the manifest; read again each minute, and soon for what it does not know."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Declaration | None]] = {}
        #: The rules that were read last; without any, each job waits where its task says.
        self.router = routing.NO_RULES
        self._rules: bytes | None = None  # as they stood there

    def _forget(self) -> None:
        """Only so many names are kept that nobody declares: a producer may be given made-up ones for ever."""
        if len(self._known) <= 2 * UNKNOWN:
            return
        unknown = [name for name, (_, found) in list(self._known.items()) if found is None]
        for name in unknown[:-UNKNOWN]:
            self._known.pop(name, None)

    def stale(self, tasks: Iterable[str]) -> list[str]:
        """The tasks that must be read before they are used."""
        now = time.monotonic()
        return [name for name in dict.fromkeys(tasks) if now >= self._known.get(name, (0.0, None))[0]]

    def get(self, task: str) -> Declaration | None:
        """What is known of a task, fresh or not."""
        known = self._known.get(task)
        return None if known is None else known[1]

    def has(self, tasks: Collection[str]) -> bool:
        """Whether something is known of all of them, fresh or not: an outage must not undo that."""
        return all(name in self._known for name in tasks)

    def note(self, tasks: Collection[str], values: Sequence[bytes | None]) -> None:
        """Keep what was read of the fields of these tasks."""
        *declared, rules = values
        if rules != self._rules:
            self._rules, self.router = rules, read_router(rules) or routing.NO_RULES
        for name, value in zip(tasks, declared, strict=True):
            found = read(name, value)
            fresh = FRESH if value is not None else FRESH_UNKNOWN
            self._known[name] = (time.monotonic() + fresh, found)
        self._forget()

    def refused(self, tasks: Collection[str], error: ReplyError) -> None:
        """The server does not let us read the manifest: its jobs are enqueued as for unknown tasks."""
        if not self._known:
            log.warning("the manifest of tasks cannot be read, so it is not applied: %s", error)
        for name in tasks:
            self._known[name] = (time.monotonic() + FRESH, self.get(name))
        self._forget()


def fields(tasks: Iterable[str]) -> list[str]:
    """The fields of `meta` that hold these tasks, and the router after them."""
    return [*(FIELD + name for name in tasks), ROUTING]
