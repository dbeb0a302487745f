"""`streamworker exporter`: what Redis knows, for Prometheus, where no worker has an endpoint."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamworker.cli.edge import leave_when_told
from streamworker.cli.options import AppName, MetricsHost, MetricsPort, RedisUrl
from streamworker.cli.serving import answering
from streamworker.cli.target import subject_of

if TYPE_CHECKING:
    from streamworker.settings import Endpoint, Settings
    from streamworker.telemetry.labels import Codes

#: Where it listens unless it is told.
PORT = 9108


def exporter(
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="The app, for its error codes and settings.")
    ] = None,
    app: AppName = None,
    redis_url: RedisUrl = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
) -> None:
    """Tell Prometheus what Redis knows of an app, until SIGTERM or Ctrl-C.

    For those who want it apart from the workers: of those with an endpoint, one does the same. It has
    /metrics, /healthz, and /readyz, which is 503 when Redis could not be read for a while. The port is 9108
    unless it is given. Dead letters with error codes of the app's own are counted as `other` if the app is
    not named.

    Example: streamworker exporter shop.tasks:app --metrics-port 9100
    """
    from streamworker.settings import read_endpoint
    from streamworker.telemetry.labels import Codes, codes_of_tasks

    leave_when_told()
    endpoint = read_endpoint(metrics_port, metrics_host) or read_endpoint(PORT, metrics_host)
    settings, known = subject_of(target, app, redis_url)
    codes = () if known is None else codes_of_tasks(task.policy for task in known.tasks.values())
    asyncio.run(_serve(settings, endpoint, Codes(codes)))


async def _serve(settings: Settings, endpoint: Endpoint | None, codes: Codes) -> None:
    from streamworker.settings import read_expected_workers
    from streamworker.telemetry.catalogue import Scope
    from streamworker.telemetry.cluster import ClusterNumbers
    from streamworker.telemetry.exposition import Page
    from streamworker.worker.watcher import Watcher

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    numbers = ClusterNumbers(codes=codes, expected=read_expected_workers())
    page = Page({Scope.CLUSTER: numbers})
    name = f"exporter-{socket.gethostname()}-{os.getpid()}"
    watcher = Watcher(settings, name, numbers, always=True)

    def ready() -> tuple[bool, dict[str, Any]]:
        seen = numbers.snapshot is not None
        return seen, {"status": "ready" if seen else "not ready"}

    async with answering("exporter", endpoint, ready, page.text):
        watching = asyncio.create_task(watcher.run())
        try:
            await stop.wait()
        finally:
            watching.cancel()
            await watcher.close()
