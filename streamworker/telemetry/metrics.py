"""A worker's counters: plain numbers that are added to by batch, and read when somebody scrapes.

prometheus-client costs 0.2 to 1 µs for each number; here a job costs a few additions and three searches in a
list.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, Protocol

from streamworker.core.job import Claim
from streamworker.core.outcome import NOT_RECORDED, Fail, Outcome, Retry, Success, is_put_off
from streamworker.core.states import Reason
from streamworker.telemetry.catalogue import SECONDS, SHORT_SECONDS
from streamworker.telemetry.cells import TOLD_APART, CallCell, Cell, LockCell, TaskCell
from streamworker.telemetry.histogram import Histogram
from streamworker.telemetry.labels import MAX_TASKS, OTHER, Codes, Limiters, LockNames
from streamworker.telemetry.status import Status

P = ParamSpec("P")
log = logging.getLogger("streamworker.telemetry")


class Job(Protocol):
    """What is told of a job: a claim, and how it went. Times are monotonic seconds."""

    claim: Claim
    task_name: str
    taken: float  # when its claim came
    started: float | None
    ended: float
    outcome: Outcome | None


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
        gates: Iterable[str] = (),
    ) -> None:
        """`slots` has for each lane how many it can fill at most and how many are reserved; `codes` the
        declared error codes, which start at 0 for each task; `gates` what declared gates are about."""
        self.lanes = tuple(lanes)
        self.slots = dict(slots)
        self._codes = Codes(codes)
        names = sorted(tasks)
        self.tasks = {name: TaskCell(codes) for name in [*names[:MAX_TASKS], OTHER]}
        self.cells = {
            lane: {name: Cell(task, codes if name != OTHER else ()) for name, task in self.tasks.items()}
            for lane in self.lanes
        }
        self.claims = {
            lane: dict.fromkeys(("won", "conflict", "missing", "final", "empty"), 0) for lane in self.lanes
        }
        self.dependencies = {name: CallCell() for name in dependencies}
        self._limiters = Limiters(gates)
        #: How often each limit let a job pass, and made one wait.
        self.passed = dict.fromkeys(self._limiters.declared, 0)
        self.waited = dict.fromkeys(self._limiters.declared, 0)
        #: What came of asking the app's cache, from the first time on.
        self.cache: dict[str, int] = {}
        self._lock_names = LockNames()
        self.locks: dict[str, LockCell] = {}
        self.calls: dict[str, Histogram] = {"exchange": Histogram(SHORT_SECONDS)}
        self.lag = Histogram(SHORT_SECONDS)
        self.status = Status(0.0)

    @quiet
    def exchanged(
        self, settled: Sequence[Job], replies: Sequence[bytes], begun: Sequence[Job], taken: Mapping[str, int]
    ) -> None:
        """One answered exchange: outcomes with their replies, jobs that were begun, claims by lane asked."""
        cells = self.cells
        for job, reply in zip(settled, replies, strict=False):
            claim = job.claim
            of_lane = cells[claim.lane]
            cell = of_lane.get(job.task_name) or of_lane[OTHER]
            if reply in NOT_RECORDED:
                cell.task.stale += 1
            elif reply != b"OK" and is_put_off(job.outcome, reply):
                if job.started is not None:
                    cell.task.retried.observe(job.ended - job.started)  # it goes on, to be looked at
            elif job.outcome is not None:
                self._settled(job, cell)
        for job in begun:
            claim = job.claim
            if claim.bury:
                continue  # no attempt: its effect is looked for
            of_lane = cells[claim.lane]
            cell = of_lane.get(job.task_name) or of_lane[OTHER]
            attempt = claim.attempt
            spread = cell.attempt
            spread.counts[attempt - 1 if attempt <= TOLD_APART else TOLD_APART] += 1
            spread.total += attempt
            if claim.gates:
                self._let_pass(claim.gates)
            if claim.starts == 1:  # later starts waited for a retry, which is no wait for a slot
                age = claim.age_ms / 1000
                spread = cell.wait
                spread.counts[bisect_left(SECONDS, age)] += 1
                spread.total += age
        for lane, count in taken.items():
            claims = self.claims[lane]
            if count:
                claims["won"] += count
            else:
                claims["empty"] += 1

    def _let_pass(self, gates: str) -> None:
        passed, label_of = self.passed, self._limiters.label
        for word in gates.split(" "):
            label = label_of(word)
            if label is not None:
                passed[label] = passed.get(label, 0) + 1

    @quiet
    def parked(self, gate: str, count: int) -> None:
        """A claim found jobs that wait at this gate now."""
        label = self._limiters.label(gate)
        if label is not None:
            self.waited[label] = self.waited.get(label, 0) + count

    def _settled(self, job: Job, cell: Cell) -> None:
        outcome, claim, task = job.outcome, job.claim, cell.task
        ended = True
        if isinstance(outcome, Success):
            counts, durations = cell.succeeded, task.succeeded
            if outcome.reason is not Reason.RETURNED:
                task.note(outcome.reason)
        elif isinstance(outcome, Retry):
            if claim.bury:
                return  # nobody could look
            code = self._codes.label(outcome.code)
            cell.retries[code] = cell.retries.get(code, 0) + 1
            counts, durations, ended = cell.retried, task.retried, False
        elif isinstance(outcome, Fail):
            code = self._codes.label(outcome.code)
            task.failures[code] = task.failures.get(code, 0) + 1
            counts, durations = cell.failed, task.failed
        else:  # handed back: nothing has come of it yet
            return
        attempt = claim.attempt
        counts[attempt - 1 if attempt < TOLD_APART else -1] += 1
        over = job.ended
        if ended:
            age = claim.age_ms / 1000 + over - job.taken
            spread = cell.end_to_end
            spread.counts[bisect_left(SECONDS, age)] += 1
            spread.total += age
        if job.started is not None:
            took = over - job.started
            durations.counts[bisect_left(SECONDS, took)] += 1
            durations.total += took

    @quiet
    def lost(self, job: Job) -> None:
        """The claim was lost while the handler ran: its outcome is not even sent."""
        of_lane = self.cells[job.claim.lane]
        (of_lane.get(job.task_name) or of_lane[OTHER]).task.stale += 1

    def marked(self, jobs: Sequence[Job]) -> None:
        """Handlers whose start is in the record now: nothing is counted by it."""

    @quiet
    def refused(self, lane: str, result: str, count: int) -> None:
        """Entries of a lane that a claim found to lead nowhere."""
        claims = self.claims[lane]
        if result in claims:
            claims[result] += count

    @quiet
    def answered(self, script: str, seconds: float) -> None:
        """A call of a script was answered."""
        calls = self.calls.get(script)
        if calls is None:
            calls = self.calls[script] = Histogram(SHORT_SECONDS)
        calls.observe(seconds)

    @quiet
    def called(self, dependency: str, result: str, seconds: float) -> None:
        """A handler's call of a dependency ended."""
        cell = self.dependencies[dependency]
        cell.results[result] += 1
        cell.duration.observe(seconds)

    @quiet
    def cached(self, result: str) -> None:
        """A handler asked the cache, or made a value of it old."""
        self.cache[result] = self.cache.get(result, 0) + 1

    @quiet
    def locked(self, lock: str, result: str, seconds: float) -> None:
        """What became of a lock that a handler asked for, and how long it was waited for or held."""
        cell = self._lock(lock)
        if result in ("held", "lost"):
            cell.held.observe(seconds)
        else:
            cell.wait.observe(seconds)
        if result in cell.results:
            cell.results[result] += 1

    def _lock(self, name: str) -> LockCell:
        label = self._lock_names.label(name)
        cell = self.locks.get(label)
        if cell is None:
            cell = self.locks[label] = LockCell()
        return cell

    @quiet
    def tell(self, status: Status) -> None:
        """How the worker is, each time that its loop comes round."""
        self.status = status
        self.lag.observe(status.lag)
