"""The closed choices of a job's life: states, edges, reasons, dispositions.

`TRANSITIONS` is the one table of legal edges. `lua/fragments/transition.lua` holds the same table for the
scripts; a test proves that both are equal and that every edge in it is written by some script.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where a job is. There are six states and no others."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    RETRY_SCHEDULED = "retry_scheduled"
    FAILED_TERMINAL = "failed_terminal"

    #: As equal texts have it; and Enum's own is a call of a function.
    __hash__ = str.__hash__


#: Nobody holds the job; it waits in a stream or in the schedule.
WAITING = frozenset({Status.QUEUED, Status.RETRY_SCHEDULED})
#: A worker holds the job under a fence and a lease.
HELD = frozenset({Status.CLAIMED, Status.PROCESSING})
#: The job is over; only an operator's replay leads out of `failed_terminal`.
TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED_TERMINAL})

TRANSITIONS: frozenset[tuple[Status, Status]] = frozenset(
    {
        (Status.QUEUED, Status.CLAIMED),
        (Status.QUEUED, Status.FAILED_TERMINAL),  # cancel, deadline, too_many_starts
        (Status.RETRY_SCHEDULED, Status.CLAIMED),
        (Status.RETRY_SCHEDULED, Status.FAILED_TERMINAL),  # cancel, deadline, too_many_starts
        (Status.CLAIMED, Status.PROCESSING),
        (Status.CLAIMED, Status.QUEUED),  # release
        (Status.CLAIMED, Status.RETRY_SCHEDULED),  # recovery
        (Status.CLAIMED, Status.FAILED_TERMINAL),  # recovery, bad arguments, unknown task
        (Status.PROCESSING, Status.SUCCEEDED),
        (Status.PROCESSING, Status.QUEUED),  # release
        (Status.PROCESSING, Status.RETRY_SCHEDULED),
        (Status.PROCESSING, Status.FAILED_TERMINAL),
        (Status.FAILED_TERMINAL, Status.QUEUED),  # replay, by an operator only
    }
)


class Reason(StrEnum):
    """Why a job moved. For display and `explain` only: no rule reads it."""

    ENQUEUED = "enqueued"
    DELAYED = "delayed"
    DEFERRED = "deferred"
    DRAINED = "drained"
    MERGED = "merged"
    CLAIMED = "claimed"
    STARTED = "started"
    RETURNED = "returned"
    SKIPPED = "skipped"
    ERROR = "error"
    SERVER_DIRECTED = "server_directed"
    SNOOZED = "snoozed"
    SHUTDOWN = "shutdown"
    UNKNOWN_TASK = "unknown_task"
    NO_SLOT = "no_slot"
    REGATED = "regated"
    RECOVERED = "recovered"
    DIED = "died"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    TOO_MANY_STARTS = "too_many_starts"
    ENTRY_DELETED = "entry_deleted"
    BAD_RECORD = "bad_record"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    PURGED = "purged"
    RETRIES_STOPPED = "retries_stopped"
    RESTORED = "restored"
    DUPLICATE = "duplicate"
    EFFECT_COMMITTED = "effect_committed"
    BURIAL = "burial"
    BURIAL_WAITS = "burial_waits"
    BURIED = "buried"


class ErrorClass(StrEnum):
    """The kind of an error decides whether and when a job is tried again."""

    TRANSIENT = "transient"
    PERSISTENT = "persistent"
    UNKNOWN = "unknown"


class Disposition(StrEnum):
    """What `enqueue` did with a request."""

    ACCEPTED = "ACCEPTED"
    SCHEDULED = "SCHEDULED"
    DEFERRED = "DEFERRED"
    PARKED = "PARKED"
    COALESCED = "COALESCED"
    DUPLICATE = "DUPLICATE"
    CONFLICT = "CONFLICT"
    REJECTED = "REJECTED"


#: Error codes of `failed_terminal` that nobody has to look at: they make no dead letter.
QUIET_CODES = frozenset({"cancelled", "discarded", "superseded"})
