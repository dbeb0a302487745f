"""The scenarios. Each yields figures as it gets them, every run on a fresh server."""

from __future__ import annotations

import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import durable
from benchmarks.catalogue import Contender, Effort, Runtime, Store
from benchmarks.environments import Environment
from benchmarks.processors import processors
from benchmarks.roles import Failed, Role
from benchmarks.server import Aof, Kind, Server

Figures = dict[str, Any]

ENQUEUE_JOBS = 1_000_000  # the time is up first
#: A run with one slot gets this share of the jobs: it is that much slower.
SERIAL_SHARE = 0.1
#: Seconds after the last job in which a worker settles it and what it keeps reaches the server.
AFTERWARDS = 1.0
#: Jobs a second that a backlog is filled with at the least.
SLOWEST_FILL = 1_000
PACE_SECONDS = 0.005
#: Seconds for start-up and the last words of a role.
MARGIN = 30.0
PROFILE_ROWS = 30


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run is asked for."""

    kind: Kind
    aof: Aof
    effort: Effort
    jobs: int | None = None  # instead of the contender's
    slots: tuple[int, ...] | None = None


class Bench:
    """The scenarios of one contender. Raise Failed."""

    def __init__(self, environment: Environment, setting: Setting) -> None:
        self.environment = environment
        self.setting = setting
        self._server_processor, self._worker_processor = processors()

    @property
    def contender(self) -> Contender:
        return self.environment.contender

    def _server(self) -> Server:
        return Server(self.setting.kind, self.setting.aof, self._server_processor)

    def _role(self, role: str, *options: str, near_server: bool = False) -> Role:
        processor = self._server_processor if near_server else self._worker_processor
        return Role(self.environment, role, *options, processor=processor)

    def _fill(self, server: Server, style: str, count: int, seconds: float) -> Figures:
        options = _options(url=server.url, style=style, count=count, deadline=seconds)
        options += _options(chunk=self.contender.chunk or 0)
        with self._role("fill", *options) as role:
            figures = role.wait(seconds + MARGIN)
            role.end()
        if not figures["jobs"]:
            raise Failed(f"{self.contender.label} put no job in within {seconds:.0f} s")
        return figures

    def _backlog(self, server: Server, count: int) -> int:
        style = "batches" if self.contender.chunk else "producers"
        queued: int = self._fill(server, style, count, max(60.0, count / SLOWEST_FILL))["jobs"]
        return queued

    def slots(self, or_else: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The numbers of slots to run with: those asked for, up to the most that the contender can have."""
        if self.setting.slots is None:
            return or_else or self.contender.slots
        most = self.contender.most_slots
        return tuple(slots for slots in self.setting.slots if slots <= most) or (most,)

    def enqueue(self) -> Iterator[Figures]:
        for style in ("single", "batches", "producers"):
            if style == "batches" and not self.contender.chunk:
                continue
            with self._server() as server:
                server.reset()
                before = server.cpu()
                count = self.setting.jobs or ENQUEUE_JOBS
                run = self._fill(server, style, count, self.setting.effort.enqueue_seconds)
                jobs = run["jobs"]
                yield {
                    "style": style,
                    "jobs": jobs,
                    "jobs_per_s": jobs / run["seconds"],
                    "client_us": run["client_cpu"] / jobs * 1e6,
                    "redis_us": (server.cpu() - before) / jobs * 1e6,
                    "commands": sum(calls for calls, _ in server.commands().values()) / jobs,
                }

    def _drain(self, server: Server, slots: int, queued: int, *more: str) -> Figures:
        """One worker over what is queued; figures from the first to the last job."""
        seconds = self.setting.effort.drain_seconds
        options = _options(url=server.url, slots=slots, expect=queued, deadline=seconds)
        options += _options(redis_pid=server.pid)
        server.reset()
        with self._role("worker", *options, *more) as worker:
            run = worker.wait(seconds + MARGIN)
            if run["complete"]:
                time.sleep(AFTERWARDS)
            commands, reads = server.commands(), server.reads()
        jobs = run["jobs"]
        used = [run["worker_cpu"], run["redis_cpu"]]
        machine = run["machine_cpu"]
        return {
            "slots": slots,
            "jobs": jobs,
            "complete": run["complete"],
            "repeats": run["repeats"],
            "seconds": run["seconds"],
            "jobs_per_s": (jobs - 1) / run["seconds"],
            "worker_us": run["worker_cpu"] / jobs * 1e6,
            "redis_us": run["redis_cpu"] / jobs * 1e6,
            "others_cpu": None if machine is None else max(0.0, (machine - sum(used)) / run["seconds"]),
            "commands": sum(calls for calls, _ in commands.values()) / jobs,
            "reads": reads / jobs,
            "by_command": {
                name: {"calls": round(calls / jobs, 4), "us": round(us / jobs, 3)}
                for name, (calls, us) in commands.items()
                if calls / jobs > 0.002
            },
        }

    def throughput(self) -> Iterator[Figures]:
        for slots in self.slots():
            jobs = self.setting.jobs or round(self.contender.jobs * self.setting.effort.share)
            if slots == 1 and len(self.contender.slots) > 1:
                jobs = max(1_000, round(jobs * SERIAL_SHARE))
            with self._server() as server:
                empty = server.memory()
                figures = self._drain(server, slots, self._backlog(server, jobs))
                if figures["complete"]:
                    figures["bytes_kept"] = (server.memory() - empty) / figures["jobs"]
                yield figures

    def latency(self) -> Iterator[Figures]:
        slots = min(32, self.contender.slots[-1])
        jobs = self.setting.effort.paced_jobs
        with self._server() as server:
            options = _options(url=server.url, slots=slots, expect=jobs)
            pace = _options(url=server.url, count=jobs, interval=PACE_SECONDS)
            with (
                self._role("worker", *options, "--delays") as worker,
                self._role("pace", *pace, near_server=True) as pacer,
            ):
                worker.wait(MARGIN, "WARM")
                pacer.go()
                paced = pacer.wait(jobs * PACE_SECONDS * 3 + MARGIN)
                run = worker.wait(MARGIN)
        yield {"slots": slots, "paced_per_s": jobs / paced["seconds"], **run}

    def depth(self) -> Iterator[Figures]:
        slots = self.slots(or_else=(min(32, self.contender.slots[-1]),))[-1]
        for depth in self.setting.effort.depths:
            with self._server() as server:
                empty = server.memory()
                queued = self._backlog(server, depth)
                waiting = (server.memory() - empty) / queued
                yield {"queued": queued, "bytes_queued": waiting, **self._drain(server, slots, queued)}

    def durable(self) -> Iterator[Figures]:
        """Every job in Postgres as well; only for contenders that do so."""
        yield from durable.runs(self.environment, self.setting)

    def profile(self) -> Iterator[Figures]:
        """Where the worker's time goes, by function; under the profiler all is slower, calls most of all."""
        if self.contender.runtime is Runtime.NODE:
            raise Failed("profile: only workers in Python")
        slots = self.slots()[-1]
        jobs = self.setting.jobs or round(self.contender.jobs * self.setting.effort.share)
        with self._server() as server, tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "profile")
            figures = self._drain(server, slots, self._backlog(server, jobs), *_options(profile=file))
            stats: dict[tuple[str, int, str], tuple[int, int, float, float, Any]]
            stats = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]  # not in typeshed
        rows = sorted(stats.items(), key=lambda row: -row[1][2])[:PROFILE_ROWS]
        yield figures | {
            "functions": [
                {
                    "function": f"{'/'.join(Path(file_name).parts[-2:])}:{line} {name}",
                    "calls": calls / figures["jobs"],
                    "own_us": own / figures["jobs"] * 1e6,
                }
                for (file_name, line, name), (_, calls, own, _, _) in rows
            ]
        }


def _options(**options: object) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


#: In the order in which they run. `profile` is only run when asked for.
SCENARIOS: dict[str, Callable[[Bench], Iterator[Figures]]] = {
    "enqueue": Bench.enqueue,
    "throughput": Bench.throughput,
    "latency": Bench.latency,
    "depth": Bench.depth,
    "durable": Bench.durable,
    "profile": Bench.profile,
}
USUAL = tuple(name for name in SCENARIOS if name != "profile")


def concerns(scenario: str, contender: Contender) -> bool:
    """Whether a scenario is about this contender: those with Postgres have one of their own."""
    return (scenario == "durable") == (contender.store is not Store.REDIS)


def with_depths(effort: Effort, depths: list[int] | None, seconds: float | None) -> Effort:
    """The effort with what the command line says instead."""
    changed = effort if depths is None else replace(effort, depths=tuple(depths))
    return changed if seconds is None else replace(changed, drain_seconds=seconds)
