"""What the runbook looks at: figures of one moment, and no connection to anything. Times are ms, by Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamworker.core.breaker import BreakerState
from streamworker.core.lane import BACKLOG
from streamworker.ops.dlq.causes import Cause
from streamworker.ops.history import iso
from streamworker.ops.overload import Drain, Throttle
from streamworker.ops.top import LaneRow
from streamworker.ops.tune import Pause


@dataclass(frozen=True, slots=True)
class Service:
    """A dependency that tasks name in `uses=`."""

    name: str
    tasks: frozenset[str]  # that use it
    state: str = BreakerState.CLOSED  # of its breaker
    by: str | None = None  # who forced the breaker; None: its calls decide
    ok: int = 0  # calls that its breaker counts by now
    failed: int = 0
    share: float | None = None  # of calls that fail, from which on its breaker opens; None: none was declared
    fewest: int | None = None  # calls before its breaker judges
    running: int = 0  # jobs in flight of tasks that use it
    waiting: int = 0  # jobs that wait at its breaker or its concurrency
    limit: int | None = None  # its concurrency in force; None: none was declared

    @property
    def failed_share(self) -> float:
        """Of the calls that count; 0 without any."""
        calls = self.ok + self.failed
        return self.failed / calls if calls else 0.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who waits in a lane, by tenant and by task; '' is no tenant. Of the backlog, whose the newest are."""

    tenants: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retries:
    """What waits for its next attempt: of a sample of the schedule, by task and error code."""

    sampled: int = 0
    scheduled: int = 0  # in the whole schedule, delays included
    by_code: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def estimate(self, count: int) -> int:
        """How many they are in the whole schedule."""
        return round(count * self.scheduled / self.sampled) if self.sampled else 0


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters: all of them, those of the last hour by cause, and how many come."""

    total: int = 0
    a_second: float = 0.0
    causes: tuple[Cause, ...] = ()
    more: bool = False  # there are more of the last hour than were read


@dataclass(frozen=True, slots=True)
class Held:
    """What an operator has set, and the command that takes it back."""

    what: str
    by: str
    reason: str
    undo: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sight:
    """All that the diagnosis is made from."""

    app: str
    at: int
    lanes: tuple[LaneRow, ...] = ()  # all but the backlog
    workers: int = 0
    slots: int = 0  # of all living workers
    least: int = 0  # slots of the smallest of them
    serving: Mapping[str, int] = field(default_factory=dict)  # living workers, by lane
    crowds: Mapping[str, Crowd] = field(default_factory=dict)  # by lane, the backlog as well
    services: tuple[Service, ...] = ()
    drain: Drain = field(default_factory=lambda: Drain(True, None, None, None, False, {}))
    deferred: float = 0.0  # jobs a second that go into the backlog
    throttles: tuple[Throttle, ...] = ()
    pauses: tuple[Pause, ...] = ()
    retries: Retries = field(default_factory=Retries)
    letters: Letters = field(default_factory=Letters)
    keyed: frozenset[str] = frozenset()  # tasks with a key template, so that a second run can be told
    held: tuple[Held, ...] = ()
    favoured: Mapping[str, str] = field(default_factory=dict)  # lanes whose slots are set: to what, by whom
    calmed: Mapping[str, str] = field(default_factory=dict)  # tasks whose retries are set

    @property
    def in_flight(self) -> int:
        """Jobs that run, or were claimed to."""
        return sum(row.in_flight for row in self.lanes)

    @property
    def ready(self) -> int:
        """Jobs that wait for a slot and nothing else: of lanes that are served and not paused."""
        return sum(row.ready for row in self.lanes if self.serving.get(row.lane) and not row.paused)

    def lane(self, name: str) -> LaneRow | None:
        """A lane's row; None if there is none."""
        return next((row for row in self.lanes if row.lane == name), None)

    def paused(self, scope: str) -> Pause | None:
        """The pause that stands; a ramp is none."""
        return next((one for one in self.pauses if one.scope == scope and one.state == "paused"), None)

    def figures(self) -> dict[str, Any]:
        """What `--json` and the incident note have of it."""
        return {
            "at": iso(self.at),
            "lanes": [row.json() for row in self.lanes],
            "workers": self.workers,
            "slots": self.slots,
            BACKLOG: {
                "depth": self.drain.depth,
                "draining": self.drain.on and not self.drain.paused,
                "rate": None if self.drain.rate is None else str(self.drain.rate),
                "deferred_per_second": round(self.deferred, 2),
            },
            "scheduled": self.retries.scheduled,
            "dead_letters": {
                "total": self.letters.total,
                "per_second": round(self.letters.a_second, 2),
            },
        }
