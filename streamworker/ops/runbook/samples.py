"""Who waits, who is tried again and who died lately: counted where it is counted, else from samples."""

from __future__ import annotations

from collections import Counter

from streamworker.core.job import Record
from streamworker.core.lane import BACKLOG
from streamworker.core.states import Status
from streamworker.ops.dlq.causes import Cause
from streamworker.ops.dlq.letters import letters as read_letters
from streamworker.ops.overload import Drain
from streamworker.ops.runbook.sight import Crowd, Letters, Retries
from streamworker.ops.snapshot import Snapshot
from streamworker.store.events import pairs
from streamworker.store.queue import Queue

#: Jobs of the backlog, and of the schedule, that are looked at.
SAMPLE = 500
#: Tenants that are counted at most.
TENANTS = 10_000
#: Letters that are read at most, and for how far back, in ms.
LETTERS, RECENT_MS = 1_000, 3_600_000


async def crowds(queue: Queue, now: Snapshot, drain: Drain) -> dict[str, Crowd]:
    """Who waits, by lane; of the backlog, whose the newest jobs are."""
    tenants: dict[str, Counter[str]] = {}
    _, flat = await queue.caller.command("HSCAN", queue.keys.turnstile, 0, "COUNT", TENANTS)
    for name, value in pairs(flat).items():
        lane, _, tenant = name.decode("utf-8", "replace").partition(" ")
        if tenant:  # who stands and who waits of it; without one it is something of the lane
            tenants.setdefault(lane, Counter())[tenant] += sum(map(int, value.split()))
    tasks: dict[str, Counter[str]] = {}
    for (lane, task, state), count in now.jobs.items():
        if state in ("ready", "parked") and count > 0:
            tasks.setdefault(lane, Counter())[task] += count
    if drain.depth:
        tenants[BACKLOG] = await _newest(queue, drain)
    return {
        lane: Crowd(tenants.get(lane, Counter()), tasks.get(lane, Counter()))
        for lane in tenants.keys() | tasks.keys()
    }


async def _newest(queue: Queue, drain: Drain) -> Counter[str]:
    """The tenants of the newest jobs in the backlog, of each lane that they are meant for."""
    found: Counter[str] = Counter()
    for lane, (depth, _) in drain.lanes.items():
        if not depth:
            continue
        page = await queue.caller.command(
            "XREVRANGE", queue.keys.stream(lane, "b"), "+", "-", "COUNT", SAMPLE
        )
        named = (pairs(flat).get(b"id", b"") for _, flat in page)
        records = await _records(queue, [job_id.decode("utf-8", "replace") for job_id in named])
        found.update(record.text("tn") or "" for record in records)
    return found


async def _records(queue: Queue, ids: list[str]) -> list[Record]:
    """The records that are there and can be read."""
    if not ids:
        return []
    found = []
    raws = await queue.caller.command("MGET", *(queue.keys.job(each) for each in ids))
    for job_id, raw in zip(ids, raws, strict=True):
        try:
            if raw is not None:
                found.append(Record.parse(job_id, raw))
        except ValueError:  # a claim will bury it
            continue
    return found


async def retries(queue: Queue) -> Retries:
    """What waits for its next attempt, by the jobs that are due first and last."""
    command, key = queue.caller.command, queue.keys.schedule
    scheduled = int(await command("ZCARD", key))
    half = SAMPLE // 2
    ids = [*await command("ZRANGE", key, 0, half - 1), *await command("ZRANGE", key, -half, -1)]
    records = await _records(queue, list(dict.fromkeys(each.decode() for each in ids)))
    by_code = Counter(
        (record.task, (record.text("ec") or "").partition(" ")[2])
        for record in records
        if record.status is Status.RETRY_SCHEDULED
    )
    return Retries(len(records), scheduled, by_code)


async def letters(queue: Queue, now_ms: int) -> Letters:
    """The causes of the letters of the last hour, the most frequent first."""
    found: dict[tuple[str, str, str], Cause] = {}
    read, more = 0, False
    async for letter in read_letters(queue, newest_first=True):
        if letter.dead_at < now_ms - RECENT_MS:
            break
        if read >= LETTERS:
            more = True
            break
        read += 1
        name = (letter.task, letter.error_class, letter.error_code)
        found.setdefault(name, Cause(*name)).add(letter)
    order = sorted(found.values(), key=lambda cause: (-cause.count, cause.task, cause.error_code))
    return Letters(causes=tuple(order), more=more)
