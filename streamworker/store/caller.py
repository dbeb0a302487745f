"""Calls that survive a lost connection: each is safe to be sent twice, so it is sent until it is answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from streamworker.core.errors import ConnectionLost, OutcomeUnknown, ServerUnsuitable
from streamworker.store.connection import Argument, Link, Opens, ReplyError
from streamworker.store.scripts import Call

#: Answers of a server that is no primary (any more): whoever the address leads to now is to be asked (R42).
#: One whose replicas are gone is told last that they follow another.
MOVED = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS")
#: Those, and the answers of one that is busy or may not write now, for want of disk: the call was not
#: executed, and may be later on.
PASSING = (*MOVED, "TRYAGAIN", "BUSY ", "UNKILLABLE", "MISCONF")
#: What a script says in which a command is refused to the user, or that an operator has ended.
_NOT_ITS_FAULT = ("ACL failure", "can't run this command", "SCRIPT KILL")
#: Seconds of the first and of the longest pause between two attempts to connect.
BACKOFF_FIRST, BACKOFF_LAST = 0.05, 1.0


#: Is told of an answered script: its name, and after how many seconds.
Timed = Callable[[str, float], None]


def passes(error: Exception) -> bool:
    """Whether the same call may work later on, on a new connection."""
    return isinstance(error, ConnectionLost) or (
        isinstance(error, ReplyError) and str(error).startswith(PASSING)
    )


def moved(error: Exception) -> bool:
    """Whether the connection leads to the wrong server: another one has to be made."""
    return isinstance(error, ReplyError) and str(error).startswith(MOVED)


def of_cluster(error: Exception) -> bool:
    """Whether a node of a cluster said that another one has what was asked for."""
    return isinstance(error, ReplyError) and str(error).startswith(("MOVED ", "ASK ", "CROSSSLOT "))


def no_cluster() -> ServerUnsuitable:
    """What to say then."""
    return ServerUnsuitable(
        "the server is a node of a Redis Cluster, which is not supported yet",
        "use one server, or a primary with replicas",
    )


def of_script(error: Exception) -> bool:
    """Whether a script raised this for what it was given: then the same call fails again.

    Else the server refused the call as such: for want of rights, or since a host allows so many a day.
    """
    text = str(error)
    return "@user_script" in text and not any(words in text for words in _NOT_ITS_FAULT)


def backoff(attempt: int) -> float:
    """Seconds to wait before attempt number `attempt` (from 1): doubling, capped, spread."""
    pause = min(BACKOFF_LAST, BACKOFF_FIRST * float(2 ** min(attempt - 1, 10)))
    return pause * random.uniform(0.5, 1.0)


@dataclass(slots=True)
class Doubt:
    """Whether a reply was lost on the way: what was asked for may have happened."""

    lost: bool = False


class Caller:
    """One connection of an event loop that comes back by itself."""

    def __init__(
        self, url: str, tag: str, *, patience: float = 10.0, timeout: float = 5.0, opens: Opens = Link
    ) -> None:
        self.opens = opens
        self.link = opens(url, timeout=timeout)
        self.tag = tag
        #: Seconds that a call may take, lost connections included.
        self.patience = patience
        #: Told of each answered script: its name, and after how many seconds.
        self.timed: Timed | None = None
        self._connecting = asyncio.Lock()

    async def ready(self) -> Link:
        """The link, connected. Raises ConnectionLost or ServerUnsuitable."""
        if not self.link.connected:
            async with self._connecting:
                if not self.link.connected:
                    await self.link.connect()
        return self.link

    async def run(self, call: Call) -> Any:
        """Run a script until it is answered or patience ends; then the last error is raised."""
        if self.timed is None:
            return await self._persist(lambda link: link.script(call.script, self.tag, *call.argv))
        return await self._persist(lambda link: self._time(link, call))

    async def _time(self, link: Link, call: Call) -> Any:
        assert self.timed is not None
        before = time.monotonic()
        reply = await link.script(call.script, self.tag, *call.argv)
        self.timed(call.script.name, time.monotonic() - before)
        return reply

    async def run_once_known(self, call: Call, job_ids: Sequence[str], doubt: Doubt) -> Any:
        """As `run`, but raise OutcomeUnknown with these ids when a reply was lost and could not be had."""

        async def send(link: Link) -> Any:
            try:
                return await link.script(call.script, self.tag, *call.argv)
            except ConnectionLost:
                doubt.lost = True
                raise

        try:
            return await self._persist(send)
        except (ConnectionLost, ReplyError) as error:
            if doubt.lost and passes(error):
                raise OutcomeUnknown(job_ids) from None
            raise

    async def command(self, *arguments: Argument) -> Any:
        """Send a plain command that is safe to be sent twice."""
        return await self._persist(lambda link: link.call(*arguments))

    async def _persist(self, send: Any) -> Any:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.patience
        attempt = 0
        while True:
            try:
                return await send(await self.ready())
            except (ConnectionLost, ReplyError) as error:
                if moved(error):
                    self.link.abort()
                attempt += 1
                pause = backoff(attempt)
                if not passes(error) or loop.time() + pause > until:
                    raise
                await asyncio.sleep(pause)

    async def close(self) -> None:
        await self.link.close()
