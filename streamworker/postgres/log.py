"""The log of a shard as the mirror sees it: read from the head, and take away what was committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamworker.store import scripts
from streamworker.store.caller import Caller
from streamworker.store.events import pairs
from streamworker.store.keys import Keys

#: Where the log begins.
HEAD = "0-0"
#: Entries that are removed in one call at most (R33).
REMOVED = 500

RawEntry = tuple[bytes, list[bytes]]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a mirror is behind."""

    entries: int
    seconds: float  # age of the oldest entry
    bytes: int  # of the log, as its bound counts them


class Log:
    """One shard's log, over a connection that comes back by itself."""

    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def read(self, after: str, count: int, *, block_ms: int | None = None) -> list[RawEntry]:
        """Entries after that id; from the head, waits up to `block_ms` for the first."""
        block = () if block_ms is None else ("BLOCK", block_ms)
        reply: Any = await self._caller.command(
            "XREAD", "COUNT", count, *block, "STREAMS", self._keys.events, after
        )
        return [(entry_id, flat) for entry_id, flat in reply[0][1]] if reply else []

    async def remove(self, read: Sequence[tuple[str, int]]) -> None:
        """Take away exactly these entries (D18), given as id and size."""
        for start in range(0, len(read), REMOVED):
            rows = [word for entry in read[start : start + REMOVED] for word in entry]
            await self._caller.run(scripts.mirrored(rows=rows))

    async def lag(self) -> Lag:
        """How much there is to be read, and how old it is."""
        entries = int(await self._caller.command("XLEN", self._keys.events))
        counted = await self._caller.command("HGET", self._keys.stats, "log_bytes")
        size = max(0, int(counted or 0))
        head = await self._caller.command("XRANGE", self._keys.events, "-", "+", "COUNT", 1)
        if not head:
            return Lag(0, 0.0, size)
        seconds, micros = await self._caller.command("TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        at = pairs(head[0][1]).get(b"t", b"")
        at_ms = int(at) if at.isdigit() else now_ms  # the writer keeps it aside
        return Lag(entries, max(0.0, (now_ms - at_ms) / 1000), size)

    async def last_id(self) -> str:
        """The id of the newest entry ever written; `0-0` without a log."""
        last = await self._caller.command("XREVRANGE", self._keys.events, "+", "-", "COUNT", 1)
        return last[0][0].decode() if last else HEAD

    async def read_up_to(self, last: str) -> bool:
        """Whether nothing is left of what was logged up to that entry."""
        first = await self.first_id()
        return first is None or order_of(first) > order_of(last)

    async def first_id(self) -> str | None:
        """The id of the oldest entry; None when the log is empty."""
        first = await self._caller.command("XRANGE", self._keys.events, "-", "+", "COUNT", 1)
        return first[0][0].decode() if first else None


def order_of(entry_id: str) -> tuple[int, int]:
    """Ids of a stream compare by time, then by number."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)
