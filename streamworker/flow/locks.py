"""`ctx.lock("order:7")`: a fenced lock for a part of a handler.

A lease cannot stop a handler that stands still (R59): what must not be overtaken checks the token, as a
database does with `WHERE fence_token < token`. First a unique key, then a compare-and-set, a lock last.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import re
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from types import TracebackType
from typing import Any, Protocol, Self

import anyio

from streamworker.core import durations
from streamworker.core.durations import Duration
from streamworker.core.errors import (
    ConfigurationError,
    InvalidArgument,
    LockBusy,
    LockLost,
    StreamworkerError,
    TransientError,
)
from streamworker.flow.renewals import Renewals, ttl_ms
from streamworker.store import scripts

log = logging.getLogger("streamworker")

#: Seconds that a lock lives without a renewal, unless the handler says otherwise or has less time.
DEFAULT_TTL = 30.0
#: Seconds that a handler waits for a lock by default.
DEFAULT_WAIT = 10.0
#: Seconds between two attempts to get a lock, at most.
ASK_EVERY = 0.25
#: Seconds for which a handler that is cancelled while it asks for a lock gives it back, at most.
GIVE_BACK = 2.0
#: Longest name that is kept as it is, in bytes; a longer one becomes `#` and 43 characters.
MAX_NAME_BYTES = 44
#: A call of a dependency that takes longer than this in a lock is warned of, in seconds.
SLOW_CALL = 1.0

_PLAIN = re.compile(r"[^\s\x00-\x1f\x7f-\x9f#][^\s\x00-\x1f\x7f-\x9f]*")

#: Runs a script; raises ConnectionLost.
Run = Callable[[scripts.Call], Awaitable[Any]]


class Attempt(Protocol):
    """Whose locks they are."""

    @property
    def job_id(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def task(self) -> str: ...


class Asked(StrEnum):
    """What became of a lock that a handler asked for."""

    WON = "won"
    CONTENDED = "contended"  # it had to wait for it
    BUSY = "busy"  # it waited in vain
    HELD = "held"  # it let go of it
    LOST = "lost"  # it was not its own any more


#: Told of a lock: its name, what became of it, and for how many seconds it was waited for or held.
LockTold = Callable[[str, Asked, float], None]


def _nobody(_: str, __: Asked, ___: float) -> None:
    return None


class Locks:
    """The locks of one attempt: whose they are, and how they reach Redis."""

    def __init__(
        self,
        run: Run,
        *,
        holder: str,
        task: str,
        timeout: float,
        loop: asyncio.AbstractEventLoop | None,
        renewals: Renewals | None,
        told: LockTold = _nobody,
    ) -> None:
        """`holder`: job id and fence; `timeout`: of the attempt, in seconds; `loop`: where `run` works.

        `renewals`: what keeps the locks; without, they last as long as their block.
        """
        self.run = run
        self.holder = holder
        self.task = task
        self.timeout = timeout
        self.loop = loop
        self.renewals = renewals
        self.told = told
        self.held: list[Lock] = []
        self._numbers = itertools.count(1)

    def lock(self, name: str, ttl: Duration | None, wait: Duration, floor: int = 0) -> Lock:
        """Raises ConfigurationError, DurationError or InvalidArgument for what cannot work."""
        if not name:
            raise InvalidArgument("lock", name, 'names what it is about, such as f"order:{order_id}"')
        seconds = min(DEFAULT_TTL, self.timeout) if ttl is None else durations.parse(ttl, what="lock: ttl")
        if seconds > self.timeout:
            raise ConfigurationError(
                f"lock {name!r}: its ttl ({seconds:g} s) is above the timeout of task {self.task} "
                f"({self.timeout:g} s), so a dead holder would block others for longer than it may run",
                lasting=True,
            )
        if seconds <= 0:
            raise ConfigurationError(f"lock {name!r}: its ttl must be above 0", lasting=True)
        by = f"{self.holder}:{next(self._numbers)}"
        return Lock(self, name, seconds, durations.parse(wait, what="lock: wait"), floor, by=by)

    def slow_call(self, dependency: str, seconds: float) -> None:
        """A call of a dependency ended; a lock that was held meanwhile is warned of, once for each task."""
        if not self.held or seconds < SLOW_CALL or self.task in _warned:
            return
        _warned.add(self.task)
        log.warning(
            "task %s held the lock %r through a call of %s that took %.1f s: others wait so long. "
            "Call first and lock what you write, or use a unique key or a version column instead",
            self.task,
            self.held[-1].name,
            dependency,
            seconds,
        )


class Locking:
    """Makes the locks of a process's attempts, when the first is asked for."""

    def __init__(
        self,
        run: Run,
        timeout_of: Callable[[str], float],
        renewals: Renewals | None = None,
        told: LockTold | None = None,
    ) -> None:
        """`timeout_of` a task, in seconds; `told` of each lock, in the running loop."""
        self._told = told or _nobody
        self._run = run
        self._timeout_of = timeout_of
        self._renewals = renewals
        self._loop = asyncio.get_running_loop()

    def locks(self, attempt: Attempt) -> Locks:
        return Locks(
            self._run,
            holder=f"{attempt.job_id}:{attempt.fence}",
            task=attempt.task,
            timeout=self._timeout_of(attempt.task),
            loop=self._loop,
            renewals=self._renewals,
            told=self._told,
        )

    def close(self) -> None:
        """Renew nothing any more."""
        if self._renewals is not None:
            self._renewals.close()


