"""What Prometheus answers to the panels of a dashboard, over some minutes of calm and storm."""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.observability.files import DASHBOARDS, Json, dashboard, panels
from tests.observability.monitor import Monitor, chosen
from tests.observability.stage import Stage

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a panel: its legend, and values at times in Unix seconds."""

    legend: str
    points: Points

    @property
    def last(self) -> float:
        """The value that a figure shows; NaN if there is none."""
        return next((value for _, value in reversed(self.points) if not math.isnan(value)), math.nan)


@dataclass(frozen=True, slots=True)
class Mark:
    """When an annotation held."""

    name: str
    colour: str
    times: list[float]


@dataclass(frozen=True, slots=True)
class Answers:
    """What one dashboard shows: lines by the panels' ids, and marks. `start` and `end` in Unix seconds."""

    start: float
    end: float
    lines: Mapping[int, list[Line]]
    marks: list[Mark]


def legend(text: str, labels: Mapping[str, str]) -> str:
    """A legend with the labels of a series in it."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), text)


def gathered(calm: float, storm: float) -> dict[str, Answers]:
    """By dashboard, what it shows after so many seconds of calm and of storm."""
    with tempfile.TemporaryDirectory() as folder, Stage(Path(folder)) as stage:
        time.sleep(calm)
        stage.storm()
        time.sleep(storm)
        end = time.time()
        return {
            path.stem: _answers(stage.monitor, dashboard(path), end - calm - storm, end)
            for path in DASHBOARDS
        }


def _answers(monitor: Monitor, board: Json, start: float, end: float) -> Answers:
    lines = {
        panel["id"]: [
            Line(legend(target["legendFormat"], labels), points)
            for target in panel["targets"]
            for labels, points in _asked(monitor, target["expr"], start, end, instant=target["instant"])
        ]
        for panel in panels(board)
    }
    marks = [
        Mark(each["name"], each["iconColor"], [at for at, _ in points])
        for each in board["annotations"]["list"]
        if "expr" in each
        for _, points in _asked(monitor, each["expr"], start, end)
    ]
    return Answers(start, end, lines, marks)


def _asked(
    monitor: Monitor, query: str, start: float, end: float, *, instant: bool = False
) -> list[tuple[dict[str, str], Points]]:
    if instant:
        found = monitor.get("query", query=chosen(query), time=str(end))["result"]
    else:
        found = monitor.get("query_range", query=chosen(query), start=str(start), end=str(end), step="1")[
            "result"
        ]
    return [
        (
            each["metric"],
            [(float(at), float(value)) for at, value in ([each["value"]] if instant else each["values"])],
        )
        for each in found
    ]
