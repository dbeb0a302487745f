"""How the lanes do at this moment: two looks at the counters, and what changed between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamworker.core.lane import BACKLOG
from streamworker.ops import overload
from streamworker.ops.snapshot import Snapshot, take
from streamworker.store.queue import Queue

#: Gates that are shown, those with most waiters.
GATES = 5


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One lane. Rates are jobs a second, None before the second look."""

    lane: str
    ready: int
    parked: int
    scheduled: int
    in_flight: int
    oldest: float | None  # seconds
    target: float | None  # seconds
    paused: bool
    pressure: str
    came_in: float | None
    went_out: float | None

    @property
    def empty_in(self) -> float | None:
        """Seconds until nothing waits, if all goes on so; None: it does not get less."""
        if self.came_in is None or self.went_out is None or self.went_out <= self.came_in:
            return None
        return (self.ready + self.parked) / (self.went_out - self.came_in)

    def json(self) -> dict[str, Any]:
        return {
            "lane": self.lane,
            "ready": self.ready,
            "parked": self.parked,
            "scheduled": self.scheduled,
            "in_flight": self.in_flight,
            "oldest_age_seconds": self.oldest,
            "target_seconds": self.target,
            "paused": self.paused,
            "pressure": self.pressure,
            "in_per_second": _rounded(self.came_in),
            "out_per_second": _rounded(self.went_out),
            "empty_in_seconds": _rounded(self.empty_in),
        }


@dataclass(frozen=True, slots=True)
class Frame:
    """What `top` shows at once."""

    lanes: tuple[LaneRow, ...]
    gates: tuple[tuple[str, int], ...]  # with their waiters, the most first
    workers: int
    backlog: int
    draining: bool
    dead: int
    dying: float | None  # dead letters a second

    def json(self) -> dict[str, Any]:
        """The stable shape of `top --json`."""
        return {
            "lanes": [row.json() for row in self.lanes],
            "gates": [{"gate": gate, "waiting": count} for gate, count in self.gates],
            "workers": self.workers,
            "backlog": {"depth": self.backlog, "draining": self.draining},
            "dead_letters": {"total": self.dead, "per_second": _rounded(self.dying)},
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


async def look(queue: Queue) -> tuple[Snapshot, overload.Drain]:
    """One look. Raises ConnectionLost, ServerUnsuitable or ReplyError."""
    return await take(queue.caller, queue.keys), await overload.drain(queue)


async def watch(queue: Queue, seconds: float) -> Frame:
    """Two looks, `seconds` apart."""
    before, _ = await look(queue)
    await asyncio.sleep(seconds)
    now, drain = await look(queue)
    return frame(before, now, drain)


def frame(before: Snapshot | None, now: Snapshot, drain: overload.Drain) -> Frame:
    """What to show, with rates since the look before; times are Redis's, so a slow look is no error."""
    seconds = 0.0 if before is None else now.at - before.at
    open_now, dead_now = _open(now), _dead(now)
    rows = []
    for lane in sorted(_lanes(now)):
        seen = now.lanes.get(lane)
        states = open_now.get(lane, Counter())
        came_in = went_out = None
        if before is not None and seconds > 0:
            came = _enqueued(now, lane) - _enqueued(before, lane)
            grew = sum(states.values()) - sum(_open(before).get(lane, Counter()).values())
            # Redis may have lost its counters between the two looks.
            came_in, went_out = max(0.0, came / seconds), max(0.0, (came - grew) / seconds)
        rows.append(
            LaneRow(
                lane=lane,
                ready=states["ready"],
                parked=states["parked"],
                scheduled=states["scheduled"],
                in_flight=states["in_flight"],
                oldest=None if seen is None else seen.oldest,
                target=None if seen is None else seen.target,
                paused=seen is not None and seen.paused,
                pressure="ok" if seen is None else str(seen.pressure),
                came_in=came_in,
                went_out=went_out,
            )
        )
    dying = None
    if before is not None and seconds > 0:
        died = sum(now.dead_lettered.values()) - sum(before.dead_lettered.values())
        dying = max(0.0, died / seconds)
    gates = sorted(now.waiting.items(), key=lambda item: (-item[1], item[0]))
    return Frame(
        lanes=tuple(rows),
        gates=tuple(gates[:GATES]),
        workers=now.workers,
        backlog=drain.depth,
        draining=drain.on and not drain.paused,
        dead=dead_now,
        dying=dying,
    )


def _lanes(look: Snapshot) -> set[str]:
    return ({lane for lane, _, _ in look.jobs} | set(look.lanes)) - {BACKLOG}


def _open(look: Snapshot) -> Mapping[str, Counter[str]]:
    """Jobs of each lane that are not over, by state."""
    found: dict[str, Counter[str]] = {}
    for (lane, _, state), count in look.jobs.items():
        if state != "dead":
            found.setdefault(lane, Counter())[state] += max(0, count)
    return found


def _dead(look: Snapshot) -> int:
    return sum(max(0, count) for (_, _, state), count in look.jobs.items() if state == "dead")


def _enqueued(look: Snapshot, lane: str) -> int:
    return sum(count for (name, _), count in look.enqueued.items() if name == lane)
