"""The mirror of one shard: applies the log to Postgres and takes away what was committed (D18).

Any number may run. One writes, by an election that only saves work: what keeps two writers apart is the
offset row, and rows that are there already stay. Postgres or Redis may go away at any time; the mirror says
so, tries again for ever, and goes on where the offset stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import secrets
import time
from typing import TYPE_CHECKING

from streamworker.core.errors import ConnectionLost, StreamworkerError
from streamworker.postgres import migrate, offsets
from streamworker.postgres.batch import Batch
from streamworker.postgres.connection import PostgresUnavailable, connect, passing, unavailable
from streamworker.postgres.gauges import Gauges, State
from streamworker.postgres.log import HEAD, Log
from streamworker.postgres.offsets import Offset, Overtaken
from streamworker.postgres.retention import prune
from streamworker.postgres.switch import Switch
from streamworker.postgres.writer import Writer, Written
from streamworker.settings import Settings
from streamworker.store import scripts
from streamworker.store.caller import Caller, backoff
from streamworker.store.connection import Link, Opens, ReplyError
from streamworker.store.keys import Keys

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger("streamworker.mirror")

#: A batch ends at so many entries, moves or bytes, or this long after its first entry, in seconds.
BATCH_ENTRIES, BATCH_MOVES, BATCH_BYTES, BATCH_SECONDS = 500, 5000, 8 << 20, 0.05
#: Entries that one read asks for: one may hold a megabyte of envelopes.
READ_COUNT = 50
#: ms that a read of an empty log waits, and seconds between two reads while a batch gathers.
BLOCK_MS, GATHER_EVERY = 1000, 0.005
#: ms that an elected writer may be silent before another takes over, and seconds between two looks.
TERM_MS, ELECT_EVERY = 5000, 1.0
#: Seconds between two looks for what is too old.
PRUNE_EVERY = 3600.0
#: Seconds between two attempts while Postgres or Redis is away, at most.
LONGEST_PAUSE = 5.0
DEFAULT_RETENTION = datetime.timedelta(days=30)


class Mirror:
    """Mirrors one shard: `await Mirror(settings, dsn, name).run()`, until `stop`."""

    def __init__(
        self,
        settings: Settings,
        dsn: str,
        name: str,
        *,
        retention: datetime.timedelta = DEFAULT_RETENTION,
        opens: Opens = Link,
    ) -> None:
        self._settings = settings
        self._dsn = dsn
        self._name = name
        self._retention = retention
        self._keys = Keys(settings.namespace)
        self._caller = Caller(settings.redis_url, self._keys.tag, patience=2.0, opens=opens)
        self._log = Log(self._caller, self._keys)
        self._switch = Switch(self._caller, self._keys)
        self._stopping = asyncio.Event()
        self._next_election = self._next_prune = 0.0
        self.gauges = Gauges()

    async def run(self) -> None:
        """Mirror until `stop`. Survives every error of Postgres and Redis."""
        watching = asyncio.create_task(self._watch())
        failures = 0
        try:
            while not self._stopping.is_set():
                before = self.gauges.batches
                try:
                    await self._serve()
                    failures = 0
                    continue
                except Overtaken as error:
                    log.info("mirror %s: %s; reading again", self._name, error)
                    continue
                except PostgresUnavailable as error:
                    self._away(State.POSTGRES_AWAY, error.kind, error)
                except (ConnectionLost, ReplyError) as error:
                    self._away(State.REDIS_AWAY, "redis", error)
                except Exception as error:
                    if not passing(error):
                        log.exception("mirror %s", self._name)
                    problem = unavailable(error)
                    self._away(State.POSTGRES_AWAY, problem.kind, problem)
                failures = 1 if self.gauges.batches > before else failures + 1
                await self._pause(min(LONGEST_PAUSE, 4 * backoff(failures)))
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            self.gauges.enter(State.STOPPED)
            await self._resign()
            await self._caller.close()

    def stop(self) -> None:
        """Finish the batch under way and end."""
        self._stopping.set()

    def _away(self, state: State, kind: str, error: Exception) -> None:
        self.gauges.count(kind)
        if self.gauges.enter(state, str(error)):
            log.warning("mirror %s: %s; trying again until it works", self._name, error)

    # --- one writer

    async def _serve(self) -> None:
        """Mirror while elected and all goes well; or stand by for a moment."""
        if not await self._elected():
            if self.gauges.enter(State.STANDBY):
                log.info("mirror %s: another one writes; standing by", self._name)
            await self._pause(ELECT_EVERY)
            return
        connection = await connect(self._dsn)
        try:
            if missing := await migrate.pending(connection):
                raise PostgresUnavailable(
                    "schema", f"{missing[0].file} is not applied: streamworker mirror migrate"
                )
            await self._mirror(connection)
        finally:
            # Cancelled or broken: a graceful good-bye may hang.
            connection.terminate()

    async def _mirror(self, connection: asyncpg.Connection) -> None:
        offset = await offsets.begin(connection, self._settings.namespace, 0, secrets.token_hex(8))
        offset = await self._switch.settle(connection, offset)
        if self.gauges.enter(State.MIRRORING):
            log.info("mirror %s: mirroring %s from entry %d", self._name, self._keys.tag, offset.sequence + 1)
        writer = Writer(connection, self._name)
        batch = await self._gather(HEAD)
        while True:
            if not batch.read:
                if self._stopping.is_set() or not await self._elected():
                    return
                offset = await self._chores(connection, writer, offset)
                batch = await self._gather(HEAD)
                continue
            writing = asyncio.create_task(self._commit(writer, batch, offset))
            try:  # the next one is read while this one is written
                following = Batch() if self._stopping.is_set() else await self._gather(batch.read[-1][0])
            finally:
                written = await writing
            offset, batch = written.offset, following
            if time.monotonic() >= self._next_election:
                if not await self._elected():
                    return
                offset = await self._chores(connection, writer, offset)
                batch = await self._gather(HEAD)  # after a failover older ids may have come back

    async def _gather(self, after: str) -> Batch:
        """What is in the log after that entry, as much as one transaction should take."""
        batch = Batch()
        found = await self._log.read(after, READ_COUNT, block_ms=BLOCK_MS)
        until = time.monotonic() + BATCH_SECONDS
        while True:
            for entry_id, flat in found:
                batch.add(entry_id, flat)
                after = entry_id.decode()
            if not batch.read or batch.moves >= BATCH_MOVES or batch.size >= BATCH_BYTES:
                return batch
            if len(batch.read) >= BATCH_ENTRIES or time.monotonic() >= until:
                return batch
            if not found:
                await asyncio.sleep(GATHER_EVERY)
            found = await self._log.read(after, READ_COUNT)

    async def _commit(self, writer: Writer, batch: Batch, offset: Offset) -> Written:
        began = time.monotonic()
        written = await writer.write(batch, offset)
        self.gauges.batch(time.monotonic() - began)
        self._count(written)
        await self._log.remove(batch.read)
        return written

    def _count(self, written: Written) -> None:
        gauges = self.gauges
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

    # --- beside the batches

    async def _chores(self, connection: asyncpg.Connection, writer: Writer, offset: Offset) -> Offset:
        """Look whether Redis lost data, and for what is too old."""
        offset = await self._switch.settle(connection, offset)
        now = time.monotonic()
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_EVERY
            writer.forget_days()
            pruned = await prune(
                connection,
                self._settings.namespace,
                keep=self._retention,
                now=datetime.datetime.now(datetime.UTC),
            )
            if pruned.days or pruned.jobs:
                log.info(
                    "mirror %s: %d days of transitions and %d jobs were too old",
                    self._name,
                    len(pruned.days),
                    pruned.jobs,
                )
        return offset

    async def _elected(self) -> bool:
        self._next_election = time.monotonic() + ELECT_EVERY
        call = scripts.elect(role="mirror", worker=self._name, ttl_ms=TERM_MS)
        return bool(await self._caller.run(call))

    async def _resign(self) -> None:
        """Let another one write at once."""
        with contextlib.suppress(StreamworkerError):
            key = self._keys.elect("mirror")
            if await self._caller.command("GET", key) == self._name.encode():
                await self._caller.command("DEL", key)

    async def _watch(self) -> None:
        """How far behind, each second, whatever else goes on."""
        caller = Caller(self._settings.redis_url, self._keys.tag, patience=1.0)
        looking = Log(caller, self._keys)
        try:
            while True:
                try:
                    self.gauges.lag = await looking.lag()
                except StreamworkerError:
                    self.gauges.lag = None
                await asyncio.sleep(1.0)
        finally:
            await caller.close()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
