"""heartbeat, recover, repair, promote and forget, as the rules want them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from streamworker.core.job import Candidate
from tests.model.job import Job, Move
from tests.model.shard import KINDS, Shard


def heartbeat(
    shard: Shard, worker: str, claims: Sequence[tuple[str, int]]
) -> tuple[str, list[str], list[str]]:
    """(verdict, lost ids, cancelled ids and codes). Extends what is still ours, expired or not (D6, D20)."""
    lost, cancelled = [], []
    for job_id, fence in claims:
        job = shard.jobs.get(job_id)
        if job is None or not job.held or job.fence != fence:
            lost.append(job_id)
            continue
        job.lease_until = shard.now + shard.lease_ms
        if job.entry is not None:
            shard.stream_of(job).give(job.entry[1], worker)
        if job.cancel:
            cancelled += [job_id, job.cancel]
    return "OK" if worker in shard.sessions else "NOSESSION", lost, cancelled


def sweep(
    shard: Shard, worker: str, lane: str, kind: str, ripe: Collection[str]
) -> tuple[int, list[Candidate]]:
    """(hold left in ms, what is dead). `ripe`: entries that were idle for a lease (D6)."""
    hold = note_sweep(shard)
    if hold:
        return hold, []
    dead = []
    stream = shard.streams[lane, kind]
    for entry in stream.sweep(worker, ripe):
        job = shard.jobs.get(stream.entries[entry][0])
        if job is None or job.over or job.lane != lane or job.entry != (kind, entry):
            stream.remove(entry)
        elif job.waiting:  # delivered and never claimed: nothing is charged
            shard.drop_entry(job)
            shard.make_ready(job)
        else:
            job.lease_until = min(job.lease_until, shard.now + 2 * shard.lease_ms)
            if job.lease_until > shard.now:
                stream.give(entry, job.holder)
            else:
                dead.append(_candidate(job))
    return 0, dead


def note_sweep(shard: Shard) -> int:
    """The hold left in ms: after an outage nothing is recovered for one lease, and that adds up (D6)."""
    gap = None if shard.swept_at is None else shard.now - shard.swept_at
    half = shard.lease_ms // 2
    if gap is None or gap < 0 or gap > shard.lease_ms or (gap > half and not shard.hold_ms):
        shard.hold_ms = shard.hold_ms or shard.lease_ms
    elif gap > half:  # who always sweeps late must recover as well
        shard.hold_ms = max(0, shard.hold_ms - half)
    else:
        shard.hold_ms = max(0, shard.hold_ms - gap)
    shard.swept_at = shard.now
    return shard.hold_ms


def repair(shard: Shard, job_ids: Sequence[str]) -> tuple[int, list[Candidate]]:
    """(number put right, what is dead). Finds what no stream and no schedule has any more (D3, D8)."""
    mended, dead = 0, []
    for job in [shard.jobs[job_id] for job_id in job_ids if job_id in shard.jobs]:
        if job.held:
            if job.lease_until <= shard.now and not shard.hold_ms and not shard.standing(job):
                dead.append(_candidate(job))
        elif job.waiting and not (job.gate or shard.standing(job) or job.id in shard.schedule):
            mended += 1
            if job.parked and job.due > shard.now:
                shard.park(job, job.due)
            elif job.parked:
                shard.make_ready(job)
            else:
                shard.fail(job, "entry_deleted", "unknown entry_deleted")
    return mended, dead


def drain(shard: Shard, marks: Sequence[tuple[str, int]], limit: int) -> int:
    """How many jobs of the backlog went into their lanes: the earliest first, as far as there is room.

    The bucket has enough for all; what a lane that is paused, or over its mark, holds up is its own.
    """
    room = {lane: high - shard.depth(lane) for lane, high in marks if not shard.gates.paused(f"lane:{lane}")}
    waiting = [(_place_of(entry), lane, entry) for lane in room for entry in shard.streams[lane, "b"].entries]
    drained = 0
    for _, lane, entry in sorted(waiting):
        job = shard.jobs.get(shard.streams[lane, "b"].entries[entry][0])
        if drained == limit or room[lane] <= 0:
            continue
        shard.streams[lane, "b"].remove(entry)
        if job is None or not job.waiting or job.entry != ("b", entry):
            continue  # no open record honours it
        drained, room[lane] = drained + 1, room[lane] - 1
        job.version += 1
        shard.moves.append(
            Move(job.id, job.epoch, job.version, job.status, job.status, job.attempt, 0, "drained")
        )
        job.deferred, job.entry = False, ("a", "")
    return drained


def _place_of(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return int(ms), int(number)


def promote(shard: Shard, limit: int) -> tuple[int, int, int | None]:
    """(promoted, expired, due time of the next). A due id that is not waiting is dropped."""
    promoted = expired = 0
    due = _upto(shard.schedule, shard.now, limit)  # read before anything is written
    for job_id in _upto(shard.deadlines, shard.now, limit):
        late = shard.jobs.get(job_id)
        if late is not None and late.waiting:
            expired += 1
            shard.overrule(late, "expired")
            continue
        if late is not None and late.held:
            late.cancel = late.cancel or "expired"
        del shard.deadlines[job_id]
    for job_id in due:
        job = shard.jobs.get(job_id)
        if job is not None and job.waiting and job.entry is None and not job.gate:
            if job.parked:
                promoted += 1
                shard.make_ready(job)
            else:
                shard.fail(job, "entry_deleted", "unknown entry_deleted")
        shard.schedule.pop(job_id, None)
    return promoted, expired, min(shard.schedule.values(), default=None)


def forget(shard: Shard, worker: str) -> bool:
    """Whether the worker is dead, so that its consumers go where nothing is pending (R6)."""
    return worker not in shard.sessions


def pending_of(shard: Shard, worker: str) -> list[tuple[str, str, str]]:
    """What was delivered to this consumer: lane, kind, entry."""
    return [
        (lane, kind, entry)
        for lane in shard.lanes
        for kind in KINDS
        for entry, consumer in sorted(shard.streams[lane, kind].pending.items())
        if consumer == worker
    ]


def _upto(times: dict[str, int], now: int, limit: int) -> list[str]:
    due = sorted((time, job_id) for job_id, time in times.items() if time <= now)
    return [job_id for _, job_id in due[:limit]]


def _candidate(job: Job) -> Candidate:
    return Candidate(
        job.id,
        job.fence,
        job.lease_until,
        job.version,
        job.status,
        job.attempt,
        job.starts,
        job.strikes,
        job.lane,
        job.request.task,
        job.holder,
    )
