"""A process that runs beside a worker or a fleet: started again when it dies, ended when they have ended."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from streamworker.worker.leash import FLEET_VARIABLE

log = logging.getLogger("streamworker.companion")

#: The port is the worker's.
PORT_VARIABLE = "STREAMWORKER_METRICS_PORT"
#: Seconds until a dead companion is started again, doubling while it dies young.
RESPAWN_FIRST, RESPAWN_LAST = 0.5, 30.0
#: The exit code that says nothing but another setting helps, and deaths after which the pause is the longest.
WRONG, OFTEN = 2, 6
#: Seconds of life after which a death counts as the first again.
GROWN_UP = 60.0
#: Seconds that it gets to end by itself.
STOP_SECONDS = 10.0


class Companion:
    """A context manager. The child has a leash: if we die without a word, it ends as well."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = name
        self._command = list(command)
        self._stopping = threading.Event()
        self._called = threading.Event()  # it is to begin again now, or to end
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name=f"streamworker-{name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._called.set()
        process = self._end()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive() and process is not None:
            process.kill()
            self._thread.join()

    @property
    def pid(self) -> int | None:
        """Of the process that runs, or whose end nobody has heard of yet."""
        with self._lock:
            process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def renew(self) -> None:
        """End it, so that it begins again at once, with the code that is there now."""
        self._called.set()
        process = self._end()
        if process is not None:
            late = threading.Timer(STOP_SECONDS, process.kill)
            late.daemon = True
            late.start()

    def _end(self) -> subprocess.Popen[bytes] | None:
        """Ask the process to end, if one was started."""
        with self._lock:
            process = self._process
        if process is not None:
            process.send_signal(signal.SIGTERM)  # harmless when it has ended: the thread reaps it
        return process

    def _keep(self) -> None:
        deaths = 0
        while not self._stopping.is_set():
            self._called.clear()
            born = time.monotonic()
            level = logging.WARNING
            try:
                code = self._live()
                end = f"ended with {code}"
                if code == WRONG:
                    level, end = logging.ERROR, f"{end}, since a setting is wrong: see what it said"
                    deaths = OFTEN  # it may be mended from outside, by a migration or a secret: not at once
            except OSError as error:  # no memory, too many processes or files: others may end
                end = f"cannot be started ({error})"
            if self._stopping.is_set():
                return
            if self._called.is_set():
                log.info("the %s begins again, with the workers", self._name)
                deaths = 0
                continue
            deaths = 1 if time.monotonic() - born >= GROWN_UP else deaths + 1
            pause = min(RESPAWN_LAST, RESPAWN_FIRST * 2 ** min(deaths - 1, 16))
            log.log(level, "the %s %s; it is started again in %g s", self._name, end, pause)
            self._called.wait(pause)

    def _live(self) -> int | None:
        """Start it, and wait for its end: its exit code; None when we are to stop. Raises OSError."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            with self._lock:
                if self._stopping.is_set():
                    return None
                self._process = self._start(theirs)
            theirs.close()
            return self._process.wait()

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        inherited = {name: value for name, value in os.environ.items() if name != PORT_VARIABLE}
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**inherited, FLEET_VARIABLE: f"{theirs.fileno()}:"},
            start_new_session=True,  # Ctrl-C in a terminal is for us: it ends after the workers
        )
