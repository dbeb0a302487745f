"""What the model knows of gates: what operators have paused and limited, what buckets hold, who holds what.

Which waiter is let in when is the scripts' to decide; the model is told by the records, and `letting_in` says
whether it was allowed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.model.job import Job

#: Kinds of gates whose holders run.
LOCKS = ("entity", "concurrency")


def kind_of(name: str) -> str:
    """The kind of the gate with this name."""
    return name.partition(":")[0]


def words(job: Job) -> dict[str, str]:
    """Name and figures of each gate of a job, in the order in which it passes them."""
    named = [word.split("|") for word in job.request.gates.split(" ")[1:]]
    return {name: rest[0] if rest else "" for name, *rest in named}


def scopes(job: Job) -> set[str]:
    """What can be paused so that the job waits."""
    of_gates = {name.removeprefix("pause:") for name in words(job) if kind_of(name) == "pause"}
    tenant = {f"tenant:{job.request.tenant}"} if job.request.tenant else set()
    return {f"lane:{job.lane}", f"task:{job.request.task}"} | tenant | of_gates


def is_gated(job: Job) -> bool:
    """Whether gates and turnstiles decide where it waits, whatever is paused."""
    return bool(job.request.gates or job.request.tenant)


def holders(jobs: Iterable[Job]) -> dict[str, set[str]]:
    """Who holds each gate, whether it runs or was only granted it: by the jobs alone (D13)."""
    found: dict[str, set[str]] = defaultdict(set)
    for job in jobs:
        names = [name for name in words(job) if kind_of(name) in LOCKS] if job.held else job.grants
        for name in names:
            found[name].add(job.id)
    return found


@dataclass(slots=True)
class Pause:
    """`till`: when it ends, or when all are in again; 0: when somebody says so."""

    state: str  # paused, or ramp: open again, and its waiters come in
    till: int


@dataclass(slots=True)
class Bucket:
    """Tokens × period, as of a time; what nobody has looked at is full."""

    level: int
    at: int


@dataclass(slots=True)
class Gates:
    """What holds for all jobs."""

    pauses: dict[str, Pause] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    buckets: dict[str, Bucket] = field(default_factory=dict)
    #: Throttles of producers by their scope: tokens, period, burst; what becomes of those who get none.
    throttles: dict[str, tuple[tuple[int, int, int], str]] = field(default_factory=dict)
    doors: dict[str, Bucket] = field(default_factory=dict)

    # --- operators

    def throttle(self, scope: str, text: str) -> str:
        """`text`: figures and overflow; '' lifts it."""
        if not text:
            return "NOTHING" if self.throttles.pop(scope, None) is None else "OK"
        figures, overflow = text.split(" ")
        tokens, period, burst = map(int, figures.split(","))
        self.throttles[scope] = (tokens, period, burst), overflow
        return "OK"

    def pause(self, scope: str, now: int, ms: int) -> str:
        self.pauses[scope] = Pause("paused", now + ms if ms else 0)
        return "OK"

    def resume(self, scope: str, now: int, ramp_ms: int) -> str:
        pause = self.pauses.get(scope)
        if pause is None:
            return "NOTHING"
        if scope.startswith("lane:"):
            del self.pauses[scope]  # nothing was parked for it
        elif pause.state == "paused" or now + ramp_ms < pause.till:
            self.pauses[scope] = Pause("ramp", now + ramp_ms)
        return "OK"

    def limit(self, name: str, figures: str) -> str:
        self.limits[name] = figures
        return "OK"

    def reset(self, name: str) -> str:
        return "NOTHING" if self.limits.pop(name, None) is None else "OK"

    # --- looking

    def paused(self, scope: str) -> bool:
        pause = self.pauses.get(scope)
        return pause is not None and pause.state == "paused"

    def may_hold_up(self, job: Job) -> bool:
        """Whether a claim may park it instead."""
        return bool(job.request.gates) or any(scope in self.pauses for scope in scopes(job))

    def most(self, name: str, job: Job) -> int:
        """How many may hold this lock, for a job that passes it."""
        return 1 if kind_of(name) == "entity" else int(self.limits.get(name) or words(job)[name])

    def take_token(self, name: str, job: Job, now: int) -> bool:
        """Charge a rate; whether a whole token was there."""
        tokens, period, burst = map(int, (self.limits.get(name) or words(job)[name]).split(","))
        full = burst * period
        bucket = self.buckets.get(name) or Bucket(full, now)
        level = min(full, bucket.level + max(0, now - bucket.at) * tokens)
        self.buckets[name] = Bucket(level - period, now)
        return level >= period

    def door(self, scope: str, tokens: int, period: int, burst: int, now: int) -> Bucket:
        """The bucket of a throttle, as of now. Time that was put back brings nothing until it passes anew."""
        full = burst * period
        bucket = self.doors.get(scope) or Bucket(full, now)
        if bucket.at > now:
            self.doors[scope] = bucket = Bucket(min(full, bucket.level), now)
        return Bucket(min(full, bucket.level + (now - bucket.at) * tokens), now)

    def clock_was_put_back(self, now: int) -> None:
        """Time that passes again brings tokens again: the model allows no less than the scripts."""
        for bucket in self.buckets.values():
            bucket.at = min(bucket.at, now)


@dataclass(frozen=True, slots=True)
class Stood:
    """Where a job was before a call, as far as gates go."""

    held: bool
    gate: str
    grants: tuple[str, ...]
    place: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Before:
    """All of them, and who waited where, by lane: job id to place."""

    jobs: Mapping[str, Stood]
    holders: Mapping[str, set[str]]
    waiting: Mapping[tuple[str, str], Mapping[str, int]]

    @classmethod
    def of(cls, jobs: Mapping[str, Job], zsets: Mapping[str, Mapping[str, int]]) -> Before:
        stood = {
            job_id: Stood(job.held, job.gate, job.grants, job.place, job.epoch)
            for job_id, job in jobs.items()
        }
        return cls(stood, holders(jobs.values()), dict(waiting(zsets)))


def waiting(
    zsets: Mapping[str, Mapping[str, int]],
) -> Iterator[tuple[tuple[str, str], Mapping[str, int]]]:
    """Who waits, by gate and lane."""
    for key, members in zsets.items():
        if key.startswith("waiting:"):
            _, lane, gate = key.split(":", 2)
            yield (gate, lane), members
