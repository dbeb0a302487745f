"""From the log to Postgres: batches are gathered, written, and taken away once they are committed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamworker.postgres.batch import Batch
from streamworker.postgres.gauges import Gauges
from streamworker.postgres.log import HEAD, Log
from streamworker.postgres.offsets import Offset
from streamworker.postgres.ready import make_ready
from streamworker.postgres.writer import Writer, Written

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger("streamworker.mirror")

#: A batch ends at so many entries, lines or bytes, or this long after its first entry, in seconds.
BATCH_ENTRIES, BATCH_LINES, BATCH_BYTES, BATCH_SECONDS = 500, 15_000, 8 << 20, 0.05
#: Entries that one read asks for: one may hold a megabyte of envelopes.
READ_COUNT = 50
#: ms that a read of an empty log waits, and seconds between two reads while a batch gathers.
BLOCK_MS, GATHER_EVERY = 1000, 0.005


class Pipe:
    """One shard's way into Postgres, over one connection. `offset` is where it stands."""

    def __init__(
        self,
        source: Log,
        connection: asyncpg.Connection,
        offset: Offset,
        name: str,
        gauges: Gauges,
        on_commit: Callable[[Batch], None] | None = None,
    ) -> None:
        self._log = source
        self._gauges = gauges
        self._name = name
        self._on_commit = on_commit
        self.offset = offset
        self.writer = Writer(connection, name)

    async def gather(self, after: str = HEAD, *, wait: bool = True) -> Batch:
        """What is in the log after that entry, as much as one transaction should take, ready to be written.

        Waits a moment for the first entry, unless `wait` is false.
        """
        batch = await self._read(after, wait=wait)
        if batch.entries:  # in a thread, so that the batch before it goes on being written
            batch.ready = await asyncio.to_thread(make_ready, batch, self.offset.namespace)
        return batch

    async def leads(self, batch: Batch) -> bool:
        """Whether nothing is in the log before this batch."""
        first = batch.read[0][0] if batch.read else None
        return await self._log.first_id() == first

    async def _read(self, after: str, *, wait: bool) -> Batch:
        batch = Batch()
        found = await self._log.read(after, READ_COUNT, block_ms=BLOCK_MS if wait else None)
        until = time.monotonic() + BATCH_SECONDS
        while True:
            for entry_id, flat in found:
                batch.add(entry_id, flat)
                after = entry_id.decode()
            if not batch.read or batch.lines >= BATCH_LINES or batch.size >= BATCH_BYTES:
                return batch
            if len(batch.read) >= BATCH_ENTRIES or time.monotonic() >= until:
                return batch
            if not found:
                await asyncio.sleep(GATHER_EVERY)
            found = await self._log.read(after, READ_COUNT)

    async def commit(self, batch: Batch) -> None:
        """Write it and take it from the log. Raises Overtaken, and what asyncpg and Redis raise."""
        began = time.monotonic()
        written = await self.writer.write(batch, self.offset)
        self.offset = written.offset
        self._gauges.batch(time.monotonic() - began)
        self._count(written)
        if self._on_commit is not None:
            self._on_commit(batch)
        await self._log.remove(batch.read)

    async def drain(self, last: str) -> None:
        """Commit all that is in the log up to that entry."""
        while not await self._log.read_up_to(last):
            await self.commit(await self.gather(wait=False))

    def _count(self, written: Written) -> None:
        gauges = self._gauges
        gauges.rows["jobs"] += written.jobs
        gauges.rows["job_transitions"] += written.moves
        gauges.known += written.known
        for kind, count, what in (
            ("row", written.refused, "rows were refused and are kept in mirror_refused"),
            ("conflict", written.differing, "moves contradict what is known and are in mirror_conflicts"),
            ("gap", written.unread, "entries went from the log before they were read"),
        ):
            if count:
                gauges.count(kind, count)
                log.warning("mirror %s: %d %s", self._name, count, what)
