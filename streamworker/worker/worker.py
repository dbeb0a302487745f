"""One worker process: puts the parts together, starts them in order, stops them so that nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

import streamworker
from streamworker.app import App
from streamworker.core import durations
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError, InvalidArgument, StreamworkerError
from streamworker.core.lane import BACKLOG, Lane
from streamworker.core.overrides import RetryOverrides
from streamworker.flow.dependency import Result
from streamworker.flow.renewals import Renewals
from streamworker.settings import DEFAULT_GRACE
from streamworker.store import limits, manifest
from streamworker.store.keys import Keys
from streamworker.store.server import check_server, claim_namespace
from streamworker.telemetry import transitions
from streamworker.telemetry.status import Status
from streamworker.worker import origin, own_loop, stall
from streamworker.worker.children import Children
from streamworker.worker.crons import Crons
from streamworker.worker.heartbeat import Heartbeat
from streamworker.worker.identity import new_worker_id
from streamworker.worker.keeper import Keeper
from streamworker.worker.process import surroundings
from streamworker.worker.pump import Pump
from streamworker.worker.quarantine import Quarantine
from streamworker.worker.reader import Reader
from streamworker.worker.runner import Runner
from streamworker.worker.running import Running, Stop
from streamworker.worker.session import Session
from streamworker.worker.starting import Starting, Stopped
from streamworker.worker.steering import Steering
from streamworker.worker.wedge import Wedge

if TYPE_CHECKING:
    from streamworker.worker.telling import Telling
    from streamworker.worker.watcher import Watcher

log = logging.getLogger("streamworker.worker")

DEFAULT_CONCURRENCY = 32
#: Seconds between two looks at time limits and start marks: marks are out within 100 ms (D20).
SWEEP_EVERY = 0.05
#: Seconds for what is still to be told to Redis once the handlers have ended.
FAREWELL = 10.0


class Worker:
    """Runs an app's tasks: `Worker(app, concurrency=64).run()`.

    `run` blocks, handles SIGTERM and SIGINT and returns the exit code; `serve` runs inside a loop of your
    own, until `stop` or cancellation. A worker serves once. On the first signal it stops claiming, waits up
    to `grace` for what runs, hands back the rest uncharged, and ends; a second signal does so at once.

    `processes_for_tasks` is how many child processes run the jobs of tasks that have `run_in="process"`; by
    default one for each processor, but no more than slots. They are started when they are needed.

    `metrics_port` and `metrics_host` are for `run`: where probes and scrapes are answered over HTTP. By
    default that is where `STREAMWORKER_METRICS_PORT` and `STREAMWORKER_METRICS_HOST` say, else nowhere.
    """

    def __init__(
        self,
        app: App,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        lanes: Sequence[str] | None = None,
        grace: Duration = DEFAULT_GRACE,
        metrics_port: int | None = None,
        metrics_host: str | None = None,
        processes_for_tasks: int | None = None,
    ) -> None:
        origin.refuse_while_loading()
        if type(concurrency) is not int or concurrency < 1:
            raise ConfigurationError(f"concurrency must be 1 or more, not {concurrency!r}")
        self.app = app
        self.concurrency = concurrency
        chosen = list(app.lanes) if lanes is None else list(dict.fromkeys(lanes))
        if not chosen:
            raise ConfigurationError("a worker needs at least one lane")
        if BACKLOG in chosen:
            raise InvalidArgument("lane", BACKLOG, "is served by no worker: it is drained into the others")
        self.lanes = {app.check_lane(lane, "lane"): app.lanes[lane] for lane in chosen}
        self.grace = durations.parse(grace, what="grace")
        if processes_for_tasks is None:
            processes_for_tasks = min(concurrency, os.cpu_count() or 1)
        if type(processes_for_tasks) is not int or processes_for_tasks < 1:
            raise ConfigurationError(f"processes_for_tasks must be 1 or more, not {processes_for_tasks!r}")
        self.processes_for_tasks = processes_for_tasks
        self.metrics_port = metrics_port
        self.metrics_host = metrics_host
        #: Told what happens here; None: nobody asked for it.
        self.telling: Telling | None = None
        self.id = new_worker_id()
        self._pid = os.getpid()
        self._served = False
        #: Set once the worker claims jobs.
        self.started = asyncio.Event()
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._starting = Starting()
        self._deaf = 0  # handlers that were still there at the end
        self._alone = False  # it has its process to itself
        self._code = 0  # of this process

    def run(self) -> int:
        """Run until a signal; 0 when everything was settled or handed back. Raises ServerUnsuitable.

        1 when it ended by itself, since for minutes each slot was taken by a handler that does not end.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError(
                "run() hears signals, which only the main thread can: await serve() there"
            )
        self._alone = True
        if left := own_loop.run(self._run_with_signals(), slots=self.concurrency):
            self._leave(f"{left} threads, tasks or processes that handlers began")
        return self._code

    async def _run_with_signals(self) -> None:
        async with (
            self.app,
            surroundings(self, metrics_port=self.metrics_port, metrics_host=self.metrics_host),
        ):
            await self.serve()
        if self._deaf:
            self._leave(f"{self._deaf} handlers")

    def _leave(self, who: str) -> NoReturn:
        # A thread cannot be stopped and a coroutine may swallow its cancellation (R23): the interpreter
        # would wait for them for ever. All that can be told to Redis has been told.
        log.warning("worker %s: %s did not end; leaving without them", self.id, who)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._code)

    def stop(self) -> None:
        """Stop claiming and end gracefully; the second call ends at once."""
        if self._stopping.is_set():
            log.warning("worker %s: second signal, ending at once", self.id)
            self._at_once.set()
        else:
            log.info("worker %s: stopping, up to %g s for what runs", self.id, self.grace)
            self._stopping.set()
            self._starting.end()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def give_up(self) -> None:
        """No slot becomes free any more: another process would do better."""
        if self._alone and not self.stopping:
            log.error("worker %s: ends, so that another one can begin", self.id)
            self._code = 1
            self.stop()

    async def serve(self) -> None:
        """Claim and run jobs until `stop`. Raises ServerUnsuitable or ConnectionLost at the start only.

        Raises ConfigurationError the second time: two lives under one name would be taken for one.
        """
        if self._pid != os.getpid():  # made before a fork: both sides would have the same name (R7, R27)
            self.id, self._pid, self._served = new_worker_id(), os.getpid(), False
            self._starting = Starting()
        if self._served:
            raise ConfigurationError(f"worker {self.id} has served already: make another Worker")
        self._served = True
        parts = _Parts(self)
        async with AsyncExitStack() as stack:
            try:
                state = await self._starting.enter(stack, self.app.lifespan(self.app))
            except Stopped:
                return
            parts.runner.handlers.state = state
            try:
                await parts.open()
                self.started.set()
                async with anyio.create_task_group() as group:
                    group.start_soon(parts.reader.run)
                    group.start_soon(parts.keeper.run)
                    group.start_soon(parts.crons.run)
                    group.start_soon(parts.steering.run)
                    group.start_soon(parts.sweep)
                    group.start_soon(parts.quarantine.run)
                    if parts.watcher is not None:
                        group.start_soon(parts.watcher.run)
                    try:
                        await self._stopping.wait()
                    finally:
                        # Cancelled from outside: anyio would cancel each await again (R20).
                        with anyio.CancelScope(shield=True):
                            await parts.farewell()
                        group.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await parts.close()


