"""The state of one shard, and the steps that the verbs share.

The verbs are functions of their own modules, one module for each who calls them: `producing`, `claiming`,
`settling`, `keeping`, `operating`. Each takes the shard and what the call says, changes the shard as the
rules want it, and returns the reply that the call must give. What Redis is free to choose is told to the
model instead of predicted: which undelivered entries a read was given, and the ids of new entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from streamworker.core.states import QUIET_CODES, TRANSITIONS, Status
from tests.model.gates import Gates
from tests.model.job import Job, Key, Letter, Move, Settled
from tests.model.stream import Stream

KINDS = ("a", "r", "q")


class Shard:
    """Everything that is live, and a clock that only the caller moves (ms)."""

    def __init__(self, lanes: Iterable[str], *, now: int, lease_ms: int) -> None:
        self.lanes = tuple(lanes)
        self.now = now
        self.lease_ms = lease_ms
        #: Jobs whose record exists, and every job that was ever accepted.
        self.jobs: dict[str, Job] = {}
        self.accepted: dict[str, Job] = {}
        self.keys: dict[str, Key] = {}
        self.schedule: dict[str, int] = {}
        self.deadlines: dict[str, int] = {}
        self.letters: dict[tuple[str, int], Letter] = {}
        self.streams = {(lane, kind): Stream() for lane in self.lanes for kind in (*KINDS, "b")}
        #: Jobs that may wait in a lane, and what becomes of others: `backlog` or `reject`.
        self.limits: dict[str, tuple[int, str]] = {}
        #: Those behind a turnstile, by lane and tenant (D15).
        self.turns: dict[tuple[str, str], Stream] = {}
        self.gates = Gates()
        #: Jobs that have opened a window, by its name; the jobs into which other events went.
        self.windows: dict[str, str] = {}
        self.merged: dict[str, str] = {}
        #: Handlers' locks: holder and token.
        self.locks: dict[str, tuple[str, int]] = {}
        self.sessions: dict[str, int] = {}  # of the workers whose key exists
        self.swept_at: int | None = None
        self.hold_ms = 0
        self.fence = 0
        #: Wake-ups that those who awaited a result must find, by job.
        self.wakes: dict[str, int] = {}
        #: What the log must show next.
        self.moves: list[Move] = []

    # --- looking ---------------------------------------------------------------------------------------

    def stream_of(self, job: Job) -> Stream:
        """The stream that the job's entry names."""
        assert job.entry is not None
        if job.entry[0] == "t":
            return self.turns.setdefault((job.lane, job.request.tenant), Stream())
        return self.streams[job.lane, job.entry[0]]

    def standing(self, job: Job) -> bool:
        """Whether the entry that the record names is in its stream."""
        return job.entry is not None and job.entry[1] in self.stream_of(job).entries

    def depth(self, lane: str) -> int:
        """Jobs that wait in a lane, at gates and behind turnstiles too."""
        return sum(
            job.lane == lane
            and job.waiting
            and bool(job.gate or (job.entry is not None and job.entry[0] != "b"))
            for job in self.jobs.values()
        )

    def envelope(self, job: Job, carried: bytes = b"") -> bytes:
        """What was sent along, else the entry's, else the body's; b'' when nobody has it (D8)."""
        if carried:
            return carried
        if job.entry is not None and self.standing(job):
            return self.stream_of(job).entries[job.entry[1]][1]
        return job.envelope if job.parked or job.gate else b""

    def overruled(self, job: Job, due: int) -> str:
        """The code that wins over anything but a success: the cancel flag, or the deadline at `due` (D9)."""
        if job.cancel:
            return job.cancel
        if job.deadline is not None and (job.deadline <= self.now or due > job.deadline):
            return "expired"
        return ""

    # --- moving ----------------------------------------------------------------------------------------

    def move(self, job: Job, to: Status, reason: str) -> None:
        """Along one edge; every move raises the version."""
        assert (job.status, to) in TRANSITIONS, f"the model itself moves {job} to {to}"
        job.version += 1
        self.moves.append(
            Move(job.id, job.epoch, job.version, job.status, to, job.attempt, job.fence, reason)
        )
        job.status = to

    def close_claim(self, job: Job, outcome: str, by: str) -> None:
        """The fence has served; a settle sent again is answered from `settled` (D1)."""
        if job.fence:
            job.settled = Settled(job.fence, outcome, by)
        job.fence = job.lease_until = 0

    def drop_entry(self, job: Job) -> None:
        """XACK and XDEL of the entry that the record names."""
        if job.entry is not None:
            self.stream_of(job).remove(job.entry[1])
            job.entry = None

    def make_ready(self, job: Job) -> None:
        """To the lane's ready stream; to quarantine with strikes (D22), or to the backlog."""
        job.entry = ("q" if job.strikes else "b" if job.deferred and not job.starts else "r", "")
        job.parked = False

    def hold_up(self, job: Job) -> None:
        """A gate stopped it: it waits there, or was let in again at once; its record says which."""
        self.drop_entry(job)
        job.entry = ("?", "")

    def park(self, job: Job, due: int) -> None:
        """To the schedule, the envelope to the body (D8)."""
        self.schedule[job.id] = due
        job.parked, job.due = True, due

    def succeed(self, job: Job, reason: str, by: str) -> None:
        self.move(job, Status.SUCCEEDED, reason)
        self.close_claim(job, "succeeded", by)
        job.strikes = 0
        if self._owns_key(job):
            self.keys[job.request.key].state = Status.SUCCEEDED  # kept for its window (D11)
        for key in self._merged_into(job):
            self.keys[key].state = Status.SUCCEEDED
        self._leave(job)

    def fail(self, job: Job, reason: str, error: str, carried: bytes = b"", by: str = "own") -> None:
        """`error` is class and code; all but the quiet codes leave a dead letter."""
        envelope = self.envelope(job, carried)
        self.move(job, Status.FAILED_TERMINAL, reason)
        self.close_claim(job, "failed", by)
        job.error = error
        code = error.split(" ")[1]
        if self._owns_key(job):
            del self.keys[job.request.key]  # D11
        for key in self._merged_into(job):
            del self.keys[key]
        self._leave(job)
        if code not in QUIET_CODES:
            self.letters[job.id, job.epoch] = Letter(replace(job), code, envelope)

    def overrule(self, job: Job, code: str, carried: bytes = b"", by: str = "own") -> None:
        """End a job by its cancel flag or its deadline."""
        self.fail(job, code, f"persistent {code}", carried, by)

    def _owns_key(self, job: Job) -> bool:
        key = self.keys.get(job.request.key)
        return key is not None and key.job_id == job.id

    def _merged_into(self, job: Job) -> list[str]:
        """The keys of events for which the job answers; with its end it does so no more."""
        keys, job.merged_keys = job.merged_keys, set()
        return [key for key in keys if key in self.keys and self.keys[key].job_id == job.id]

    def _leave(self, job: Job) -> None:
        if job.deadline is not None:
            self.deadlines.pop(job.id, None)
        if job.entry is None and not job.gate:
            self.schedule.pop(job.id, None)
        self.drop_entry(job)
        job.parked = False
        job.gate, job.grants = "", ()
        if job.awaited:
            self.wakes[job.id] = self.wakes.get(job.id, 0) + job.awaited
            job.awaited = 0
