"""A lane as it is declared: what it takes, what it promises, how its jobs are treated by default."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from streamworker.core import durations
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError, InvalidArgument
from streamworker.core.retry import Retry
from streamworker.core.template import check_task_name

#: Lane of a job for which nobody named one.
DEFAULT_LANE = "normal"
#: Where jobs wait that may wait. No worker takes from it: it is drained into the lanes they are meant for.
BACKLOG = "backlog"
_LANE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)
MAX_WEIGHT = 1000
MAX_RESERVED = 100_000
#: Times its weight that a lane counts at most while its jobs are old.
MAX_AGING_FACTOR = 8
#: Largest `payload_limit`, in bytes: Redis keeps every payload in memory.
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024

#: What becomes of a job that is over a bound.
OVERFLOWS = ("backlog", "reject")

#: Which tasks a lane takes: their names, or a function that is asked for each name.
Accept = Collection[str] | Callable[[str], bool]


def check_lane_name(name: object) -> str:
    """Return a lane name if it is one: 1 to 32 of `a-z 0-9 _ -`, a letter or digit first."""
    if not isinstance(name, str) or not _LANE_NAME.fullmatch(name):
        raise InvalidArgument(
            "lane name", name, "use 1 to 32 characters of a-z, 0-9, '_' and '-', a letter or digit first"
        )
    return name


class Pressure(StrEnum):
    """How much waits in a lane, measured by its marks and its target."""

    OK = "ok"
    HIGH = "high"
    OVER = "over"

    def reaches(self, level: Pressure) -> bool:
        """Whether it is this level or above."""
        return _LEVELS[self] >= _LEVELS[level]


_LEVELS = {level: place for place, level in enumerate(Pressure)}


@dataclass(frozen=True, slots=True)
class Lane:
    """An isolated flow of jobs.

    `reserved`: slots of each worker that serve no other lane; `weight`: its part of those that are shared.
    `aging`: once jobs have waited so long, the lane counts twice its weight, from twice that time on four
    times, and from four times on eight; without it weights never change.

    `max_age`: a job that has waited longer for its first start does not run; it ends as `expired`.

    `target`: the age that a waiting job should not pass. `pressure`: the depths from which the lane is under
    *high* pressure and *over* its mark. Both are shown and can be asked for by routes; they refuse nothing.

    `limit`: jobs that wait in it at most. What comes beyond goes to the backlog, or is refused with
    `overflow="reject"`. `high_water`: the depth up to which the backlog is drained into it; half the limit
    by default.

    `drain`, `burst`: of the lane `backlog` alone, at which rate it is drained; its `limit` is how many jobs
    meant for one lane it takes.

    `accept`: the tasks that it takes, by name or by a function of the name; jobs of others go to the default
    lane of their task. `payload_limit`: bytes of arguments that one of its jobs may have. `timeout` and
    `retry` are for tasks of this lane that do not declare their own.

    Raises ConfigurationError, InvalidArgument or DurationError for what cannot work.
    """

    reserved: int = 0
    weight: int = 1
    aging: Duration | None = field(default=None, kw_only=True)
    max_age: Duration | None = field(default=None, kw_only=True)
    target: Duration | None = field(default=None, kw_only=True)
    pressure: tuple[int, int] | None = field(default=None, kw_only=True)
    limit: int | None = field(default=None, kw_only=True)
    overflow: str = field(default="backlog", kw_only=True)
    high_water: int | None = field(default=None, kw_only=True)
    drain: str | None = field(default=None, kw_only=True)
    burst: int | None = field(default=None, kw_only=True)
    accept: Accept | None = field(default=None, kw_only=True)
    payload_limit: int | None = field(default=None, kw_only=True)
    timeout: Duration | None = field(default=None, kw_only=True)
    retry: Retry | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_whole("a lane's reserved", self.reserved, 0, MAX_RESERVED)
        check_whole("a lane's weight", self.weight, 1, MAX_WEIGHT)
        for what in ("aging", "max_age", "target", "timeout"):
            value = getattr(self, what)
            if value is not None and durations.parse(value, what=f"a lane's {what}") <= 0:
                raise ConfigurationError(f"a lane's {what} must be above 0")
        if self.pressure is not None:
            self._check_marks(self.pressure)
        if self.payload_limit is not None:
            check_whole("a lane's payload_limit", self.payload_limit, 1, MAX_PAYLOAD_BYTES)
        for what in ("limit", "high_water"):
            if (value := getattr(self, what)) is not None:
                check_whole(f"a lane's {what}", value, 1, 1_000_000_000)
        if self.overflow not in OVERFLOWS:
            raise ConfigurationError(f'a lane\'s overflow is "backlog" or "reject", not {self.overflow!r}')
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise ConfigurationError(f"a lane's retry is a Retry policy, not {self.retry!r}")
        self._check_accept()

    def _check_marks(self, marks: object) -> None:
        if not isinstance(marks, tuple) or len(marks) != 2:
            raise ConfigurationError(f"a lane's pressure is two depths, high and over, not {marks!r}")
        for mark in marks:
            check_whole("a lane's pressure mark", mark, 1, 1_000_000_000)
        if marks[0] > marks[1]:
            raise ConfigurationError(f"a lane's pressure {marks!r}: high comes before over")

    def _check_accept(self) -> None:
        if self.accept is None or callable(self.accept):
            return
        if isinstance(self.accept, str) or not isinstance(self.accept, Collection):
            raise ConfigurationError(
                f"a lane's accept is a list of task names or a function of the name, not {self.accept!r}"
            )
        for name in self.accept:
            check_task_name(name)

    def accepts(self, task: str) -> bool:
        """Whether the lane takes jobs of this task."""
        if self.accept is None:
            return True
        return bool(self.accept(task)) if callable(self.accept) else task in self.accept

    def aged_weight(self, age_ms: int) -> int:
        """Its weight while its jobs wait for so long; pure, stepwise, at most eight times as much."""
        if self.aging is None:
            return self.weight
        periods = age_ms // max(1, durations.to_ms(self.aging))
        if periods < 1:
            return self.weight
        return self.weight * min(MAX_AGING_FACTOR, 1 << periods.bit_length())

    def pressure_at(self, depth: int, age_ms: int) -> Pressure:
        """The pressure when so many jobs wait and the oldest has waited so long.

        Past its target a lane is under high pressure, and over at twice the target.
        """
        found = Pressure.OK
        if self.pressure is not None:
            high, over = self.pressure
            found = Pressure.OVER if depth >= over else Pressure.HIGH if depth >= high else Pressure.OK
        if self.target is not None and found is not Pressure.OVER:
            target_ms = durations.to_ms(self.target)
            if age_ms > 2 * target_ms:
                return Pressure.OVER
            if age_ms > target_ms:
                return Pressure.HIGH
        return found


def check_whole(what: str, value: object, low: int, high: int) -> None:
    """Raises ConfigurationError unless the value is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(f"{what} must be a whole number from {low} to {high}, not {value!r}")


DEFAULT_LANES: Mapping[str, Lane] = {
    "priority": Lane(reserved=4, weight=4),
    "normal": Lane(reserved=4, weight=1),
}
