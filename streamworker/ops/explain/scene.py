"""What must be known of a job's surroundings before anything can be said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from streamworker.core import durations
from streamworker.core.breaker import Standing
from streamworker.core.job import Record
from streamworker.ops import inspect, tune
from streamworker.ops.breakers import standings
from streamworker.ops.history import History, iso, read_history
from streamworker.ops.settings import Setting, by_name
from streamworker.ops.slots import LaneSlots, slots
from streamworker.ops.tune import Pause
from streamworker.store import manifest
from streamworker.store.depths import now_ms
from streamworker.store.events import Transition
from streamworker.store.manifest import Declaration
from streamworker.store.queue import Queue


@dataclass(frozen=True, slots=True)
class Scene:
    """One job, and what bears on it. Times are ms since the epoch, by Redis's clock."""

    queue: Queue
    record: Record
    now: int
    #: What workers have published of its task; None: no worker ever knew it.
    declared: Declaration | None
    #: Some worker has published tasks.
    any_manifest: bool
    workers: list[dict[str, Any]]
    pauses: dict[str, Pause]
    breakers: dict[str, Standing]
    limits: dict[str, dict[str, Any]]
    slots: dict[str, LaneSlots]
    #: What operators have set, by topic and name.
    settings: dict[tuple[str, str], Setting]
    history: History

    @classmethod
    async def read(cls, queue: Queue, record: Record) -> Self:
        """Look around."""
        command = queue.caller.command
        fields = await command("HKEYS", queue.keys.meta)
        raw = await command("HGET", queue.keys.meta, manifest.FIELD + record.task)
        return cls(
            queue=queue,
            record=record,
            now=await now_ms(command),
            declared=manifest.read(record.task, raw),
            any_manifest=any(name.startswith(manifest.FIELD.encode()) for name in fields),
            workers=await inspect.workers(queue),
            pauses={one.scope: one for one in await tune.pauses(queue)},
            breakers=await standings(queue),
            limits={row["name"]: row for row in await tune.limits(queue)},
            slots={one.lane: one for one in await slots(queue)},
            settings=await by_name(queue),
            history=await read_history(
                queue, record.job_id, since_ms=record.number("at") or 0, version=record.version
            ),
        )

    @property
    def last_move(self) -> Transition | None:
        """The newest move that the log still has."""
        return self.history.moves[-1] if self.history.moves else None

    def move_with(self, fact: str) -> Transition | None:
        """The newest move that carries this fact."""
        return next((move for move in reversed(self.history.moves) if fact in move.facts), None)

    def serving(self, lane: str) -> list[dict[str, Any]]:
        """The living workers that serve a lane."""
        return [worker for worker in self.workers if lane in worker["lanes"]]

    def ago(self, ms: int | None) -> str:
        """How long ago that was."""
        return "at an unknown time" if ms is None else f"{span(self.now - ms)} ago"

    def until(self, ms: int) -> str:
        """When that will be."""
        return f"in {span(ms - self.now)}, at {iso(ms)}"


def span(ms: float) -> str:
    """A duration as people say it: seconds from one second on."""
    whole = max(0, round(ms))
    return durations.format_ms(whole if whole < 1000 else whole // 1000 * 1000)


def said_by(one: Pause | Setting) -> str:
    """Who paused or set it, when and why."""
    why = f": {one.reason}" if one.reason not in ("", "-") else ""
    return f"by {one.by} at {iso(one.since)}{why}"
