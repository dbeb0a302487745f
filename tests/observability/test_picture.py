"""The pictures of the dashboards: numbers as Grafana writes them, and all settings of ours are drawn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.observability.files import DASHBOARDS, dashboard, panels
from tests.observability.picture.answers import Answers, Line, Mark, legend
from tests.observability.picture.figures import figure, scale, ticks


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "s", "0 s"),
        (0.00025, "s", "250 µs"),
        (0.0425, "s", "42.5 ms"),
        (7.25, "s", "7.25 s"),
        (90, "s", "1.5 min"),
        (7200, "s", "2 hour"),
        (950, "short", "950"),
        (15_240, "short", "15.2 K"),
        (0.125, "short", "0.125"),
        (2500, "ops", "2.5 K ops/s"),
        (0.426, "percentunit", "42.6%"),
        (38.01, "percentunit", "3801%"),
        (math.nan, "s", "NaN"),
        (1, "bool_on_off", "On"),
    ],
)
def test_numbers_are_written_by_their_unit(value: float, unit: str, text: str) -> None:
    assert figure(value, unit) == text


def test_ticks_are_round_and_few() -> None:
    assert ticks(0, 9.7, 5) == [0, 2, 4, 6, 8]
    assert ticks(0, 1, 3) == [0, 0.5, 1.0]
    assert ticks(0, 2, 5, whole=True) == [0, 1, 2]
    assert scale([3.0, 5.0], 0, None) == (0, 5.25)
    assert scale([], 0, None) == (0, 1.05)


def test_a_legend_has_the_labels_of_its_series() -> None:
    assert legend("{{task}}: {{ code }}, {{lane}}", {"task": "call", "code": "away"}) == "call: away, "


def made_up(path: Path) -> Answers:
    """Answers to all panels: two lines with a hole, one of them with a legend that needs its own colour."""
    times = [float(second) for second in range(90)]
    lines = {}
    for panel in panels(dashboard(path)):
        names = [each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]] or ["a", "b" * 60]
        names = ["1.0", "+Inf"] if panel["type"] == "heatmap" else names
        lines[panel["id"]] = [
            Line(name, [(at, math.nan if at == 40 else at * (place + 1)) for at in times if not 20 < at < 30])
            for place, name in enumerate(names)
        ]
    return Answers(0.0, 90.0, lines, [Mark("Paused", "orange", [45.0, 46.0])])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_each_dashboard_is_drawn_in_full(path: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is in the extra `pictures`")
    from tests.observability.picture.drawing import ROW, TOP, WIDTH, draw

    draw(dashboard(path), made_up(path), tmp_path / "one.png")

    with image.open(tmp_path / "one.png") as picture:
        lowest = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in dashboard(path)["panels"])
        assert picture.size[0] == WIDTH
        assert picture.size[1] >= TOP + lowest * ROW
        colours = picture.getcolors(1 << 20)
    assert colours is None or len(colours) > 200, "it is not empty"
