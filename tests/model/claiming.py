"""session and claim, as the rules want them: D5's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streamworker.core.job import Claim
from streamworker.core.states import Status
from tests.model.job import Job
from tests.model.shard import Shard

Entry = tuple[str, str, str]  # lane, kind of stream, entry id


@dataclass(slots=True)
class Room:
    """The slots that one claim call may fill."""

    limit: int
    shared: int
    #: Free reserved slots of each planned lane.
    reserved: dict[str, int]
    #: Lanes whose quarantine is read, and the one slot of each, which nothing else fills (D22).
    quarantine: dict[str, int] = field(default_factory=dict)
    #: Lanes in which nothing may start now.
    paused: frozenset[str] = frozenset()

    def planned(self, lane: str, kind: str) -> bool:
        return lane in (self.quarantine if kind == "q" else self.reserved)

    def fits(self, lane: str, kind: str) -> bool:
        if lane in self.paused:
            return False
        if kind == "q":
            return self.quarantine.get(lane, 0) > 0
        return self.limit > 0 and lane in self.reserved and (self.reserved[lane] > 0 or self.shared > 0)

    def take(self, lane: str, kind: str) -> None:
        if kind == "q":
            self.quarantine[lane] -= 1
            return
        self.limit -= 1
        if self.reserved[lane] > 0:
            self.reserved[lane] -= 1
        else:
            self.shared -= 1


@dataclass(slots=True)
class Claimed:
    """What a claim call must come to."""

    verdict: str
    claims: list[Claim] = field(default_factory=list)
    #: Entries that were looked at and not claimed.
    left_alone: int = 0


def open_session(shard: Shard, worker: str, own: int) -> int:
    """max(own, stored) + 1 (D5)."""
    shard.sessions[worker] = max(own, shard.sessions.get(worker, 0)) + 1
    return shard.sessions[worker]


def claim(
    shard: Shard,
    worker: str,
    session: int,
    room: Room,
    *,
    offers: Sequence[Entry],
    read_to: Mapping[tuple[str, str], str],
    fences: Mapping[str, int],
) -> Claimed:
    """`read_to`: how far each stream's group has read now. `fences`: what each job's claim was given.

    Both are Redis's and the counter's to choose; the caller checks that fences grow.
    """
    if shard.sessions.get(worker) != session:
        return Claimed("NOSESSION")
    room.paused = frozenset(lane for lane in shard.lanes if shard.gates.paused(f"lane:{lane}"))
    held_up = [lane for lane in (*room.reserved, *room.quarantine) if lane in room.paused]
    call = _Call(shard, worker, session, room, fences, Claimed(" ".join(("OK", *held_up))))
    for lane, kind, entry in offers:
        stream = shard.streams[lane, kind]
        if entry in stream.entries:
            call.take(lane, kind, entry, offered=True)
        else:
            call.reject(lane, kind, entry)
    for (lane, kind), upto in read_to.items():
        stream = shard.streams[lane, kind]
        if stream.undelivered(upto):
            assert room.planned(lane, kind), f"claim read {lane} {kind}, which its plan does not name"
        for entry in stream.deliver(worker, upto):
            call.take(lane, kind, entry, offered=False)
    return call.result


@dataclass(slots=True)
class _Call:
    shard: Shard
    worker: str
    session: int
    room: Room
    fences: Mapping[str, int]
    result: Claimed

    def reject(self, lane: str, kind: str, entry: str) -> None:
        """No open record honours this entry: XACK and XDEL (D2)."""
        self.shard.streams[lane, kind].remove(entry)
        self.result.left_alone += 1

    def take(self, lane: str, kind: str, entry: str, *, offered: bool) -> None:
        job = self.shard.jobs.get(self.shard.streams[lane, kind].entries[entry][0])
        if job is None or job.over or job.lane != lane or job.entry != (kind, entry):
            self.reject(lane, kind, entry)
        elif job.waiting:
            self._take_waiting(job, offered)
        else:
            self._take_held(job, offered)

    def _take_waiting(self, job: Job, offered: bool) -> None:
        shard = self.shard
        if job.deadline is not None and job.deadline <= shard.now:
            self.result.left_alone += 1
            shard.overrule(job, "expired")
        elif job.starts >= job.request.max_starts:
            self.result.left_alone += 1
            shard.fail(job, "too_many_starts", "unknown too_many_starts")
        elif not offered and self._is_held_up(job):
            self.result.left_alone += 1
            shard.hold_up(job)
        elif not self._fits(job):
            shard.drop_entry(job)
            shard.make_ready(job)
        elif self._is_held_up(job):
            self.result.left_alone += 1
            shard.hold_up(job)
        else:
            job.attempt += 1
            job.starts += 1
            self._hold(job)
            retried = job.status is Status.RETRY_SCHEDULED
            shard.move(job, Status.CLAIMED, "claimed")
            self._grant(job, offered, retried=retried)

    def _take_held(self, job: Job, offered: bool) -> None:
        shard = self.shard
        if job.holder != self.worker:  # somebody else's: back to him
            assert job.entry is not None
            shard.stream_of(job).give(job.entry[1], job.holder)
        elif offered and job.status == Status.CLAIMED and job.session < self.session:
            if self._fits(job):  # its reply was lost: the same claim, uncharged, under a new fence
                self._hold(job)
                self._grant(job, offered)
                return
            code = shard.overruled(job, shard.now)
            job.attempt -= 1
            if code:
                shard.overrule(job, code)
            else:
                shard.move(job, Status.QUEUED, "no_slot")
                shard.close_claim(job, "released", "own")
                shard.drop_entry(job)
                shard.make_ready(job)
        self.result.left_alone += 1  # by me in this session, or processing: nothing

    def _is_held_up(self, job: Job) -> bool:
        """What a read was given had a slot: it was claimed, or a gate has stopped it."""
        return job.id not in self.fences and self.shard.gates.may_hold_up(job)

    def _fits(self, job: Job) -> bool:
        assert job.entry is not None
        return self.room.fits(job.lane, job.entry[0])

    def _hold(self, job: Job) -> None:
        shard = self.shard
        job.fence = self.fences.get(job.id, shard.fence + 1)
        job.lease_until = shard.now + shard.lease_ms
        job.holder = self.worker
        job.session = self.session

    def _grant(self, job: Job, offered: bool, *, retried: bool = False) -> None:
        assert job.entry is not None
        kind, entry = job.entry
        if offered:  # a sweep may have taken it over
            self.shard.stream_of(job).give(entry, self.worker)
        self.room.take(job.lane, kind)
        now = self.shard.now
        self.result.claims.append(
            Claim(
                job.id,
                job.fence,
                job.attempt,
                job.starts,
                job.strikes,
                job.epoch,
                job.lane,
                kind,
                entry,
                0,
                None if job.deadline is None else job.deadline - now,
                None if job.unknown_since is None else now - job.unknown_since,
                self.shard.streams[job.lane, kind].entries[entry][1],
                job.request.gates,
                retried=retried,
            )
        )
