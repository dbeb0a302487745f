"""What the job calls. It takes the times and reports once, so that nothing before or after counts."""

from __future__ import annotations

import cProfile
import itertools
import json
import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

from benchmarks.inside import cpu

#: Runs of the job between two looks at the clock.
LOOK_EVERY = 16
#: Jobs that a latency run begins with; their delays do not count.
WARM_UPS = 20


def say(kind: str, **figures: Any) -> None:
    """One line to the harness; its pipe is kept, since some workers replace standard output."""
    os.write(_PIPE, f"{kind} {json.dumps(figures)}\n".encode())


_PIPE = os.dup(1)


class Watcher(Protocol):
    """Gets the argument of each job, first thing in the job."""

    def ran(self, args: Mapping[str, Any]) -> None: ...


class Tally:
    """Counts jobs, and processor time of worker and server, from the first to the last of them."""

    def __init__(
        self, *, expect: int, deadline: float, redis_pid: int, profile_file: str | None = None
    ) -> None:
        self._expect = expect
        self._deadline = deadline
        self._redis_pid = redis_pid
        self._profile = None if profile_file is None else cProfile.Profile()
        self._profile_file = profile_file
        self._number = itertools.count(1).__next__  # atomic between threads
        self._seen: set[int] = set()
        self._done = False
        self._began = 0.0
        self._before: dict[str, float | None] = {}

    def ran(self, args: Mapping[str, Any]) -> None:
        self._seen.add(args["n"])
        number = self._number()
        if number == 1:
            self._began = time.perf_counter()
            self._before = self._used()
            if self._profile is not None:
                self._profile.enable()
        elif number >= self._expect or number % LOOK_EVERY == 0:
            seconds = time.perf_counter() - self._began
            if (number >= self._expect or seconds > self._deadline) and not self._done:
                self._done = True
                self._report(number, seconds)

    def _used(self) -> dict[str, float | None]:
        return {
            "worker_cpu": time.process_time(),
            "redis_cpu": cpu.of_process(self._redis_pid),
            "machine_cpu": cpu.of_machine(),
        }

    def _report(self, jobs: int, seconds: float) -> None:
        used = {
            name: None if after is None or (before := self._before[name]) is None else after - before
            for name, after in self._used().items()
        }
        if self._profile is not None and self._profile_file is not None:
            self._profile.disable()
            self._profile.dump_stats(self._profile_file)
        say(
            "FIGURES",
            jobs=jobs,
            seconds=seconds,
            complete=jobs >= self._expect,
            repeats=jobs - len(self._seen),
            **used,
        )


class Delays:
    """Takes the time from the start of the enqueue call to the start of the job."""

    def __init__(self, *, expect: int) -> None:
        self._expect = expect
        self._warm_ups = 0
        self._ns: list[int] = []

    def ran(self, args: Mapping[str, Any]) -> None:
        now = time.monotonic_ns()
        sent = args.get("sent")
        if sent is None:
            self._warm_ups += 1
            if self._warm_ups == WARM_UPS:
                say("WARM")
            return
        self._ns.append(now - int(sent))
        if len(self._ns) == self._expect:
            say("FIGURES", jobs=self._expect, **percentiles(self._ns))


def percentiles(ns: list[int]) -> dict[str, float]:
    """Nearest-rank percentiles of nanoseconds, in ms."""
    ordered = sorted(ns)
    rank = len(ordered) - 1
    return {
        "p50_ms": ordered[round(rank * 0.50)] / 1e6,
        "p95_ms": ordered[round(rank * 0.95)] / 1e6,
        "p99_ms": ordered[round(rank * 0.99)] / 1e6,
        "max_ms": ordered[-1] / 1e6,
    }