async def _always_free(call: scripts.Call) -> Any:
    return [b"OK", b"1"] if call.script.name == "lock/acquire" else b"OK"


def alone(attempt: Attempt) -> Locks:
    """The locks of a context that somebody made, as in a test: nobody else wants any."""
    holder = f"{attempt.job_id}:{attempt.fence}"
    return Locks(
        _always_free, holder=holder, task=attempt.task, timeout=float("inf"), loop=None, renewals=None
    )


#: Tasks that were warned of in this process.
_warned: set[str] = set()


class Lock:
    """One lock, as `async with ctx.lock(...) as lock`, or `with` in a plain function.

    While it is held it is renewed at every third of its time, by a thread of the worker. When it is lost the
    block is cancelled and LockLost is raised; in a plain function `check()` raises it.
    """

    __slots__ = (
        "_asker",
        "_floor",
        "_locks",
        "_loop",
        "_lost",
        "_scope",
        "_taken",
        "_wait",
        "_watch",
        "by",
        "deadline",
        "holder",
        "key",
        "name",
        "token",
        "ttl",
    )

    def __init__(self, locks: Locks, name: str, ttl: float, wait: float, floor: int = 0, *, by: str) -> None:
        self.name = name
        #: Larger than every token that was given before; for writes that refuse an older one.
        self.token = 0
        self.ttl = ttl
        self.key = key_of(name)
        #: Whose it is: the job, and the fence of its claim.
        self.holder = locks.holder
        #: The same, and which lock of that claim it is: in Redis, so that its own locks exclude each other.
        self.by = by
        self.deadline = 0.0  # monotonic: until then it is ours, whatever happens to Redis
        self._locks = locks
        self._wait = wait
        self._taken = 0.0  # monotonic: when it was had
        self._floor = floor
        self._lost = False
        self._asker: object = None  # the asyncio task, or the thread's number
        self._loop: asyncio.AbstractEventLoop | None = None  # where it was had
        self._watch: asyncio.TimerHandle | None = None
        self._scope: anyio.CancelScope | None = None

    def check(self) -> None:
        """Raise LockLost if the lock is not ours any more."""
        if self._gone():
            raise LockLost(self.name)

    def _gone(self) -> bool:
        renewed = self._locks.renewals is not None
        return self._lost or (renewed and self.token > 0 and time.monotonic() >= self.deadline)

    async def acquire(self, asker: object = None) -> None:
        """Take the lock; `asker`: a thread's number. Raises LockBusy, ConnectionLost, ConfigurationError."""
        asker = asker or asyncio.current_task()
        self._refuse_again(asker)
        began = sent = time.monotonic()
        give_up, waited = began + self._wait, Asked.WON
        call = scripts.lock_acquire(
            clock="", name=self.key, holder=self.by, ttl_ms=ttl_ms(self.ttl), floor=self._floor
        )
        while True:
            try:
                word, value = await self._locks.run(call)
            except asyncio.CancelledError:  # it may be ours by now, and nobody would free it
                with anyio.move_on_after(min(self.ttl, GIVE_BACK), shield=True):
                    await self._free()
                raise
            if word == b"OK":
                self._asker, self._loop = asker, asyncio.get_running_loop()
                self.token, self.deadline, self._lost = int(value), sent + self.ttl, False
                self._taken = time.monotonic()
                self._locks.held.append(self)
                if self._locks.renewals is not None:
                    try:
                        self._locks.renewals.add(self)
                    except RuntimeError as error:
                        await self.release()
                        raise TransientError(f"the lock {self.name!r} cannot be renewed: {error}") from error
                    self._look()
                self._locks.told(self.name, waited, self._taken - began)
                return
            left = int(value) / 1000
            pause = min(ASK_EVERY, left, give_up - time.monotonic())
            if pause <= 0:
                self._locks.told(self.name, Asked.BUSY, time.monotonic() - began)
                raise LockBusy(self.name, left, own=any(one.key == self.key for one in self._locks.held))
            waited = Asked.CONTENDED
            await asyncio.sleep(pause)
            sent = time.monotonic()

    async def release(self) -> None:
        """Free the lock, if it is still ours; an error of Redis's leaves it to its ttl."""
        if self._watch is not None:
            self._watch.cancel()
        if self._locks.renewals is not None:
            self._locks.renewals.drop(self)
        if self in self._locks.held:
            self._locks.held.remove(self)
        with anyio.move_on_after(self.ttl, shield=True):  # R20
            if not await self._free():
                self._lost = True
        self._locks.told(self.name, Asked.LOST if self._lost else Asked.HELD, time.monotonic() - self._taken)

    def _refuse_again(self, asker: object) -> None:
        """The end of an inner block would free what the outer one relies on."""
        for lock in self._locks.held:
            if lock is self or (lock.key == self.key and lock._asker == asker):
                raise ConfigurationError(
                    f"lock {self.name!r}: the handler holds it already, and would wait for itself; "
                    "take it once, around all that needs it",
                    lasting=True,
                )

    async def _free(self) -> bool:
        """Whether it was still ours, as far as Redis says; an error of Redis's leaves it to its ttl."""
        try:
            return bool(await self._locks.run(scripts.lock_release(name=self.key, holder=self.by)) == b"OK")
        except StreamworkerError as error:
            log.warning("lock %r was not released and will run out: %s", self.name, error)
            return True

    def _look(self) -> None:
        """In the loop: end the block when the time is over that the last renewal gave."""
        left = self.deadline - time.monotonic()
        if left > 0:
            self._watch = asyncio.get_running_loop().call_later(left, self._look)
        else:
            self._end()

    def lose(self) -> None:
        """From the thread that renews it: it is not ours any more."""
        self._lost = True  # at once, for who asks by `check` while the loop is busy
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is in the block
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._lost = True
        if self._scope is not None:
            self._scope.cancel()

    async def __aenter__(self) -> Self:
        await self.acquire()
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        if self._lost:  # the reply took longer than the lock lives
            self._scope.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._scope is not None
        scope, self._scope = self._scope, None
        lost = self._gone()
        scope.__exit__(kind, error, trace)
        await self.release()
        if scope.cancelled_caught or (lost and error is None):
            raise LockLost(self.name)

    def _wait_for(self, step: Coroutine[Any, Any, None]) -> None:
        """Run a step from a thread that is not the loop's."""
        if self._locks.loop is None:
            asyncio.run(step)
        else:
            asyncio.run_coroutine_threadsafe(step, self._locks.loop).result()

    def __enter__(self) -> Self:
        if runs_here(self._locks.loop):
            raise ConfigurationError(
                f"lock {self.name!r}: a coroutine takes it by `async with`; `with` would block its own loop",
                lasting=True,
            )
        self._wait_for(self.acquire(threading.get_ident()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = self._gone()
        self._wait_for(self.release())
        if lost and error is None:
            raise LockLost(self.name)


def runs_here(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether it is this thread's that waits for a result of that loop: it would wait for ever."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def key_of(name: str) -> str:
    """The name as it stands in a key: itself if it is short and plain, else a digest."""
    data = name.encode()
    if len(data) <= MAX_NAME_BYTES and _PLAIN.fullmatch(name):
        return name
    return "#" + urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
