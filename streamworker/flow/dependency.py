"""`ctx.dependency("carrier")`: one call of a service, with its time limits, counted by how it went."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Self, TypeVar

import anyio

from streamworker.core.classify import members
from streamworker.core.errors import (
    Cancel,
    ConfigurationError,
    ConnectionLost,
    DependencyTimeout,
    EnqueueRejected,
    LockBusy,
    LockLost,
    OutcomeUnknown,
)
from streamworker.core.foreign import http_status, network
from streamworker.core.limits import Dependency
from streamworker.core.states import ErrorClass

T = TypeVar("T")


class Result(StrEnum):
    """How a call went."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"


#: Told of each call: the dependency's name, how it went, and how many seconds it took.
Told = Callable[[str, Result, float], None]


def _nobody(_: str, __: Result, ___: float) -> None:
    return None


class DependencyCall:
    """One call of a dependency, as a context manager around it.

    `async with` holds the block to the total time limit and raises DependencyTimeout beyond it. A plain
    `with`, for handlers that run in threads, cannot interrupt anything: give `timeout` and `connect_timeout`
    to the library that makes the call. Either counts how the block ended: an HTTP answer that no retry mends
    (404) is an answer, so `ok`. A block that is cancelled from outside is not counted, nor is one that ends
    by an error of another dependency's call within it, or of the queue's own, such as LockBusy.
    """

    __slots__ = ("_limits", "_scope", "_started", "_told", "also", "name")

    def __init__(self, name: str, limits: Dependency, told: Told = _nobody) -> None:
        self.name = name
        self._limits = limits
        self._told = told
        #: Told as well: the dependency's name, and how many seconds the call took.
        self.also: Callable[[str, float], None] | None = None
        self._started = 0.0
        self._scope: anyio.CancelScope | None = None

    @property
    def connect_timeout(self) -> float:
        """Seconds that connecting may take; never more than what is left of the whole call."""
        return min(self._limits.connect_seconds, self.timeout)

    @property
    def timeout(self) -> float:
        """Seconds that are left of the whole call."""
        spent = time.monotonic() - self._started if self._started else 0.0
        return max(0.0, self._limits.seconds - spent)

    async def connect(self, connecting: Awaitable[T]) -> T:
        """Await a connection within the connect time limit. Raises DependencyTimeout."""
        seconds = self.connect_timeout
        with anyio.move_on_after(seconds):
            return await connecting
        raise DependencyTimeout(self.name, seconds, phase="connect")

    async def __aenter__(self) -> Self:
        self._started = time.monotonic()
        self._scope = anyio.move_on_after(self._limits.seconds)
        self._scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._scope is not None
        self._scope.__exit__(kind, error, trace)
        if self._scope.cancelled_caught:
            self._count(Result.TIMEOUT)
            raise DependencyTimeout(self.name, self._limits.seconds, phase="total")
        if self._scope.cancel_called and (error is None or isinstance(error, Exception)):
            self._count(Result.TIMEOUT)  # a library made something of its own of it, or nothing
        else:
            self._judge(error)

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._judge(error)

    def _judge(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, Exception):
            result = result_of(error, self.name)
            if result is None:
                return
            if error is not None and result is not Result.OK:
                with suppress(AttributeError):  # a class may allow no other attributes
                    setattr(error, _BLAMED, self.name)
            self._count(result)

    def _count(self, result: Result) -> None:
        took = time.monotonic() - self._started
        self._told(self.name, result, took)
        if self.also is not None:
            self.also(self.name, took)


class Dependencies:
    """What an app's handlers call, and who is told of each call."""

    def __init__(self, limits: Mapping[str, Dependency], told: Told = _nobody) -> None:
        self._limits = limits
        self._told = told

    def call(self, name: str) -> DependencyCall:
        """Raises ConfigurationError for a name that the app does not declare."""
        if name not in self._limits:
            known = ", ".join(self._limits) or "none"
            raise ConfigurationError(f"{name!r} is no dependency of the app; it has: {known}")
        return DependencyCall(name, self._limits[name], self._told)


#: The attribute of an exception that names the dependency whose call raised it.
_BLAMED = "_streamworker_dependency"


def blamed(error: BaseException) -> str | None:
    """The dependency whose call failed with this error; None when it came from elsewhere."""
    if isinstance(error, DependencyTimeout):
        return error.dependency
    try:
        return getattr(error, _BLAMED, None)
    except Exception:  # its class looks attributes up in its own way, and does not find this one
        return None


#: What the queue says of itself, wherever it is asked: it says nothing of a dependency.
_OURS = (LockBusy, LockLost, ConnectionLost, OutcomeUnknown, EnqueueRejected)
#: Of several errors the one that counts, the last first.
_WORST = (Result.OK, Result.TIMEOUT, Result.ERROR)


def result_of(error: Exception | None, name: str) -> Result | None:
    """What the end of a block says of the dependency of that name; None: nothing. Pure.

    Of a group of errors the worst. Another dependency's error, from a call within this one, is no word of it.
    """
    if isinstance(error, ExceptionGroup):
        found = {result_of(one, name) for one in members(error) if isinstance(one, Exception)}
        return max(found - {None}, key=_WORST.index, default=None)
    if error is None or isinstance(error, Cancel):
        return Result.OK
    if isinstance(error, _OURS) or blamed(error) not in (None, name):
        return None
    if isinstance(error, DependencyTimeout):
        return Result.TIMEOUT
    answered = http_status(error)
    if answered is not None:
        return Result.OK if answered.error_class is ErrorClass.PERSISTENT else Result.ERROR
    lost = network(error)
    if lost is not None and lost.code == "timeout":
        return Result.TIMEOUT
    return Result.ERROR
