"""The parts of a serving worker: made and tied together, opened, and closed at the end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import streamworker
from streamworker.core.lane import Lane
from streamworker.core.overrides import RetryOverrides
from streamworker.core.text import counted
from streamworker.flow.dependency import Result
from streamworker.flow.renewals import Renewals
from streamworker.store import limits, lua, manifest
from streamworker.store.keys import Keys
from streamworker.store.server import check_server, claim_namespace
from streamworker.telemetry import transitions
from streamworker.worker import stall
from streamworker.worker.burst import Burst
from streamworker.worker.children import Children
from streamworker.worker.crons import Crons
from streamworker.worker.ends import Ends
from streamworker.worker.heartbeat import Heartbeat
from streamworker.worker.keeper import Keeper
from streamworker.worker.pump import Pump
from streamworker.worker.quarantine import Quarantine
from streamworker.worker.reader import Reader
from streamworker.worker.runner import Runner
from streamworker.worker.running import Running, Stop
from streamworker.worker.session import Session
from streamworker.worker.steering import Steering
from streamworker.worker.sweep import Sweep

if TYPE_CHECKING:
    from streamworker.app import App
    from streamworker.worker.watcher import Watcher
    from streamworker.worker.worker import Worker

log = logging.getLogger("streamworker.worker")

#: Seconds between two scripts that are read ahead, 2 ms each.
READ_EVERY = 0.05


def _whose(app: App) -> str:
    """The app, and its namespace where that has another name: a variable may have set it unawares."""
    namespace = app.settings.namespace
    return app.name if namespace == app.name else f"{app.name}, namespace {namespace}"


class Parts:
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
        self.quarantine = Quarantine(self.pump, self.keeper, self.struck, tuple(worker.lanes), session.keys)
        self.watcher: Watcher | None = None
        self.burst = (
            Burst(worker.lanes, Keys(settings.namespace), self.keeper.caller, worker.stop)
            if worker.burst
            else None
        )
        self.sweep = Sweep(self)
        self.dropping: set[asyncio.Task[Any]] = set()  # of the cache, until it is done
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
        else:
            self.pump.tellers.append(Ends())

    def _ended(self, running: Running) -> None:
        running.ended = time.monotonic()
        if running.started is not None and running.ended - running.started >= stall.STALL:
            self.sweep.long.append(running)
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
        self.dropping.add(task)
        task.add_done_callback(self.dropping.discard)

    def _freed(self, running: Running) -> None:
        self.pump.freed(running)

    async def open(self) -> None:
        """Connect and begin to claim. Raises ServerUnsuitable or ConnectionLost."""
        link = self.pump.session.link
        await link.connect()
        for line in await check_server(link):
            log.critical(line)
            if self.telling is not None:
                self.telling.health.degrade(line)
        for line in self.worker.app.warnings():
            log.warning(line)
        await self._announce()
        await self.steering.look()
        self.pump.renewal.announce = self._announce
        await self.pump.renewal.open()
        self.heartbeat.start()
        log.info(
            "worker %s: %d slots, lanes %s, lease %g s, %s of %s",
            self.worker.id,
            self.worker.concurrency,
            ", ".join(self.worker.lanes),
            self.worker.app.settings.lease,
            counted(len(self.worker.app.tasks), "task"),
            _whose(self.worker.app),
        )
        self.pump.kick()

    async def _announce(self) -> None:
        """Tell Redis the layout and what the tasks declare; with each session, since it may have lost it."""
        app, link, keys = self.worker.app, self.pump.session.link, self.pump.session.keys
        await claim_namespace(link, keys)
        app.published = await manifest.publish(link, keys, app.declarations(), app.router)
        await limits.declare(link, keys, app.lanes, {**app.limits(), **app.bounds()})

    async def read_scripts(self) -> None:
        """Have all of them in memory soon.

        An upgrade in place must not give a worker that runs those of another version.
        """
        for name in lua.names():
            await asyncio.sleep(READ_EVERY)
            with suppress(OSError):
                lua.load(name)

    async def close(self) -> None:
        """Close the connections and end the children; nothing is told to Redis."""
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
