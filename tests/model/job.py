"""What the model knows of a job: the record in plain words, its dead letter, and the moves it must make."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamworker.core.states import HELD, TERMINAL, WAITING, Status


@dataclass(frozen=True, slots=True)
class Request:
    """One enqueue as a producer sends it; times in ms, 0 and '' mean none."""

    job_id: str
    lane: str
    task: str = "add"
    key: str = ""
    fingerprint: str = ""
    delay_ms: int = 0
    deadline_ms: int = 0
    max_starts: int = 20
    tenant: str = ""
    gates: str = ""  # as they travel: a number and a word for each
    backlog: str = ""  # why it asks to wait there
    window: str = ""  # collect or latest: an event that may be merged, with these items
    items: tuple[str, ...] = ()

    @property
    def envelope(self) -> bytes:
        """Names its job, so that a mix-up shows."""
        return self.wrapped(self.items) if self.window else b"env of " + self.job_id.encode()

    def wrapped(self, items: tuple[str, ...]) -> bytes:
        """The envelope of an event with these items, which stand at its end."""
        return f'{{"j":"{self.job_id}","a":{{"items":[{",".join(items)}]}}}}'.encode()

    @property
    def window_name(self) -> str:
        """Events of one mode, lane and task meet."""
        return f"{self.window}:{self.lane}:{self.task}"


@dataclass(frozen=True, slots=True)
class Settled:
    """What the last fence came to, for a settle that is sent again (D1)."""

    fence: int
    outcome: str
    by: str  # own, died or recovered


@dataclass(slots=True)
class Job:
    """One job; the words are those of the design."""

    request: Request
    envelope: bytes = b""  # as it is now: an event has what was merged into it
    status: Status = Status.QUEUED
    attempt: int = 0
    starts: int = 0
    strikes: int = 0
    version: int = 1
    epoch: int = 0
    fence: int = 0  # 0: nobody holds it
    lease_until: int = 0
    holder: str = ""  # the last one, if nobody holds it
    session: int = 0  # of the claim's connection (D5)
    settled: Settled | None = None
    #: Kind of stream and entry id of the one entry that is honoured (D2); the id is '' until Redis names it,
    #: the kind '?' until the record says whether a gate has stopped the job.
    entry: tuple[str, str] | None = None
    gate: str = ""  # where it waits for its turn
    grants: tuple[str, ...] = ()  # gates that it holds while it waits
    place: int | None = None  # in the queues of all its gates, given once in an epoch (D12)
    parked: bool = False  # the envelope is in the body (D8)
    deferred: bool = False  # it is to wait in the backlog, until it is drained
    due: int = 0  # when it was to be ready, if it was ever parked
    deadline: int | None = None
    cancel: str = ""  # flag of a held job: cancelled or expired (D9)
    error: str = ""  # class and code
    unknown_since: int | None = None
    disposition: str = "ACCEPTED"
    awaited: int = 0  # those who wait for its result
    items: tuple[str, ...] = ()  # of an event, and how many it counts as
    collected: int = 0
    merged_keys: set[str] = field(default_factory=set)  # of the events that went into it

    @property
    def id(self) -> str:
        return self.request.job_id

    @property
    def lane(self) -> str:
        return self.request.lane

    @property
    def entity(self) -> bool:
        """Whether it passes an entity's gate."""
        return " entity:" in self.request.gates

    @property
    def waiting(self) -> bool:
        return self.status in WAITING

    @property
    def held(self) -> bool:
        return self.status in HELD

    @property
    def over(self) -> bool:
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True)
class Move:
    """One line that the transition log must show."""

    job_id: str
    epoch: int
    version: int
    source: str  # '-': the job is new
    target: str
    attempt: int
    fence: int
    reason: str


@dataclass(slots=True)
class Letter:
    """One dead letter, with what a replay can make of it when the record is gone."""

    job: Job  # as it was buried
    code: str
    envelope: bytes  # b'' when nobody had it any more
    entry: str = ""  # in the DLQ; '' until Redis names it


@dataclass(slots=True)
class Key:
    """An idempotency key: whose it is, and `open` or the final status (D11)."""

    job_id: str
    fingerprint: str
    state: str
