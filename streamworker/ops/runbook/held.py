"""What operators have set, and the command that takes each of it back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from streamworker.core.breaker import BreakerState
from streamworker.ops import tune
from streamworker.ops.overload import Drain, Throttle
from streamworker.ops.runbook.sight import Held
from streamworker.ops.tune import Pause


def held(
    *,
    pauses: Iterable[Pause],
    throttles: Iterable[Throttle],
    drain: Drain,
    limits: Iterable[Mapping[str, Any]],
    breakers: Iterable[Mapping[str, Any]],
) -> tuple[Held, ...]:
    """All that is set; ramps end by themselves."""
    found = [
        Held(f"{one.scope} is paused", one.by, one.reason, ("resume", one.scope))
        for one in pauses
        if one.state == "paused"
    ]
    found += [
        Held(
            f"{one.scope} is throttled to {one.rate}, the rest goes to {one.overflow}",
            one.set.by,
            one.set.reason,
            ("throttle", one.scope, "--off"),
        )
        for one in throttles
    ]
    if drain.set is not None:
        state = f"the drain is {'on' if drain.on else 'off'}, at {drain.rate}"
        found.append(Held(state, drain.set.by, drain.set.reason, ("drain", "--reset")))
    found += [
        Held(
            f"{row['name']} is {tune.spoken(row['kind'], row['set'])}",
            "an operator",
            "",
            ("limits", "reset", row["name"]),
        )
        for row in limits
        if row["set"]
    ]
    found += [
        Held(
            f"the breaker of {row['dependency']} is forced {row['state']}",
            str(row["by"]),
            row["reason"] or "",
            ("breakers", "auto", row["dependency"]),
        )
        for row in breakers
        if row["by"] not in (None, "-") and row["state"] in (BreakerState.OPEN, BreakerState.CLOSED)
    ]
    return tuple(found)
