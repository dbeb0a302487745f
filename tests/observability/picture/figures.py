"""Numbers as Grafana writes them in the units that our panels have, and ticks for an axis of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

#: Names of times, with their seconds; each goes up to where the next begins.
_TIMES = ((86400.0, "day"), (3600.0, "hour"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_THOUSANDS = ((1e9, " Bil"), (1e6, " Mil"), (1e3, " K"))


def _digits(value: float) -> str:
    """Three digits that count, and no zeros after them."""
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(places, 9)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def figure(value: float, unit: str) -> str:
    """One number. Raises KeyError for a unit that is not known here."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞"
    write = _WRITERS[unit]
    return write(value)


def _time(value: float) -> str:
    if value == 0:
        return "0 s"
    size, name = next((each for each in _TIMES if abs(value) >= each[0]), _TIMES[-1])
    return f"{_digits(value / size)} {name}"


def _short(value: float) -> str:
    for size, name in _THOUSANDS:
        if abs(value) >= size:
            return _digits(value / size) + name
    return _digits(value)


_WRITERS: dict[str, Callable[[float], str]] = {
    "s": _time,
    "short": _short,
    "ops": lambda value: f"{_short(value)} ops/s",
    "percentunit": lambda value: f"{_digits(value * 100)}%",
    "bool_on_off": lambda value: "On" if value else "Off",
}


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Round numbers from low to high, `most` or fewer; `whole`: without parts."""
    wide = (high - low) / most
    step = next(each for each in _steps(wide) if each >= wide and (each >= 1 or not whole))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [each * step for each in range(first, last + 1)]


def _steps(least: float) -> Iterator[float]:
    power = math.floor(math.log10(least))
    while True:
        yield from (each * 10.0**power for each in (1, 2, 2.5, 5))
        power += 1


def scale(values: Sequence[float], bottom: float | None, top: float | None) -> tuple[float, float]:
    """Where an axis begins and ends: at what the panel says, else a little beyond what there is."""
    low = bottom if bottom is not None else min(values, default=0.0)
    high = top if top is not None else max(values, default=1.0)
    if high <= low:
        high = low + (abs(low) or 1.0)
    room = (high - low) * 0.05
    return low if bottom is not None else low - room, high if top is not None else high + room
