"""The mirror's switch in Redis, and what its absence proves.

While `policies` has the field `mirror`, the log carries what the mirror needs and nobody else trims it. The
value is the shard's marker: Postgres has the same, and it never changes. A marker that is gone, or another,
proves that Redis lost data; then `restoring` refuses enqueues until that is there again (D19).
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
MARKER, BOUND, RESTORING = "mirror", "mirror_bound", "restoring"
#: The marker's value while the mirror is off.
OFF = "off"
#: Bytes that the log may take before enqueue is refused.
DEFAULT_BOUND = 1 << 30


class Switch:
    """Turns the mirror of a shard on and off in Redis."""

    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def marker(self) -> str | None:
        """The marker that stands in Redis; None where there is none, or the mirror is off."""
        value = await self._caller.command("HGET", self._keys.policies, MARKER)
        return None if value in (None, OFF.encode()) else str(value.decode())

    async def settle(self, connection: asyncpg.Connection, offset: Offset) -> Offset:
        """See that the marker stands; a loss that its absence proves is written down, and enqueue closed.

        So is it where somebody has begun to restore, and has not ended: else nobody could enqueue any more.
        """
        fields = MARKER, RESTORING
        value, restoring = await self._caller.command("HMGET", self._keys.policies, *fields)
        stands, ours = None if value is None else value.decode(), offset.marker
        if restoring is not None and stands == ours and offset.on and offset.loss is None:
            proof = "somebody has begun to restore what it lost, and has not ended"
            offset = await offsets.note_loss(connection, offset, proof, sequence=offset.sequence)
        if stands != ours and offset.on and offset.commits:
            proof = "its marker is gone" if stands is None else f"its marker is {stands}"
            # What is logged from now on is counted anew.
            offset = await offsets.note_loss(connection, offset, proof, sequence=0)
        if offset.loss is not None:
            await self.close(ours)
        elif stands != ours:
            await self.open(ours)
        return offset

    async def open(self, marker: str) -> None:
        """The log carries what the mirror needs, and enqueue is open."""
        await self._caller.command("HSETNX", self._keys.policies, BOUND, DEFAULT_BOUND)
        await self._caller.command("HSET", self._keys.policies, MARKER, marker)
        await self._caller.command("HDEL", self._keys.policies, RESTORING)

    async def close(self, marker: str) -> None:
        """The same, with enqueue closed: what Redis lost is being restored."""
        await self._caller.command("HSETNX", self._keys.policies, BOUND, DEFAULT_BOUND)
        await self._caller.command("HSET", self._keys.policies, MARKER, marker, RESTORING, 1)

    async def off(self) -> None:
        """The log is as without a mirror again."""
        await self._caller.command("HSET", self._keys.policies, MARKER, OFF)
        await self._caller.command("HDEL", self._keys.policies, RESTORING)
