"""What ends a command that serves until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from streamworker.cli.output import say

if TYPE_CHECKING:
    from streamworker.settings import Endpoint

#: Seconds that such a process may take to end once the worker that it belongs to is gone.
ORPHAN_PATIENCE = 15.0


def stop_when_told(stop: Callable[[], None]) -> None:
    """Call `stop` in the running loop on SIGTERM or Ctrl-C, or when the worker is gone that started us."""
    from streamworker.worker.leash import Leash

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)

    def orphaned() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it is ending anyway
            loop.call_soon_threadsafe(stop)

    if (leash := Leash.inherited()) is not None:  # beside a worker: not without it
        leash.hold(orphaned, patience=ORPHAN_PATIENCE)


@contextlib.asynccontextmanager
async def answering(
    who: str,
    endpoint: Endpoint | None,
    ready: Callable[[], tuple[bool, dict[str, Any]]],
    text: Callable[[], str],
) -> AsyncIterator[None]:
    """Answer probes and scrapes meanwhile, and say where; None: not at all.

    `ready` has what /readyz says, `text` is that of /metrics. Raises ConfigurationError when the address
    cannot be had.
    """
    if endpoint is None:
        yield
        return
    from streamworker.telemetry.exposition import CONTENT_TYPE
    from streamworker.telemetry.http import Address, Answer, HttpServer, json_answer

    async def healthz() -> Answer:
        return json_answer(True, {"status": "ok"})

    async def readyz() -> Answer:
        return json_answer(*ready())

    async def metrics() -> Answer:
        return Answer(200, text(), CONTENT_TYPE)

    server = HttpServer({"/healthz": healthz, "/readyz": readyz, "/metrics": metrics})
    bound = await server.open(Address(endpoint.host, endpoint.port))
    say(f"{who}: /healthz, /readyz and /metrics on {endpoint.host}:{bound}")
    try:
        yield
    finally:
        await server.close()
