"""Draws a dashboard: each panel at its place, by those of Grafana's settings that ours use.

A legend that takes more than a third of its panel is cut, and how much of it is not shown is said in red.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.observability.files import Json
from tests.observability.picture.answers import Answers, Line
from tests.observability.picture.canvas import COLOURS, EDGE, FAINT, PANEL, TEXT, Canvas, Point
from tests.observability.picture.figures import figure, scale, ticks
from tests.observability.picture.series import Series, styled

#: Pixels of a dashboard, as on a screen; a unit of height is 30 with 8 between two panels, as in Grafana.
WIDTH, ROW, GAP, TOP = 1600, 38, 8, 60
COLUMN = (WIDTH - GAP) / 24
NO_DATA = "No data"


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a panel's inside is."""

    x: float
    y: float
    width: float
    height: float

    def cut(self, left: float = 0, above: float = 0, right: float = 0, below: float = 0) -> Frame:
        """A smaller one."""
        return Frame(self.x + left, self.y + above, self.width - left - right, self.height - above - below)


@dataclass(frozen=True, slots=True)
class Axis:
    """From where to where it goes, and what is inside of it."""

    low: float
    high: float
    inside: Frame


def draw(board: Json, answers: Answers, path: Path) -> None:
    """Draw it to a file."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    canvas = Canvas(WIDTH, TOP + rows * ROW + GAP)
    at = time.strftime("%H:%M:%S", time.localtime(answers.end))
    canvas.text(GAP * 2, 24, board["title"], 20)
    canvas.text(GAP * 2, 46, board["description"], 12, FAINT)
    canvas.text(
        WIDTH - GAP * 2,
        24,
        f"{answers.end - answers.start:.0f} s until {at}; not Grafana's own drawing",
        12,
        FAINT,
        at="r",
    )
    for panel in board["panels"]:
        place = panel["gridPos"]
        frame = Frame(
            GAP + place["x"] * COLUMN,
            TOP + place["y"] * ROW,
            place["w"] * COLUMN - GAP,
            place["h"] * ROW - GAP,
        )
        if panel["type"] == "row":
            canvas.text(frame.x + 4, frame.y + frame.height / 2, panel["title"], 15)
            continue
        canvas.box(frame.x, frame.y, frame.width, frame.height, PANEL, EDGE)
        canvas.text(frame.x + 8, frame.y + 16, panel["title"], 14, most=frame.width - 16)
        lines = [line for line in answers.lines[panel["id"]] if not math.isnan(line.last)]
        inside = frame.cut(8, 30, 8, 6)
        if not lines:
            text = panel["fieldConfig"]["defaults"].get("noValue", NO_DATA)
            canvas.text(frame.x + frame.width / 2, inside.y + inside.height / 2, text, 16, FAINT, at="m")
            continue
        _KINDS[panel["type"]](canvas, inside, panel, lines, answers)
    canvas.save(path)


def step(panel: Json, value: float) -> str:
    """The colour of a value by the panel's thresholds."""
    found = "green"
    for each in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]:
        if each["value"] is None or value >= each["value"]:
            found = each["color"]
    return COLOURS[found]


def _stat(canvas: Canvas, frame: Frame, panel: Json, lines: Sequence[Line], _: Answers) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    wide = frame.width / len(lines)
    for place, line in enumerate(lines):
        x = frame.x + place * wide
        canvas.box(x, frame.y, wide, frame.height, step(panel, line.last))
        text = _word(panel, line.last, unit)
        ink = "#111217" if step(panel, line.last) == COLOURS["yellow"] else "#ffffff"
        size = next((size for size in (34, 28, 22, 16) if canvas.wide(text, size) < wide - 8), 12)
        canvas.text(x + wide / 2, frame.y + frame.height * 0.4, text, size, ink, at="m")
        if len(lines) > 1:
            canvas.text(x + wide / 2, frame.y + 12, line.legend, 12, ink, most=wide - 4, at="m")
        values = [value for _, value in line.points if not math.isnan(value)]
        low, high = scale(values, None, None)
        below = frame.y + frame.height
        spark = [
            (x + wide * n / max(1, len(values) - 1), below - 24 * (value - low) / (high - low))
            for n, value in enumerate(values)
        ]
        canvas.area([(x, below), *spark, (x + wide, below)], "#00000040")


