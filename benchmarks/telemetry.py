"""What metrics and logs cost: a worker drains a backlog, and they are switched on and off meanwhile.

    python -m benchmarks.telemetry [--jobs 150000] [--slots 256] [--turn 0.25]

Turns of a fraction of a second follow each other: nothing, metrics, metrics and a line of JSON for each move.
So a machine that becomes slower does so for all three. The median of the ratios of neighbours is what counts:
runs of one after the other differed by a third on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.processors import processors
from benchmarks.server import Aof, Server, default_kind
from streamworker import App, Context, Worker
from streamworker.telemetry.logs import JsonFormatter, LinesHandler
from streamworker.telemetry.transitions import Transitions
from streamworker.telemetry.transitions import log as lines_log
from streamworker.worker.flight import Teller
from streamworker.worker.running import Running
from streamworker.worker.telling import Telling

#: What may be on, and the share of the bare throughput that is to be left.
MODES = {"bare": 1.0, "metrics": 0.9, "metrics and logs": 0.85}
#: Jobs that are enqueued in one call.
CHUNK = 5_000


class Switch:
    """Stands where the worker tells its metrics, and tells those that are on."""

    def __init__(self, telling: Telling, lines: Transitions) -> None:
        self._of_mode: dict[str, Sequence[Teller]] = {
            "bare": (),
            "metrics": (telling.metrics,),
            "metrics and logs": (telling.metrics, lines),
        }
        self._on: Sequence[Teller] = ()
        self.jobs = 0

    def turn(self, mode: str) -> None:
        """From now on these are told."""
        self._on = self._of_mode[mode]

    def answered(self, script: str, seconds: float) -> None:
        for each in self._on:
            each.answered(script, seconds)

    def exchanged(
        self, settled: list[Running], replies: list[bytes], begun: list[Running], taken: dict[str, int]
    ) -> None:
        self.jobs += len(settled)
        for each in self._on:
            each.exchanged(settled, replies, begun, taken)

    def marked(self, jobs: list[Running]) -> None:
        for each in self._on:
            each.marked(jobs)

    def refused(self, lane: str, result: str, count: int) -> None:
        for each in self._on:
            each.refused(lane, result, count)

    def parked(self, gate: str, count: int) -> None:
        for each in self._on:
            each.parked(gate, count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of_mode["metrics"][0], name)  # whatever else a worker tells its metrics


@dataclass(frozen=True, slots=True)
class Turn:
    """What one mode did in one turn."""

    jobs_per_second: float
    worker_us: float  # processor time of the worker for each job


async def measure(url: str, jobs: int, slots: int, seconds: float) -> dict[str, list[Turn]]:
    """Drain so many jobs with turns of these lengths."""
    app = App("bench", redis_url=url)

    @app.task
    async def job(ctx: Context, n: int) -> None:
        return None

    found: dict[str, list[Turn]] = {mode: [] for mode in MODES}
    async with app:
        for first in range(0, jobs, CHUNK):
            await app.enqueue_many([job.call(n) for n in range(first, min(jobs, first + CHUNK))])
        worker = Worker(app, concurrency=slots)
        worker.telling = telling = Telling(worker)
        switch = Switch(telling, Transitions(worker.id))
        telling.metrics = switch  # type: ignore[assignment]  # it stands in for them
        serving = asyncio.create_task(worker.serve())
        await worker.started.wait()
        await asyncio.sleep(seconds)  # to get warm
        while True:
            for mode in MODES:
                switch.turn(mode)
                before, cpu, began = switch.jobs, time.process_time(), time.perf_counter()
                await asyncio.sleep(seconds)
                done, took = switch.jobs - before, time.perf_counter() - began
                if switch.jobs >= jobs * 0.97:
                    worker.stop()
                    await serving
                    return found
                found[mode].append(Turn(done / took, (time.process_time() - cpu) / done * 1e6))


def shares(found: dict[str, list[Turn]], mode: str) -> list[float]:
    """The throughput of each turn of a mode, against that of the bare turn beside it."""
    return [
        turn.jobs_per_second / bare.jobs_per_second
        for turn, bare in zip(found[mode], found["bare"], strict=False)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--jobs", type=int, default=150_000)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--turn", type=float, default=0.25, help="seconds")
    options = parser.parse_args()
    near_server, near_worker = processors()
    with Server(default_kind(), Aof.OFF, near_server) as server, tempfile.TemporaryFile("w+") as sink:
        if near_worker is not None:
            os.sched_setaffinity(0, {near_worker})
        handler = LinesHandler(sink)
        handler.setFormatter(JsonFormatter())
        lines_log.addHandler(handler)
        lines_log.propagate = False
        lines_log.setLevel(logging.INFO)
        found = asyncio.run(measure(server.url, options.jobs, options.slots, options.turn))
    print(
        "| on | turns | jobs/s | worker µs | of bare | at least |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    good = True
    for mode, least in MODES.items():
        turns = found[mode]
        share = statistics.median(shares(found, mode))
        good = good and share >= least
        rate = statistics.median(turn.jobs_per_second for turn in turns)
        cost = statistics.median(turn.worker_us for turn in turns)
        print(f"| {mode} | {len(turns)} | {rate:,.0f} | {cost:.1f} | {share:.2f} | {least} |")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
