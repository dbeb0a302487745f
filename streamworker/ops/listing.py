"""Jobs by what their records say: found by a scan, since no index is kept for it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamworker.core.gates import entity_of
from streamworker.core.job import Record
from streamworker.core.states import Status
from streamworker.core.template import key_id
from streamworker.ops.dlq.letters import key_of
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
    #: The idempotency key, as its producer or template gave it.
    key: str | None = None

    def takes(self, record: Record) -> bool:
        """Whether this job is meant."""
        return (
            self.status in (None, record.status)
            and self.task in (None, record.task)
            and self.lane in (None, record.lane)
            and self.tenant in (None, record.text("tn"))
            and (self.key is None or _has_key(record, self.key))
        )


def _has_key(record: Record, key: str) -> bool:
    held = record.text("ky") or ""
    if not held.startswith("#"):
        return key_of(held) == key
    return held == key_id(record.task, entity_of(record.text("ga") or "") or "", key)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a scan found."""

    jobs: tuple[JobView, ...]
    #: Records that were looked at, those of other jobs included.
    scanned: int
    #: Records that could not be read, and are not among the jobs.
    unreadable: int
    #: Every record was looked at, and none that may be meant was left out.
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
    """The newest jobs that the filter takes, `limit` of them at most, by the times in their ids.

    The scan looks at the names of `most` records at most, reads those that may be among the newest, and tells
    `progress` after each step how many it has looked at and found. A job that comes or ends meanwhile may be
    missed.
    """
    prefix = len(queue.keys.job(""))
    newest: list[tuple[str, JobView]] = []  # a heap: the oldest of them is the first
    scanned, unreadable, cursor, all_shown = 0, 0, 0, True
    while scanned < most:
        at, keys = await queue.caller.command(
            "SCAN", cursor, "MATCH", queue.keys.job("*"), "COUNT", SCAN_COUNT, "TYPE", "string"
        )
        cursor = int(at)
        scanned += len(keys)
        ids = {key.decode("utf-8", "replace")[prefix:]: key for key in keys}
        if len(newest) == limit:
            late = {job_id: key for job_id, key in ids.items() if job_id > newest[0][0]}
            all_shown = all_shown and len(late) == len(ids)
            ids = late
        raws = await queue.caller.command("MGET", *ids.values()) if ids else ()
        known = {job_id for job_id, _ in newest}  # SCAN may name a key twice
        for job_id, raw in zip(ids, raws, strict=True):
            if raw is None or job_id in known:  # None: gone since the scan
                continue
            try:
                record = Record.parse(job_id, raw)
            except ValueError:
                unreadable += 1
                continue
            if not which.takes(record):
                continue
            if len(newest) < limit:
                heapq.heappush(newest, (job_id, JobView.of(record)))
            else:
                all_shown = False
                heapq.heappushpop(newest, (job_id, JobView.of(record)))
        progress(scanned, len(newest))
        if cursor == 0:
            break
    return Listing(
        tuple(view for _, view in sorted(newest, key=lambda item: item[0], reverse=True)),
        scanned,
        unreadable,
        complete=cursor == 0 and all_shown,
    )
