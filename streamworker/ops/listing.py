"""Jobs by what their records say: found by a scan, since no index is kept for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamworker.core.job import Record
from streamworker.core.states import Status
from streamworker.ops.history import iso
from streamworker.request import JobView
from streamworker.store.queue import Queue

#: Keys that one step of the scan asks for.
SCAN_COUNT = 1_000
#: Records that one listing reads at most.
MOST_RECORDS = 1_000_000


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs; None: any."""

    status: Status | None = None
    task: str | None = None
    lane: str | None = None
    tenant: str | None = None

    def takes(self, record: Record) -> bool:
        """Whether this job is meant."""
        return (
            self.status in (None, record.status)
            and self.task in (None, record.task)
            and self.lane in (None, record.lane)
            and self.tenant in (None, record.text("tn"))
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """What a scan found."""

    jobs: tuple[JobView, ...]
    #: Records that were read, those of other jobs included.
    scanned: int
    #: Records that could not be read, and are not among the jobs.
    unreadable: int
    #: Every record was looked at, so there are no other jobs.
    complete: bool

    def json(self) -> dict[str, Any]:
        """The stable shape of `jobs list --json`."""
        return {
            "items": [_row(job) for job in self.jobs],
            "scanned": self.scanned,
            "unreadable": self.unreadable,
            "complete": self.complete,
        }


def _row(job: JobView) -> dict[str, Any]:
    return {
        "id": job.id,
        "task": job.task,
        "lane": job.lane,
        "tenant": job.tenant,
        "status": str(job.status),
        "attempt": job.attempt,
        "error_class": job.error_class,
        "error_code": job.error_code,
        "enqueued_at": iso(job.enqueued_at),
        "started_at": iso(job.started_at),
        "finished_at": iso(job.finished_at),
    }


async def list_jobs(
    queue: Queue,
    which: JobFilter,
    *,
    limit: int,
    most: int = MOST_RECORDS,
    progress: Callable[[int, int], None] = lambda scanned, found: None,
) -> Listing:
    """The jobs that the filter takes, newest first, `limit` of them at most.

    The scan ends once it has so many: which of more they are is chance. It reads `most` records at most, and
    tells `progress` after each step how many it has read and found. A job that comes or ends meanwhile may be
    missed.
    """
    prefix = len(queue.keys.job(""))
    found: dict[str, JobView] = {}
    scanned, unreadable, cursor = 0, 0, 0
    complete = False
    while len(found) < limit and scanned < most:
        at, keys = await queue.caller.command(
            "SCAN", cursor, "MATCH", queue.keys.job("*"), "COUNT", SCAN_COUNT, "TYPE", "string"
        )
        left = 0
        for key, raw in zip(keys, await queue.caller.command("MGET", *keys) if keys else (), strict=True):
            if raw is None:  # gone since the scan
                continue
            if len(found) == limit:
                left += 1
                continue
            scanned += 1
            try:
                record = Record.parse(key.decode("utf-8", "replace")[prefix:], raw)
            except ValueError:
                unreadable += 1
                continue
            if which.takes(record):
                found[record.job_id] = JobView.of(record)
        progress(scanned, len(found))
        cursor = int(at)
        if cursor == 0:
            complete = not left
            break
    newest = sorted(found.values(), key=lambda job: (job.enqueued_at or 0, job.id), reverse=True)
    return Listing(tuple(newest), scanned, unreadable, complete)
