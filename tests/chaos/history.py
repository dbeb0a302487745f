"""What happened in one run, as plain values: what handlers, producers, the log, the bench and Redis say.

The bench collects a `History` from real processes, the simulation makes one from its own; `checker.check`
judges both. Times are seconds since the epoch, by the one clock that all processes of a run and Redis share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from streamworker.app import App
from streamworker.core.job import Record
from streamworker.core.retry import MAX_STRIKES
from streamworker.core.states import Disposition
from streamworker.store.events import Transition
from streamworker.store.scripts import MAX_STARTS

#: Attempts of a task that declares nothing.
DEFAULT_ATTEMPTS = 4


class Told(StrEnum):
    """What a handler wrote down last, before it gave control back."""

    RETURNED = "returned"
    RAISED = "raised"


@dataclass(frozen=True, slots=True)
class Accepted:
    """One enqueue that was answered. With DUPLICATE the id is that of the job which held the key."""

    job_id: str
    task: str
    lane: str
    disposition: Disposition = Disposition.ACCEPTED
    key: str | None = None
    #: When the request was sent for the first time, and when it was answered; 0: nobody knows.
    sent: float = 0.0
    answered: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """A handler began."""

    job_id: str
    attempt: int
    fence: int
    worker: str
    at: float
    #: The gates by which it runs, as the handler knows them.
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """A handler is about to give control back; a killed one has none."""

    job_id: str
    fence: int
    worker: str
    at: float
    told: Told


class FaultKind(StrEnum):
    """What the bench did. The first five explain that a handler started twice, the others do not."""

    KILL = "kill"  # a worker process is dead from `begin` on; nobody else was hurt
    FREEZE = "freeze"  # a worker process stood still
    PARTITION = "partition"  # one worker could not reach Redis
    OUTAGE = "outage"  # Redis was away, or nobody could reach it
    STALL = "stall"  # the machine was too busy to let a process run
    NETWORK = "network"  # connections were reset, or slow
    HINTS = "hints"  # liveness, election or sweep keys were deleted


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; without `end` a moment, of which what is dead stays dead."""

    kind: FaultKind
    begin: float
    end: float | None = None
    #: The worker that it struck, by the id that the log has; None: all.
    worker: str | None = None
    #: From when on somebody could sweep again, if it stopped the sweeps: D6 then holds for one lease.
    sweeps_from: float | None = None

    @property
    def until(self) -> float:
        return self.begin if self.end is None else self.end

    def strikes(self, worker: str, since: float, until: float) -> bool:
        """Whether it struck this worker at some time from `since` to `until`."""
        return self.worker in (None, worker) and self.begin <= until and self.until >= since


@dataclass(frozen=True, slots=True)
class Paused:
    """What an operator held up: for sure from `since` to `until`, and not before `begin` or after `end`."""

    scope: str
    since: float
    until: float
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Ill:
    """A dependency failed whoever called it, by the gate of its breaker."""

    name: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Figure:
    """How many a gate let in, and when that may have been in force."""

    name: str
    most: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What was in force."""

    lease: float  # seconds
    #: Attempts at most by task, for those that do not have the default.
    attempts: Mapping[str, int] = field(default_factory=dict)
    #: Claims at most by task, for those that do not have the default.
    starts: Mapping[str, int] = field(default_factory=dict)
    strikes: int = MAX_STRIKES
    #: How many may hold a gate at once, by its name; where operators change that, see `History.figures`.
    holders: Mapping[str, int] = field(default_factory=dict)
    #: Tokens, ms in which they come, and burst of each rate, by the name of its gate.
    rates: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    #: The same of the drain; None: nobody knows.
    drain: tuple[int, int, int] | None = None
    #: Calls, window and time open in ms, and probes of each breaker, by the name of its gate.
    breakers: Mapping[str, tuple[int, int, int, int]] = field(default_factory=dict)
    #: Jobs that all workers together may run at once.
    slots: int = 0
    #: Tasks whose jobs are merged: how, and how many items or events a window takes.
    merging: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    #: Tasks whose entity is kept through retries.
    strict: Collection[str] = ()
    #: Seconds that a busy machine may take beyond D6's bound.
    margin: float = 1.0

    @property
    def sweep(self) -> float:
        """Between two sweeps (D6)."""
        return self.lease / 6

    @property
    def succession(self) -> float:
        """Until another worker does a dead keeper's work: at most a third of a lease (D6)."""
        return self.lease / 3

    def attempts_of(self, task: str) -> int:
        return self.attempts.get(task, DEFAULT_ATTEMPTS)

    def starts_of(self, task: str) -> int:
        return self.starts.get(task, MAX_STARTS)


