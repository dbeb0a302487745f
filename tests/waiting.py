"""Waiting in tests: for a fact, never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar, overload

T = TypeVar("T")

#: Seconds between two looks, and how many times as long as the look itself took: who waits for others must
#: not keep the processor from them.
_POLL_SECONDS, _POLL_SHARE, _POLL_MOST = 0.005, 4, 0.1


class Stopwatch:
    """Seconds since it was made; `fair` leaves out those in which somebody waited for a processor.

    Whoever shares the machine with us may keep us from any bound: it is strict only where there is room.
    """

    def __init__(self) -> None:
        self._began, self._waited = time.monotonic(), _waited_for_a_processor()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def waited(self) -> float:
        return _waited_for_a_processor() - self._waited

    @property
    def fair(self) -> float:
        return self.seconds - self.waited


def _waited_for_a_processor() -> float:
    """Seconds, ever, in which a process wanted a processor and had none, as Linux counts them; else 0."""
    try:
        first = Path("/proc/pressure/cpu").read_text(encoding="ascii").splitlines()[0]
    except OSError:
        return 0.0
    return int(first.rsplit("total=", 1)[1]) / 1e6


def _pause_after(began: float) -> float:
    """Seconds until the next look, after one that began then."""
    return min(max(_POLL_SECONDS, _POLL_SHARE * (time.monotonic() - began)), _POLL_MOST)


def wait_until(predicate: Callable[[], T], *, timeout: float = 10.0, what: str) -> T:
    """Call `predicate` until it returns something true, and return that.

    Fails with `what` and the last value after `timeout` seconds. A predicate that raises ends the wait.
    """
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain until {what}; the last value was {value!r}")
        time.sleep(_pause_after(began))


@overload
async def wait_until_async(
    predicate: Callable[[], Awaitable[T]], *, timeout: float = ..., what: str
) -> T: ...
@overload
async def wait_until_async(predicate: Callable[[], T], *, timeout: float = ..., what: str) -> T: ...
async def wait_until_async(predicate: Callable[[], object], *, timeout: float = 10.0, what: str) -> object:
    """Like `wait_until`, for a loop; `predicate` may be a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        result = predicate()
        value: object = await result if inspect.isawaitable(result) else result
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain until {what}; the last value was {value!r}")
        await asyncio.sleep(_pause_after(began))
