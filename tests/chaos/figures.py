"""What a run came to, in figures that add up over several runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from streamworker.core.states import Disposition, Status
from tests.chaos.history import FaultKind, History, lives
from tests.chaos.merging import sizes, told
from tests.chaos.overload import allowed_calls
from tests.chaos.recovery import recoveries, second_starts
from tests.chaos.rules import MOVES
from tests.chaos.verdict import Kind, Violation


@dataclass(slots=True)
class Figures:
    """The figures of one history, or the sum of several."""

    jobs: int = 0
    succeeded: int = 0
    failed: int = 0
    starts: int = 0
    #: Faults by kind.
    faults: Counter[str] = field(default_factory=Counter)
    #: What overload did to jobs, by the log: drained and merged; and the calls of an ill dependency.
    moved: Counter[str] = field(default_factory=Counter)
    #: Second starts without an outcome in between, by what caused them.
    duplicates: Counter[str] = field(default_factory=Counter)
    #: Seconds from each death to the recovery of each job that was in flight.
    recovery_seconds: list[float] = field(default_factory=list)
    #: By how many seconds a recovery stayed below its bound, at least.
    closest: float = math.inf
    #: By how many calls an ill dependency stayed below its bound, at least.
    breaker_left: float = math.inf
    violations: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, history: History, violations: Sequence[Violation]) -> Figures:
        """Count one history, which has been judged."""
        jobs = lives(history)
        figures = cls(jobs=len(jobs), starts=len(history.starts))
        ends = Counter(life.edges[-1].to_status for life in jobs.values() if life.edges)
        figures.succeeded, figures.failed = ends[Status.SUCCEEDED], ends[Status.FAILED_TERMINAL]
        figures.faults.update(str(fault.kind) for fault in history.faults)
        figures.moved.update(edge.reason for edge in history.transitions if edge.reason in MOVES)
        figures.moved["called while ill"] = sum(
            ill.name in start.holds and ill.since <= start.at <= ill.until
            for ill in history.illnesses
            for start in history.starts
        )
        figures.moved["events merged"] = sum(
            one.disposition is Disposition.COALESCED for one in told(history)
        )
        for job_id, size in sizes(history, jobs).items():
            limit = history.limits.merging[jobs[job_id].task][1]
            figures.moved["windows closed by limit" if size >= limit else "windows closed by time"] += 1
        for ill in history.illnesses:
            called, most, _ = allowed_calls(history, jobs, ill)
            figures.moved["calls heard while ill"] += called
            figures.moved["of them allowed"] += most
            figures.breaker_left = min(figures.breaker_left, most - called)
        for *_, cause in second_starts(history, jobs):
            figures.duplicates[str(cause or "unexplained")] += 1
        for recovery in recoveries(history, jobs):
            if recovery.seconds is not None:
                figures.recovery_seconds.append(recovery.seconds)
                figures.closest = min(figures.closest, recovery.allowed - recovery.seconds)
        figures.violations.update(str(violation.kind) for violation in violations)
        return figures

    def add(self, other: Figures) -> None:
        """Add the figures of another run."""
        self.jobs += other.jobs
        self.succeeded += other.succeeded
        self.failed += other.failed
        self.starts += other.starts
        self.faults.update(other.faults)
        self.moved.update(other.moved)
        self.duplicates.update(other.duplicates)
        self.recovery_seconds += other.recovery_seconds
        self.closest = min(self.closest, other.closest)
        self.breaker_left = min(self.breaker_left, other.breaker_left)
        self.violations.update(other.violations)

    @property
    def lost(self) -> int:
        return self.violations[Kind.LOST]

    @property
    def stale_accepted(self) -> int:
        return self.violations[Kind.STALE_ACCEPTED]

    @property
    def double_outcomes(self) -> int:
        return self.violations[Kind.DOUBLE_OUTCOME]

    def as_json(self) -> dict[str, Any]:
        """Everything, as values for JSON."""
        return {
            "jobs": self.jobs,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "handler_starts": self.starts,
            "faults": {str(kind): self.faults[kind] for kind in FaultKind},
            "moved": dict(self.moved),
            "duplicates": dict(self.duplicates),
            "recovered": len(self.recovery_seconds),
            "recovery_seconds": {
                name: percentile(self.recovery_seconds, share)
                for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
            "recovery_bound_left_seconds": None if math.isinf(self.closest) else round(self.closest, 3),
            "breaker_bound_left_calls": None if math.isinf(self.breaker_left) else self.breaker_left,
            "lost": self.lost,
            "stale_accepted": self.stale_accepted,
            "double_outcomes": self.double_outcomes,
            "violations": dict(self.violations),
        }


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of the others do not exceed (nearest rank); None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)
