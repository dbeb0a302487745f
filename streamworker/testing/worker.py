"""The worker of a test: it claims, runs and settles when it is told to, by the test's clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from streamworker.app import App
from streamworker.core.admission import high_water
from streamworker.core.job import Claim
from streamworker.store import scripts, settle_rows
from streamworker.store.connection import Argument
from streamworker.store.keys import Keys
from streamworker.store.scripts import BATCH, RETENTION_MS
from streamworker.testing.links import Shard
from streamworker.testing.records import Records
from streamworker.testing.seen import Witness
from streamworker.testing.source import Drains
from streamworker.worker.calls import Calls
from streamworker.worker.ends import Ends
from streamworker.worker.runner import Runner
from streamworker.worker.running import Running, Stop

WORKER = "test"
#: Real seconds between two looks at time limits and cancellations while handlers run.
LOOK_EVERY = 0.01
#: Timers of gates that one call serves.
WOKEN = 100
#: Calls in a row that find nothing before nothing is due: with few slots, one reads a part of the streams.
LOOKS = 3
#: Attempts in one `drain`, at most: jobs that enqueue each other for ever are a fault of the test.
MOST_ATTEMPTS = 10_000


class HandWorker:
    """Runs the jobs of one shard, in the test's event loop. The witness is shown each job that it claims."""

    def __init__(
        self,
        app: App,
        shard: Shard,
        keys: Keys,
        witness: Witness,
        drains: Drains,
        records: Records,
        *,
        concurrency: int,
        lease_ms: int,
        state: Any,
    ) -> None:
        self._app = app
        self._drains = drains
        self._records = records
        self._clock = shard.clock
        self._shard = shard
        self._keys = keys
        self._witness = witness
        self._concurrency = concurrency
        self._lease_ms = lease_ms
        self._loop = asyncio.get_running_loop()
        self._calls = Calls(app.breakers(), lambda: None)
        self._runner = Runner(
            app,
            threads=concurrency,
            ended=self._ended,
            freed=self._freed,
            called=lambda dependency, result, _: self._calls.count(dependency, result),
        )
        self._runner.enter(state)
        self._ends = Ends()
        self._session = 0
        self._held: dict[str, Running] = {}
        self._outbox: list[Running] = []
        self._marks: list[Running] = []
        self._busy = 0
        self._attempts = 0
        #: Cached values that settled jobs have made old.
        self._stale: set[str] = set()
        self._changed = asyncio.Event()
        self._high_waters = [word for name, lane in app.lanes.items() for word in (name, high_water(lane))]
        self._declare_bounds()

    def _declare_bounds(self) -> None:
        """What lanes and gates let in, as a worker says it. The backlog is drained as there is room."""
        bounds = {**self._app.limits(), **self._app.bounds(), "drain": "1000000,1000,1000000"}
        rows = [word for bound in bounds.items() for word in bound]
        self._shard.run(scripts.declare(clock="", lanes=" ".join(self._app.lanes), rows=rows))

    async def drain(self, *, until_idle: bool, patience: float) -> int:
        """As `Harness.drain`, `patience` in seconds."""
        if self._drains.under_way:
            raise RuntimeError("another drain is running: await it first")
        self._drains.under_way = True
        before = self._attempts
        quiet_until = self._loop.time() + patience
        looks = 0
        try:
            while True:
                if self._attempts - before > MOST_ATTEMPTS:
                    raise AssertionError(f"{MOST_ATTEMPTS} attempts and no end: do jobs enqueue each other?")
                await asyncio.sleep(0)
                self._promote()
                ended = bool(self._outbox)
                claimed = self._exchange()
                if claimed or ended:
                    quiet_until = self._loop.time() + patience
                if self._stale:
                    stale, self._stale = self._stale, set()
                    await self._app.cache.invalidate(*stale)
                if claimed or self._outbox or await self._records.relay():
                    looks = 0
                    continue
                if any(running.occupies for running in self._held.values()):
                    if self._loop.time() >= quiet_until:
                        raise AssertionError(self._still_running())
                    await self._look()
                elif looks < LOOKS:  # a call with few slots may look at one stream of a lane only
                    looks += 1
                elif not (until_idle and self._move_to_next()):
                    return self._attempts - before
        finally:
            self._drains.end()

    def _promote(self) -> None:
        more = True
        while more:
            call = scripts.promote(clock="", worker=WORKER, retention_ms=RETENTION_MS, limit=BATCH)
            _, _, _, more = self._shard.run(call)
        call = scripts.drain(
            clock="", worker=WORKER, retention_ms=RETENTION_MS, limit=BATCH, rows=self._high_waters
        )
        while self._shard.run(call)[0] == BATCH:
            pass
        call = scripts.wake(clock="", worker=WORKER, retention_ms=RETENTION_MS, limit=WOKEN)
        while self._shard.run(call)[0] == WOKEN:
            pass

    def _move_to_next(self) -> bool:
        """Move the clock to the next time at which a job is due or expires; False when there is none."""
        nearest: list[float] = []
        for name in (self._keys.schedule, self._keys.deadlines, self._keys.timers):
            found = self._shard.command("ZRANGE", name, 0, 0, "WITHSCORES")
            nearest.extend(at for score in found[1::2] if (at := float(score)) < math.inf)
        if not nearest:
            return False
        self._clock.advance_ms(max(0, int(min(nearest)) - self._clock.ms))
        return True

    def _exchange(self) -> bool:
        """Settle what ended and claim for the free slots; whether anything was claimed."""
        free = max(0, self._concurrency - self._busy)
        settled, self._outbox = self._outbox[:BATCH], self._outbox[BATCH:]
        marks, self._marks = self._marks, []
        call = scripts.exchange(
            clock="",
            worker=WORKER,
            session=self._session,
            lease_ms=self._lease_ms,
            retention_ms=RETENTION_MS,
            limit=free,
            shared=free,
            offers="",
            plan="\n".join(f"{lane} 0 {free} 0" for lane in self._app.lanes) if free else "",
            calls=self._calls.take(),
            rows=list(self._rows(settled, marks)),
        )
        verdict, claims, replies = self._shard.run(call)
        self._ends.exchanged(settled, replies, [], {})
        for running in settled:
            self._stale |= running.stale or set()
            self._let_go(running)
        if verdict.split(b" ")[0] != b"OK":  # what follows tells of gates and lanes
            own = scripts.session(worker=WORKER, own=self._session, liveness_ms=10**12, rows=("app", "test"))
            self._session = int(self._shard.run(own))
            return True  # asked once more, under the new session
        for i in range(0, len(claims), 3):
            self._begin(Running(Claim.parse(claims[i], claims[i + 1], claims[i + 2])))
        return bool(claims)

    def _rows(self, settled: list[Running], marks: list[Running]) -> Iterator[Argument]:
        now = self._now()
        for running in settled:
            if running.outcome is not None:
                ago = None if running.started is None else max(0, round((now - running.started) * 1000))
                yield from settle_rows.outcome_row(running.claim, running.outcome, ago)
        for running in marks:
            if running.outcome is None and running.started is not None:
                yield from settle_rows.mark_row(running.claim, max(0, round((now - running.started) * 1000)))

    def _begin(self, running: Running) -> None:
        self._attempts += 1
        self._witness.keep(running.claim.job_id, running.claim.envelope)
        self._held[running.claim.job_id] = running
        if self._runner.start(running):
            self._busy += 1
            # The runner measures by the loop's clock; here time is that clock and how far ours was moved.
            moved = self._clock.moved_seconds
            running.started = (running.started or 0.0) + moved
            running.stop_at += moved

    def _now(self) -> float:
        return self._loop.time() + self._clock.moved_seconds

    async def _look(self) -> None:
        """Wait for a handler, but not for long; then see to time limits, cancellations and lost claims."""
        self._changed.clear()
        try:
            async with asyncio.timeout(LOOK_EVERY):
                await self._changed.wait()
            return
        except TimeoutError:
            pass
        held = [running for running in self._held.values() if running.outcome is None]
        self._runner.sweep(held, self._now(), self._marks.append)
        call = scripts.heartbeat(
            clock="",
            worker=WORKER,
            lease_ms=self._lease_ms,
            liveness_ms=10**12,
            rows=[word for running in held for word in running.key],
        )
        _, lost, flags = self._shard.run(call)
        gone = {word.decode() for word in lost}
        cancelled = dict(zip(flags[::2], flags[1::2], strict=True))
        for running in held:
            job_id = running.claim.job_id
            if job_id in gone:
                running.tell(Stop.LOST, self._now())
            elif code := cancelled.get(job_id.encode()):
                running.tell(Stop.EXPIRED if code == b"expired" else Stop.CANCELLED, self._now())

    def _ended(self, running: Running) -> None:
        self._changed.set()
        if running.stopping is Stop.LOST:
            self._let_go(running)
        else:
            self._outbox.append(running)

    def _freed(self, running: Running) -> None:
        self._changed.set()
        self._busy -= 1
        if running.outcome is not None and running not in self._outbox:
            self._let_go(running)

    def _let_go(self, running: Running) -> None:
        if not running.occupies and self._held.get(running.claim.job_id) is running:
            del self._held[running.claim.job_id]

    def _still_running(self) -> str:
        names = [f"{each.task_name} (job {each.claim.job_id})" for each in self._held.values()]
        return (
            f"still running: {', '.join(names)}. A handler that waits for the clock needs "
            "`asyncio.create_task(t.drain())` and then `t.clock.advance(...)`"
        )

    async def end(self) -> None:
        """Stop what still runs; its jobs go with the test."""
        for running in self._held.values():
            running.tell(Stop.SHUTDOWN, self._now())
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while any(running.occupies for running in self._held.values()):
                    self._changed.clear()
                    await self._changed.wait()
        effecting = self._runner.handlers.effecting
        self._records.effects = effecting.in_use
        await effecting.close()
        self._runner.close()
        self._calls.close()
