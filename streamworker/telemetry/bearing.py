"""How much of others' code is borne: what it raises is said now and then, what takes long is left alone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger("streamworker.telemetry")

T = TypeVar("T")

#: Share of the time that such calls may take, and seconds that they may take beyond it.
SHARE, MOST = 0.1, 1.0
#: Seconds for which it is left alone then.
REST = 60.0
#: Seconds between two lines about the same error.
QUIET = 60.0
now = time.monotonic


class Bearing:
    """Makes calls of code that nobody may fail of, or wait for: in a worker they are made in its loop."""

    def __init__(self) -> None:
        self._debt = 0.0  # seconds beyond its share
        self._at = now()
        self._rests_until = float("-inf")
        self._said: dict[str, float] = {}

    def call(self, without: str, call: Callable[[], T]) -> T | None:
        """What it returns; None when it raised, or is left alone. `without` says what there is not then."""
        began = now()
        if began < self._rests_until:
            return None
        try:
            return call()
        except (Exception, asyncio.CancelledError):  # nothing is awaited here: it is no cancel of ours
            if began >= self._said.get(without, float("-inf")) + QUIET:
                self._said[without] = began
                log.exception("tracing: %s", without)
            return None
        finally:
            self._charge(began)

    def _charge(self, began: float) -> None:
        ended = now()
        self._debt = max(0.0, self._debt - (ended - self._at) * SHARE) + ended - began
        self._at = ended
        if self._debt > MOST:
            self._debt, self._rests_until = 0.0, ended + REST
            log.warning(
                "tracing: spans take too long, the last one %.3g s; none are made for %g s. Use processors "
                "that export in the background, such as BatchSpanProcessor",
                ended - began,
                REST,
            )
