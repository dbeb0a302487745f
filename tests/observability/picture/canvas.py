"""A dark sheet to draw on: boxes, texts that are cut where they would not fit, lines."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

Point = tuple[float, float]

#: Drawn twice as large, and made smaller: so lines are smooth.
_FINE = 2
GROUND, PANEL, EDGE, TEXT, FAINT = "#111217", "#181b1f", "#2c3235", "#d0d2d9", "#8e9096"
COLOURS = {
    "green": "#73bf69",
    "yellow": "#fade2a",
    "red": "#f2495c",
    "orange": "#ff9830",
    "blue": "#5794f2",
    "purple": "#b877d9",
}
#: Grafana's classic palette.
PALETTE = (
    "#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0", "#508642",
    "#cca300", "#447ebc", "#c15c17", "#890f02", "#0a437c", "#6d1f62", "#584477",
)  # fmt: skip


#: Pillow's own font has few signs.
_HAS = str.maketrans({"µ": "u", "∞": "inf"})


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size * _FINE)


class Canvas:
    """A picture of `width` times `height` pixels; all places are in these."""

    def __init__(self, width: int, height: int) -> None:
        self._image = Image.new("RGB", (width * _FINE, height * _FINE), GROUND)
        self._draw = ImageDraw.Draw(self._image, "RGBA")

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, edge: str | None = None
    ) -> None:
        """A box with its upper left corner there; `fill` may have an alpha, as `#rrggbbaa`."""
        corners = [each * _FINE for each in (x, y, x + max(width, 0), y + max(height, 0))]
        self._draw.rectangle(corners, fill=fill, outline=edge, width=_FINE)

    def line(self, points: list[Point], colour: str, width: float = 1.0, *, dashed: bool = False) -> None:
        """A line through points."""
        if dashed:
            for first, second in itertools.pairwise(points):
                for part in (0.0, 0.5):
                    x, y = (first[n] + (second[n] - first[n]) * part for n in (0, 1))
                    end = tuple(first[n] + (second[n] - first[n]) * (part + 0.3) for n in (0, 1))
                    self.line([(x, y), (end[0], end[1])], colour, width)
            return
        self._draw.line([(x * _FINE, y * _FINE) for x, y in points], colour, round(width * _FINE), "curve")

    def dashes(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """A level or upright line of dashes."""
        along, length = (1, width) if width else (0, height)
        for at in range(0, int(length), 10):
            first = (x + at * along, y + at * (1 - along))
            self.line([first, (first[0] + 5 * along, first[1] + 5 * (1 - along))], colour)

    def area(self, points: list[Point], colour: str) -> None:
        """What a closed line surrounds."""
        self._draw.polygon([(x * _FINE, y * _FINE) for x, y in points], fill=colour)

    def wide(self, text: str, size: int) -> float:
        """How wide a text is."""
        return self._draw.textlength(text, font=_font(size)) / _FINE

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: int = 12,
        colour: str = TEXT,
        *,
        most: float = 1e9,
        at: str = "l",
    ) -> None:
        """A text whose middle is at that height, and its left end, middle or right end (l, m, r) at `x`."""
        whole = text = text.translate(_HAS)
        while text and self.wide(text if text == whole else text + "…", size) > most:
            text = text[:-1]
        shown = text if text == whole else text + "…"
        self._draw.text((x * _FINE, y * _FINE), shown, font=_font(size), fill=colour, anchor=f"{at}m")

    def save(self, path: Path) -> None:
        """Write it as a PNG."""
        self._image.reduce(_FINE).save(path)
