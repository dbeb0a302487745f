"""When a dependency counts as ill, and how it is let back. The scripts decide by these figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from streamworker.core import durations
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError

#: Largest number of calls and of probes.
MAX_CALLS = 1_000_000
#: Shortest window, and shortest time for which it stays open, in seconds.
SHORTEST = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Opens when `failed` of at least `calls` calls within a `window` failed.

    While it is open, jobs that use the dependency wait. After `open_for` as many as `probes` jobs at a time
    may try; when so many calls went well, those that waited come in over `ramp`. One that fails opens it for
    twice as long, up to eight times. Raises ConfigurationError or DurationError.
    """

    failed: float = 0.5
    calls: int = 20
    window: Duration = "10s"
    open_for: Duration = "10s"
    probes: int = 3
    ramp: Duration = "60s"

    def __post_init__(self) -> None:
        if type(self.failed) not in (int, float) or not 0.01 <= self.failed <= 1:
            raise ConfigurationError(
                f"a breaker's failed= is a share from 0.01 to 1, such as 0.5, not {self.failed!r}"
            )
        for what, count in (("calls", self.calls), ("probes", self.probes)):
            if type(count) is not int or not 1 <= count <= MAX_CALLS:
                raise ConfigurationError(
                    f"a breaker's {what}= is a whole number from 1 to {MAX_CALLS}, not {count!r}"
                )
        for what, value in (("window", self.window), ("open_for", self.open_for)):
            if durations.parse(value, what=f"a breaker's {what}") < SHORTEST:
                raise ConfigurationError(f"a breaker's {what}= must be {SHORTEST} s or more, not {value!r}")
        durations.parse(self.ramp, what="a breaker's ramp")

    @property
    def figures(self) -> str:
        """`percent,calls,window_ms,open_ms,probes,ramp_ms`, as the scripts take them."""
        window, open_for, ramp = (durations.to_ms(each) for each in (self.window, self.open_for, self.ramp))
        return f"{round(self.failed * 100)},{self.calls},{window},{open_for},{self.probes},{ramp}"


class BreakerState(StrEnum):
    """What a breaker is at a moment."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # few may try
    CLOSING = "closing"  # open for all; those who waited come in by a ramp


@dataclass(frozen=True, slots=True)
class Standing:
    """A breaker that is not simply closed. Times are ms since the epoch, by Redis's clock."""

    gate: str
    state: BreakerState
    since: int
    until: int | None  # None: nothing but calls or an operator ends it
    by: str | None  # the operator who said so; None: the calls did
    reason: str

    @property
    def dependency(self) -> str:
        return self.gate.rpartition(":")[2]


def read_standings(text: str) -> dict[str, Standing]:
    """From the key `breakers`, by gate."""
    found = {}
    for line in text.splitlines():
        gate, state, since, till, _trips, _good, waiting, length, by, reason = line.split(" ", 9)
        until = int(since) + int(length) if state == BreakerState.CLOSING and int(waiting) else int(till)
        operator = None if by == "-" else by
        found[gate] = Standing(gate, BreakerState(state), int(since), until or None, operator, reason)
    return found