def _bars(canvas: Canvas, frame: Frame, panel: Json, lines: Sequence[Line], _: Answers) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    low, high = defaults.get("min", 0.0), defaults.get("max", max(line.last for line in lines))
    name = min(frame.width * 0.5, max(canvas.wide(line.legend, 12) for line in lines) + 12)
    number = max(canvas.wide(figure(line.last, defaults["unit"]), 14) for line in lines) + 12
    tall = min(40.0, frame.height / len(lines))
    for place, line in enumerate(lines):
        y = frame.y + place * tall
        middle = y + tall / 2
        canvas.text(frame.x, middle, line.legend, 12, most=name - 8)
        room = frame.width - name - number
        canvas.box(frame.x + name, y + 2, room, tall - 4, EDGE)
        part = min(1.0, (line.last - low) / (high - low)) if high > low else 1.0
        canvas.box(frame.x + name, y + 2, room * part, tall - 4, step(panel, line.last))
        canvas.text(
            frame.x + frame.width,
            middle,
            figure(line.last, defaults["unit"]),
            14,
            step(panel, line.last),
            at="r",
        )


def _lines(canvas: Canvas, frame: Frame, panel: Json, lines: Sequence[Line], answers: Answers) -> None:
    series = styled(panel, lines)
    frame = _legend(canvas, frame, series)
    axes: dict[str, Axis] = {}
    for side in ("right", "left"):
        mine = [one for one in series if one.side == side]
        if mine:
            axes[side] = _axis(canvas, frame, panel, side, mine)
            frame = axes[side].inside
    plot = frame.cut(below=18, above=4)
    _times(canvas, plot, answers)

    def at(moment: float, value: float, axis: Axis) -> Point:
        part = min(max((value - axis.low) / (axis.high - axis.low), 0.0), 1.0)
        return (
            plot.x + plot.width * (moment - answers.start) / (answers.end - answers.start),
            plot.y + plot.height * (1 - part),
        )

    defaults = panel["fieldConfig"]["defaults"]
    left = axes.get("left")
    if left is not None and defaults["custom"]["thresholdsStyle"]["mode"] == "dashed":
        for each in defaults["thresholds"]["steps"]:
            if each["value"] is not None and left.low <= each["value"] <= left.high:
                _, y = at(answers.start, each["value"], left)
                canvas.dashes(plot.x, y, plot.width, 0, COLOURS[each["color"]])
    for mark in answers.marks:
        for moment in mark.times[:1]:
            x, _ = at(moment, 0.0, next(iter(axes.values())))
            canvas.dashes(x, plot.y, 0, plot.height, COLOURS[mark.colour])
    for one in series:
        axis = axes[one.side]
        beds = dict(one.bed)
        for piece in _pieces(one.points):
            path = [at(moment, value, axis) for moment, value in piece]
            bed = [at(moment, beds.get(moment, axis.low), axis) for moment, _ in reversed(piece)]
            if len(path) == 1:
                canvas.box(path[0][0] - 2, path[0][1] - 2, 4, 4, one.colour)
                continue
            canvas.area([*path, *bed], f"{one.colour}{round(one.opacity * 2.55):02x}")
            canvas.line(path, one.colour, 1.4, dashed=one.dashed)


