"""Links that carry the test's clock: every script that takes a time is given the hand-moved one."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from streamworker.store.connection import REPLY_TIMEOUT, Argument, Link, NoScript, SyncLink, Told
from streamworker.store.lua import Script
from streamworker.store.scripts import Call
from streamworker.testing.clock import HandClock


def timed(script: Script, argv: tuple[Argument, ...], clock: HandClock) -> tuple[Argument, ...]:
    """The arguments with the clock's time where Redis's own was meant."""
    if script.bindings[:1] == ("clock",) and argv[:1] == ("",):
        return (str(clock.ms), *argv[1:])
    return argv


class HandLink(Link):
    """A link to a real server that lives by the test's clock."""

    def __init__(self, url: str, clock: HandClock, *, timeout: float = REPLY_TIMEOUT) -> None:
        super().__init__(url, timeout=timeout)
        self._clock = clock

    def send(self, *arguments: Argument) -> asyncio.Future[Any]:
        if arguments == ("TIME",):
            seconds, ms = divmod(self._clock.ms, 1000)
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_result([str(seconds).encode(), str(ms * 1000).encode()])
            return future
        return self._write(*arguments)

    def post(self, told: Told, *arguments: Argument) -> None:
        self.send(*arguments).add_done_callback(lambda future: told(future.exception() or future.result()))

    def _write(self, *arguments: Argument) -> asyncio.Future[Any]:
        return super().send(*arguments)

    def send_script(self, script: Script, tag: str, *argv: Argument) -> asyncio.Future[Any]:
        return super().send_script(script, tag, *timed(script, argv, self._clock))

    async def script(self, script: Script, tag: str, *argv: Argument) -> Any:
        return await super().script(script, tag, *timed(script, argv, self._clock))


class Server(Protocol):
    """Where the jobs of a test are: in memory, or a real server."""

    @property
    def url(self) -> str:
        """For messages and settings."""
        ...

    def opens(self, url: str, *, timeout: float = REPLY_TIMEOUT) -> Link:
        """A link for an event loop."""
        ...

    def call(self, *arguments: Argument) -> Any:
        """One command and its reply, without an event loop. Raises ReplyError or ConnectionLost."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


class RealServer:
    """A real server, at a URL."""

    def __init__(self, url: str, clock: HandClock) -> None:
        self.url = url
        self._clock = clock
        self._link = SyncLink(url)

    def opens(self, url: str, *, timeout: float = REPLY_TIMEOUT) -> Link:
        return HandLink(self.url, self._clock, timeout=timeout)

    def call(self, *arguments: Argument) -> Any:
        return self._link.call(*arguments)

    def close(self) -> None:
        self._link.close()


class Shard:
    """The keys of one namespace on a server, by the test's clock and without an event loop."""

    def __init__(self, server: Server, tag: str, clock: HandClock) -> None:
        self.server = server
        self.tag = tag
        self.clock = clock

    def command(self, *arguments: Argument) -> Any:
        """One command and its reply."""
        return self.server.call(*arguments)

    def run(self, call: Call) -> Any:
        """One script and its reply."""
        argv = timed(call.script, call.argv, self.clock)
        try:
            return self.server.call("EVALSHA", call.script.sha, 1, self.tag, *argv)
        except NoScript:
            return self.server.call("EVAL", call.script.text, 1, self.tag, *argv)

    def keys(self) -> list[str]:
        """All keys of the namespace, those that belong to no shard included."""
        namespace = self.tag.strip("{}").rpartition(":")[0]
        found: set[str] = set()
        for pattern in (f"{self.tag}:*", f"{{{namespace}}}:*"):
            cursor: Any = 0
            while True:
                cursor, page = self.command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
                found.update(key.decode("utf-8", "surrogateescape") for key in page)
                if int(cursor) == 0:
                    break
        return sorted(found)

    def age(self, ms: int) -> None:
        """Let what expires lose `ms` of its life, but workers: they are alive for as long as the test is."""
        alive = f"{self.tag}:worker:"
        for key in self.keys():
            left = 0 if key.startswith(alive) else int(self.command("PTTL", key))
            if left > ms:
                self.command("PEXPIRE", key, left - ms)
            elif left > 0:
                self.command("DEL", key)

    def wipe(self) -> None:
        """Delete the namespace."""
        for key in self.keys():
            self.command("DEL", key)
