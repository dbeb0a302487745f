"""One worker process: it starts its parts in order, and stops them on a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, NoReturn

import anyio

from streamworker.app import App
from streamworker.core import durations, garbage
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError, InvalidArgument
from streamworker.core.lane import BACKLOG
from streamworker.settings import DEFAULT_GRACE
from streamworker.store import traces
from streamworker.telemetry import loggers
from streamworker.worker import cores, origin, own_loop, schema
from streamworker.worker.farewell import farewell
from streamworker.worker.identity import new_worker_id
from streamworker.worker.parts import Parts
from streamworker.worker.process import surroundings
from streamworker.worker.starting import Starting, Stopped

if TYPE_CHECKING:
    from streamworker.worker.telling import Telling

log = logging.getLogger("streamworker.worker")

DEFAULT_CONCURRENCY = 32


class Worker:
    """Runs an app's tasks: `Worker(app, concurrency=64).run()`.

    `run` blocks, handles SIGTERM and SIGINT and returns the exit code; `serve` runs inside a loop of your
    own, until `stop` or cancellation. A worker serves once. On the first signal it stops claiming, waits up
    to `grace` for what runs, hands back the rest uncharged, and ends; a second signal does so at once.

    `processes_for_tasks` is how many child processes run the jobs of tasks that have `run_in="process"`; by
    default one for each processor, but no more than slots. They are started when they are needed.

    With `burst` it stops by itself once nothing waits, runs or is due in its lanes.

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
        burst: bool = False,
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
            processes_for_tasks = min(concurrency, cores.usable())
        if type(processes_for_tasks) is not int or processes_for_tasks < 1:
            raise ConfigurationError(f"processes_for_tasks must be 1 or more, not {processes_for_tasks!r}")
        self.processes_for_tasks = processes_for_tasks
        self.burst = burst
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
        The loop is of the kind that `STREAMWORKER_LOOP` says.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError(
                "run() hears signals, which only the main thread can: await serve() there"
            )
        make = own_loop.maker()
        self._alone = True
        if left := own_loop.run(self._run_with_signals(), slots=self.concurrency, make=make):
            self._leave(f"{left} threads, tasks or processes that handlers began")
        return self._code

    async def _run_with_signals(self) -> None:
        try:
            async with (
                self.app,
                surroundings(self, metrics_port=self.metrics_port, metrics_host=self.metrics_host),
            ):
                await self.serve()
        except asyncio.CancelledError:  # signals stop it in another way
            log.error(
                "worker %s: something that runs in it cancelled all tasks; another one has to begin", self.id
            )
            self._code = 1
        if self._deaf:
            self._leave(f"{self._deaf} handlers")

    def _leave(self, who: str) -> NoReturn:
        # A thread cannot be stopped and a coroutine may swallow its cancellation (R23): the interpreter
        # would wait for them for ever. All that can be told to Redis has been told.
        log.warning("worker %s: %s did not end; leaving without them", self.id, who)
        for last in (
            traces.flush,
            logging.shutdown,
            *(stream.flush for stream in (sys.stdout, sys.stderr) if stream),
        ):
            with suppress(Exception):  # nobody reads it, or a handler of the app's cannot be closed
                last()
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
    def code(self) -> int:
        """What the process is to end with."""
        return self._code

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
        loggers.shield()
        if self._pid != os.getpid():  # made before a fork: both sides would have the same name (R7, R27)
            self.id, self._pid, self._served = new_worker_id(), os.getpid(), False
            self._starting = Starting()
        if self._served:
            raise ConfigurationError(f"worker {self.id} has served already: make another Worker")
        self._served = True
        parts = Parts(self)
        async with AsyncExitStack() as stack:
            try:
                state = await self._starting.enter(stack, self.app.lifespan(self.app))
            except Stopped:
                return
            parts.runner.enter(state)
            try:
                await parts.open()
                self.started.set()
                if self._alone:
                    garbage.settle_down()
                async with anyio.create_task_group() as group:
                    group.start_soon(parts.reader.run)
                    group.start_soon(parts.keeper.run)
                    group.start_soon(parts.crons.run)
                    group.start_soon(parts.steering.run)
                    group.start_soon(parts.sweep.run)
                    group.start_soon(parts.quarantine.run)
                    group.start_soon(parts.read_scripts)
                    group.start_soon(schema.look, self.app.settings.postgres_dsn, self.id)
                    for part in (parts.watcher, parts.burst):
                        if part is not None:
                            group.start_soon(part.run)
                    try:
                        await self._stopping.wait()
                    finally:
                        # Cancelled from outside: anyio would cancel each await again (R20).
                        with anyio.CancelScope(shield=True):
                            await farewell(parts, self.grace, self._at_once)
                        group.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await parts.close()
                    self._deaf = parts.pump.holdings.busy_slots
