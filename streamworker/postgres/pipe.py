"""From the log to Postgres: batches are gathered, written, and taken away once they are committed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamworker.postgres.batch import Batch
from streamworker.postgres.connection import took_too_long
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
#: What a batch is divided by, again and again, while Postgres takes too long for it; and what it grows by
#: after each that was taken: slowly, since one that is too large again costs a time limit.
SMALLER, LARGER = 4.0, 1.1
#: ms that a read of an empty log waits, and seconds between two reads while a batch gathers.
BLOCK_MS, GATHER_EVERY = 1000, 0.005


class Pace:
    """How much one transaction takes: a part of a batch after one that took too long, then by and by more."""

    def __init__(self) -> None:
        self._divisor = 1.0

    def part_of(self, most: int) -> int:
        """What is left of a bound."""
        return max(1, int(most / self._divisor))

    def failed(self, error: Exception) -> None:
        """A batch was not written. A server that gave up on a statement would give up on the same again."""
        if took_too_long(error) and self._divisor < BATCH_LINES:
            self._divisor *= SMALLER

    def passed(self) -> None:
        self._divisor = max(1.0, self._divisor / LARGER)


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
        pace: Pace | None = None,
    ) -> None:
        self._log = source
        self._gauges = gauges
        self._name = name
        self._on_commit = on_commit
        self._pace = pace or Pace()
        self.offset = offset
        self.writer = Writer(connection, name)
        #: Entries are gone that nobody read here, and with them ends of jobs.
        self.missed = False

    async def gather(self, after: str = HEAD, *, wait: bool = True) -> Batch:
        """What is in the log after that entry, as much as one transaction should take, ready to be written.

        Waits a moment for the first entry, unless `wait` is false.
        """
        batch = await self._read(after, wait=wait)
        if (
            batch.entries and not self.writer.early
        ):  # in a thread, so that the batch before it goes on being written
            batch.ready = await asyncio.to_thread(make_ready, batch, self.offset.namespace)
        return batch

    async def leads(self, batch: Batch) -> bool:
        """Whether nothing is in the log before this batch."""
        first = batch.read[0][0] if batch.read else None
        return await self._log.first_id() == first

    async def _read(self, after: str, *, wait: bool) -> Batch:
        batch, pace = Batch(), self._pace
        entries, lines, size = map(pace.part_of, (BATCH_ENTRIES, BATCH_LINES, BATCH_BYTES))
        count = min(READ_COUNT, entries)
        found = await self._log.read(after, count, block_ms=BLOCK_MS if wait else None)
        until = time.monotonic() + BATCH_SECONDS
        while True:
            for entry_id, flat in found:
                batch.add(entry_id, flat)
                after = entry_id.decode()
            if not batch.read or batch.lines >= lines or batch.size >= size:
                return batch
            if len(batch.read) >= entries or time.monotonic() >= until:
                return batch
            if not found:
                await asyncio.sleep(GATHER_EVERY)
            found = await self._log.read(after, count)

    async def commit(self, batch: Batch) -> None:
        """Write it and take it from the log. Raises Overtaken, and what asyncpg and Redis raise."""
        began = time.monotonic()
        try:
            written = await self.writer.write(batch, self.offset)
        except Exception as error:
            self._pace.failed(error)
            raise
        self._pace.passed()
        self.offset = written.offset
        self.missed = self.missed or written.unread > 0
        self._gauges.batch(time.monotonic() - began)
        self._count(written)
        if self._on_commit is not None:
            self._on_commit(batch)
        await self._log.remove(batch.read)

    async def drain(self, last: str) -> None:
        """Commit all that is in the log up to that entry."""
        while not await self._log.read_up_to(last):
            batch = await self.gather(wait=False)
            if batch.read:  # else another mirror has taken them
                await self.commit(batch)

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
