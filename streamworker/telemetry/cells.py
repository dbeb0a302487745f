"""Where a worker's numbers stand, made when tasks are registered, so that none is made while jobs run."""

from __future__ import annotations

from collections.abc import Iterable

from streamworker.core.states import Reason
from streamworker.telemetry.catalogue import ATTEMPTS, BY_NAME, SECONDS
from streamworker.telemetry.histogram import Histogram

#: Attempts that have a number of their own; the last one stands for all later ones.
TOLD_APART = len(BY_NAME["attempts"].values["attempt"])


class TaskCell:
    """Numbers of one task."""

    __slots__ = ("duplicates", "failed", "failures", "retried", "skips", "stale", "succeeded")

    def __init__(self, codes: Iterable[str]) -> None:
        self.succeeded, self.retried, self.failed = Histogram(SECONDS), Histogram(SECONDS), Histogram(SECONDS)
        self.stale = self.skips = 0
        self.failures = dict.fromkeys(codes, 0)
        self.duplicates = dict.fromkeys(BY_NAME["duplicates"].values["stage"], 0)

    def note(self, reason: Reason) -> None:
        """A success that was no ordinary return."""
        if reason is Reason.SKIPPED:
            self.skips += 1
        elif reason is Reason.DUPLICATE:
            self.duplicates["handler"] += 1
        elif reason is Reason.EFFECT_COMMITTED:
            self.duplicates["effect"] += 1


class Cell:
    """Numbers of one task in one lane. Outcomes stand in lists by attempt, first attempt first."""

    __slots__ = ("attempt", "end_to_end", "failed", "retried", "retries", "succeeded", "task", "wait")

    def __init__(self, task: TaskCell, codes: Iterable[str]) -> None:
        self.task = task
        self.succeeded, self.retried, self.failed = ([0] * TOLD_APART for _ in range(3))
        self.retries = dict.fromkeys(codes, 0)
        self.attempt = Histogram(ATTEMPTS)
        self.wait, self.end_to_end = Histogram(SECONDS), Histogram(SECONDS)


class CallCell:
    """Numbers of one dependency."""

    __slots__ = ("duration", "results")

    def __init__(self) -> None:
        self.results = dict.fromkeys(BY_NAME["dependency_requests"].values["result"], 0)
        self.duration = Histogram(SECONDS)


class LockCell:
    """Numbers of the locks of one kind."""

    __slots__ = ("held", "results", "wait")

    def __init__(self) -> None:
        self.results = dict.fromkeys(BY_NAME["lock_acquires"].values["result"], 0)
        self.wait, self.held = Histogram(SECONDS), Histogram(SECONDS)
