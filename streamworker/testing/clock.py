"""A clock that stands still until the test moves it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from streamworker.core import durations
from streamworker.core.durations import Duration


class HandClock:
    """The time by which jobs are due, expire and are written down. It only moves forward."""

    def __init__(self, start: datetime) -> None:
        self._start_ms = round(start.timestamp() * 1000)
        self._moved_ms = 0
        #: Told by how many ms the clock was moved.
        self.on_move: Callable[[int], None] = lambda ms: None

    def __repr__(self) -> str:
        return f"<HandClock {self.now.isoformat()}>"

    @property
    def ms(self) -> int:
        """Milliseconds since the epoch, as scripts take them."""
        return self._start_ms + self._moved_ms

    @property
    def now(self) -> datetime:
        """The time as a datetime in UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self.ms)

    @property
    def moved_seconds(self) -> float:
        """How far it was moved since the start."""
        return self._moved_ms / 1000

    def advance(self, duration: Duration) -> None:
        """Let time pass: `"2m"`, `"1h30m"`, seconds or a timedelta. Nothing runs before the next `drain`.

        What has a limited life, such as keys within their window and finished records, ages as well.
        Raises DurationError.
        """
        self.advance_ms(durations.to_ms(duration, what="advance"))

    def advance_ms(self, ms: int) -> None:
        """The same in milliseconds."""
        self._moved_ms += ms
        self.on_move(ms)
