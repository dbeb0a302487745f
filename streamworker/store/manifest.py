"""The manifest: what tasks declare, published by workers, read by producers that do not have the code (D17).

Each task has a field `task:<name>` in `meta`: the number of the change that wrote it, and the declaration as
a JSON object. Fields that a reader does not know are ignored, so that newer workers may say more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from streamworker.core.errors import ConfigurationError
from streamworker.core.template import KeyTemplate
from streamworker.store import scripts
from streamworker.store.connection import Argument, Link, ReplyError
from streamworker.store.keys import Keys
from streamworker.store.scripts import KEY_WINDOW_MS, MAX_STARTS

log = logging.getLogger("streamworker")

FIELD = "task:"
#: Seconds after which a producer reads a task's declaration again.
FRESH = 60.0
#: The same for a task that was not in the manifest: its first worker may be starting.
FRESH_UNKNOWN = 1.0


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
    deadline_ms: int = 0  # 0: none
    window_ms: int = KEY_WINDOW_MS
    max_starts: int = MAX_STARTS
    timeout: float = 0.0  # seconds for one attempt
    retry: str = ""  # the policy in words
    cron: CronSpec | None = None
    #: Which change of the manifest wrote it; 0 for one that was not read from there.
    number: int = 0
    template: KeyTemplate | None = None

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
        if self.cron is not None:
            raw["cron"] = {"spec": self.cron.spec, "tz": self.cron.tz, "overlap": self.cron.overlap}
        return orjson.dumps(raw, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def decode(cls, value: bytes) -> Declaration:
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
            deadline_ms=int(raw.get("deadline_ms", 0)),
            window_ms=int(raw.get("window_ms", KEY_WINDOW_MS)),
            max_starts=int(raw.get("max_starts", MAX_STARTS)),
            timeout=float(raw.get("timeout", 0)),
            retry=str(raw.get("retry", "")),
            cron=None if cron is None else CronSpec(str(cron["spec"]), str(cron["tz"]), str(cron["overlap"])),
            number=int(number),
        )
        if found.key is None:
            return found
        return replace(found, template=KeyTemplate.parse(found.key, found.arguments, what="key"))


def publish_call(declared: Mapping[str, Declaration]) -> scripts.Call:
    """The script call that publishes these tasks. It is sent under the namespace's own tag."""
    rows: list[Argument] = []
    for name, declaration in sorted(declared.items()):
        rows += (name, declaration.encode())
    return scripts.publish(rows=rows)


async def publish(link: Link, keys: Keys, declared: Mapping[str, Declaration]) -> None:
    """Publish these tasks. What cannot be published is warned of: the worker serves them all the same.

    Raises ConnectionLost.
    """
    call = publish_call(declared)
    try:
        await link.script(call.script, keys.namespace_tag, *call.argv)
    except ReplyError as error:  # no memory, or no right
        log.warning("what the tasks declare was not published, so clients do not apply it: %s", error)


def read(task: str, value: bytes | None) -> Declaration | None:
    """What stands in the manifest for a task; None for what is not there or cannot be read."""
    if value is None:
        return None
    try:
        return Declaration.decode(value)
    except (ValueError, TypeError, KeyError, ConfigurationError) as error:
        log.warning("task %s: its declaration cannot be read, so it is not applied: %s", task, error)
        return None


class Cache:
    """What a producer knows of the manifest; read again each minute, and soon for what it does not know."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Declaration | None]] = {}

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

    def note(self, tasks: Collection[str], values: Collection[bytes | None]) -> None:
        """Keep what was read."""
        for name, value in zip(tasks, values, strict=True):
            found = read(name, value)
            fresh = FRESH if found is not None else FRESH_UNKNOWN
            self._known[name] = (time.monotonic() + fresh, found)

    def refused(self, tasks: Collection[str], error: ReplyError) -> None:
        """The server does not let us read the manifest: its jobs are enqueued as for unknown tasks."""
        if not self._known:
            log.warning("the manifest of tasks cannot be read, so it is not applied: %s", error)
        for name in tasks:
            self._known[name] = (time.monotonic() + FRESH, self.get(name))


def fields(tasks: Iterable[str]) -> list[str]:
    """The fields of `meta` that hold these tasks."""
    return [FIELD + name for name in tasks]
