"""Which claims this worker holds, and which slots they fill."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from streamworker.worker.running import Running, Stop
from streamworker.worker.session import Entry


class Holdings:
    """The newest claim of each job, from its reply until its settle is acknowledged (D5)."""

    def __init__(self, lanes: Iterable[str]) -> None:
        self.by_job: dict[str, Running] = {}
        #: Slots in use, by lane and in all.
        self.busy: dict[str, int] = dict.fromkeys(lanes, 0)
        self.busy_slots = 0
        # Loops keep no tasks (cpython#88831): a handler that was given up would end wherever it is collected.
        self._handlers: set[Running] = set()
        #: Entries of claims whose outcome Redis refuses: not held, and not offered, so recovery gets them.
        self._abandoned: set[Entry] = set()
        #: The job with strikes that runs in the quarantine child (D22).
        self.apart: Running | None = None
        #: Set when there is none any more.
        self.apart_over = asyncio.Event()
        #: The job with strikes that runs while nothing else does, where there can be no child.
        self.alone: Running | None = None

    def take(self, running: Running, now: float) -> None:
        """Hold a new claim; an older one of the same job is lost, and its handler is ended (D6)."""
        older = self.by_job.get(running.claim.job_id)
        if older is not None:
            older.tell(Stop.LOST, now)
        self.by_job[running.claim.job_id] = running
        if running.apart:
            self.apart = running
        elif running.claim.kind == "q":
            self.alone = running

    def occupy(self, running: Running) -> None:
        """Its handler runs."""
        if running.occupies:  # else it has ended in its very first step
            self._handlers.add(running)
        if not running.apart:
            self.busy[running.claim.lane] += 1
            self.busy_slots += 1

    def vacate(self, running: Running) -> None:
        """Its handler has ended."""
        self._handlers.discard(running)
        if not running.apart:
            self.busy[running.claim.lane] -= 1
            self.busy_slots -= 1
        self.no_slot(running)

    def no_slot(self, running: Running) -> None:
        """It has no slot: another struck job may run."""
        if running is self.alone:
            self.alone = None
        if running is self.apart:
            self.apart = None
            self.apart_over.set()

    def let_go(self, running: Running) -> None:
        """Its outcome is acknowledged, or somebody else's by now."""
        if self.by_job.get(running.claim.job_id) is running:
            del self.by_job[running.claim.job_id]
        if not running.occupies:
            self.no_slot(running)

    def abandon(self, running: Running) -> None:
        """Leave a claim to recovery: offered again, it would be given again, and run for ever for nothing."""
        self._abandoned.add(running.place)
        self.let_go(running)

    def of_fence(self, job_id: str, fence: int | None) -> Running | None:
        """The claim of that job and fence, if we hold it: "lost" is keyed by both (D1)."""
        running = self.by_job.get(job_id)
        return running if running is not None and running.claim.fence == fence else None

    def running(self) -> list[Running]:
        """Claims whose handler has come to no outcome."""
        return [running for running in self.by_job.values() if running.outcome is None]

    def unknown(self, entries: Iterable[Entry]) -> list[Entry]:
        """Of entries that were delivered to us, those that we know nothing of: they are offered (D5)."""
        known = {running.place for running in self.by_job.values()} | self._abandoned
        return [place for place in entries if place not in known]

    def unknown_pending(self, pending: list[Entry]) -> list[Entry]:
        """The same of all that is pending for us, so that what is gone can be forgotten."""
        self._abandoned.intersection_update(pending)
        return self.unknown(pending)
