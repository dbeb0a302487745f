"""Durations as people write them: seconds, or text such as "200ms", "30s", "2m", "1h30m", "1d"."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from streamworker.core.errors import DurationError

Duration = float | int | str | timedelta

_FORMS = 'use seconds (a number) or text such as "200ms", "30s", "2m", "1h30m", "1d"'
_NUMBER = r"(\d+(?:\.\d+)?)"
# Units from large to small, each at most once; "m" must not take the m of "ms".
_TEXT = re.compile(
    rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?", re.ASCII
)
_PLAIN = re.compile(_NUMBER, re.ASCII)
_UNIT_SECONDS = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
#: Longest duration taken, in seconds (100 years): what is longer is a mistake.
MAX_SECONDS = 36_500 * 86_400.0


def parse(value: Duration, *, what: str = "duration") -> float:
    """Return `value` in seconds.

    Takes a number of seconds, a timedelta, or text: a number with a unit (ms, s, m, h, d), several from
    large to small ("1h30m"), or a plain number of seconds ("30", as in environment variables). Raises
    DurationError, which names `what`, for anything negative, not finite, above 100 years, or of another form.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        seconds = _from_text(value, what)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise DurationError(what, value, f"is no duration; {_FORMS}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise DurationError(what, value, f"is not finite; {_FORMS}")
    else:
        seconds = value
    if seconds < 0:
        raise DurationError(what, value, f"is negative; {_FORMS}")
    if seconds > MAX_SECONDS:
        raise DurationError(what, value, f"is longer than 100 years; {_FORMS}")
    return float(seconds)


def _from_text(value: str, what: str) -> float:
    text = value.strip()
    if _PLAIN.fullmatch(text):
        return float(text)
    found = _TEXT.fullmatch(text)
    if not text or found is None:
        raise DurationError(what, value, f"is no duration; {_FORMS}")
    return math.fsum(
        float(number) * unit for number, unit in zip(found.groups(), _UNIT_SECONDS, strict=True) if number
    )


def to_ms(value: Duration, *, what: str = "duration") -> int:
    """Return `value` in whole milliseconds, rounded; what is above zero stays at least 1."""
    seconds = parse(value, what=what)
    return max(1, round(seconds * 1000)) if seconds > 0 else 0


def format_ms(ms: int) -> str:
    """Return milliseconds as people write them ("200ms", "1.5s", "1h30m"); `to_ms` reads it back exactly."""
    if ms < 0:
        return "-" + format_ms(-ms)
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    minutes, rest = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    seconds, thousandths = divmod(rest, 1000)
    text = "".join(f"{count}{unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if count)
    if thousandths:
        return text + f"{seconds}.{thousandths:03d}".rstrip("0") + "s"
    return text + (f"{seconds}s" if seconds else "")
