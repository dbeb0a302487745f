"""Figures as people say them, and as commands take them."""

from __future__ import annotations

from streamworker.core import durations
from streamworker.core.text import counted
from streamworker.ops.top import LaneRow


def span(seconds: float | None) -> str:
    """`<1s`, `42s`, `3m`; `-` for None."""
    if seconds is None:
        return "-"
    return "<1s" if seconds < 1 else durations.format_ms(round(seconds) * 1000)


def pace(per_second: float | None) -> str:
    """`12.5/s`; `?/s` for what was not measured."""
    if per_second is None:
        return "?/s"
    return f"{per_second:.0f}/s" if per_second >= 100 else f"{per_second:.3g}/s"


def rate(per_second: float) -> str:
    """A rate that commands take: whole jobs a second or, below one, a minute; at least one."""
    if per_second >= 1:
        return f"{int(per_second)}/s"
    return f"{max(1, int(per_second * 60))}/m"


def flow(row: LaneRow) -> str:
    """What waits in a lane, how old it is, and what comes and goes."""
    aim = "" if row.target is None else f" (target {span(row.target)})"
    parked = f", {row.parked} of them at gates" if row.parked else ""
    oldest = aim if row.oldest is None else f", the oldest for {span(row.oldest)}{aim}"
    return (
        f"{counted(row.ready + row.parked, 'job')} wait{'s' if row.ready + row.parked == 1 else ''}{parked}"
        f"{oldest}; {pace(row.came_in)} come in, {pace(row.went_out)} go out"
    )
