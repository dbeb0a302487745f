"""enqueue and the wait for a result, as the rules want them."""

from __future__ import annotations

from collections.abc import Sequence

from streamworker.core.states import Status
from tests.model.job import Job, Key, Move, Request
from tests.model.shard import Shard


def enqueue(shard: Shard, requests: Sequence[Request]) -> list[str]:
    """Job id seen, then idempotency key, then delay (design, section 6)."""
    return [_enqueue(shard, request) for request in requests]


def _enqueue(shard: Shard, request: Request) -> str:
    known = shard.jobs.get(request.job_id)
    if known is not None:
        return known.disposition  # a re-send changes nothing
    key = shard.keys.get(request.key)
    if key is not None:
        status = _status_of(shard, key)
        if status and key.job_id == request.job_id:
            return "ACCEPTED"
        if status:
            verdict = "DUPLICATE" if key.fingerprint == request.fingerprint else "CONFLICT"
            return f"{verdict} {key.job_id} {status}"
    job = Job(request, deferred=bool(request.backlog))
    if not (request.delay_ms or job.deferred) and request.lane in shard.limits:
        most, overflow = shard.limits[request.lane]
        if shard.depth(request.lane) >= most:
            if overflow == "reject":
                return "REJECTED 1000 lane_full"  # and nothing of it stays
            job.deferred = True
    if request.key:
        shard.keys[request.key] = Key(job.id, request.fingerprint, "open")
    if request.deadline_ms:
        job.deadline = shard.deadlines[job.id] = shard.now + request.deadline_ms
    if request.delay_ms:
        shard.park(job, shard.now + request.delay_ms)
        job.disposition = f"SCHEDULED {shard.now + request.delay_ms}"
    elif job.deferred:
        job.entry = ("b", "")
        job.disposition = "DEFERRED"
    else:
        job.entry = ("a", "")
    shard.jobs[job.id] = shard.accepted[job.id] = job
    reason = "delayed" if request.delay_ms else "deferred" if job.deferred else "enqueued"
    shard.moves.append(Move(job.id, 0, 1, "-", Status.QUEUED, 0, 0, reason))
    return job.disposition


def _status_of(shard: Shard, key: Key) -> str:
    """'' when the key is free: it says open and its job is gone (R43)."""
    if key.state != "open":
        return key.state
    holder = shard.jobs.get(key.job_id)
    return "" if holder is None else holder.status


def watch(shard: Shard, job_id: str, wait: bool) -> str:
    """GONE, the final status, or WAIT for one who is woken at the end if he waits."""
    job = shard.jobs.get(job_id)
    if job is None:
        return "GONE"
    if job.over:
        return job.status
    job.awaited += wait
    return "WAIT"
