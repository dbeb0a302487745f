"""Waiting in tests: for a fact, never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

#: Seconds between two looks.
_POLL_SECONDS = 0.005


def wait_until(predicate: Callable[[], T], *, timeout: float = 10.0, what: str) -> T:
    """Call `predicate` until it returns something true, and return that.

    Fails with `what` and the last value after `timeout` seconds. A predicate that raises ends the wait.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain until {what}; the last value was {value!r}")
        time.sleep(_POLL_SECONDS)


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
        result = predicate()
        value: object = await result if inspect.isawaitable(result) else result
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain until {what}; the last value was {value!r}")
        await asyncio.sleep(_POLL_SECONDS)
