"""The relay: tells Redis of the requests that were committed to the outbox, each once, however often it dies.

Any number may run: rows are locked with SKIP LOCKED while they are told, and telling twice is harmless
while Redis has the job's record. A row that may have been told longer ago than a record lives is looked up
first (D19).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from streamworker.core.errors import (
    ConfigurationError,
    ConnectionLost,
    EnqueueRejected,
    OutcomeUnknown,
    StreamworkerError,
)
from streamworker.core.states import Disposition
from streamworker.outbox import depth, table
from streamworker.outbox.doubt import Doubt
from streamworker.outbox.gauges import Gauges
from streamworker.outbox.rows import CHANNEL, job_of
from streamworker.outbox.table import Row, Way
from streamworker.postgres import migrate
from streamworker.postgres.connection import (
    PostgresUnavailable,
    connect,
    is_pooled,
    passing,
    transaction,
    unavailable,
)
from streamworker.settings import Settings
from streamworker.store.caller import backoff
from streamworker.store.connection import Link, Opens, ReplyError
from streamworker.store.placing import Placed, chunked
from streamworker.store.queue import Queue
from streamworker.store.scripts import NewJob

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger("streamworker.outbox")

Pair = tuple[Row, NewJob]

#: Rows of one round.
BATCH = 500
#: Seconds between two looks when there was nothing.
POLL_EVERY = 0.2
#: Times that Redis may refuse a row by itself until it is put aside.
REFUSALS = 5
#: Seconds between two looks for what is too old, and at how much waits.
PRUNE_EVERY, MEASURE_EVERY = 600.0, 5.0
#: Rows that were told stay in the index until vacuum, which waits for each older transaction; a look
#: goes through them all. So most looks begin that many ids before the first row that waited, and one now and
#: then at the beginning: for rows that were committed late, that a relay died with, or that are retried.
MARGIN, LOOK_BACK_EVERY = 5000, 10.0
#: What looks from the beginning may take of the time.
SHARE = 1 / 20
#: Rows that go in one step. While there are more, each round takes one: it tells fewer than that.
PRUNED = 2000
#: Seconds between two attempts while a server is away, at most.
LONGEST_PAUSE = 5.0
#: Seconds that Redis may take to answer, and until it is asked again after it took no jobs.
PATIENCE, REST = 5.0, 1.0
DEFAULT_KEEP = datetime.timedelta(days=7)
#: Who listens behind PgBouncer hears nothing, unless the session is its own.
POOLED = (
    "connections are pooled, as by PgBouncer: where that is by transaction, nobody wakes a relay that listens"
)
#: Why a request waits that could be told.
BEHIND = "an earlier request of its entity is not told yet"
#: Reasons of a rejection that all of its lane and tenant meet, and nobody else.
_OF_ITS_WAY = frozenset({"throttled", "lane_full", "backlog_full"})
#: What stands for a job whose request was answered by another one.
_ENDED = {
    Disposition.DUPLICATE: "its key is held by job {0}, which has the same arguments",
    Disposition.CONFLICT: "its key is held by job {0}, which has other arguments",
}


class Relay:
    """Relays the outbox of one namespace: `await Relay(settings, dsn, name).run()`, until `stop`."""

    def __init__(
        self,
        settings: Settings,
        dsn: str,
        name: str,
        *,
        poll: float = POLL_EVERY,
        listen: bool = False,
        keep: datetime.timedelta = DEFAULT_KEEP,
        opens: Opens = Link,
    ) -> None:
        """`listen`: be woken by commits with `notify=True`; not through PgBouncer in transaction mode."""
        self._namespace = settings.namespace
        self._dsn = dsn
        self._name = name
        self._poll = poll
        self._listen = listen
        self._keep = keep
        self._queue = Queue(settings, patience=PATIENCE, opens=opens)
        self._doubt = Doubt(self._queue)
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._away = ""
        #: Of entities, the first request of this round that stays: those behind it have to.
        self._held: dict[str, int] = {}
        #: Until when, in monotonic seconds, requests of a lane and tenant are not tried again.
        self._closed: dict[Way, float] = {}
        self._ways: dict[int, Way] = {}  # of the requests of this round
        #: Behind those that were rejected there may be others: nobody rests before they are looked at.
        self._again = False
        self._next_prune = self._next_measure = self._next_look_back = self._rest = 0.0
        self._above = 0  # where looks begin
        self.gauges = Gauges()

    @property
    def published(self) -> int:
        """Rows that Redis was told of."""
        return self.gauges.relayed["published"]

    async def run(self) -> None:
        """Relay until `stop`. Survives every error of Postgres and Redis; raises ConfigurationError."""
        failures = 0
        try:
            while not self._stopping.is_set():
                before = self.published
                try:
                    await self._serve()
                    return
                except (PostgresUnavailable, ConnectionLost, OutcomeUnknown, ReplyError) as error:
                    self._tell(error)
                except ConfigurationError:
                    raise  # it stays as it is
                except Exception as error:
                    if not passing(error):
                        log.exception("relay %s", self._name)
                    self._tell(unavailable(error))
                    self.gauges.depth = None  # nobody can know
                failures = 1 if self.published > before else failures + 1
                await self._pause(min(LONGEST_PAUSE, 4 * backoff(failures)))
        finally:
            await self._queue.close()

    def stop(self) -> None:
        """Finish the round under way and end."""
        self._stopping.set()
        self._woken.set()

    def _tell(self, error: Exception) -> None:
        text = str(error)
        if text != self._away:
            log.warning("relay %s: %s; trying again until it works", self._name, text)
        self._away = self.gauges.problem = text

    async def _serve(self) -> None:
        connection = await connect(self._dsn)
        try:
            await migrate.require(connection)
            if self._listen:
                if await is_pooled(connection):
                    log.warning("relay %s: %s", self._name, POOLED)
                await connection.add_listener(CHANNEL, lambda *_: self._woken.set())
            begun = False
            while not self._stopping.is_set():
                self._woken.clear()
                self._rest = 0.0
                if time.monotonic() >= self._next_measure:
                    began = time.monotonic()
                    self.gauges.depth = await depth.measure(connection, self._namespace)
                    self._next_measure = _later(began, MEASURE_EVERY)
                told = await self.round(connection)
                if not begun:
                    begun = True
                    log.info("relay %s: relaying the outbox of %s", self._name, self._namespace)
                if self._rest == 0.0:  # else Redis took none
                    self._away = ""
                    self.gauges.worked()
                if time.monotonic() >= self._next_prune:
                    gone = await table.prune(connection, self._namespace, self._keep, PRUNED)
                    self._next_prune = 0.0 if gone >= PRUNED else time.monotonic() + PRUNE_EVERY
                if (self._rest or not told) and not self._again:
                    await self._pause(max(self._rest, self._poll))
        finally:
            # Cancelled or broken: a graceful good-bye may hang.
            connection.terminate()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await (self._woken if self._listen else self._stopping).wait()

    async def all(self, connection: asyncpg.Connection) -> int:
        """Rounds until nobody is left who could be told; returns how many are over. Raises what may pass."""
        await self._queue.caller.command("PING")  # a round gives up at the first connection that fails
        total = 0
        while (told := await self.round(connection)) or self._again:
            total += told
        return total

    async def close(self) -> None:
        """Let go of Redis, without `run`."""
        with contextlib.suppress(StreamworkerError):
            await self._queue.close()

    # --- a round

    async def round(self, connection: asyncpg.Connection) -> int:
        """Tell Redis of up to 500 rows; returns how many are over now. Raises what may pass."""
        began = time.monotonic()
        looks_back = began >= self._next_look_back
        above = 0 if looks_back else self._above
        waits = await table.pending(connection, self._namespace, above)
        if looks_back:
            self._next_look_back = _later(began, LOOK_BACK_EVERY)
            if not waits:
                self._above = max(0, await table.newest(connection) - MARGIN)
        if not waits:
            return 0
        await self._queue.caller.ready()  # else the mark would say that they may have been told
        now = time.monotonic()
        self._closed = {way: until for way, until in self._closed.items() if until > now}
        closed = len(self._closed)
        marked = await table.mark(connection, self._namespace, BATCH, self._closed, above)
        if marked and not closed:
            self._above = max(0, min(marked) - MARGIN)
        if not marked and closed:
            self._rest = min(self._closed.values()) - now
        over = await self._tell_of(connection, marked)
        full = len(marked) >= BATCH
        self._again = full and len(self._closed) > closed
        if not full and not closed:  # nobody is behind them
            self._closed = {}
        return over

    async def _tell_of(self, connection: asyncpg.Connection, marked: Mapping[int, bool]) -> int:
        async with transaction(connection):
            locked = await table.lock(connection, self._namespace, marked)
            rows, told, waiting = await self._doubt.judge(connection, locked)
            await table.done(connection, told, "ACCEPTED")
            await table.note(connection, waiting)
            self._held = {}
            for row in locked:
                if row.id in waiting:
                    self._hold(row)
            return len(told) + await self._publish(connection, rows)

    async def _in_order(self, connection: asyncpg.Connection, pairs: Sequence[Pair]) -> list[Pair]:
        """Those of whose entity no earlier request stays behind."""
        left = [row for row, _ in pairs if row.id > self._held.get(row.entity, row.id)]
        if not left:
            return list(pairs)
        await table.leave(connection, left)
        await table.note(connection, dict.fromkeys([row.id for row in left], BEHIND))
        stays = {row.id for row in left}
        return [pair for pair in pairs if pair[0].id not in stays]

    async def _publish(self, connection: asyncpg.Connection, rows: Sequence[Row]) -> int:
        """Tell Redis of these, in order; returns how many are over."""
        readable: list[Pair] = []
        for row in rows:
            try:
                readable.append((row, job_of(row.fields)))
            except (ValueError, TypeError) as error:
                await self._refuse(connection, row, str(error), at_once=True)
        over = len(rows) - len(readable)
        self._ways = {row.id: (job.lane, job.tenant) for row, job in readable}
        chunks = [chunk for part in _calls(readable) for chunk in chunked(part, lambda pair: pair[1])]
        for number, all_of_it in enumerate(chunks):
            chunk = await self._in_order(connection, all_of_it)
            if not chunk:
                continue
            try:
                placed = await self._queue.enqueuer.place([job for _, job in chunk])
            except ReplyError:
                over += await self._settle(connection, await self._halve(connection, chunk))
            except (ConnectionLost, EnqueueRejected) as error:
                # These were certainly not told, nor those behind them.
                left = [row for each in chunks[number:] for row, _ in each]
                await table.unmark(connection, [row for row in left if row.fresh])
                self._tell(error)
                self._rest = (error.retry_after if isinstance(error, EnqueueRejected) else None) or REST
                break
            else:
                rows_of_chunk = [row for row, _ in chunk]
                over += await self._settle(connection, list(zip(rows_of_chunk, placed, strict=True)))
        return over

    async def _halve(self, connection: asyncpg.Connection, pairs: Sequence[Pair]) -> list[tuple[Row, Placed]]:
        """What became of each, when Redis refuses some by themselves."""
        pairs = await self._in_order(connection, pairs)
        if not pairs:
            return []
        if len(pairs) == 1:
            row, job = pairs[0]
            try:
                (placed,) = await self._queue.enqueuer.place([job])
                if placed.disposition is Disposition.REJECTED:
                    self._hold(row)
                return [(row, placed)]
            except ReplyError as error:
                if not await self._refuse(connection, row, str(error)):
                    self._hold(row)
                return []
        half = len(pairs) // 2
        return await self._halve(connection, pairs[:half]) + await self._halve(connection, pairs[half:])

    async def _settle(self, connection: asyncpg.Connection, placed: Sequence[tuple[Row, Placed]]) -> int:
        by_answer: dict[str, list[Row]] = {}
        back: list[Row] = []
        for row, answer in placed:
            if answer.disposition is Disposition.REJECTED:
                back.append(row)
                self._hold(row)
                if answer.reason in _OF_ITS_WAY:
                    self._closed[self._ways[row.id]] = time.monotonic() + REST
            elif answer.disposition in _ENDED:
                await self._answered_by_another(connection, row, answer)
            else:
                by_answer.setdefault(answer.disposition, []).append(row)
        for disposition, rows in by_answer.items():
            await table.done(connection, rows, disposition)
            self.gauges.relayed["published"] += len(rows)
        await table.unmark(connection, [row for row in back if row.fresh])
        if back:
            self.gauges.relayed["rejected"] += len(back)
            log.warning("relay %s: %d requests were rejected for now", self._name, len(back))
            self._rest = REST
        return len(placed) - len(back)

    def _hold(self, row: Row) -> None:
        """Those behind it wait as well."""
        if row.entity:
            self._held[row.entity] = min(row.id, self._held.get(row.entity, row.id))

    async def _answered_by_another(self, connection: asyncpg.Connection, row: Row, answer: Placed) -> None:
        why = _ENDED[answer.disposition].format(answer.job_id)
        await table.end_job(connection, row, why)
        if answer.disposition is Disposition.CONFLICT:
            await self._refuse(connection, row, why, at_once=True)
        else:
            await table.done(connection, [row], f"{answer.disposition} {answer.job_id}")
            self.gauges.relayed["published"] += 1

    async def _refuse(
        self, connection: asyncpg.Connection, row: Row, why: str, *, at_once: bool = False
    ) -> bool:
        """Whether it is put aside, so that others of its entity go on."""
        over = at_once or row.fields["attempts"] >= REFUSALS
        await table.refuse(connection, row, why, over=over)
        if over:
            self.gauges.relayed["refused"] += 1
            log.error("relay %s: the request of job %s is put aside: %s", self._name, row.job_id, why)
        return over


def _later(began: float, seconds: float) -> float:
    """When to do again what was begun then, in monotonic seconds."""
    now = time.monotonic()
    return now + max(seconds, (now - began) / SHARE)


def _calls(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Requests that may be told in one call: nobody overtakes one of its entity that is rejected.

    In the same lane and of the same tenant, the next is rejected as well.
    """
    call: list[Pair] = []
    ways: dict[str, tuple[str, str]] = {}
    for row, job in pairs:
        way = job.lane, job.tenant
        if row.entity and ways.setdefault(row.entity, way) != way:
            yield call
            call, ways = [], {row.entity: way}
        call.append((row, job))
    if call:
        yield call


async def relay_all(settings: Settings, dsn: str, name: str) -> int:
    """Tell Redis of all that waits now; returns of how many. For tests and scripts."""
    relay = Relay(settings, dsn, name)
    connection = await connect(dsn)
    try:
        return await relay.all(connection)
    finally:
        await connection.close()
        await relay.close()
