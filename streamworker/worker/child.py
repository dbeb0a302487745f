"""A worker's child process: runs one job after another, each by itself (D22).

It has the app, so it runs handlers as the worker does, classifies their errors and decides their retries.
Leases, time limits and settling stay with the worker, which ends what does not obey by killing this process.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

import orjson

from streamworker.app import App
from streamworker.core.overrides import RetryOverrides
from streamworker.core.text import truncate_text
from streamworker.flow.dependency import Result
from streamworker.flow.locks import Asked
from streamworker.flow.renewals import Renewals
from streamworker.settings import Settings
from streamworker.store import traces
from streamworker.store.keys import Keys
from streamworker.telemetry import loggers, logs
from streamworker.worker import own_loop, wire
from streamworker.worker.origin import Origin
from streamworker.worker.runner import Runner
from streamworker.worker.running import Running, Stop
from streamworker.worker.signals import let_forks_be

_PR_SET_PDEATHSIG = 1
#: Bytes that a first message may have.
_HELLO_BYTES = 1 << 20


def main(descriptor: int, parent: int) -> None:
    """Serve the worker at the other end of this socket, until it closes it or dies."""
    _end_with(parent)
    # The worker decides when its children end. Handlers, not SIG_IGN, which their own children would inherit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    let_forks_be()
    with suppress(RuntimeError):  # there is no stderr
        faulthandler.enable()  # a crash says where it was: that is why the job is here
    link = socket.socket(fileno=descriptor)
    link.set_inheritable(False)  # else what a handler starts would keep it open after our death
    hello = _hello(link)
    try:
        app = Origin(**hello["origin"]).load()
        app.use_settings(Settings(**hello["settings"]))
    except BaseException as error:
        link.sendall(wire.frame({"is": "unloadable"}, _text(error)))
        return
    logs.adopt(hello["log"])
    loggers.shield()
    if own_loop.run(_Child(app, link).serve(), slots=1, make=own_loop.maker()):
        traces.flush()
        os._exit(0)  # what handlers began does not end


def _end_with(parent: int) -> None:
    """Die when the worker does, whatever a handler does. Elsewhere than on Linux the socket's end tells."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the worker that wanted this process is gone")


def _hello(link: socket.socket) -> Any:
    data = link.makefile("rb", buffering=0)
    line = b""
    while not line.endswith(b"\n"):
        piece = data.readline(_HELLO_BYTES)
        if not piece:
            raise SystemExit("the worker that wanted this process is gone")
        line += piece
    return orjson.loads(line)


def _text(error: BaseException) -> bytes:
    return truncate_text(f"{type(error).__name__}: {error}").encode()


class _Child:
    """One job at a time, from and to the worker."""

    def __init__(self, app: App, link: socket.socket) -> None:
        self._app = app
        self._link = link
        self._running: Running | None = None
        self._writer: asyncio.StreamWriter

    async def serve(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._link)
        settings = self._app.settings
        runner = Runner(
            self._app,
            threads=1,
            ended=self._ended,
            freed=self._freed,
            quiet=True,
            called=self._called,
            locked=self._locked,
            renewals=Renewals(settings.redis_url, Keys(settings.namespace).tag),
        )
        try:
            async with self._app, self._app.lifespan(self._app) as state:
                runner.enter(state)
                self._app.cache.loop = asyncio.get_running_loop()
                self._tell({"is": "ready"})
                await self._obey(reader, runner)
        except Exception as error:
            self._tell({"is": "failed"}, _text(error))
        finally:
            runner.close()
            await runner.handlers.effecting.close()
            if self._running is not None:  # a handler that does not end must not keep this process
                traces.flush()
                os._exit(1)

    async def _obey(self, reader: asyncio.StreamReader, runner: Runner) -> None:
        loop = asyncio.get_running_loop()
        while (message := await wire.read(reader)) is not None:
            head, body = message
            if head["do"] == "run":
                running = self._running = Running(wire.claim_from(head["claim"], body))
                if runner.start(running):
                    # Before the handler's first step: from here on a death is the job's.
                    self._tell({"is": "begun"})
                else:
                    self._running = None
            elif head["do"] == "retries":
                runner.retries = RetryOverrides.read(body.decode())
            elif self._running is not None and self._running.claim.fence == head["fence"]:
                self._running.tell(Stop(head["why"]), loop.time())

    def _ended(self, running: Running) -> None:
        if running.outcome is None:
            return
        head, body = wire.outcome_frame(running.outcome)
        # A thread cannot be stopped (R23): the worker then ends this process.
        busy = running.thread is not None and not running.thread.done()
        if not busy:
            self._running = None
        more = {"dependency": running.dependency, "stale": sorted(running.stale or ())}
        self._tell({"is": "done", "busy": busy, "outcome": head, **more}, body)

    def _locked(self, lock: str, result: Asked, seconds: float) -> None:
        self._tell({"is": "locked", "lock": lock, "result": result, "seconds": seconds})

    def _called(self, dependency: str, result: Result, seconds: float) -> None:
        self._tell({"is": "called", "dependency": dependency, "result": result, "seconds": seconds})

    def _freed(self, running: Running) -> None:
        if self._running is running:
            self._running = None

    def _tell(self, head: wire.Head, body: bytes = b"") -> None:
        self._writer.write(wire.frame(head, body))
