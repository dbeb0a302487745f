"""Jobs of which Postgres has a record in the end: queues on Postgres, and streamworker with its mirror.

The clock runs from the first job to the last; for streamworker until the mirror has committed the last move.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from benchmarks.catalogue import Store
from benchmarks.environments import HERE, Environment
from benchmarks.inside import cpu
from benchmarks.roles import Failed, Role
from benchmarks.server import Server
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.store.keys import Keys

if TYPE_CHECKING:
    from benchmarks.scenarios import Setting

Figures = dict[str, Any]

#: As a server in production keeps what it has committed; what is embedded elsewhere need not.
DURABLE = {"fsync": "on", "full_page_writes": "on", "max_wal_size": "4GB"}
#: `queued first`: all jobs are there, and mirrored, before the worker starts. `at once`: a producer puts them
#: in while the worker runs.
STYLES = ("queued first", "at once")
#: The app of streamworker's adapter.
APP = "bench"
LOOK_EVERY = 0.05
#: Seconds for start-up, and for a mirror to catch up.
MARGIN, PATIENCE = 60.0, 120.0


def runs(environment: Environment, setting: Setting) -> Iterator[Figures]:
    """A run of each style, with the most slots that are asked for."""
    contender = environment.contender
    jobs = setting.jobs or round(contender.jobs * setting.effort.share)
    slots = min(max(setting.slots or contender.slots), contender.most_slots)
    for style in STYLES:
        with ExitStack() as stack:
            postgres = stack.enter_context(EmbeddedPostgres(config=DURABLE))
            if contender.store is Store.POSTGRES:
                run = _Run(environment, postgres, jobs, slots)
            else:
                server = stack.enter_context(Server(setting.kind, setting.aof, None))
                mirror = stack.enter_context(_mirror(server.url, postgres.dsn))
                run = _Run(environment, postgres, jobs, slots, server, Follower(server.url, mirror))
            yield {"style": style, **run.measure(style)}


class Follower:
    """A mirror, and how far it is behind."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process
        self._redis = redis.Redis.from_url(url, protocol=2, socket_timeout=30)
        self._keys = Keys(APP)
        self._done = threading.Event()
        self.lag = 0.0  # seconds, the most

    def caught_up(self) -> None:
        """Wait until all of the log is committed. Raises Failed."""
        until = time.monotonic() + PATIENCE
        while self._redis.xlen(self._keys.events):
            if time.monotonic() > until or self._process.poll() is not None:
                raise Failed("the mirror does not catch up")
            time.sleep(LOOK_EVERY / 5)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within, `lag` is looked after."""
        looking = threading.Thread(target=self._look)
        looking.start()
        try:
            yield
        finally:
            self._done.set()
            looking.join()

    def _look(self) -> None:
        while not self._done.wait(LOOK_EVERY):
            head: Any = self._redis.xrange(self._keys.events, count=1)
            if head:
                seconds, micros = self._redis.time()
                self.lag = max(self.lag, seconds + micros / 1e6 - int(head[0][1][b"t"]) / 1000)


class _Run:
    """One contender on fresh servers."""

    def __init__(
        self,
        environment: Environment,
        postgres: EmbeddedPostgres,
        jobs: int,
        slots: int,
        server: Server | None = None,
        follower: Follower | None = None,
    ) -> None:
        self._environment = environment
        self._postgres = postgres
        self._server = server
        self._follower = follower
        self._jobs = jobs
        self._slots = slots
        self._url = postgres.dsn if server is None else server.url

    def measure(self, style: str) -> Figures:
        with self._role("prepare") as role:
            role.wait(MARGIN)
        if style == "at once":
            return self._drain(at_once=True)
        with self._fill() as filler:
            self._filled(filler)
        if self._follower is not None:
            self._follower.caught_up()
        return self._drain(at_once=False)

    def _drain(self, *, at_once: bool) -> Figures:
        seconds = max(PATIENCE, self._jobs / 200)
        watched = ExitStack()
        if self._follower is not None:
            watched.enter_context(self._follower.watched())
        before = self._used()
        options = ("--slots", str(self._slots), "--expect", str(self._jobs), "--deadline", str(seconds))
        with watched, self._role("worker", *options, "--redis-pid", str(self._postgres.pid)) as worker:
            client = None
            if at_once:
                with self._fill() as filler:
                    client = self._filled(filler)["client_cpu"] / self._jobs * 1e6
            run = worker.wait(seconds + MARGIN)
            tail = time.monotonic()
            if self._follower is not None:
                self._follower.caught_up()
            took = run["seconds"] + time.monotonic() - tail
            used = {name: (after - before[name]) / self._jobs * 1e6 for name, after in self._used().items()}
        if not run["complete"]:
            raise Failed(f"{run['jobs']} of {self._jobs} jobs ran within {seconds:.0f} s")
        return {
            "slots": self._slots,
            "jobs": run["jobs"],
            "repeats": run["repeats"],
            "seconds": took,
            "jobs_per_s": (run["jobs"] - 1) / took,
            "client_us": client,
            "worker_us": run["worker_cpu"] / run["jobs"] * 1e6,
            "lag_s": None if self._follower is None else self._follower.lag,
            **used,
        }

    def _role(self, role: str, *options: str) -> Role:
        return Role(self._environment, role, "--url", self._url, *options, processor=None)

    def _fill(self) -> Role:
        chunk = self._environment.contender.chunk or 1
        options = ("--style", "batches", "--count", str(self._jobs), "--chunk", str(chunk))
        return self._role("fill", *options, "--deadline", str(PATIENCE))

    def _filled(self, filler: Role) -> Figures:
        figures = filler.wait(PATIENCE + MARGIN)
        filler.end()
        if figures["jobs"] < self._jobs:
            raise Failed(f"only {figures['jobs']} of {self._jobs} jobs were put in within {PATIENCE:.0f} s")
        return figures

    def _used(self) -> dict[str, float]:
        """Processor seconds so far, by who used them."""
        used = {"postgres_us": _of_family(self._postgres.pid)}
        if self._server is not None and self._follower is not None:
            used |= {"redis_us": self._server.cpu(), "mirror_us": cpu.of_process(self._follower.pid)}
        return used


def _of_family(pid: int) -> float:
    """Of a process, its children, and those of them that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    reaped = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return reaped + sum(cpu.of_process(int(each)) for each in [str(pid), *listed.stdout.split()])


@contextmanager
def _mirror(url: str, dsn: str) -> Iterator[subprocess.Popen[bytes]]:
    """`streamworker mirror run`, once it mirrors."""
    command = [sys.executable, "-m", "streamworker", "mirror"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWORKER_")}
    subprocess.run(
        [*command, "migrate", "--dsn", dsn], check=True, cwd=HERE.parent, env=variables, capture_output=True
    )
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "run", "--app", APP, "--redis-url", url, "--dsn", dsn],
            cwd=HERE.parent,
            env=variables,
            stdout=log,
            stderr=log,
        )
        try:
            with redis.Redis.from_url(url, protocol=2) as client:
                until = time.monotonic() + MARGIN
                while not client.hexists(Keys(APP).policies, "mirror"):
                    if time.monotonic() > until or process.poll() is not None:
                        log.seek(0)
                        raise Failed(f"the mirror does not start\n{log.read().decode()[-2000:]}")
                    time.sleep(LOOK_EVERY)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