def _pieces(points: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Parts without a hole: a value that is missing interrupts a line."""
    pieces: list[list[tuple[float, float]]] = [[]]
    before = None
    for moment, value in points:
        if math.isnan(value) or (before is not None and moment - before > 1.5):
            pieces.append([])
        if not math.isnan(value):
            pieces[-1].append((moment, value))
        before = moment
    return [piece for piece in pieces if piece]


def _legend(canvas: Canvas, frame: Frame, series: Sequence[Series]) -> Frame:
    """Names below, a third of the panel at most; what is left above."""
    rows: list[list[Series]] = [[]]
    x = 0.0
    for one in series:
        wide = min(canvas.wide(one.name, 12) + 34, frame.width)
        if x + wide > frame.width and rows[-1]:
            rows.append([])
            x = 0.0
        rows[-1].append(one)
        x += wide
    most = max(1, int(frame.height * 0.35 // 18))
    hidden = sum(len(row) for row in rows[most:])
    rows = rows[:most]
    y = frame.y + frame.height - len(rows) * 18 + 9
    for row in rows:
        x = frame.x
        for one in row:
            canvas.box(x, y - 2, 14, 4, one.colour)
            canvas.text(x + 20, y, one.name, 12, most=frame.width - 20)
            x += canvas.wide(one.name, 12) + 34
        y += 18
    if hidden:
        canvas.text(frame.x + frame.width, y - 18, f"and {hidden} more", 12, COLOURS["red"], at="r")
    return frame.cut(below=len(rows) * 18 + 6)


def _axis(canvas: Canvas, frame: Frame, panel: Json, side: str, series: Sequence[Series]) -> Axis:
    """Ticks at one side, and lines across; what is inside of them."""
    values = [value for one in series for _, value in one.points if not math.isnan(value)]
    low, high = scale(values, series[0].low, series[0].high)
    marks = ticks(low, high, max(2, int(frame.height // 34)), whole=series[0].whole)
    texts = [_word(panel, value, series[0].unit) for value in marks]
    wide = max(canvas.wide(text, 11) for text in texts) + 8
    inside = frame.cut(left=wide) if side == "left" else frame.cut(right=wide)
    plot = inside.cut(below=18, above=4)
    for value, text in zip(marks, texts, strict=True):
        y = plot.y + plot.height * (1 - (value - low) / (high - low))
        if side == "left":
            canvas.line([(plot.x, y), (plot.x + plot.width, y)], EDGE)
            canvas.text(plot.x - 6, y, text, 11, FAINT, at="r")
        else:
            canvas.text(plot.x + plot.width + 6, y, text, 11, FAINT)
    return Axis(low, high, inside)


def _word(panel: Json, value: float, unit: str) -> str:
    for mapping in panel["fieldConfig"]["defaults"].get("mappings", ()):
        found = mapping["options"].get(f"{value:g}")
        if found is not None:
            return str(found["text"])
    return figure(value, unit)


def _times(canvas: Canvas, plot: Frame, answers: Answers) -> None:
    length = answers.end - answers.start
    for seconds in range(0, int(length) + 1, 15):
        x = plot.x + plot.width * (1 - seconds / length)
        text, at = (f"-{seconds}", "m") if seconds else ("now", "r")
        canvas.text(x, plot.y + plot.height + 10, text, 11, FAINT, at=at)


def _heat(canvas: Canvas, frame: Frame, panel: Json, lines: Sequence[Line], answers: Answers) -> None:
    bounds = sorted(lines, key=lambda line: float(line.legend))
    below: dict[float, float] = {}
    length = answers.end - answers.start
    plot = frame.cut(left=44, below=22)
    tall = plot.height / len(bounds)
    cells = []
    for place, line in enumerate(bounds):
        y = plot.y + plot.height - (place + 1) * tall
        canvas.text(plot.x - 6, y + tall / 2, line.legend, 11, FAINT, at="r")
        for at, value in line.points:
            cells.append((at, y, value - below.get(at, 0.0)))
            below[at] = value
    most = max((count for _, _, count in cells), default=0.0)
    for at, y, count in cells:
        if count > 0:
            x = plot.x + plot.width * (at - answers.start) / length
            alpha = round(40 + 215 * (count / most) ** 0.5)
            canvas.box(x, y + 1, plot.width / length, tall - 2, f"#ff9830{alpha:02x}")
    canvas.text(plot.x, plot.y + plot.height + 12, f"brightest: {figure(most, 'short')}", 11, TEXT)


_KINDS: dict[str, Callable[[Canvas, Frame, Json, Sequence[Line], Answers], None]] = {
    "stat": _stat,
    "bargauge": _bars,
    "timeseries": _lines,
    "heatmap": _heat,
}
