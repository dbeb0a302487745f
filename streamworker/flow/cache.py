"""`ctx.cache` and `ctx.invalidate`: values that are cheap to believe for a while.

A cache never decides a job's fate: what it cannot say is loaded, and its outage is a slower read. Every entry
has a time to live, which is how long a value may be wrong when an invalidation is lost. There are no tags and
no patterns: who changes a thing names the keys that tell of it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import anyio
import orjson

from streamworker.core import durations
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError, StreamworkerError
from streamworker.flow.entries import check, encoded, packed, unpacked
from streamworker.flow.flights import Flight
from streamworker.flow.locks import key_of, runs_here
from streamworker.settings import Settings
from streamworker.store import scripts
from streamworker.store.caller import Caller
from streamworker.store.connection import Link, Opens
from streamworker.store.dialling import check_url
from streamworker.store.keys import Keys

log = logging.getLogger("streamworker")

#: Share of its time to live by which an entry may go sooner, so that not all go at once.
SPREAD = 0.1
#: Seconds for which others leave the loading of a value to one: then the next may try.
HOLD = 10.0
#: Seconds for which a load that takes so long keeps its right to.
HOLD_MOST = 120.0
#: Seconds between two looks for what another one loads: the first, and the longest.
LOOK_FIRST, LOOK_LAST = 0.01, 0.1
#: Seconds for which a cache that did not answer is left alone.
REST = 1.0
#: Longest value that is kept, in bytes of JSON.
MAX_BYTES = 256 * 1024
#: Seconds before each further attempt to invalidate.
AGAIN = (0.1, 0.5, 2.0)

Load = Callable[[], Any]


class CacheResult(StrEnum):
    """What came of asking it."""

    HIT = "hit"
    MISS = "miss"  # loaded here
    WAITED = "waited"  # somebody else loaded it
    CORRUPT = "corrupt"  # what was there is no entry of this key; loaded here
    ERROR = "error"  # it did not answer in time; loaded here
    INVALIDATED = "invalidated"
    INVALIDATION_FAILED = "invalidation_failed"  # the old value stays until its time is over


@dataclass(eq=False, slots=True)
class _Home:
    """What belongs to one event loop."""

    caller: Caller
    flights: dict[tuple[str, int], Flight] = field(default_factory=dict)
    rests_until: float = 0.0


class Cache:
    """Where an app keeps values: `App(cache=Cache("redis://cache:6379", ttl="5m"))`.

    By default that is the queue's own Redis, which suits little; give it a Redis of its own with
    `maxmemory-policy allkeys-lru` for much. `patience` is how long a handler waits for an answer of it.
    Raises ConfigurationError or DurationError.
    """

    def __init__(self, url: str | None = None, *, ttl: Duration = "5m", patience: Duration = "250ms") -> None:
        if url is not None:
            check_url(url)
        self.ttl = durations.parse(ttl, what="cache: ttl")
        self.patience = durations.parse(patience, what="cache: patience")
        if self.ttl <= 0 or self.patience <= 0:
            raise ConfigurationError("a cache's ttl= and patience= must be above 0")
        #: Told of each result.
        self.told: Callable[[CacheResult], None] = lambda _: None
        #: Where plain functions, which run in threads, have their values looked up.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._url = url
        self._opens: Opens = Link
        self._keys: Keys | None = None
        self._homes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Home] = weakref.WeakKeyDictionary()

    def attach(self, settings: Settings) -> None:
        """Whose cache it is. One that nobody attached keeps nothing, as in a test of a handler."""
        self._url = self._url or settings.redis_url
        self._keys = Keys(settings.namespace)

    def elsewhere(self, settings: Settings, opens: Opens) -> Cache:
        """One with the same times that keeps its values with these settings: a test has its own."""
        other = Cache(ttl=self.ttl, patience=self.patience)
        other._opens = opens
        other.attach(settings)
        return other

    async def get(
        self, key: str, load: Load, *, ttl: Duration | None = None, version: int = 0, fresh: bool = False
    ) -> Any:
        """The cached value of a key; if there is none, what `load()` gives, kept for others.

        `load` gives something that JSON holds; a plain function runs in a thread. Of all readers in the fleet
        one loads, the others wait for it. `version` is the least that will do: an entry that was loaded for
        an older one is none. `fresh` loads in any case. What `load` raises is raised; its outage is not.
        Raises ConfigurationError when `load` asks for the same key, which would wait for itself.
        """
        check(key, version)
        seconds = self.ttl if ttl is None else durations.parse(ttl, what="cache: ttl")
        flight = Flight(self, key)
        if self._keys is None:
            with flight.flying():
                return orjson.loads(encoded(await _loaded(load)))
        home = self._home()
        if fresh:
            with flight.flying():
                body, _ = await self._load(
                    home, key, load, seconds, version, await self._ask(home, key, None)
                )
            return orjson.loads(body)
        under_way = home.flights.get((key, version))
        if under_way is not None:  # one reader of this process asks for all of them
            shared = await flight.wait_for(under_way)
            if shared is not None:
                self.told(CacheResult.WAITED)
                return orjson.loads(shared)
        return orjson.loads(await self._fly(home, flight, load, seconds, version))

    def get_sync(self, key: str, load: Load, **options: Any) -> Any:
        """The same for plain functions, which run in threads. Raises ConfigurationError in a coroutine."""
        if runs_here(self.loop):
            raise ConfigurationError(
                f"cache key {key!r}: a coroutine asks by `await ctx.cache.get(...)`; get_sync would wait for "
                "the loop that it blocks"
            )
        if self.loop is None:
            return asyncio.run(self.get(key, load, **options))
        return asyncio.run_coroutine_threadsafe(self.get(key, load, **options), self.loop).result()

    async def invalidate(self, *keys: str) -> list[str]:
        """Forget these now; returns those that could not be forgotten, and are old until their time is over.

        In a handler, `ctx.invalidate` does so once the outcome is recorded.
        """
        for key in keys:
            check(key, 0)
        if self._keys is None or not keys:
            return []
        home = self._home()
        names = [
            word for key in keys for word in (self._keys.cache(key_of(key)), self._keys.loading(key_of(key)))
        ]
        for pause in (*AGAIN, None):
            try:
                with anyio.fail_after(max(1.0, self.patience)):
                    await home.caller.command("DEL", *names)
            except (StreamworkerError, TimeoutError) as error:
                if pause is None:
                    log.error(
                        "cache: not invalidated, so old until their time is over: %s (%s)",
                        ", ".join(sorted(keys)),
                        str(error) or "no answer in time",
                    )
                    self._count(CacheResult.INVALIDATION_FAILED, len(keys))
                    return sorted(keys)
                await asyncio.sleep(pause)
            else:
                break
        self._count(CacheResult.INVALIDATED, len(keys))
        return []

    async def close(self) -> None:
        """Close the connection of this event loop, and those of loops that are closed."""
        self._abandon_closed()
        home = self._homes.pop(asyncio.get_running_loop(), None)
        if home is not None:
            await home.caller.close()

    # --- steps

    async def _fly(self, home: _Home, flight: Flight, load: Load, seconds: float, version: int) -> bytes:
        """Read for all of this process who ask meanwhile."""
        done = flight.shared = asyncio.get_running_loop().create_future()
        home.flights.setdefault((flight.key, version), flight)
        shared = None
        try:
            with flight.flying():
                read, current = await self._read(home, flight.key, load, seconds, version)
            shared = read if current else None
        finally:
            if home.flights.get((flight.key, version)) is flight:
                del home.flights[flight.key, version]
            done.set_result(shared)
        return read

    async def _read(
        self, home: _Home, key: str, load: Load, seconds: float, version: int
    ) -> tuple[bytes, bool]:
        """The value, and whether others may be told it."""
        pause, give_up = LOOK_FIRST, time.monotonic() + HOLD
        waited = False
        while True:
            answer = await self._ask(home, key, version)
            if answer.entry is not None:
                self.told(CacheResult.WAITED if waited else CacheResult.HIT)
                return answer.entry, True
            if answer.left is None or time.monotonic() > give_up:
                return await self._load(home, key, load, seconds, version, answer)
            waited = True
            await asyncio.sleep(min(pause, answer.left))
            pause = min(LOOK_LAST, pause * 2)

    async def _load(
        self, home: _Home, key: str, load: Load, seconds: float, version: int, answer: _Answer
    ) -> tuple[bytes, bool]:
        """The value, and whether others may be told it: not if it was made stale meanwhile."""
        self.told(answer.result)
        entry, kept = b"", None
        holding = None
        if answer.token is not None:
            holding = asyncio.get_running_loop().create_task(self._hold(home, key))
        try:
            body = encoded(await _loaded(load))
            if len(body) <= MAX_BYTES:
                entry = packed(key, version, body)
        finally:
            if answer.token is not None and holding is not None:
                holding.cancel()
                ttl_ms = max(1, round(seconds * 1000 * random.uniform(1 - SPREAD, 1)))
                with anyio.move_on_after(self.patience, shield=True):  # also if the reader is cancelled (R20)
                    kept = await self._run(
                        home,
                        scripts.cache_keep(
                            name=key_of(key),
                            version=version,
                            token=answer.token,
                            ttl_ms=ttl_ms,
                            entry=entry,
                        ),
                    )
        return body, not entry or kept != b"STALE"

    async def _hold(self, home: _Home, key: str) -> None:
        """Keep the right to load while the load takes; one that was taken away does not come back by it."""
        assert self._keys is not None
        name, until = self._keys.loading(key_of(key)), time.monotonic() + HOLD_MOST
        while time.monotonic() < until:
            await asyncio.sleep(HOLD / 3)
            await self._guard(home, lambda: home.caller.command("PEXPIRE", name, round(HOLD * 1000)))

    async def _ask(self, home: _Home, key: str, version: int | None) -> _Answer:
        """What the cache says; `version` None: the right to load, in any case."""
        token = secrets.token_hex(8)
        call = scripts.cache_ask(
            name=key_of(key),
            version="" if version is None else version,
            token=token,
            hold_ms=round(HOLD * 1000),
        )
        asked, reply = time.monotonic() >= home.rests_until, None
        try:
            reply = await self._run(home, call)
        finally:
            if reply is None and asked:
                self._renounce(home, key, token)
        if reply is None:
            return _Answer(CacheResult.ERROR)
        if reply[0] == b"WAIT":
            return _Answer(CacheResult.MISS, left=int(reply[1]) / 1000)
        if reply[0] == b"HIT":
            body = unpacked(key, reply[1])
            if body is not None:
                return _Answer(CacheResult.HIT, entry=body)
            assert self._keys is not None
            name = self._keys.cache(key_of(key))
            await self._guard(home, lambda: home.caller.command("DEL", name))  # its version means nothing
            taken = await self._ask(home, key, None)
            return _Answer(CacheResult.CORRUPT, token=taken.token)
        return _Answer(CacheResult.MISS, token=token)

    def _renounce(self, home: _Home, key: str, token: str) -> None:
        """Nobody heard the answer, which may be the right to load: give it back, and do not wait for word."""
        call = scripts.cache_keep(name=key_of(key), version=0, token=token, ttl_ms=1, entry=b"")
        with suppress(StreamworkerError):
            sent = home.caller.link.send_script(call.script, home.caller.tag, *call.argv)
            sent.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _run(self, home: _Home, call: scripts.Call) -> Any:
        return await self._guard(home, lambda: home.caller.run(call))

    async def _guard(self, home: _Home, ask: Callable[[], Awaitable[Any]]) -> Any:
        """An answer, or None if there is none in time. After that it is left alone for a moment."""
        if time.monotonic() < home.rests_until:
            return None
        problem: object = "it did not answer in time"
        try:
            with anyio.move_on_after(self.patience):
                return await ask()
        except StreamworkerError as error:
            problem = error
        if time.monotonic() >= home.rests_until + 60:
            log.warning("the cache is of no use now, values are loaded without it: %s", problem)
        home.rests_until = time.monotonic() + REST
        return None

    def _home(self) -> _Home:
        assert self._keys is not None
        assert self._url is not None
        loop = asyncio.get_running_loop()
        home = self._homes.get(loop)
        if home is None:
            self._abandon_closed()
            caller = Caller(
                self._url,
                self._keys.tag,
                patience=self.patience,
                timeout=max(1.0, self.patience),
                opens=self._opens,
            )
            home = self._homes[loop] = _Home(caller)
        return home

    def _abandon_closed(self) -> None:
        """Let go of the connections of loops that were closed without `close`."""
        for reference in self._homes.keyrefs():  # a list: other threads may have loops of their own
            loop = reference()
            if loop is not None and loop.is_closed() and (home := self._homes.pop(loop, None)) is not None:
                home.caller.link.abort()

    def _count(self, result: CacheResult, times: int) -> None:
        for _ in range(times):
            self.told(result)


@dataclass(frozen=True, slots=True)
class _Answer:
    """`entry`: the value as JSON; `token`: the right to keep one; `left`: s for which another has that."""

    result: CacheResult
    entry: bytes | None = None
    token: str | None = None
    left: float | None = None


async def _loaded(load: Load) -> Any:
    if inspect.iscoroutinefunction(load):
        return await load()
    value = await asyncio.to_thread(_called, load)
    return await value if inspect.isawaitable(value) else value


def _called(load: Load) -> Any:
    try:
        return load()
    except StopIteration as error:  # no future holds one
        raise RuntimeError("load raised StopIteration") from error
