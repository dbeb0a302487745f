"""One state of the protocol: what Redis holds, what each worker knows, and what is under way between them.

Everything is a tuple, so that states are compared and hashed as they are. There is no clock: a lease is live
or it has run out, and whether that may happen now is decided in `steps`. What only the judge needs, and no
script reads, is marked as such.
"""

from __future__ import annotations

from typing import NamedTuple

from streamworker.core.states import HELD as HELD_STATES
from streamworker.core.states import TERMINAL as TERMINAL_STATES
from streamworker.core.states import TRANSITIONS, Status
from streamworker.core.states import WAITING as WAITING_STATES

#: The states as plain strings, which are hashed faster than members of an enum.
QUEUED, CLAIMED, PROCESSING = Status.QUEUED.value, Status.CLAIMED.value, Status.PROCESSING.value
SUCCEEDED, RETRY_SCHEDULED = Status.SUCCEEDED.value, Status.RETRY_SCHEDULED.value
FAILED_TERMINAL = Status.FAILED_TERMINAL.value
WAITING = frozenset(status.value for status in WAITING_STATES)
HELD = frozenset(status.value for status in HELD_STATES)
TERMINAL = frozenset(status.value for status in TERMINAL_STATES)
EDGES = frozenset((source.value, target.value) for source, target in TRANSITIONS)

#: Limits, as small as they can be and still be reached.
MAX_ATTEMPTS, MAX_STARTS, MAX_STRIKES = 2, 3, 2

#: Workers have numbers. All that died are one: nobody waits for what they know.
DEAD, NOBODY = -1, -2
#: Owner of an entry that the group has not delivered.
UNDELIVERED = -3
#: Where a record may point beside the entries: to none, or to one that is not in its stream any more.
NO_ENTRY, GONE_ENTRY = 0, -1

#: Kinds of streams: arrivals and ready are read alike, so they are one here; quarantine (D22).
READY, QUARANTINE = "r", "q"

#: Leases: none, live, run out, or run out while a living holder was too slow to renew it.
NONE, LIVE, OUT, SLOW = "none", "live", "out", "slow"

#: How far a worker is with its connection (D5).
CONNECTED, CUT, RENEWED = "connected", "cut", "renewed"

#: Outcomes of an attempt. A snooze is a release with a delay; `DIED` is what a worker says of its quarantine
#: child (D22).
SUCCESS, RETRY, FAIL, RELEASE, SNOOZE, DIED = "success", "retry", "fail", "release", "snooze", "died"
#: What a producer was told.
UNKNOWN, ACCEPTED, DUPLICATE = "unknown", "accepted", "duplicate"
#: Who ended a claim (D1).
OWN, RECOVERED = "own", "recovered"


class Settled(NamedTuple):
    """What the last fence came to (D1)."""

    fence: int
    outcome: str
    by: str


class Record(NamedTuple):
    """`job:<id>`."""

    status: str
    attempt: int = 0
    starts: int = 0
    strikes: int = 0
    epoch: int = 0
    entry: int = NO_ENTRY
    fence: int = 0  # 0: nobody holds it
    lease: str = NONE
    holder: int = NOBODY
    session: int = 0  # of the claim's connection
    settled: Settled | None = None
    cancel: bool = False


class Aside(NamedTuple):
    """What else there is of a job, in Redis and outside."""

    scheduled: bool = False  # in `schedule`
    parked: bool = False  # its envelope is in `body`
    deadline: str = NONE  # none, live while it is to come, out when it has passed
    listed: bool = False  # in `deadlines`
    fences: int = 0  # the last fence that was given
    keyed: bool = False  # it has the idempotency key, which all that have one share
    told: str = ACCEPTED  # what its producer was told
    recorded: int = 0  # for the judge: attempts of this epoch that have an outcome, a bit each
    deleted: bool = False  # for the judge: an entry of it was deleted under us
    expired: bool = False  # for the judge: its record was over and is gone


class Entry(NamedTuple):
    """An entry of a stream; its id is its place among all of them, from 1."""

    job: int
    kind: str
    owner: int


class Claim(NamedTuple):
    """A claim that a worker holds. Its outcome is None while the handler runs."""

    fence: int
    entry: int
    apart: bool = False  # it runs in the quarantine child
    outcome: str | None = None
    sent: bool = False  # the outcome is on its way


class Request(NamedTuple):
    """One `exchange` as it was sent."""

    worker: int
    session: int
    settle: tuple[int, int, str] | None  # job, fence, outcome
    offers: tuple[int, ...]
    limit: int  # claims at most
    apart: bool  # it also reads quarantine


class Enqueue(NamedTuple):
    """An `enqueue` that its producer sends again."""

    job: int


class Replay(NamedTuple):
    """A `replay` that its operator sends again."""

    job: int
    epoch: int


class Answer(NamedTuple):
    """The reply to a request."""

    verdict: str  # OK, NOSESSION or ERROR
    settle: tuple[int, int] | None  # job and fence of the row that it answers
    claims: tuple[tuple[int, Claim], ...]
    asked: bool  # the request wanted claims


class Worker(NamedTuple):
    """What one worker knows, and its key in Redis."""

    claims: tuple[Claim | None, ...]
    session: int = 1
    stored: int = 1  # session in `worker:<id>`; 0: the key has expired
    link: str = CONNECTED
    offers: tuple[int, ...] = ()  # delivered to it, and not running
    reading: tuple[int, ...] = ()  # what its blocking reader was given and has not told yet
    abandoned: tuple[int, ...] = ()  # entries whose outcome Redis refuses, left to recovery
    answers: tuple[Answer, ...] = ()  # of calls that were executed, on their way back


class Candidate(NamedTuple):
    """A claim that a sweep found dead and somebody has decided about (D6)."""

    fence: int
    status: str
    fresh: bool = True  # the record has the version that was judged
    renewed: bool = False  # its lease is another than the one that was judged


class State(NamedTuple):
    """Everything."""

    records: tuple[Record | None, ...]
    asides: tuple[Aside, ...]
    entries: tuple[Entry, ...]
    workers: tuple[Worker, ...]
    #: Calls that were sent on a connection which broke since; each may be executed at any time, or never.
    late: tuple[Request | Enqueue | Replay, ...]
    candidates: tuple[Candidate | None, ...]
    #: The one idempotency key of a model with keys: job, and whether it says open.
    key: tuple[int, bool] | None
    #: Nothing is recovered: the keeper found that its last sweep is too long ago (D6).
    hold: bool
    #: How often each fault may still happen, in the order of `Fault`.
    faults: tuple[int, ...]
