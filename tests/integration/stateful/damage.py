"""What operators, failovers, expiry and scripts that stopped half-way do to the keys."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.integration.stateful.bench import LANES
from tests.integration.stateful.machine import Protocol, nth, some
from tests.model.gates import is_gated
from tests.model.job import Job
from tests.model.shard import KINDS


class Damage(Protocol):
    """The protocol has to bring every job on all the same."""

    def _jobs(self, *, over: bool) -> list[Job]:
        return [job for job in self.model.jobs.values() if job.over == over]

    # --- what is missing ---------------------------------------------------------------------------------

    @precondition(lambda self: self.model.jobs)
    @rule(
        what=st.sampled_from(("place", "place", "record", "group", "group", "session", "key", "scripts")),
        pick=some,
        other=st.booleans(),
    )
    def something_is_lost(self, what: str, pick: int, other: bool) -> None:
        match what:
            case "place":
                self._place_is_lost(pick, other)
            case "record":
                self._record_expires(pick)
            case "group":
                self._group_is_destroyed(pick)
            case "session":
                self._worker_key_expires(pick)
            case "key":
                self._key_window_ends(pick)
            case "scripts":
                self.bench.redis("SCRIPT", "FLUSH")
        self.confirm()

    def _place_is_lost(self, pick: int, other: bool) -> None:
        """The entry of a job; of a parked one its due time, or its envelope."""
        # What gates and turnstiles do with a broken job is told elsewhere.
        if not (jobs := [job for job in self._jobs(over=False) if not (is_gated(job) or job.gate)]):
            return
        job, keys = nth(jobs, pick), self.bench.keys
        if job.entry is not None:
            self.bench.redis("XDEL", keys.stream(job.lane, job.entry[0]), job.entry[1])
            self.model.stream_of(job).entries.pop(job.entry[1], None)
        elif other:
            self.bench.redis("ZREM", keys.schedule, job.id)
            self.model.schedule.pop(job.id, None)
        else:
            self.bench.redis("HDEL", keys.body(job.id), "env")
            job.parked = False
        self.damaged.add(job.id)

    def _record_expires(self, pick: int) -> None:
        if jobs := self._jobs(over=True):
            job = nth(jobs, pick)
            self.bench.redis("DEL", self.bench.keys.job(job.id), self.bench.keys.body(job.id))
            del self.model.jobs[job.id]

    def _group_is_destroyed(self, pick: int) -> None:
        """Everything will be delivered again, what is held included (R9)."""
        streams = self.model.streams
        if used := [place for place, one in streams.items() if one.pending or (one.group and pick % 2)]:
            lane, kind = nth(used, pick)
            self.bench.redis("XGROUP", "DESTROY", self.bench.keys.stream(lane, kind), "workers")
            self.model.streams[lane, kind].destroy_group()

    def _worker_key_expires(self, pick: int) -> None:
        if self.model.sessions:
            name = nth(sorted(self.model.sessions), pick)
            self.bench.redis("DEL", self.bench.keys.worker(name))
            del self.model.sessions[name]

    def _key_window_ends(self, pick: int) -> None:
        if over := [name for name, key in self.model.keys.items() if key.state != "open"]:
            self.bench.redis("DEL", self.bench.keys.key(nth(over, pick)))
            del self.model.keys[nth(over, pick)]

    # --- what is left over -------------------------------------------------------------------------------

    @precondition(lambda self: self.model.accepted)
    @rule(pick=some, lane=st.sampled_from(LANES), kind=st.sampled_from(KINDS), scheduled=st.booleans())
    def something_is_left_over(self, pick: int, lane: str, kind: str, scheduled: bool) -> None:
        """A script stopped half-way: the job is in two places, of which its record honours one (D2, D3)."""
        jobs = self._jobs(over=False) if pick % 2 else []
        job = nth(jobs or list(self.model.accepted.values()), pick)
        if not scheduled:
            fields = ("id", job.id, "env", job.envelope)
            entry = self.bench.redis("XADD", self.bench.keys.stream(lane, kind), "*", *fields).decode()
            self.model.streams[lane, kind].entries[entry] = (job.id, job.envelope)
        elif job.id not in self.model.schedule:
            self.bench.redis("ZADD", self.bench.keys.schedule, self.model.now, job.id)
            self.model.schedule[job.id] = self.model.now
        self.confirm()
