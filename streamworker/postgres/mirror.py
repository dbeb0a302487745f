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
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamworker.core.errors import ConfigurationError, ConnectionLost, StreamworkerError
from streamworker.postgres import migrate, offsets
from streamworker.postgres.adopt import Adopter
from streamworker.postgres.batch import Batch
from streamworker.postgres.connection import PostgresUnavailable, connect, passing, unavailable
from streamworker.postgres.gauges import Gauges, State
from streamworker.postgres.log import Log
from streamworker.postgres.offsets import Overtaken
from streamworker.postgres.pipe import Pace, Pipe
from streamworker.postgres.reconcile import Reconciled, Reconciler
from streamworker.postgres.retention import BEGINNING, prune
from streamworker.postgres.switch import Switch
from streamworker.settings import Settings
from streamworker.store import scripts
from streamworker.store.caller import Caller, backoff
from streamworker.store.connection import Link, Opens, ReplyError
from streamworker.store.keys import Keys

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger("streamworker.mirror")

#: ms that an elected writer may be silent before another takes over, and seconds between two looks.
TERM_MS, ELECT_EVERY = 5000, 1.0
#: Seconds that Redis may be silent for a mirror that tries again for ever; and for a person's `reconcile`,
#: which leaves enqueue closed when it does not come to its end.
PATIENCE, PATIENCE_OF_PEOPLE = 2.0, 15.0
#: Times that a reconcile begins anew because another mirror wrote meanwhile.
OVERTAKEN = 20
#: Seconds between two looks for what is too old, and that one may keep the log waiting: what is left then
#: goes by the next looks, one second after the other.
PRUNE_EVERY, PRUNE_SECONDS = 3600.0, 0.2
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
        on_commit: Callable[[Batch], None] | None = None,
    ) -> None:
        """`on_commit` is told of each batch that is in Postgres; of one twice, if it has to be read again."""
        self._on_commit = on_commit
        self._settings = settings
        self._dsn = dsn
        self._name = name
        self._retention = retention
        self._keys = Keys(settings.namespace)
        self._caller = Caller(settings.redis_url, self._keys.tag, patience=PATIENCE, opens=opens)
        self._log = Log(self._caller, self._keys)
        self._switch = Switch(self._caller, self._keys)
        self._pace = Pace()
        self._stopping = asyncio.Event()
        self._next_election = self._next_prune = 0.0
        self._pruned_to = BEGINNING
        self.gauges = Gauges()

    async def run(self) -> None:
        """Mirror until `stop`. Survives every error of Postgres and Redis; raises ConfigurationError."""
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
                except ConfigurationError:
                    raise  # it stays as it is
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
            await migrate.require(connection)
            await self._mirror(connection)
        finally:
            # Cancelled or broken: a graceful good-bye may hang.
            connection.terminate()

    async def _mirror(self, connection: asyncpg.Connection) -> None:
        pipe = await self._pipe(connection)
        if self.gauges.enter(State.MIRRORING):
            log.info(
                "mirror %s: mirroring %s from entry %d", self._name, self._keys.tag, pipe.offset.sequence + 1
            )
        await self._adopt(connection, pipe)
        batch = await pipe.gather()
        while True:
            if batch.read:
                writing = asyncio.create_task(pipe.commit(batch))
                try:  # the next one is read while this one is written; what is written is taken away at once
                    after = batch.read[-1][0]
                    batch = Batch() if self._stopping.is_set() else await pipe.gather(after, wait=False)
                finally:
                    await writing
            elif self._stopping.is_set():
                return
            else:
                batch = await pipe.gather()
            if time.monotonic() >= self._next_election:
                if not await self._elected():
                    return
                await self._chores(connection, pipe)
                if not await pipe.leads(batch):  # older ids have come back, or it was written meanwhile
                    batch = await pipe.gather(wait=False)

    async def _adopt(self, connection: asyncpg.Connection, pipe: Pipe) -> None:
        """Complete what Postgres has of the jobs that were open, or dead, before the mirror was on."""
        adopter = Adopter(connection, self._caller, self._keys)
        was_on = pipe.offset.on and pipe.offset.commits
        if was_on and not await adopter.wanted():
            return
        await self._take_in(adopter, pipe, seen=bool(was_on))
        pipe.offset = await offsets.turn_on(connection, pipe.offset)
        if not was_on:
            log.info("mirror %s: it is on: what Redis loses from now on comes back", self._name)

    async def _take_in(self, adopter: Adopter, pipe: Pipe, *, seen: bool) -> None:
        """What Redis has of jobs and the log has not told. `seen`: but for ends, which it has all told."""
        await pipe.drain(await self._log.last_id())
        adopted, dead = await adopter.run()
        if adopted:
            log.info("mirror %s: took in %d jobs that are older than it", self._name, adopted)
        if dead:
            log.info("mirror %s: took in %d dead letters that are older than it", self._name, dead)
        ended, unseen = (0, 0) if seen else await adopter.end_unseen()
        if ended:
            log.info("mirror %s: %d jobs ended while it was not on", self._name, ended)
        if unseen:
            log.warning(
                "mirror %s: %d jobs that Postgres has as open are not in Redis any more; they ended or were "
                "lost while the mirror was not on, and are not restored", self._name, unseen,
            )  # fmt: skip

    async def _pipe(self, connection: asyncpg.Connection) -> Pipe:
        """The way into Postgres, with the mirror switched on."""
        marker = await self._switch.marker() or secrets.token_hex(8)
        offset = await offsets.begin(connection, self._settings.namespace, self._keys.shard, marker)
        offset = await self._switch.settle(connection, offset)
        return Pipe(self._log, connection, offset, self._name, self.gauges, self._on_commit, self._pace)

    async def reconcile(self, *, dry_run: bool = False) -> Reconciled:
        """Bring Redis back to what Postgres knows, now. Raises PostgresUnavailable, ConnectionLost.

        Meant for whoever knows that Redis lost data; the mirror does it by itself on proof (D19).
        """
        self._caller.patience = PATIENCE_OF_PEOPLE
        connection = await connect(self._dsn)
        try:
            for _ in range(OVERTAKEN):
                with contextlib.suppress(Overtaken):
                    looking = await self._looking(connection)
                    pipe = looking if dry_run else await self._pipe(connection)
                    return await self._reconciler(connection, pipe).run(dry_run=dry_run)
            raise PostgresUnavailable("error", "other mirrors write all the time: stop them, and try again")
        except Exception as error:
            if passing(error):
                raise unavailable(error) from error
            raise
        finally:
            connection.terminate()
            await self._caller.close()

    async def _looking(self, connection: asyncpg.Connection) -> Pipe:
        """The way into Postgres as it stands, with nothing switched. Raises PostgresUnavailable when off."""
        offset = await offsets.read(connection, self._settings.namespace, self._keys.shard)
        if offset is None:
            raise PostgresUnavailable(
                "error", f"nothing of {self._settings.namespace} was ever mirrored here"
            )
        if not offset.on:
            raise PostgresUnavailable(
                "error",
                f"the mirror of {self._settings.namespace} is off: what Postgres has as open may have ended "
                "since, and would run again",
            )
        return Pipe(self._log, connection, offset, self._name, self.gauges, self._on_commit, self._pace)

    def _reconciler(self, connection: asyncpg.Connection, pipe: Pipe) -> Reconciler:
        return Reconciler(connection, self._caller, self._keys, pipe, self._log, self._switch, self._name)

    # --- beside the batches

    async def _chores(self, connection: asyncpg.Connection, pipe: Pipe) -> None:
        """Look whether Redis lost data, and for what is too old."""
        pipe.offset = await self._switch.settle(connection, pipe.offset)
        if pipe.offset.loss is not None:
            self.gauges.enter(State.RECONCILING, pipe.offset.loss)
            log.warning("mirror %s: Redis lost data: %s; restoring it", self._name, pipe.offset.loss)
            done = await self._reconciler(connection, pipe).run()
            log.warning("mirror %s: %s", self._name, done)
            self.gauges.enter(State.MIRRORING)
        elif pipe.missed:
            await self._take_in(Adopter(connection, self._caller, self._keys), pipe, seen=False)
            pipe.missed = False
        now = time.monotonic()
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_EVERY
            if await self._prune(connection, pipe):
                self._next_prune = 0.0

    async def _prune(self, connection: asyncpg.Connection, pipe: Pipe) -> bool:
        """Whether more is too old than could go now."""
        pipe.writer.forget_days()
        seconds, _ = await self._caller.command("TIME")
        # By the clock that is behind, Redis's or ours: what went too early does not come back.
        now = datetime.datetime.fromtimestamp(min(int(seconds), time.time()), datetime.UTC)
        pruned = await prune(
            connection,
            self._settings.namespace,
            keep=self._retention,
            now=now,
            seconds=PRUNE_SECONDS,
            after=self._pruned_to,
        )
        self._pruned_to = pruned.reached
        if pruned.conflicts or pruned.refused:
            log.warning(
                "mirror %s: %d rows of mirror_conflicts and %d of mirror_refused were too old, and went",
                self._name,
                pruned.conflicts,
                pruned.refused,
            )
        if pruned.days or pruned.jobs:
            log.info(
                "mirror %s: %d days of transitions and %d jobs were too old",
                self._name,
                len(pruned.days),
                pruned.jobs,
            )
        return pruned.more

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
