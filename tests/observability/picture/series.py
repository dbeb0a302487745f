"""The series of a panel of lines, with what its overrides say of each."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.observability.files import Json
from tests.observability.picture.answers import Line, Points
from tests.observability.picture.canvas import COLOURS, PALETTE


@dataclass(slots=True)
class Series:
    """How one line is drawn. `bed` is what it stands on, if lines are stacked."""

    name: str
    points: Points
    colour: str
    unit: str
    opacity: float  # of what is below the line, in percent
    bed: Points = field(default_factory=list)
    side: str = "left"
    dashed: bool = False
    low: float | None = None  # of its axis
    high: float | None = None
    whole: bool = False


def styled(panel: Json, lines: Sequence[Line]) -> list[Series]:
    """The lines as the panel wants them. Raises ValueError for an override that is not known here."""
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults["custom"]
    series = [
        Series(
            line.legend,
            line.points,
            PALETTE[place % len(PALETTE)],
            defaults["unit"],
            custom["fillOpacity"],
            low=defaults.get("min"),
            high=defaults.get("max"),
            whole="decimals" in defaults,
        )
        for place, line in enumerate(lines)
    ]
    if custom["stacking"]["mode"] == "normal":
        _heap(series)
    for override in panel["fieldConfig"]["overrides"]:
        matcher = override["matcher"]
        for one in series:
            if _matches(matcher["id"], matcher["options"], one.name):
                for each in override["properties"]:
                    _apply(one, each["id"], each["value"])
    return series


def _matches(kind: str, which: str, name: str) -> bool:
    if kind == "byName":
        return which == name
    if kind == "byRegexp":
        return re.search(which.strip("/"), name) is not None
    raise ValueError(f"matcher {kind}")


def _apply(one: Series, name: str, value: object) -> None:
    match name, value:
        case "color", {"fixedColor": str(colour)}:
            one.colour = COLOURS.get(colour, colour)
        case "unit", str(unit):
            one.unit = unit
        case "custom.axisPlacement", str(side):
            one.side = side
        case "custom.fillOpacity", float() | int() as opacity:
            one.opacity = opacity
        case "custom.lineStyle", {"fill": "dash"}:
            one.dashed = True
        case "min", float() | int() as low:
            one.low = low
        case "max", float() | int() as high:
            one.high = high
        case "decimals", 0:
            one.whole = True
        case _:
            raise ValueError(f"override {name}")


def _heap(series: Sequence[Series]) -> None:
    """Each on top of those before."""
    so_far: dict[float, float] = {}
    for one in series:
        points = [(at, 0.0 if math.isnan(value) else value) for at, value in one.points]
        one.bed = [(at, so_far.get(at, 0.0)) for at, _ in points]
        for at, value in points:
            so_far[at] = so_far.get(at, 0.0) + value
        one.points = [(at, so_far[at]) for at, _ in points]
