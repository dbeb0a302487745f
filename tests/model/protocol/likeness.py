"""What the protocol model and the readable model have in common, and how either calls it."""

from __future__ import annotations

from typing import Any

from tests.model.job import Job
from tests.model.protocol.state import DEAD, GONE_ENTRY, HELD, LIVE, NO_ENTRY, OUT, TERMINAL, Record, State
from tests.model.shard import Shard

LANE = "normal"


def id_of(job: int) -> str:
    return f"job-{job}"


def number_of(job_id: str) -> int:
    return int(job_id.rpartition("-")[2])


def name_of(worker: int) -> str:
    return "dead" if worker == DEAD else f"w{worker}"


def worker_of(name: str) -> int:
    return DEAD if name == "dead" else int(name[1:])


def there_of(state: State, number: int, record: Record) -> dict[str, Any]:
    """What the protocol model has of a job, in words that both share."""
    aside = state.asides[number]
    over = record.status in TERMINAL
    return {
        "status": record.status,
        "attempt": 0 if over else record.attempt,
        "starts": 0 if over else record.starts,
        "strikes": record.strikes,
        "epoch": record.epoch,
        "cancel": False if over else record.cancel,
        "holder": record.holder if record.status in HELD else None,
        "session": record.session,
        "live": record.lease == LIVE,
        "entry": {NO_ENTRY: "none", GONE_ENTRY: "gone"}.get(record.entry, "standing"),
        "scheduled": aside.scheduled,
        "parked": aside.parked,
        "listed": aside.listed,
        "overdue": aside.deadline == OUT,
    }


def here_of(shard: Shard, number: int, job: Job) -> dict[str, Any]:
    """The same of the readable model."""
    return {
        "status": job.status.value,
        "attempt": 0 if job.over else job.attempt,
        "starts": 0 if job.over else job.starts,
        "strikes": job.strikes,
        "epoch": job.epoch,
        "cancel": False if job.over else bool(job.cancel),
        "holder": worker_of(job.holder) if job.held else None,
        "session": job.session if job.held else 0,
        "live": job.held and job.lease_until > shard.now,
        "entry": "none" if job.entry is None else "standing" if shard.standing(job) else "gone",
        "scheduled": job.id in shard.schedule,
        "parked": job.parked,
        "listed": job.id in shard.deadlines,
        "overdue": job.deadline is not None and job.deadline <= shard.now,
    }
