"""What lanes take, in the words of the scripts: bounds, what becomes of what is over them, and the drain."""

from __future__ import annotations

from collections.abc import Mapping

from streamworker.core import durations
from streamworker.core.errors import ConfigurationError
from streamworker.core.lane import BACKLOG, Lane
from streamworker.core.limits import rate_figures

#: Jobs a second that leave the backlog if nobody says more.
DEFAULT_DRAIN = "100/s"
#: Depth up to which the backlog is drained into a lane without a limit.
DEFAULT_HIGH_WATER = 1_000


def check_backlog(lane: Lane) -> Lane:
    """Return the lane `backlog` if it declares what a backlog can have. Raises ConfigurationError."""
    for what in ("reserved", "aging", "high_water", "accept", "pressure", "max_age"):
        if getattr(lane, what):
            raise ConfigurationError(
                f"lane {BACKLOG!r}: {what}= says nothing, since no worker takes from it; it has drain=, "
                "burst=, limit= and target="
            )
    if lane.burst is not None and lane.drain is None:
        raise ConfigurationError(f"lane {BACKLOG!r}: burst= belongs to a rate: give drain= as well")
    drain_figures(lane)
    return lane


def check_lane(name: str, lane: Lane) -> None:
    """Raises ConfigurationError for what only the backlog can have."""
    if lane.drain is not None or lane.burst is not None:
        raise ConfigurationError(f"lane {name!r}: drain= and burst= are for the lane {BACKLOG!r}")
    if lane.limit is not None and (lane.high_water or 0) > lane.limit:
        raise ConfigurationError(f"lane {name!r}: high_water= is above its limit=, which is never passed")


def drain_figures(lane: Lane) -> str:
    """`tokens,period_ms,burst` of the drain. Raises ConfigurationError."""
    return rate_figures(lane.drain or DEFAULT_DRAIN, lane.burst, what=f"lane {BACKLOG!r}: drain")


def target_ms(lane: Lane) -> str:
    """The age that a job of the backlog should not pass, in ms; '' for none. Raises DurationError."""
    return "" if lane.target is None else str(durations.to_ms(durations.parse(lane.target), what="target"))


def high_water(lane: Lane) -> int:
    """The depth up to which the backlog is drained into a lane: below its limit, so arrivals find room."""
    if lane.high_water is not None:
        return lane.high_water
    return DEFAULT_HIGH_WATER if lane.limit is None else max(1, lane.limit // 2)


def rules(lanes: Mapping[str, Lane], backlog: Lane) -> str:
    """The bounds of all lanes, as `enqueue` reads them; '' for none."""
    lines = [f"depth {name} {lane.limit} {lane.overflow}" for name, lane in lanes.items() if lane.limit]
    if backlog.limit:
        lines += [f"backlog {name} {backlog.limit} reject" for name in lanes]
    return "\n".join(lines)
