"""Windows, in which events become one job, as the rules want them (decision 0019)."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamworker.core.states import Status
from tests.model.job import Job, Key, Move, Request
from tests.model.shard import Shard

#: ms that a window is open, and how many items or events it holds.
WINDOW_MS, FULL = 40_000, 3


@dataclass(slots=True)
class Merging:
    """What one call does to windows."""

    shard: Shard
    #: Jobs that it brings, and how often it has added to others.
    new: set[str] = field(default_factory=set)
    added: dict[str, int] = field(default_factory=dict)

    def find(self, request: Request) -> Job | None:
        """The job of the window that is open for this event, while it waits untouched for its end."""
        job = self.shard.jobs.get(self.shard.windows.get(request.window_name, ""))
        if job is None or job.status is not Status.QUEUED or job.starts or job.gate or job.entry is not None:
            return None
        return job if job.parked and job.due > self.shard.now else None

    def merge(self, request: Request) -> Job | None:
        """The job into which the event went; None: there is no window for it, any more."""
        job = self.find(request)
        if job is None:
            return None
        fresh = _fresh(request.items, job.items)
        more = len(fresh) if request.window == "collect" else 1
        if job.collected + more > FULL:
            self._close(request, job)
            return None
        if request.window == "latest":
            job.envelope = request.envelope
        elif fresh:
            job.envelope = job.envelope[:-3] + "".join(f",{item}" for item in fresh).encode() + b"]}}"
        job.items = (*job.items, *fresh)
        job.collected += more
        self.added[job.id] = self.added.get(job.id, 0) + 1
        self.shard.merged[request.job_id] = job.id
        if request.key:
            self.shard.keys[request.key] = Key(job.id, request.fingerprint, "open")
            job.merged_keys.add(request.key)
        if job.collected >= FULL:
            self._close(request, job)
        return job

    def open(self, request: Request, job: Job) -> bool:
        """Whether the new job waits for others now; not if it is full by itself."""
        self.new.add(job.id)
        job.items = _fresh(request.items, ())
        job.collected = len(job.items) if request.window == "collect" else 1
        if request.window == "collect":
            job.envelope = request.wrapped(job.items)
        if job.collected >= FULL:
            return False
        self.shard.windows[request.window_name] = job.id
        self.shard.park(job, self.shard.now + WINDOW_MS)
        return True

    def _close(self, request: Request, job: Job) -> None:
        """Before its time: the job is to run now. One of this very call has never waited."""
        del self.shard.windows[request.window_name]
        self.shard.schedule.pop(job.id, None)
        job.parked = False
        if job.id in self.new:
            job.entry = ("b" if job.deferred else "a", "")
        else:
            self.shard.make_ready(job)

    def finish(self) -> None:
        """One line of the log for all that a call has added to a job that was there."""
        for job_id in self.added.keys() - self.new:
            job = self.shard.jobs[job_id]
            job.version += 1
            self.shard.moves.append(
                Move(job.id, job.epoch, job.version, job.status, job.status, job.attempt, 0, "merged")
            )


def _fresh(items: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """Each item once, and none that is there."""
    return tuple(item for item in dict.fromkeys(items) if item not in known)
