"""What is known of the crons of a namespace: when they run, when they ran, what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamworker.core.cron import Schedule
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
        tick, job_id = _last(ran, name)
        found.append(
            {
                "name": name,
                "spec": declared.cron.spec,
                "tz": declared.cron.tz,
                "overlap": declared.cron.overlap,
                "lane": declared.lane,
                "next_tick": iso(_next(declared.cron, now_ms)),
                "last_tick": iso(tick),
                "last_job_id": job_id,
                "last_job_status": await _status(queue, job_id),
                "skipped": int(stats.get(b"cron_skipped:" + name.encode(), b"0")),
            }
        )
    return found


def _last(ran: Mapping[bytes, bytes], name: str) -> tuple[int | None, str | None]:
    """The last tick that counted and the last job; a cron that was only noted has neither."""
    tick, job_id = ran.get(name.encode(), b"0 -").decode().split(" ")[:2]
    return (None, None) if job_id == "-" else (int(tick), job_id)


def _next(cron: CronSpec, now_ms: int) -> int | None:
    try:
        return Schedule.parse(cron.spec, cron.tz).next_after(now_ms)
    except ConfigurationError:
        return None


async def _status(queue: Queue, job_id: str | None) -> str | None:
    if job_id is None:
        return None
    raw = await queue.caller.command("GET", queue.keys.job(job_id))
    try:
        return None if raw is None else str(Record.parse(job_id, raw).status)
    except ValueError:
        return None
