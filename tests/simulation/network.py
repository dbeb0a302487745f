"""What lies between hosts and Redis: links that delay, lose and break, and calls that block at the server.

A call travels, is executed, and its answer travels back. The weather says what becomes of each. A link that
broke tells its host so; what was sent before may be executed all the same, also much later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streamworker.core.errors import ConnectionLost
from streamworker.store.connection import REPLY_TIMEOUT, Argument, Link, ReplyError, Told
from tests.simulation.loop import HOST, Host, VirtualLoop, outside
from tests.simulation.redis import RealRedis

#: Seconds of one way through the network.
FAST, SLOW = 0.0003, 0.003
#: Seconds between two calls on one link at least: at equal times a loop keeps no order.
NEXT = 0.000001
#: Calls after which a blocked read is tried again at once.
ADDERS = frozenset({"enqueue", "exchange", "settle", "promote", "replay", "cancel", "wake"})
#: Seconds after which a read that found nothing asks again in any case: a sweep may have added something.
READ_EVERY = 3.0
#: Replies that show that a blocked read found nothing.
NOTHING: tuple[Any, ...] = (None, [])


class Fate(StrEnum):
    """What becomes of a call."""

    ANSWERED = "answered"
    SLOW = "slow"  # answered, but not soon
    UNSENT = "unsent"  # it never arrives
    UNHEARD = "unheard"  # executed; the answer is lost
    LATE = "late"  # the link breaks first; it is executed later
    TWICE = "twice"  # executed again later


@dataclass(slots=True, eq=False)
class Blocked:
    """A read that waits at the server."""

    link: SimLink
    life: int
    arguments: tuple[Argument, ...]
    future: asyncio.Future[Any]
    until: float


class SimLink(Link):
    """A link to the one server through the simulated network."""

    def __init__(
        self, network: Network, host: Host | None, url: str, *, timeout: float = REPLY_TIMEOUT
    ) -> None:
        super().__init__(url, timeout=timeout)
        self.network = network
        self.host = host
        self.number = network.number()
        #: Raised whenever it breaks: what belongs to an older life is not delivered.
        self.life = 0
        self.up = False
        self.cut = False  # nothing that is sent from now on arrives
        self.arrived = 0.0
        self.answered = 0.0
        self.read: tuple[int, tuple[Argument, ...]] | None = None  # the last one that found nothing
        self.read_at = 0.0
        self.open: dict[asyncio.Future[Any], float] = {}
        self.watching = False

    @property
    def connected(self) -> bool:
        return self.up

    @property
    def in_flight(self) -> int:
        return len(self.open)

    async def connect(self) -> None:
        self.abort()
        await asyncio.sleep(self.network.way())
        if not self.network.reachable(self.host):
            raise ConnectionLost("connection refused")
        self.up = True

    def send(self, *arguments: Argument) -> asyncio.Future[Any]:
        if not self.up:
            raise ConnectionLost("not connected")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.open[future] = self.network.loop.time()
        future.add_done_callback(lambda _: self.open.pop(future, None))
        self.network.carry(self, arguments, future)
        if not self.watching:
            self.watching = True
            self.network.loop.call_later(self.timeout, self._check_answers, self.life)
        return future

    def post(self, told: Told, *arguments: Argument) -> None:
        self.send(*arguments).add_done_callback(lambda future: told(future.exception() or future.result()))

    def abort(self) -> None:
        self.broken(ConnectionLost("closed"))

    def broken(self, error: ConnectionLost) -> None:
        """It is over: all that waits for an answer hears so."""
        self.life += 1
        self.up = self.cut = self.watching = False
        self.arrived = self.answered = 0.0
        self.network.forget(self)
        waiting, self.open = list(self.open), {}
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()

    def _check_answers(self, life: int) -> None:
        if life != self.life:
            return
        self.watching = False
        if not self.open:
            return
        left = next(iter(self.open.values())) + self.timeout - self.network.loop.time()
        if left <= 0:
            self.network.note("no answer in time", self.host)
            self.network.struck(self.host)
            self.broken(ConnectionLost("no answer in time"))
        else:
            self.watching = True
            self.network.loop.call_later(left + 0.001, self._check_answers, life)


class Network:
    """All links, and the server at their other end."""

    def __init__(
        self,
        loop: VirtualLoop,
        redis: RealRedis,
        dice: random.Random,
        *,
        fate: Callable[[str], Fate],
        note: Callable[[str, Host | None], None],
        struck: Callable[[Host | None], None],
        executed: Callable[[str, tuple[Argument, ...]], None],
    ) -> None:
        """`fate` decides on a call by its name; `struck` hears that a host lost an answer."""
        self.loop = loop
        self.redis = redis
        self.dice = dice
        self.note = note
        self.struck = struck
        self._fate = fate
        self._executed = executed
        self._links: list[SimLink] = []
        self._numbers = 0
        self._blocked: list[Blocked] = []
        self._away: dict[Host | None, float] = {}
        self._stirred = False
        self._added = 0  # how often something was added that a read may find
        self._context = outside()

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def way(self) -> float:
        """Seconds of one way."""
        return self.dice.uniform(FAST, SLOW)

    def opens(self, url: str, *, timeout: float = REPLY_TIMEOUT) -> Link:
        """A link of the host that asks."""
        link = SimLink(self, HOST.get(), url, timeout=timeout)
        self._links.append(link)
        return link

    # --- outages

    def reachable(self, host: Host | None) -> bool:
        now = self.loop.time()
        return now >= self._away.get(host, 0.0) and now >= self._away.get(None, 0.0)

    def cut_off(self, host: Host | None, seconds: float) -> None:
        """Nobody (None), or one host, reaches the server for so long."""
        self._away[host] = max(self._away.get(host, 0.0), self.loop.time() + seconds)
        self.break_links(host)

    def break_links(self, host: Host | None) -> None:
        """Break the links of one host, or all."""
        for link in self._links:
            if link.up and host in (None, link.host):
                link.broken(ConnectionLost("reset"))

    def bury(self, host: Host) -> None:
        """A process is dead: the server forgets what it waited for. What it sent is on its way."""
        self._blocked = [one for one in self._blocked if one.link.host is not host]
        self._links = [link for link in self._links if link.host is not host]

    # --- a call on its way

    def carry(self, link: SimLink, arguments: tuple[Argument, ...], future: asyncio.Future[Any]) -> None:
        now = self.loop.time()
        script = self.redis.named(arguments)
        name = str(arguments[0]).lower() if script is None else script.name
        fate = Fate.ANSWERED if link.cut else self._fate(name)
        arrives = link.arrived = max(link.arrived + NEXT, now + self.way())
        if fate is not Fate.ANSWERED:
            self.note(f"{name} {fate}", link.host)
        late = self.dice.expovariate(1 / 10) if fate is Fate.LATE else 0.0
        if fate in (Fate.UNSENT, Fate.UNHEARD, Fate.LATE):
            longest = min(link.timeout, late or link.timeout)
            self._later(arrives + self.dice.uniform(0, longest), self._break, link, link.life)
            self.struck(link.host)
        if fate is Fate.UNSENT or link.cut:
            link.cut = True
            return
        arrives = link.arrived = arrives + late  # and so is all that follows on this link
        heard = fate is not Fate.UNHEARD
        if fate is Fate.TWICE:
            self.struck(link.host)
            again = arrives + self.dice.expovariate(1 / 5)
            self._later(again, self._execute, link, -1, name, arguments, future, 0.0)
        delay = self.dice.uniform(0.1, 4.0) if fate is Fate.SLOW else self.way()
        self._later(arrives, self._execute, link, link.life if heard else -1, name, arguments, future, delay)

    def _later(self, when: float, do: Callable[..., None], *args: Any) -> None:
        self.loop.call_at(when, do, *args, context=self._context)

    def _break(self, link: SimLink, life: int) -> None:
        if link.life == life:
            link.broken(ConnectionLost("reset"))

    def _execute(
        self,
        link: SimLink,
        life: int,
        name: str,
        arguments: tuple[Argument, ...],
        future: asyncio.Future[Any],
        delay: float,
    ) -> None:
        """`life`: of the link that hears the answer; -1: nobody does."""
        if not self.reachable(link.host):
            return  # it went down with the server, or into the void
        now = self.loop.time()
        if name == "client":
            self._answer(link, life, future, self._client(link, str(arguments[1]), arguments), delay)
            return
        wait = _wait_of(name, arguments)
        reply: Any = None
        if not (wait and self._still_empty(link, arguments)):
            try:
                reply = self._try(name, arguments)
            except ReplyError as error:
                self._answer(link, life, future, error, delay)
                return
            self._executed(name, arguments)
        if wait and reply in NOTHING:
            self._note_empty(link, arguments)
            if life == link.life and (link.host is None or link.host.alive):
                blocked = Blocked(link, life, arguments, future, now + wait)
                self._blocked.append(blocked)
                self._later(now + wait, self._unblock, blocked, None)
            return
        self._answer(link, life, future, reply, delay)
        idle = (name == "promote" and reply[0] == reply[1] == 0) or (name == "wake" and reply[0] == 0)
        if name in ADDERS and not idle:
            self._added += 1
            if self._blocked and not self._stirred:
                self._stirred = True
                self._later(now, self._serve_blocked)

    def _still_empty(self, link: SimLink, arguments: tuple[Argument, ...]) -> bool:
        """Whether the same read found nothing a moment ago, and nothing was added since: no need to ask."""
        recent = self.loop.time() - link.read_at < READ_EVERY
        return recent and link.read == (self._added, arguments)

    def _note_empty(self, link: SimLink, arguments: tuple[Argument, ...]) -> None:
        if not self._still_empty(link, arguments):
            link.read, link.read_at = (self._added, arguments), self.loop.time()

    def _try(self, name: str, arguments: tuple[Argument, ...]) -> Any:
        """Execute now, without waiting."""
        now = self.loop.time()
        if name == "blpop":
            for key in arguments[1:-1]:
                if (value := self.redis.execute(now, ("LPOP", key))) is not None:
                    return [str(key).encode(), value]
            return None
        if name == "xreadgroup" and "BLOCK" in arguments:
            at = arguments.index("BLOCK")
            arguments = (*arguments[:at], *arguments[at + 2 :])
        return self.redis.execute(now, arguments)

    def _answer(
        self, link: SimLink, life: int, future: asyncio.Future[Any], reply: Any, delay: float
    ) -> None:
        if life == link.life:
            when = link.answered = max(link.answered + NEXT, self.loop.time() + delay)
            self._later(when, self._deliver, link, life, future, reply)

    def _deliver(self, link: SimLink, life: int, future: asyncio.Future[Any], reply: Any) -> None:
        if life != link.life or future.done():
            return
        if isinstance(reply, ReplyError):
            future.set_exception(reply)
            future.exception()
        else:
            future.set_result(reply)

    # --- reads that block

    def _client(self, link: SimLink, what: str, arguments: tuple[Argument, ...]) -> Any:
        if what == "ID":
            return link.number
        found = [one for one in self._blocked if one.link.number == int(arguments[2])]
        for one in found:
            error = ReplyError("UNBLOCKED client unblocked via CLIENT UNBLOCK")
            self._unblock(one, error if arguments[3] == "ERROR" else None)
        return len(found)

    def _unblock(self, blocked: Blocked, reply: Any) -> None:
        if blocked in self._blocked:
            self._blocked.remove(blocked)
            self._answer(blocked.link, blocked.life, blocked.future, reply, self.way())

    def _serve_blocked(self) -> None:
        """Something was written: whoever waits for it gets it."""
        self._stirred = False
        for blocked in list(self._blocked):
            name = str(blocked.arguments[0]).lower()
            try:
                reply = self._try(name, blocked.arguments)
            except ReplyError as error:
                self._unblock(blocked, error)
                continue
            if reply not in NOTHING:
                self._unblock(blocked, reply)

    def forget(self, link: SimLink) -> None:
        """The connection is closed: the server drops what it waited for."""
        self._blocked = [one for one in self._blocked if one.link is not link]


def _wait_of(name: str, arguments: tuple[Argument, ...]) -> float:
    """Seconds that a call blocks."""
    if name == "xreadgroup" and "BLOCK" in arguments:
        return int(arguments[arguments.index("BLOCK") + 1]) / 1000
    return float(arguments[-1]) if name == "blpop" else 0.0
