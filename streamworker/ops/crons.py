"""What is known of the crons of a namespace: when they run, when they ran, what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamworker.core.cron import LATE_WITHIN_MS, Schedule
from streamworker.core.errors import ConfigurationError
from streamworker.core.job import Record
from streamworker.ops.history import iso
from streamworker.store import manifest
from streamworker.store.events import pairs
from streamworker.store.manifest import CronSpec
from streamworker.store.queue import Queue


async def crons(queue: Queue) -> list[dict[str, Any]]:
    """`cron list --json`: the crons that workers have published, by name.

    `next_tick` is by Redis's clock, None for an expression or zone that this machine cannot read.
    `overdue_since` is the first tick that has come since and that no worker has asked for: none declares the
    cron any more, or none is up. Else None.
    `last_tick` is the last one that counted, run or skipped; `last_job_id` the job that was made last, and
    `last_job_status` None once its record has expired.
    """
    command = queue.caller.command
    published = pairs(await command("HGETALL", queue.keys.meta))
    ran = pairs(await command("HGETALL", queue.keys.crons))
    stats = pairs(await command("HGETALL", queue.keys.stats))
    seconds, micros = await command("TIME")
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    found = []
    for field, value in sorted(published.items()):
        prefix, _, name = field.decode().partition(":")
        if f"{prefix}:" != manifest.FIELD:
            continue
        declared = manifest.read(name, value)
        if declared is None or declared.cron is None:
            continue
        tick, job_id, heard = _last(ran, name)
        found.append(
            {
                "name": name,
                "spec": declared.cron.spec,
                "tz": declared.cron.tz,
                "overlap": declared.cron.overlap,
                "lane": declared.lane,
                "next_tick": iso(_next(declared.cron, now_ms)),
                "overdue_since": iso(_overdue(declared.cron, heard, now_ms)),
                "last_tick": iso(tick),
                "last_job_id": job_id,
                "last_job_status": await _status(queue, job_id),
                "skipped": int(stats.get(b"cron_skipped:" + name.encode(), b"0")),
            }
        )
    return found


def _last(ran: Mapping[bytes, bytes], name: str) -> tuple[int | None, str | None, int | None]:
    """The last tick that counted and its job, if it was not only noted; and until when nothing was missed."""
    words = ran.get(name.encode(), b"").decode().split(" ")
    if len(words) < 2:
        return None, None, None
    tick, job_id, since = int(words[0]), words[1], int((*words[2:3], "0")[0] or 0)
    return (None, None, max(tick, since)) if job_id == "-" else (tick, job_id, max(tick, since))


def _next(cron: CronSpec, now_ms: int) -> int | None:
    try:
        return Schedule.parse(cron.spec, cron.tz).next_after(now_ms)
    except ConfigurationError:
        return None


def _overdue(cron: CronSpec, heard_ms: int | None, now_ms: int) -> int | None:
    due = None if heard_ms is None else _next(cron, heard_ms)
    return due if due is not None and due < now_ms - LATE_WITHIN_MS else None


async def _status(queue: Queue, job_id: str | None) -> str | None:
    if job_id is None:
        return None
    raw = await queue.caller.command("GET", queue.keys.job(job_id))
    try:
        return None if raw is None else str(Record.parse(job_id, raw).status)
    except ValueError:
        return None
