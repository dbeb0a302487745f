"""The keeper: brings due jobs back, recovers what a dead worker held, looks for what is nowhere.

Any worker may do it, and however often, the result is the same: the scripts decide. The election only
saves work (R4); losing it changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from streamworker.app import App
from streamworker.core.admission import high_water
from streamworker.core.errors import StreamworkerError
from streamworker.core.job import Candidate
from streamworker.core.lanes import Lane
from streamworker.core.outcome import Fail, Retry
from streamworker.core.overrides import RetryOverrides
from streamworker.core.retry import Burial, decide_recovery
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import scripts, settle_rows
from streamworker.store.caller import Caller, Timed, backoff, passes
from streamworker.store.connection import Argument, Link, Opens, ReplyError
from streamworker.store.depths import lanes_at_work
from streamworker.store.keys import GROUP, STREAM_SUFFIX, Keys
from streamworker.store.server import NO_EVICTION, eviction_policy, evicts
from streamworker.worker import folding
from streamworker.worker.breakers import BreakerWatch
from streamworker.worker.log_bound import LogBound
from streamworker.worker.pressure import PressureGauge

log = logging.getLogger("streamworker.worker")

#: Seconds between two looks at the schedule.
PROMOTE_EVERY = 0.1
#: Seconds after which who is no keeper asks again whether to be it, at most: a large fleet rests in silence.
ASK_EVERY = 0.5
#: Due jobs that one call moves at most: 500 took up to 11 ms of Redis's time, and expiring them 28, as
#: measured on the three servers; 100 take 2 and 6 (R32).
PROMOTE_COUNT = 100
#: Seconds between two looks at the timers of gates at least: a rate is kept up by steps of this length.
WAKE_EVERY = 0.01
#: Timers of gates that one call serves at most.
WAKE_COUNT = 50
#: Jobs of the backlog that one call moves at most.
DRAIN_COUNT = 100
#: Entries that one sweep call looks at (R5).
SWEEP_COUNT = 100
#: Sweep calls for one stream in one pass; the cursor is kept, the next pass goes on from there.
SWEEP_CALLS = 50
#: Job keys that one step of the slow scan asks for.
SCAN_COUNT = 200
#: Dead letters that one call removes at most, and calls in one pass: a lease later the next goes on.
TRIM_COUNT, TRIM_CALLS = 100, 20


class Keeper:
    """The background steps of one namespace, as one worker does them."""

    def __init__(self, app: App, worker: str, *, opens: Opens = Link) -> None:
        settings = app.settings
        self._app = app
        self._worker = worker
        self._lanes: Mapping[str, Lane] = app.lanes
        self._others: list[str] = []  # lanes that this app has not, and that workers hold jobs of
        self._keys = Keys(settings.namespace)
        self._caller = Caller(settings.redis_url, self._keys.tag, patience=settings.lease, opens=opens)
        self._high_waters: list[Argument] = [
            word for name, lane in app.lanes.items() for word in (name, high_water(lane))
        ]
        self._log = LogBound(self._keys, self._caller)
        self._gauge = PressureGauge(app.lanes, self._keys, self._caller)
        self.breakers = BreakerWatch(app.breakers(), self._keys, self._caller)
        self._lease_ms = settings.lease_ms
        self._sweep_every = settings.lease / 6
        # Shorter than a third of a lease, so that a new keeper's first sweep is no outage (D6).
        self._term_ms = max(200, min(3000, settings.lease_ms // 4))
        self._stopping = asyncio.Event()
        #: Its last round is over.
        self.ended = asyncio.Event()
        self._scan_cursor = 0
        self._refused: set[str] = set()  # steps that the server refuses, and that this was said of
        self._policy: str | None = NO_EVICTION  # of the server, as last seen
        self._opens_in = PROMOTE_EVERY  # seconds until the next gate may open, as last heard
        self._next_sweep = 0.0
        self._next_tidy = 0.0
        self.recovered = 0
        self.promoted = 0
        #: What operators have set of the tasks' retries.
        self.retries = RetryOverrides()
        #: Told of each job that was taken back from a dead worker, what becomes of it, and the reply.
        self.on_recovered: Callable[[Candidate, Retry | Fail, bytes], None] | None = None

    @property
    def link(self) -> Link:
        """Its connection."""
        return self._caller.link

    @property
    def caller(self) -> Caller:
        """Its connection, for what others look at beside it."""
        return self._caller

    def timed(self, told: Timed) -> None:
        """Let somebody hear how long its calls take."""
        self._caller.timed = told

    async def run(self) -> None:
        """Keep until `stop`. Survives any error: a loop that ends would stop all retries silently (R32)."""
        try:
            await self._keep()
        finally:
            self.ended.set()

    async def _keep(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            keeps = False
            try:
                keeps = await self.elected("keeper")
                await self.breakers.look(say=keeps)
                if keeps:
                    await self.tick()
                failures = 0
            except StreamworkerError as error:
                failures += 1
                if failures == 1:
                    log.warning("keeper: %s", error)
            except Exception:
                failures += 1
                log.exception("keeper")
            next_in = self._next_in(keeps)
            await self._pause(max(next_in, backoff(failures)) if failures else next_in)

    def _next_in(self, keeps: bool) -> float:
        if keeps:
            return min(PROMOTE_EVERY, max(WAKE_EVERY, self._opens_in))
        return max(PROMOTE_EVERY, min(ASK_EVERY, self._term_ms / 4000))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    def stop(self) -> None:
        self._stopping.set()

    async def close(self) -> None:
        await self._caller.close()

    async def elected(self, role: str) -> bool:
        """Whether this worker does the work of `role` now."""
        call = scripts.elect(role=role, worker=self._worker, ttl_ms=self._term_ms)
        return bool(await self._caller.run(call))

    async def tick(self) -> None:
        """One round: promote always, the rest each sixth of a lease."""
        for always in (self.promote, self.wake, self.drain, self._gauge.look):
            await self._unless_refused(always)
        now = asyncio.get_running_loop().time()
        if now < self._next_sweep:
            return
        self._next_sweep = now + self._sweep_every
        for lane in self._swept():
            for kind in STREAM_SUFFIX:
                await self._unless_refused(self.sweep, lane, kind)
        await self._unless_refused(self.repair)
        if now >= self._next_tidy:
            self._next_tidy = now + self._lease_ms / 1000
            for step in (
                self._watch_eviction,
                self._look_for_others,
                self._forget_dead_consumers,
                self._log.trim,
                self.fold_counters,
                self.trim_letters,
            ):
                await self._unless_refused(step)

    async def _unless_refused(self, step: Callable[..., Awaitable[None]], *about: str) -> None:
        """A step that the server refuses, or that fails, keeps no other from being done (asynq#1140)."""
        name = " ".join((step.__qualname__, *about))
        try:
            await step(*about)
        except Exception as error:
            refused = isinstance(error, ReplyError) and not passes(error)
            if isinstance(error, StreamworkerError) and not refused:
                raise
            if name not in self._refused:
                self._refused.add(name)
                log.warning("keeper: %s is left out: %s", name, error, exc_info=not refused)
        else:
            self._refused.discard(name)

    async def promote(self) -> None:
        """Due jobs to ready, until none is left or a sweep is due; each call is short (R32).

        A mountain of due jobs must not hold sweeps up for so long that they look like an outage (D6).
        """
        while True:
            call = scripts.promote(
                clock="", worker=self._worker, retention_ms=scripts.RETENTION_MS, limit=PROMOTE_COUNT
            )
            promoted, _, _, more = await self._caller.run(call)
            self.promoted += promoted
            if not more:
                return
            if asyncio.get_running_loop().time() >= self._next_sweep:
                return

    async def wake(self) -> None:
        """Gates whose time has come let their waiters in; notes how soon the next may open."""
        while True:
            call = scripts.wake(
                clock="", worker=self._worker, retention_ms=scripts.RETENTION_MS, limit=WAKE_COUNT
            )
            served, opens_in_ms = await self._caller.run(call)
            self._opens_in = int(opens_in_ms) / 1000 if opens_in_ms else PROMOTE_EVERY
            if served < WAKE_COUNT or asyncio.get_running_loop().time() >= self._next_sweep:
                return

    async def drain(self) -> None:
        """As much of the backlog into the lanes as there are tokens and room."""
        while True:
            call = scripts.drain(
                clock="",
                worker=self._worker,
                retention_ms=scripts.RETENTION_MS,
                limit=DRAIN_COUNT,
                rows=self._high_waters,
            )
            drained, again_in_ms = await self._caller.run(call)
            if again_in_ms:
                self._opens_in = min(self._opens_in, int(again_in_ms) / 1000)
            if drained < DRAIN_COUNT or asyncio.get_running_loop().time() >= self._next_sweep:
                return

    async def sweep(self, lane: str, kind: str) -> None:
        """One pass over one stream, and the fate of what it found dead."""
        for _ in range(SWEEP_CALLS):
            call = scripts.recover(
                clock="",
                worker=self._worker,
                lease_ms=self._lease_ms,
                retention_ms=scripts.RETENTION_MS,
                lane=lane,
                kind=kind,
                count=SWEEP_COUNT,
            )
            _, complete, found = await self._caller.run(call)
            await self._settle(Candidate.parse(line) for line in found)
            if complete:
                return

    async def repair(self) -> None:
        """One step of the slow scan over all records, for jobs that are nowhere (D3, D8)."""
        cursor, keys = await self._caller.command(
            "SCAN", self._scan_cursor, "MATCH", self._keys.job("*"), "COUNT", SCAN_COUNT
        )
        self._scan_cursor = int(cursor)
        if not keys:
            return
        prefix = len(self._keys.job(""))
        for start in range(0, len(keys), scripts.BATCH):
            ids = [key.decode()[prefix:] for key in keys[start : start + scripts.BATCH]]
            call = scripts.repair(clock="", worker=self._worker, retention_ms=scripts.RETENTION_MS, rows=ids)
            mended, found = await self._caller.run(call)
            if mended:
                log.warning("%d jobs were in no stream and no schedule; put right", mended)
            await self._settle(Candidate.parse(line) for line in found)

    async def _settle(self, candidates: Iterable[Candidate]) -> None:
        """Decide in Python, commit through settle, which refuses what came back to life meanwhile (D6)."""
        rows: list[Argument] = []
        found = [(candidate, self.fate(candidate)) for candidate in candidates]
        for candidate, fate in found:
            rows.extend(settle_rows.recovery_row(candidate, fate))
        if not rows:
            return
        call = scripts.settle(
            clock="",
            actor=self._worker,
            lease_ms=self._lease_ms,
            retention_ms=scripts.RETENTION_MS,
            rows=rows,
        )
        for (candidate, fate), reply in zip(found, await self._caller.run(call), strict=True):
            if reply.startswith(b"OK"):
                self.recovered += 1
                if self.on_recovered is not None:
                    self.on_recovered(candidate, fate, reply)
                log.warning(
                    "job %s of task %s: its worker %s is gone; recovered from %s (strike %d)",
                    candidate.job_id,
                    candidate.task,
                    candidate.worker,
                    candidate.status,
                    candidate.strikes + 1,
                )

    def fate(self, candidate: Candidate) -> Retry | Fail:
        """What becomes of a claim whose worker is gone."""
        task = self._app.tasks.get(candidate.task)
        decision = decide_recovery(
            None if task is None else task.policy.retry,
            job_id=candidate.job_id,
            status=candidate.status,
            attempt=candidate.attempt,
            strikes=candidate.strikes,
            override=self.retries.of(candidate.task),
        )
        text = f"worker {candidate.worker} stopped while it held the job"
        if isinstance(decision, Burial):
            return Fail(ErrorClass.UNKNOWN, decision.code, text, Reason.RECOVERED)
        return Retry(
            decision.delay_ms, ErrorClass.UNKNOWN, "worker_lost", text, decision.policy, Reason.RECOVERED
        )

    def _swept(self) -> list[str]:
        return [*self._lanes, *self._others]

    async def _look_for_others(self) -> None:
        """Lanes of which a worker of another release holds jobs: a deploy took them away, or added them."""
        self._others = sorted(await lanes_at_work(self._caller.command, self._keys) - self._lanes.keys())

    async def _watch_eviction(self) -> None:
        """Somebody may change the server's policy while workers run (R39): said loudly, at each change."""
        link = await self._caller.ready()
        policy = await eviction_policy(link)
        if policy not in (None, NO_EVICTION, self._policy):
            log.critical("%s; set `maxmemory-policy %s`", evicts(link, policy or ""), NO_EVICTION)
        self._policy = policy

    async def _forget_dead_consumers(self) -> None:
        """Names of workers that are gone, with nothing pending (R6, R7); the script checks both again."""
        known = [name.decode() for name in await self._caller.command("HKEYS", self._keys.workers)]
        idle = {name for name in known if not await self._caller.command("EXISTS", self._keys.worker(name))}
        for lane in self._swept():
            for kind in STREAM_SUFFIX:
                try:
                    stream = self._keys.stream(lane, kind)
                    found = await self._caller.command("XINFO", "CONSUMERS", stream, GROUP)
                except ReplyError as error:
                    if "NOGROUP" in str(error) or "no such key" in str(error):
                        continue  # nobody has read from it yet
                    raise
                for flat in found:
                    consumer = dict(zip(flat[::2], flat[1::2], strict=True))
                    if consumer[b"pending"] == 0:
                        idle.add(consumer[b"name"].decode())
        for worker in sorted(idle - {self._worker}):
            await self._caller.run(scripts.forget(worker=worker, leave=0, rows=self._swept()))

    async def trim_letters(self) -> None:
        """Dead letters that are too old, or too many, go; with a mirror only those that it has committed."""
        settings = self._app.settings
        for _ in range(TRIM_CALLS):
            call = scripts.dlq_trim(
                clock="",
                worker=self._worker,
                retention_ms=scripts.RETENTION_MS,
                max_age_ms=round(settings.dlq_max_age * 1000),
                max_count=settings.dlq_max_count,
                limit=TRIM_COUNT,
            )
            removed, aged, more = await self._caller.run(call)
            if removed:
                log.warning(
                    "%d dead letters removed for good: %d of them were too old, the others too many",
                    removed,
                    aged,
                )
            if not more:
                return

    async def fold_counters(self) -> None:
        """Counters of tasks and error codes that somebody made up become one, once there are many (R48)."""
        await folding.fold(
            self._caller, self._keys, {name: task.policy for name, task in self._app.tasks.items()}
        )
