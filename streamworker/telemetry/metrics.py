"""A worker's counters: plain numbers that are added to by batch, and read when somebody scrapes.

prometheus-client costs 0.2 to 1 µs for each number; here a job costs two additions and two searches in a
list. Cells are bound when tasks are registered, so no label is looked up by name while jobs run.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, Protocol

from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Retry, Success
from streamworker.telemetry.labels import MAX_TASKS, OTHER, Codes
from streamworker.telemetry.status import Status

P = ParamSpec("P")
log = logging.getLogger("streamworker.telemetry")

#: Upper bounds of durations and waits, in seconds.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
#: Upper bounds of the loop's lag, in seconds.
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Job(Protocol):
    """What is told of a job: a claim, and how it went."""

    claim: Claim
    task_name: str
    started: float | None  # monotonic seconds
    ended: float
    outcome: Outcome | None


class Histogram:
    """Counts by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class TaskCell:
    """Numbers of one task."""

    __slots__ = ("failed", "failures", "retried", "stale", "succeeded")

    def __init__(self, codes: Iterable[str]) -> None:
        self.succeeded, self.retried, self.failed = Histogram(), Histogram(), Histogram()
        self.stale = 0
        self.failures = dict.fromkeys(codes, 0)


class CallCell:
    """Numbers of one dependency."""

    __slots__ = ("duration", "results")

    def __init__(self) -> None:
        self.results = dict.fromkeys(("ok", "error", "timeout"), 0)
        self.duration = Histogram()


class Cell:
    """Numbers of one task in one lane."""

    __slots__ = ("failed", "retried", "retries", "succeeded", "task", "wait")

    def __init__(self, task: TaskCell, codes: Iterable[str]) -> None:
        self.task = task
        self.succeeded = self.retried = self.failed = 0
        self.retries = dict.fromkeys(codes, 0)
        self.wait = Histogram()


def quiet(method: Callable[P, None]) -> Callable[P, None]:
    """Telemetry that fails says so once and harms nothing else."""
    said = False

    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal said
        try:
            method(*args, **kwargs)
        except Exception:
            if not said:
                said = True
                log.exception("a metric could not be counted; this is said once")

    return guarded


class Metrics:
    """What a worker counts. Told by its loop, read by another thread: plain numbers need no lock for that."""

    def __init__(
        self,
        *,
        tasks: Iterable[str],
        lanes: Iterable[str],
        slots: Mapping[str, tuple[int, int]],
        codes: Sequence[str] = (),
        dependencies: Iterable[str] = (),
    ) -> None:
        """`slots` has for each lane how many it can fill at most and how many are reserved; `codes` the
        declared error codes, which start at 0 for each task."""
        self.lanes = tuple(lanes)
        self.slots = dict(slots)
        self._codes = Codes(codes)
        names = sorted(tasks)
        self.tasks = {name: TaskCell(codes) for name in [*names[:MAX_TASKS], OTHER]}
        self.cells = {
            lane: {name: Cell(task, codes if name != OTHER else ()) for name, task in self.tasks.items()}
            for lane in self.lanes
        }
        self.won = dict.fromkeys(self.lanes, 0)
        self.empty = dict.fromkeys(self.lanes, 0)
        self.dependencies = {name: CallCell() for name in dependencies}
        self.lag = Histogram(LAG_SECONDS)
        self.status = Status(0.0)

    @quiet
    def exchanged(
        self, settled: Sequence[Job], replies: Sequence[bytes], begun: Sequence[Job], taken: Mapping[str, int]
    ) -> None:
        """One answered exchange: outcomes with their replies, jobs that were begun, claims by lane asked."""
        for job, reply in zip(settled, replies, strict=False):
            self._settled(job, reply)
        for job in begun:
            claim = job.claim
            if claim.starts == 1:  # later starts waited for a retry, which is no wait for a slot
                self._cell(claim.lane, job.task_name).wait.observe(claim.age_ms / 1000)
        for lane, count in taken.items():
            if count:
                self.won[lane] += count
            else:
                self.empty[lane] += 1

    def _settled(self, job: Job, reply: bytes) -> None:
        cell = self._cell(job.claim.lane, job.task_name)
        if reply in (b"STALE", b"GONE"):
            cell.task.stale += 1
            return
        outcome = job.outcome
        if isinstance(outcome, Success):
            cell.succeeded += 1
            durations = cell.task.succeeded
        elif isinstance(outcome, Retry):
            code = self._codes.label(outcome.code)
            cell.retries[code] = cell.retries.get(code, 0) + 1
            cell.retried += 1
            durations = cell.task.retried
        elif isinstance(outcome, Fail):
            code = self._codes.label(outcome.code)
            cell.task.failures[code] = cell.task.failures.get(code, 0) + 1
            cell.failed += 1
            durations = cell.task.failed
        else:  # handed back: nothing has come of it yet
            return
        if job.started is not None:
            durations.observe(job.ended - job.started)

    @quiet
    def lost(self, job: Job) -> None:
        """The claim was lost while the handler ran: its outcome is not even sent."""
        self._cell(job.claim.lane, job.task_name).task.stale += 1

    @quiet
    def called(self, dependency: str, result: str, seconds: float) -> None:
        """A handler's call of a dependency ended."""
        cell = self.dependencies[dependency]
        cell.results[result] += 1
        cell.duration.observe(seconds)

    @quiet
    def tell(self, status: Status) -> None:
        """How the worker is, each time that its loop comes round."""
        self.status = status
        self.lag.observe(status.lag)

    def _cell(self, lane: str, task: str) -> Cell:
        of_lane = self.cells[lane]
        return of_lane.get(task) or of_lane[OTHER]
