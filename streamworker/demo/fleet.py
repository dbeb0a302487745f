"""The demo's worker processes: started, killed, started again, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from streamworker.demo.shop import LEASHED

#: Seconds until a dead worker is started again, doubling while it dies young.
RESPAWN_FIRST, RESPAWN_LAST = 0.2, 2.0
#: A worker that lived so many seconds did not die young.
GROWN_UP = 3.0
#: Seconds that workers get to end by themselves.
STOP_SECONDS = 10.0


@dataclass(slots=True)
class _Place:
    """One worker's place in the fleet, whoever fills it."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    respawn_at: float = 0.0
    early_deaths: int = 0


@dataclass(slots=True)
class Deaths:
    """How workers ended that nobody had asked to stop."""

    #: Killed by the demo, with SIGKILL.
    ordered: int = 0
    #: Killed by a job that sent SIGKILL to its own process.
    by_job: int = 0
    #: Exit codes of those that ended by themselves.
    exits: list[int] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return self.ordered + self.by_job


class Fleet:
    """Workers of the shop; a context manager that leaves no process and no file behind."""

    def __init__(self, redis_url: str, *, workers: int, concurrency: int, env: Mapping[str, str]) -> None:
        self.deaths = Deaths()
        self._command = [
            *(sys.executable, "-m", "streamworker", "run", "streamworker.demo.shop:app"),
            *("--concurrency", str(concurrency), "--grace", "5s"),
        ]
        # Settings of whoever runs the demo must not reach its workers.
        own = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWORKER_")}
        self._env = {**own, **env, "STREAMWORKER_REDIS_URL": redis_url, LEASHED: "1"}
        self._places = [_Place(number) for number in range(1, workers + 1)]
        self._logs = tempfile.TemporaryDirectory(prefix="streamworker-demo-")
        self._ordered: set[int] = set()

    def __enter__(self) -> Self:
        try:
            for place in self._places:
                self._start(place)
        except BaseException:
            self._end(signal.SIGKILL)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGTERM if kind is None else signal.SIGKILL)

    def tend(self) -> list[str]:
        """Notice the dead and start them again when their time has come; returns what happened."""
        news: list[str] = []
        now = time.monotonic()
        for place in self._places:
            if place.process is None:
                if now >= place.respawn_at:
                    self._start(place)
                    news.append(f"worker {place.number} is back")
            elif (code := place.process.poll()) is not None:
                news.append(self._bury(place, place.process, code, now))
        return news

    def kill_oldest(self) -> bool:
        """Kill the worker that has run longest, with SIGKILL; False when none is alive."""
        alive = [
            place for place in self._places if place.process is not None and place.process.poll() is None
        ]
        if not alive:
            return False
        oldest = min(alive, key=lambda place: place.started_at)
        assert oldest.process is not None
        self._ordered.add(oldest.process.pid)
        oldest.process.kill()
        return True

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of each worker's log, for when something went wrong."""
        tails = []
        for path in sorted(Path(self._logs.name).glob("*.log")):
            last = path.read_text(errors="replace").splitlines()[-lines:]
            tails.append("\n".join([f"--- {path.stem}", *last]))
        return "\n".join(tails)

    def _start(self, place: _Place) -> None:
        with open(Path(self._logs.name, f"worker-{place.number}.log"), "ab") as log:
            place.process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.PIPE,  # closes when we die, and then so does the worker
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us: we stop the workers
            )
        place.started_at = time.monotonic()

    def _bury(self, place: _Place, process: subprocess.Popen[bytes], code: int, now: float) -> str:
        _close(process)
        place.process = None
        place.early_deaths = 0 if now - place.started_at >= GROWN_UP else place.early_deaths + 1
        place.respawn_at = now + min(RESPAWN_LAST, RESPAWN_FIRST * 2**place.early_deaths)
        if process.pid in self._ordered:
            self.deaths.ordered += 1
            return f"worker {place.number} was killed by the demo"
        if code == -signal.SIGKILL:
            self.deaths.by_job += 1
            return f"worker {place.number} was killed by the job that it ran"
        self.deaths.exits.append(code)
        return f"worker {place.number} ended with exit code {code}"

    def _end(self, how: signal.Signals) -> None:
        running = [place.process for place in self._places if place.process is not None]
        try:
            for process in running:
                if process.poll() is None:
                    process.send_signal(how)
            until = time.monotonic() + STOP_SECONDS
            for process in running:
                try:
                    process.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
        finally:
            for process in running:
                process.kill()
                process.wait()
                _close(process)
            self._logs.cleanup()


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