class _Parts:
    """The parts of a serving worker, made in its loop."""

    def __init__(self, worker: Worker) -> None:
        settings = worker.app.settings
        self.worker = worker
        self.telling = worker.telling
        locked = None if self.telling is None else self.telling.metrics.locked
        self.struck = Children(worker.app, 1, called=self._called, locked=locked)
        self.processes = Children(worker.app, worker.processes_for_tasks, called=self._called, locked=locked)
        self.runner = Runner(
            worker.app,
            threads=worker.concurrency,
            ended=self._ended,
            freed=self._freed,
            quarantine=self.struck,
            processes=self.processes,
            called=self._called,
            locked=locked,
            quiet=transitions.wanted(),
            renewals=Renewals(settings.redis_url, Keys(settings.namespace).tag),
        )
        session = Session(
            settings,
            worker.id,
            worker.lanes,
            {
                "app": worker.app.name,
                "host": socket.gethostname(),
                "pid": str(os.getpid()),
                "lanes": ",".join(worker.lanes),
                "concurrency": str(worker.concurrency),
                "version": streamworker.__version__,
                "lease_ms": str(settings.lease_ms),
                "started_at": str(time.time_ns() // 1_000_000),
            },
        )
        self.pump = Pump(
            settings,
            worker.lanes,
            worker.concurrency,
            session,
            start=self.runner.start,
            breakers=worker.app.breakers(),
        )
        self.reader = Reader(settings, self.pump)
        self.heartbeat = Heartbeat(settings, self.pump, on_session_lost=self.pump.session_lost)
        self.keeper = Keeper(worker.app, worker.id)
        self.crons = Crons(worker.app, worker.id)
        self.steering = Steering(
            worker.lanes,
            Keys(settings.namespace),
            self.keeper.caller,
            on_slots=self._share_slots,
            on_retries=self._calm_retries,
        )
        self.quarantine = Quarantine(self.pump, self.keeper, self.struck, tuple(worker.lanes))
        self.watcher: Watcher | None = None
        self.wedge = Wedge(worker.id, worker.concurrency)
        self._long: list[Running] = []  # ended since the last sweep, after a second or more
        self._dropping: set[asyncio.Task[Any]] = set()
        self.pump.on_stale = self._drop
        worker.app.cache.loop = asyncio.get_running_loop()
        if self.telling is not None:
            self.pump.tellers.append(self.telling.metrics)
            self.keeper.timed(self.telling.metrics.answered)
            worker.app.cache.told = self.telling.metrics.cached
            self.watcher = self.telling.watcher(worker)
        if transitions.wanted():
            lines = transitions.Transitions(worker.id)
            self.pump.tellers.append(lines)
            self.keeper.on_recovered = lines.recovered

    def _ended(self, running: Running) -> None:
        running.ended = time.monotonic()
        if running.started is not None and running.ended - running.started >= stall.STALL:
            self._long.append(running)
        if running.stopping is Stop.LOST and self.telling is not None:
            self.telling.metrics.lost(running)
        self.pump.ended(running)

    def _called(self, dependency: str, result: Result, seconds: float) -> None:
        self.pump.calls.count(dependency, result)
        if self.telling is not None:
            self.telling.metrics.called(dependency, result, seconds)

    def _share_slots(self, lanes: Mapping[str, Lane]) -> None:
        self.pump.take_up(lanes)
        if self.telling is not None:
            self.telling.take_up(lanes, self.worker.concurrency)

    def _calm_retries(self, retries: RetryOverrides, text: str) -> None:
        self.runner.retries = self.keeper.retries = retries
        for children in (self.struck, self.processes):
            children.tell_retries(text)

    def _drop(self, stale: set[str]) -> None:
        """An outcome is recorded: the cached values that it has made old go."""
        task = asyncio.get_running_loop().create_task(self.worker.app.cache.invalidate(*stale))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    def _freed(self, running: Running) -> None:
        self.pump.freed(running)

    async def open(self) -> None:
        link = self.pump.session.link
        await link.connect()
        for line in await check_server(link):
            log.critical(line)
            if self.telling is not None:
                self.telling.health.degrade(line)
        for line in self.worker.app.warnings():
            log.warning(line)
        await claim_namespace(link, self.pump.session.keys)
        await self._announce()
        await self.steering.look()
        self.pump.renewal.announce = self._announce
        await self.pump.renewal.open()
        self.heartbeat.start()
        log.info(
            "worker %s: %d slots, lanes %s, lease %g s",
            self.worker.id,
            self.worker.concurrency,
            ", ".join(self.worker.lanes),
            self.worker.app.settings.lease,
        )
        self.pump.kick()

    async def _announce(self) -> None:
        """Tell Redis what the tasks declare; with each new session, since it may have lost its data."""
        app, link, keys = self.worker.app, self.pump.session.link, self.pump.session.keys
        app.published = await manifest.publish(link, keys, app.declarations(), app.router)
        await limits.declare(link, keys, app.lanes, {**app.limits(), **app.bounds()})

    async def sweep(self) -> None:
        """Time limits and start marks; on the way, how late the loop is."""
        loop = asyncio.get_running_loop()
        held: list[Running] = []
        while True:
            before = time.monotonic()
            await asyncio.sleep(SWEEP_EVERY)
            now = time.monotonic()
            lag = max(0.0, now - before - SWEEP_EVERY)
            earlier, held = [*held, *self._long], list(self.pump.holdings.by_job.values())
            self._long.clear()
            if lag >= stall.STALL:
                log.warning(
                    "worker %s: the event loop stood still for %.1f s; %s",
                    self.worker.id,
                    lag,
                    stall.describe(stall.suspects([*earlier, *held], before + SWEEP_EVERY)),
                )
            if self.wedge.look(held, self.pump.holdings.busy_slots, now):
                self.worker.give_up()
            if self.telling is not None:
                self.telling.tell(self._status(now, lag, held))
            self.runner.sweep(held, loop.time(), self.pump.mark)

    def _status(self, now: float, lag: float, held: Iterable[Running]) -> Status:
        links = (self.pump.session.link, self.reader.link, self.keeper.link, self.heartbeat.link)
        errors: dict[str, int] = {}
        for link in links:
            for kind, count in list(link.errors.items()):
                errors[kind] = errors.get(kind, 0) + count
        return Status(
            at=now,
            lag=lag,
            session=self.pump.ready,
            heard=max(link.last_reply for link in links),
            claiming=not self.worker._stopping.is_set(),
            busy=dict(self.pump.holdings.busy),
            wedged=self.wedge.wedged,
            longest=_longest(held, now),
            errors=errors,
            recovered=self.keeper.recovered,
            promoted=self.keeper.promoted,
            breakers=self.keeper.breakers.states,
        )

    async def farewell(self) -> None:
        """Stop claiming, let what runs end, hand back the rest, tell Redis; in this order."""
        self.crons.stop()
        self.pump.stop_claiming()
        self.reader.stop()
        # anyio's limits: in a task that was cancelled, asyncio.timeout of Python before 3.11.3 raises
        # CancelledError when its time is over, and the good-bye would end there.
        with anyio.move_on_after(self.worker.grace):
            await _first(self.pump.idle(), self.worker._at_once.wait())
        now = asyncio.get_running_loop().time()
        left = self.pump.holdings.running()
        for running in left:
            running.tell(Stop.SHUTDOWN, now)
        if left:
            await self._until_told(left)
        problem: object = "it did not answer in time"
        with anyio.move_on_after(FAREWELL) as limit:
            try:
                await self.pump.drained()
                if self._dropping:
                    await asyncio.wait(self._dropping)
                # Its last read is over: what it got is in our pending list (R18).
                await self.reader.ended.wait()
                await self.pump.hand_back()
                self.heartbeat.stop()  # it would take the key that we remove now for one that was lost
                await self._forget()
                problem = None
            except StreamworkerError as error:
                problem = error
        if problem is not None or limit.cancelled_caught:
            log.warning("not everything could be told to Redis; recovery will find it: %s", problem)
        self.keeper.stop()

    async def _until_told(self, left: Iterable[object]) -> None:
        """Give cancelled handlers a moment; those that ignore it are handed back over their heads."""
        with anyio.move_on_after(1.0):
            await self.pump.idle()
        for running in self.pump.holdings.running():
            log.warning(
                "job %s of task %s did not end when cancelled (cancel_unresponsive); handed back",
                running.claim.job_id,
                running.task_name,
            )
            self.runner.overrule(running)

    async def _forget(self) -> None:
        session = self.pump.session
        await session.forget()
        for role in ("keeper", "quarantine", "collector"):
            key = session.keys.elect(role)
            if await session.link.call("GET", key) == self.worker.id.encode():
                await session.link.call("DEL", key)

    async def close(self) -> None:
        self.heartbeat.stop()
        self.keeper.stop()
        self.reader.close()
        await self.crons.close()
        await self.keeper.close()
        if self.watcher is not None:
            await self.watcher.close()
        await self.pump.close()
        self.runner.close()
        await self.runner.handlers.effecting.close()
        await asyncio.gather(self.struck.close(), self.processes.close())
        self.worker._deaf = self.pump.holdings.busy_slots


def _longest(held: Iterable[Running], now: float) -> dict[str, float]:
    """For how long the oldest handler of each lane has run."""
    found: dict[str, float] = {}
    for running in held:
        if running.started is not None and running.outcome is None:
            lane, age = running.claim.lane, now - running.started
            if age > found.get(lane, 0.0):
                found[lane] = age
    return found


async def _first(*awaitables: object) -> None:
    """Return when the first of them is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
