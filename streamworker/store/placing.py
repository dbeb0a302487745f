"""How new jobs travel: the calls that carry them, what the replies mean, what a refusal is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from streamworker.core.errors import ConnectionLost, EnqueueRejected, OutcomeUnknown
from streamworker.core.states import Disposition
from streamworker.store import scripts
from streamworker.store.caller import no_cluster, of_cluster, passes
from streamworker.store.connection import Argument, ReplyError
from streamworker.store.scripts import BATCH, NewJob

T = TypeVar("T")

#: A call carries at most so many bytes of envelopes: one huge write would hold up everybody else's.
CALL_BYTES = 1 << 20


@dataclass(slots=True)
class Placed:
    """What became of one enqueue: the job that answers for it, and its state where it was there before.

    Not frozen, as `NewJob` is not.
    """

    job_id: str
    disposition: Disposition
    status: str = "queued"
    #: Of a rejection: seconds after which it may be tried again, and one word why.
    retry_after: float | None = None
    reason: str = ""

    @classmethod
    def parse(cls, reply: bytes, job: NewJob) -> Placed:
        """From the reply to one row of `enqueue`."""
        if reply == b"ACCEPTED":
            return cls(job.job_id, Disposition.ACCEPTED)
        word, *rest = reply.decode().split(" ")
        disposition = Disposition(word)
        if disposition in (Disposition.DUPLICATE, Disposition.CONFLICT):
            return cls(rest[0], disposition, rest[1])
        if disposition is Disposition.COALESCED:
            return cls(rest[0], disposition)
        if disposition is Disposition.REJECTED:
            return cls(job.job_id, disposition, "", int(rest[0]) / 1000, rest[1])
        return cls(job.job_id, disposition)


def answered(job: NewJob, reply: bytes) -> Placed:
    """What became of one enqueue; its span hears of it as well."""
    placed = Placed.parse(reply, job)
    if job.sending is not None:
        job.sending.ended(placed.disposition)
    return placed


def chunked(items: Sequence[T], job_of: Callable[[T], NewJob]) -> list[Sequence[T]]:
    """The items in parts that one call may carry: 500 jobs, 1 MB of envelopes."""
    sizes = [len(job_of(item).envelope) for item in items]
    if len(items) <= BATCH and sum(sizes) <= CALL_BYTES:
        return [items]
    chunks: list[list[T]] = [[]]
    total = 0
    for item, size in zip(items, sizes, strict=True):
        total += size
        if chunks[-1] and (len(chunks[-1]) >= BATCH or total > CALL_BYTES):
            chunks.append([])
            total = size
        chunks[-1].append(item)
    return list(chunks)


#: The whole reply to an enqueue while Redis is being brought back to what the durable record has (D19).
RESTORING = b"RESTORING"
_MARKER = b"MARKER "


class Marker:
    """What a producer knows of the mirror: the mark that Redis keeps as long as it keeps its data."""

    def __init__(self) -> None:
        self.known = ""

    def learn(self, replies: list[bytes]) -> list[bytes]:
        """The replies without what they say of the marker, which is known from now on."""
        if replies and replies[-1].startswith(_MARKER):
            self.known = replies[-1][len(_MARKER) :].decode()
            return replies[:-1]
        return replies


def enqueue_call(jobs: Iterable[NewJob], marker: str = "") -> scripts.Call:
    """The script call that enqueues these jobs."""
    rows: list[Argument] = []
    merging = False
    for job in jobs:
        rows.extend(job.row())
        merging = merging or job.coalesce != ""
    return (scripts.coalesce if merging else scripts.enqueue)(clock="", marker=marker, rows=rows)


def together(parts: Sequence[tuple[Sequence[NewJob], list[Placed] | Exception]]) -> list[Placed]:
    """What became of a list that went in several calls, of which some may have failed.

    Where some stand, those of a call that was refused are REJECTED: who is told of an exception would not
    know which stand. Raises EnqueueRejected or ConnectionLost when none does; OutcomeUnknown with the ids of
    all that may be enqueued when a reply, or Redis, was lost on the way.
    """
    errors = [found for _, found in parts if isinstance(found, Exception)]
    if not errors:
        return [one for _, found in parts for one in cast("list[Placed]", found)]
    stand = [(jobs, found) for jobs, found in parts if not isinstance(found, EnqueueRejected)]
    lost = [error for error in errors if not isinstance(error, EnqueueRejected)]
    if others := [error for error in lost if not isinstance(error, ConnectionLost | OutcomeUnknown)]:
        raise others[0]
    if not stand or all(isinstance(found, ConnectionLost) for _, found in stand):
        raise errors[0]
    if lost:
        raise OutcomeUnknown([job.job_id for jobs, found in stand for job in jobs])
    return [one for jobs, found in parts for one in _placed(jobs, found)]


def _placed(jobs: Sequence[NewJob], found: list[Placed] | Exception) -> list[Placed]:
    if not isinstance(found, EnqueueRejected):
        return cast("list[Placed]", found)
    return [Placed(job.job_id, Disposition.REJECTED, "", found.retry_after, "refused") for job in jobs]


def restoring() -> EnqueueRejected:
    """The refusal while Redis is being restored."""
    return EnqueueRejected("Redis lost data, and is being restored from Postgres", retry_after=1.0)


def refusal(error: Exception) -> Exception:
    """The error as a producer knows it: EnqueueRejected when Redis is out of memory, or takes no writes."""
    if isinstance(error, ReplyError) and str(error).startswith("OOM"):
        return EnqueueRejected("Redis is out of memory (maxmemory)")
    if of_cluster(error):
        return no_cluster()
    if isinstance(error, ReplyError) and passes(error):
        return EnqueueRejected(f"Redis takes no jobs now ({str(error).partition(' ')[0]})")
    return error
