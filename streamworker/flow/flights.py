"""Reads of a cache that are under way, and which of them wait for which: none may wait for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from streamworker.core.errors import ConfigurationError


class Flight:
    """One read: what a reader asks for, and the loads that it is a part of."""

    __slots__ = ("_cache", "_over", "_waits_for", "key", "shared", "within")

    def __init__(self, cache: object, key: str) -> None:
        """Raises ConfigurationError when it is asked for by the load of the same key."""
        self._cache = cache
        self.key = key
        #: The value for those who wait for it, None when they must ask themselves; no future when nobody can.
        self.shared: asyncio.Future[bytes | None] | None = None
        #: The reads whose loads have led here, in this task, thread or group of tasks.
        self.within: tuple[Flight, ...] = tuple(one for one in _loading.get() if not one._over)
        self._over: bool = False
        self._waits_for: list[Flight] = []
        for place, one in enumerate(self.within):
            if one._cache is cache and one.key == key:
                raise _circle(*self.within[place:], self)

    @contextmanager
    def flying(self) -> Iterator[None]:
        """What is read in this block is a part of it, also in tasks and threads that begin there."""
        token = _loading.set((*self.within, self))
        try:
            yield
        finally:
            self._over = True
            with suppress(ValueError):  # collected as garbage, in another context than it began in
                _loading.reset(token)

    async def wait_for(self, other: Flight) -> bytes | None:
        """What `other` shares. Raises ConfigurationError when that waits for a load that led here."""
        assert other.shared is not None
        if circle := other._way_to(set(self.within)):
            first = self.within.index(circle[-1])
            raise _circle(*self.within[first:], *circle)
        for one in self.within:
            one._waits_for.append(other)
        try:
            await asyncio.wait([other.shared])
        finally:
            for one in self.within:
                one._waits_for.remove(other)
        return other.shared.result()

    def _way_to(self, goals: set[Flight]) -> list[Flight]:
        """From here to the first of them, by what waits for what; empty if there is none."""
        ways, seen = [[self]], {self}
        for way in ways:
            if way[-1] in goals:
                return way
            fresh = [one for one in way[-1]._waits_for if one not in seen]
            seen.update(fresh)
            ways += [[*way, one] for one in fresh]
        return []


_loading: ContextVar[tuple[Flight, ...]] = ContextVar("streamworker_loading", default=())


def _circle(*flights: Flight) -> ConfigurationError:
    keys = " > ".join(repr(one.key) for one in flights)
    return ConfigurationError(
        f"cache key {flights[0].key!r}: its load asks for it again ({keys}), and would wait for itself; load "
        "what it needs without the cache, or under another key"
    )
