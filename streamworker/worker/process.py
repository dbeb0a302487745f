"""What a worker needs around it when it has a process of its own: signals, endpoint, leash, process 1."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from streamworker.settings import read_endpoint
from streamworker.worker import first_process, signals
from streamworker.worker.leash import Leash

if TYPE_CHECKING:
    from streamworker.telemetry.status import Health
    from streamworker.worker.worker import Worker

log = logging.getLogger("streamworker.worker")

#: Seconds between two signs of the loop while the worker itself gives none.
BEAT_EVERY = 0.5
#: Seconds between two looks whether signals are heard.
HEARING_EVERY = 1.0
#: Seconds beyond its grace that a worker whose supervisor is gone may take to end.
ORPHAN_PATIENCE = 15.0


@asynccontextmanager
async def surroundings(
    worker: Worker, *, metrics_port: int | None, metrics_host: str | None
) -> AsyncIterator[None]:
    """Everything that a process adds to a worker. Raises ConfigurationError for a port that is taken."""
    loop = asyncio.get_running_loop()
    leash = Leash.inherited()
    see_to_it = signals.listen(worker, supervised=leash is not None)
    with ExitStack() as stack:
        _answer(worker, leash, metrics_port, metrics_host, stack)
        if os.getpid() == 1:
            reaper = first_process.Reaper()
            reaper.start()
            stack.callback(reaper.stop)
        first_process.warn_of_shell()
        tasks: list[asyncio.Task[None]] = [loop.create_task(_keep_hearing(see_to_it))]
        if worker.telling is not None:
            tasks.append(loop.create_task(_beat(worker.telling.health)))
        if leash is not None:

            def orphaned() -> None:
                log.warning("worker %s: its supervisor is gone", worker.id)
                with suppress(RuntimeError):  # the loop is closed: it is ending anyway
                    loop.call_soon_threadsafe(worker.stop)

            leash.hold(orphaned, patience=worker.grace + ORPHAN_PATIENCE)
            tasks.append(loop.create_task(_say_up(worker, leash)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _beat(health: Health) -> None:
    """An app may take its time to start and to end: that is no stall."""
    while True:
        health.beat()
        await asyncio.sleep(BEAT_EVERY)


async def _keep_hearing(see_to_it: Callable[[], None]) -> None:
    """What handlers call may set signals aside, and the worker would be deaf to a stop, or die of it."""
    while True:
        await asyncio.sleep(HEARING_EVERY)
        see_to_it()


async def _say_up(worker: Worker, leash: Leash) -> None:
    await worker.started.wait()
    leash.say_up()


def _answer(
    worker: Worker, leash: Leash | None, port: int | None, host: str | None, stack: ExitStack
) -> None:
    # Loaded only when somebody asks: prometheus-client takes memory and a moment.
    if leash is not None:
        if leash.path is None:
            return
        from streamworker.telemetry.http import Address

        address = Address(path=leash.path)
    else:
        endpoint = read_endpoint(port, host)
        if endpoint is None:
            return
        from streamworker.telemetry.http import Address

        address = Address(endpoint.host, endpoint.port)
    from streamworker.worker.telling import Telling

    worker.telling = Telling(worker)
    server = worker.telling.serve(address)
    stack.callback(server.stop)
    if leash is None:
        log.info("worker %s: /healthz, /readyz and /metrics on %s:%d", worker.id, address.host, server.port)
