"""The supervisor's children: one place for each, whoever fills it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from streamworker.worker.leash import FLEET_VARIABLE, SLOT_VARIABLE, UP

#: Seconds until a dead child is started again, doubling while children die young.
RESPAWN_FIRST, RESPAWN_LAST = 0.5, 30.0
#: Seconds of life after which a death counts as the first again.
GROWN_UP = 60.0


@dataclass(slots=True, eq=False)
class Child:
    """One worker process and our end of its leash."""

    process: subprocess.Popen[bytes]
    leash: socket.socket
    born: float

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.born

    def end(self) -> int:
        """Take the exit code of a child that has ended; minus the signal's number when one ended it."""
        with suppress(ValueError, RuntimeError):
            asyncio.get_running_loop().remove_reader(self.leash)
        self.leash.close()
        return self.process.wait()


@dataclass(slots=True, eq=False)
class Place:
    """One of the fleet's numbered places."""

    number: int
    path: Path | None = None  # where its child answers probes; None: nobody asks
    child: Child | None = None
    up: asyncio.Event = field(default_factory=asyncio.Event)  # its child claims jobs
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # its child has ended
    expected: bool = False  # its end is part of a rolling restart
    timer: asyncio.TimerHandle | None = None
    deaths: int = 0  # in a row, each at a young age

    @property
    def pid(self) -> int:
        """Of the child; 0 when there is none."""
        return self.child.process.pid if self.child is not None else 0

    def start(self, command: Sequence[str], came_up: Callable[[], None]) -> None:
        """Start a child; `came_up` is called once it claims jobs."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)  # of its predecessor
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={
                    **os.environ,
                    SLOT_VARIABLE: str(self.number),
                    FLEET_VARIABLE: f"{theirs.fileno()}:{self.path or ''}",
                },
                start_new_session=True,  # Ctrl-C in a terminal is for us: children would hear it twice
            )
        self.up.clear()
        self.gone.clear()
        self.child = Child(process, ours, time.monotonic())
        asyncio.get_running_loop().add_reader(ours, self._heard, self.child, came_up)

    def _heard(self, child: Child, came_up: Callable[[], None]) -> None:
        try:
            said = child.leash.recv(64)
        except OSError:
            said = b""
        asyncio.get_running_loop().remove_reader(child.leash)
        if said == UP and child is self.child:
            self.up.set()
            came_up()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child, if there is one."""
        if self.child is not None:
            with suppress(ProcessLookupError):
                os.kill(self.child.process.pid, number)  # not reaped yet, so the pid is still its own

    def backoff(self, age: float) -> float:
        """Seconds until its next child may start, after one that lived for `age` seconds."""
        self.deaths = 1 if age >= GROWN_UP else self.deaths + 1
        return float(min(RESPAWN_LAST, RESPAWN_FIRST * 2 ** min(self.deaths - 1, 16)))

    def cancel_timer(self) -> None:
        """Start no child by itself."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
