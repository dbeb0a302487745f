"""Keeps the event log within its bound where no mirror takes its entries away."""

from __future__ import annotations

from streamworker.store.caller import Caller
from streamworker.store.connection import ReplyError
from streamworker.store.keys import Keys

#: Bytes that the event log may take without a mirror.
EVENTS_BYTES = 64 * 1024 * 1024
#: Entries that show how long the others are, where the server does not tell.
SAMPLE = 100


class LogBound:
    """The log of one namespace."""

    def __init__(self, keys: Keys, caller: Caller) -> None:
        self._keys = keys
        self._caller = caller

    async def trim(self) -> None:
        """Take the oldest entries away from a log above its bound; it shows as incomplete history.

        While a mirror is on, nothing else takes entries away (D18).
        """
        if await self._caller.command("HGET", self._keys.policies, "mirror") not in (None, b"off"):
            return
        size = await self._size()
        if size is None or size <= EVENTS_BYTES:
            return
        length = await self._caller.command("XLEN", self._keys.events)
        keep = int(length * EVENTS_BYTES * 0.9 / size)
        # Redis removes 10,000 entries a call at most, so that it is short; a lease may bring more.
        while await self._caller.command("XTRIM", self._keys.events, "MAXLEN", "~", keep):
            pass

    async def _size(self) -> int | None:
        """In bytes; None: there is no log. By its newest entries where MEMORY is refused."""
        try:
            return _whole(await self._caller.command("MEMORY", "USAGE", self._keys.events, "SAMPLES", 5))
        except ReplyError:
            newest = await self._caller.command("XREVRANGE", self._keys.events, "+", "-", "COUNT", SAMPLE)
        if not newest:
            return None
        sampled = sum(len(word) for _, words in newest for word in words)
        return _whole(sampled / len(newest) * await self._caller.command("XLEN", self._keys.events))


def _whole(size: float | None) -> int | None:
    return None if size is None else round(size)
