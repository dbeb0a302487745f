"""Where time comes from. Everything that waits or measures takes a `Clock`, so that tests can turn it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks that must not be mixed: one to measure with, one to write down."""

    def monotonic(self) -> float:
        """Seconds that only ever grow; for local deadlines (R36)."""
        ...

    def time_ms(self) -> int:
        """Wall time in integer milliseconds; it may jump, so nothing is decided by it that Redis TIME can."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000
