"""enqueue and the wait for a result, as the rules want them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from streamworker.core.states import Status
from tests.model.job import Job, Key, Move, Request
from tests.model.merging import Merging
from tests.model.shard import Shard


def enqueue(shard: Shard, requests: Sequence[Request], *, parked: Collection[str] = ()) -> list[str]:
    """Job id seen, then idempotency key, window, door, delay (design, section 6).

    `parked`: the new jobs of which the records say that they wait at a gate.
    """
    call = _Call(shard, {lane: shard.depth(lane) for lane in shard.lanes})
    replies = [call.enqueue(request) for request in requests]
    call.finish()
    for at, request in enumerate(requests):
        job = shard.jobs.get(request.job_id)
        if request.job_id in parked and job is not None:
            replies[at] = job.disposition = "PARKED"
    return replies


@dataclass(slots=True)
class _Call:
    """One call. Doors know what was there before it, and what it has let in itself."""

    shard: Shard
    depths: dict[str, int]
    fresh: list[Job] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    windows: Merging = field(init=False)

    def __post_init__(self) -> None:
        self.windows = Merging(self.shard)

    def enqueue(self, request: Request) -> str:
        shard = self.shard
        known = shard.jobs.get(request.job_id)
        if known is not None:
            return known.disposition  # a re-send changes nothing
        if request.window and request.job_id in shard.merged:
            return f"COALESCED {shard.merged[request.job_id]}"
        key = shard.keys.get(request.key)
        if key is not None:
            status = _status_of(shard, key)
            if status and key.job_id == request.job_id:
                return "ACCEPTED"
            if status:
                verdict = "DUPLICATE" if key.fingerprint == request.fingerprint else "CONFLICT"
                return f"{verdict} {key.job_id} {status}"
        if request.window and (into := self.windows.merge(request)) is not None:
            return f"COALESCED {into.id}"
        job = Job(request, request.envelope, deferred=bool(request.backlog))
        refusal = self._throttled(job) or self._full(job)
        if refusal:
            return refusal  # and nothing of it stays
        self._accept(job)
        return job.disposition

    def _throttled(self, job: Job) -> str:
        """A token of each throttle that concerns it, or of none; how it is refused, if it is."""
        gates, now, request = self.shard.gates, self.shard.now, job.request
        names = [f"lane:{request.lane}", f"tenant:{request.tenant}" if request.tenant else ""]
        found = {name: gates.throttles[name] for name in names if name in gates.throttles}
        for name, ((tokens, period, burst), overflow) in found.items():
            bucket = gates.door(name, tokens, period, burst, now)
            if bucket.level >= period:
                continue
            wait = max(1, -(-(period - bucket.level) // tokens)) + self.refused[name] * period // tokens
            self.refused[name] += 1
            if overflow == "reject":
                return f"REJECTED {wait} throttled"
            job.deferred = True
            return ""
        for name, ((tokens, period, burst), _) in found.items():
            gates.doors[name] = bucket = gates.door(name, tokens, period, burst, now)
            bucket.level -= period
        return ""

    def _full(self, job: Job) -> str:
        if job.request.delay_ms or job.deferred:
            return ""
        most, overflow = self.shard.limits.get(job.lane, (sys.maxsize, ""))
        if self.depths[job.lane] >= most:
            if overflow == "reject":
                return "REJECTED 1000 lane_full"
            job.deferred = True
        else:
            self.depths[job.lane] += 1
        return ""

    def _accept(self, job: Job) -> None:
        shard, request = self.shard, job.request
        if request.key:
            shard.keys[request.key] = Key(job.id, request.fingerprint, "open")
        if request.deadline_ms:
            job.deadline = shard.deadlines[job.id] = shard.now + request.deadline_ms
        if request.delay_ms:
            shard.park(job, shard.now + request.delay_ms)
        if job.parked or (request.window and self.windows.open(request, job)):
            job.disposition = f"SCHEDULED {job.due}"
        elif job.deferred:
            job.entry = ("b", "")
            job.disposition = "DEFERRED"
        else:
            job.entry = ("a", "")
        shard.jobs[job.id] = shard.accepted[job.id] = job
        self.fresh.append(job)

    def finish(self) -> None:
        """The lines of the log."""
        for job in self.fresh:
            reason = "delayed" if job.parked else "deferred" if job.deferred else "enqueued"
            self.shard.moves.append(Move(job.id, 0, 1, "-", Status.QUEUED, 0, 0, reason))
        self.windows.finish()


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
