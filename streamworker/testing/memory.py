"""A server in memory, for the links of any number of event loops and threads."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from streamworker.core.errors import ConfigurationError, ConnectionLost
from streamworker.store.connection import REPLY_TIMEOUT, Argument, Link, ReplyError
from streamworker.testing.clock import HandClock
from streamworker.testing.links import HandLink

_INSTALL = "pip install 'streamworker[testing]', or name a server: harness(app, redis_url=...)"
#: The first version whose streams are right inside scripts.
OLDEST_FAKEREDIS = (2, 41)


def _check_installed() -> None:
    try:
        version = metadata.version("fakeredis")
        metadata.version("lupa")
    except metadata.PackageNotFoundError as error:
        raise ConfigurationError(f"tests in memory need {error.name}: {_INSTALL}") from None
    found = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if found < OLDEST_FAKEREDIS:
        oldest = ".".join(map(str, OLDEST_FAKEREDIS))
        raise ConfigurationError(
            f"tests in memory need fakeredis {oldest} or later, not {version}: {_INSTALL}"
        )


@dataclass(slots=True, eq=False)
class _Blocked:
    """One BLPOP that waits."""

    link: MemoryLink
    keys: tuple[Argument, ...]
    future: asyncio.Future[Any]


class MemoryServer:
    """Data in this process, for any number of links, event loops and threads."""

    url = "memory://"

    def __init__(self, clock: HandClock) -> None:
        """Raises ConfigurationError without fakeredis and lupa."""
        _check_installed()
        from streamworker.testing.fake import Fake

        self._clock = clock
        self._lock = threading.RLock()
        self._fake = Fake()
        self._blocked: list[_Blocked] = []
        self._links = 0

    def opens(self, url: str, *, timeout: float = REPLY_TIMEOUT) -> Link:
        """A link to this server."""
        self._links += 1
        return MemoryLink(self, self._links, self._clock, timeout=timeout)

    def call(self, *arguments: Argument) -> Any:
        """One command and its reply. Raises ReplyError."""
        with self._lock:
            reply = self._fake.call(*arguments)
            self._serve_blocked()
        return reply

    # --- blocking pops

    def pop(self, link: MemoryLink, keys: tuple[Argument, ...], future: asyncio.Future[Any]) -> None:
        """BLPOP: the future gets [key, value], now or once there is something."""
        with self._lock:
            self._blocked.append(_Blocked(link, keys, future))
            self._serve_blocked()

    def unblock(self, number: int, error: ReplyError | None) -> int:
        """CLIENT UNBLOCK: 1 if that link was blocked; its pop ends with the error, or with nothing."""
        with self._lock:
            found = [each for each in self._blocked if each.link.number == number]
            for each in found:
                self._blocked.remove(each)
                each.link.answer(each.future, error)
        return int(bool(found))

    def _serve_blocked(self) -> None:
        for each in list(self._blocked):
            for key in each.keys:
                value = self._fake.call("LPOP", key)
                if value is not None:
                    self._blocked.remove(each)
                    each.link.answer(each.future, [str(key).encode(), value])
                    break

    def close(self) -> None:
        """Let the data go."""
        self._fake.close()


class MemoryLink(HandLink):
    """A link whose server is in memory: calls are answered before `send` returns, except blocking ones."""

    def __init__(self, server: MemoryServer, number: int, clock: HandClock, *, timeout: float) -> None:
        super().__init__(server.url, clock, timeout=timeout)
        self.number = number
        self._server = server
        self._up = False

    @property
    def connected(self) -> bool:
        return self._up

    async def connect(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._up = True

    def _write(self, *arguments: Argument) -> asyncio.Future[Any]:
        if not self._up or self._loop is None:
            raise ConnectionLost("not connected to the server in memory")
        future = self._loop.create_future()
        match arguments:
            case ("BLPOP", *keys, seconds):
                self._server.pop(self, tuple(keys), future)
                self._loop.call_later(float(seconds), self._server.unblock, self.number, None)
            case ("CLIENT", "ID"):
                future.set_result(self.number)
            case ("CLIENT", "UNBLOCK", number, how):
                error = (
                    ReplyError("UNBLOCKED client unblocked via CLIENT UNBLOCK") if how == "ERROR" else None
                )
                future.set_result(self._server.unblock(int(number), error))
            case _:
                try:
                    future.set_result(self._server.call(*arguments))
                except ReplyError as error:
                    future.set_exception(error)
        return future

    def answer(self, future: asyncio.Future[Any], reply: object) -> None:
        """Answer a blocked call, from whatever thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_resolve, future, reply)

    def _fail(self, error: Exception) -> None:
        self._up = False
        self._server.unblock(self.number, None)


def _resolve(future: asyncio.Future[Any], reply: object) -> None:
    if future.done():
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)
