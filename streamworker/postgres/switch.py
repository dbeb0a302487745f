"""The mirror's switch in Redis, and what its absence proves.

While `policies` has the field `mirror`, the log carries what the mirror needs and nobody trims it. The value
is the shard's marker: Postgres has the same. A marker that is gone, or another, proves that Redis lost data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamworker.postgres import offsets
from streamworker.postgres.offsets import Offset
from streamworker.store.caller import Caller
from streamworker.store.keys import Keys

if TYPE_CHECKING:
    import asyncpg

#: Fields of `policies`.
MARKER, BOUND = "mirror", "mirror_bound"
#: Bytes that the log may take before enqueue is refused.
DEFAULT_BOUND = 1 << 30


class Switch:
    """Turns the mirror of a shard on and off in Redis."""

    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def marker(self) -> str | None:
        """The marker that stands in Redis."""
        value = await self._caller.command("HGET", self._keys.policies, MARKER)
        return None if value is None else value.decode()

    async def put(self, marker: str) -> None:
        """The log carries what the mirror needs from now on."""
        await self._caller.command("HSETNX", self._keys.policies, BOUND, DEFAULT_BOUND)
        await self._caller.command("HSET", self._keys.policies, MARKER, marker)

    async def clear(self) -> None:
        """The log is as without a mirror again."""
        await self._caller.command("HDEL", self._keys.policies, MARKER)

    async def settle(self, connection: asyncpg.Connection, offset: Offset) -> Offset:
        """See that the marker stands; a loss that it proves is written down."""
        stands, ours = await self.marker(), offset.marker
        if ours is None or stands == ours:
            return offset
        if offset.commits and offset.loss is None:
            proof = "its marker is gone" if stands is None else f"its marker is {stands}"
            offset = await offsets.note_loss(connection, offset, proof, sequence=offset.sequence)
        await self.put(ours)
        return offset