def declared(app: App) -> dict[str, Any]:
    """What the tasks of an app say about gates, as `Limits` takes it."""
    figures = app.limits()
    words = {name: task.gates.declared for name, task in app.tasks.items() if task.gates is not None}
    return {
        "holders": {name: int(text) for name, text in figures.items() if name.startswith("concurrency:")},
        "rates": {name: _rate(text) for name, text in figures.items() if name.startswith("rate:")},
        "drain": _rate(app.bounds()["drain"]),
        "breakers": {name: _breaker(text) for name, text in figures.items() if name.startswith("breaker:")},
        "merging": {
            name: (task.coalescer.declared.mode, task.coalescer.declared.limit)
            for name, task in app.tasks.items()
            if task.coalescer is not None
        },
        "strict": {name for name, gates in words.items() if any(each.figures == "strict" for each in gates)},
    }


def _rate(figures: str) -> tuple[int, int, int]:
    tokens, period_ms, burst = map(int, figures.split(","))
    return tokens, period_ms, burst


def _breaker(figures: str) -> tuple[int, int, int, int]:
    _, calls, window_ms, open_ms, probes, _ = map(int, figures.split(","))
    return calls, window_ms, open_ms, probes


@dataclass(frozen=True, slots=True)
class Final:
    """What Redis held when all was over."""

    #: Entries and pending entries of each lane stream and turnstile that has any.
    streams: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: Members of the schedule, the deadlines, the gates and their waiters and timers, where there are any.
    waiting: Mapping[str, int] = field(default_factory=dict)
    #: Counters of what is open that are not zero.
    counters: Mapping[str, int] = field(default_factory=dict)
    #: Keys that will stay for ever and are no live state.
    immortal: Collection[str] = ()
    records: Mapping[str, Record] = field(default_factory=dict)
    #: Job ids of the dead letters, once for each letter.
    dead_letters: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class History:
    """One run from an empty queue to an empty queue."""

    limits: Limits
    accepted: Sequence[Accepted] = ()
    #: Jobs whose enqueue was never answered: they may be missing, but not half there.
    maybe: Collection[str] = ()
    starts: Sequence[Start] = ()
    ends: Sequence[End] = ()
    transitions: Sequence[Transition] = ()  # in the log's order
    #: Entries of the log that were trimmed before anybody read them.
    unread: int = 0
    faults: Sequence[Fault] = ()
    #: What operators did to gates.
    pauses: Sequence[Paused] = ()
    figures: Sequence[Figure] = ()
    #: What dependencies did.
    illnesses: Sequence[Ill] = ()
    #: When the server's clock was put on.
    jumps: Sequence[float] = ()
    #: None: nobody looked.
    final: Final | None = None


@dataclass(slots=True)
class Life:
    """One job as the parts of a history tell it, each in its own order."""

    job_id: str
    edges: list[Transition] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)

    @property
    def task(self) -> str:
        return self.edges[0].facts.get("task", "") if self.edges else ""


def lives(history: History) -> dict[str, Life]:
    """The history by job."""
    found: dict[str, Life] = {}

    def of(job_id: str) -> Life:
        life = found.get(job_id)
        if life is None:
            life = found[job_id] = Life(job_id)
        return life

    for edge in history.transitions:
        of(edge.job_id).edges.append(edge)
    for start in _by_fence(history.starts):
        of(start.job_id).starts.append(start)
    for end in history.ends:
        of(end.job_id).ends.append(end)
    return found


def _by_fence(starts: Iterable[Start]) -> list[Start]:
    return sorted(starts, key=lambda start: (start.fence, start.at))
