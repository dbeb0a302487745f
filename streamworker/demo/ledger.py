"""The account of a run: what was accepted, what became of it, and whether that adds up.

Accepted is what Redis answered to the producer. What became of each job is read from its record, by id, and
checked against the dead letters and against the transition log. No number comes from a worker.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from streamworker.core.job import Record
from streamworker.core.states import TERMINAL, Reason, Status
from streamworker.ops import dlq
from streamworker.store.events import Transition, decode, pairs
from streamworker.store.queue import Queue

#: Entries of the log that one read asks for.
PAGE = 500
#: Records asked for in one go.
CHUNK = 500


@dataclass(slots=True)
class Row:
    """What one task did in one lane."""

    accepted: int = 0
    succeeded: int = 0
    failed: int = 0
    retries: int = 0
    recovered: int = 0
    waits_ms: list[int] = field(default_factory=list)

    def wait_ms(self, share: float) -> int:
        """The wait from enqueue to the first claim that `share` of the jobs did not exceed (nearest rank)."""
        ordered = sorted(self.waits_ms)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0


class Ledger:
    """Follows the transition log from its first entry."""

    def __init__(self) -> None:
        self.rows: defaultdict[tuple[str, str], Row] = defaultdict(Row)
        #: How many terminal outcomes the log has for each job and epoch: one, or something is wrong.
        self.ends: Counter[tuple[str, int]] = Counter()
        self.ended: set[str] = set()
        self.first_at_ms = 0
        self.last_end_ms = 0
        self.per_second: Counter[int] = Counter()
        self._cursor = "-"
        self._jobs: dict[str, tuple[Row, int]] = {}  # and when it was enqueued
        self._claimed: set[str] = set()

    async def catch_up(self, queue: Queue) -> None:
        """Read what was added since the last call."""
        while True:
            page = await queue.caller.command("XRANGE", queue.keys.events, self._cursor, "+", "COUNT", PAGE)
            for _, fields in page:
                for move in decode(pairs(fields)):
                    self.note(move)
            if page:
                self._cursor = f"({page[-1][0].decode()}"
            if len(page) < PAGE:
                return

    def note(self, move: Transition) -> None:
        """Enter one move."""
        if move.from_status is None:
            row = self.rows[move.facts["lane"], move.facts["task"]]
            row.accepted += 1
            self._jobs[move.job_id] = (row, move.at_ms)
            self.first_at_ms = self.first_at_ms or move.at_ms
            return
        row, enqueued_at = self._jobs[move.job_id]
        match move.to_status:
            case Status.CLAIMED if move.job_id not in self._claimed:
                self._claimed.add(move.job_id)
                row.waits_ms.append(max(0, move.at_ms - enqueued_at))
            case Status.RETRY_SCHEDULED:
                if move.reason == Reason.RECOVERED:
                    row.recovered += 1
                else:
                    row.retries += 1
            case Status.SUCCEEDED:
                row.succeeded += 1
            case Status.FAILED_TERMINAL:
                row.failed += 1
            case _:
                pass
        if move.to_status in TERMINAL:
            self.ends[move.job_id, move.epoch] += 1
            self.ended.add(move.job_id)
            self.last_end_ms = max(self.last_end_ms, move.at_ms)
            self.per_second[move.at_ms // 1000] += 1


@dataclass(frozen=True, slots=True)
class Account:
    """Whether every accepted job is accounted for."""

    accepted: int
    succeeded: int
    dead_lettered: int
    #: Neither succeeded nor failed, or without a record.
    pending: int
    double_outcomes: int
    #: What the records, the dead letters and the log do not agree on, in words.
    disagreements: tuple[str, ...]
    seconds: float  # from the first enqueue to the last outcome
    best_second: int  # outcomes in the best second
    durable: str = ""  # what Postgres has, in words

    @property
    def balanced(self) -> bool:
        return (
            self.accepted == self.succeeded + self.dead_lettered
            and self.pending == 0
            and self.double_outcomes == 0
            and not self.disagreements
        )

    @property
    def jobs_per_second(self) -> float:
        return round((self.succeeded + self.dead_lettered) / self.seconds, 1) if self.seconds > 0 else 0.0


async def read_statuses(queue: Queue, ids: Collection[str]) -> dict[str, Status | None]:
    """What each job's record says now; None where there is no record."""
    statuses: dict[str, Status | None] = {}
    wanted = list(ids)
    for start in range(0, len(wanted), CHUNK):
        chunk = wanted[start : start + CHUNK]
        records = await asyncio.gather(
            *(queue.caller.command("GET", queue.keys.job(job_id)) for job_id in chunk)
        )
        for job_id, raw in zip(chunk, records, strict=True):
            statuses[job_id] = None if raw is None else Record.parse(job_id, raw).status
    return statuses


@dataclass(frozen=True, slots=True)
class Compared:
    """What another record has of the same jobs, in words, and what it has otherwise."""

    summary: str
    differences: tuple[str, ...]


#: Compares the final states with another record.
Check = Callable[[Mapping[str, Status | None]], Awaitable[Compared]]


async def settle_account(
    queue: Queue, accepted: Collection[str], ledger: Ledger, *, check: Check | None = None
) -> Account:
    """Read the final states and draw up the account. `ledger` must have caught up."""
    statuses = await read_statuses(queue, accepted)
    dead = {letter.job_id async for letter in dlq.letters(queue)}
    account = draw_up(statuses, dead, ledger)
    if check is None:
        return account
    other = await check(statuses)
    differences = (*account.disagreements, *other.differences)
    return replace(account, disagreements=differences, durable=other.summary)


def draw_up(statuses: dict[str, Status | None], dead: Collection[str], ledger: Ledger) -> Account:
    """The account from the final state of each accepted job, the jobs with a dead letter, and the log."""
    succeeded = {job_id for job_id, status in statuses.items() if status is Status.SUCCEEDED}
    failed = {job_id for job_id, status in statuses.items() if status is Status.FAILED_TERMINAL}
    over = succeeded | failed
    found = {
        "failed without a dead letter": failed - set(dead),
        "dead letter of a job that did not fail": set(dead) - failed,
        "over without an outcome in the log": over - ledger.ended,
        "outcome in the log of a job that is not over": ledger.ended - over,
    }
    return Account(
        accepted=len(statuses),
        succeeded=len(succeeded),
        dead_lettered=len(failed & set(dead)),
        pending=len(statuses) - len(over),
        double_outcomes=sum(count > 1 for count in ledger.ends.values()),
        disagreements=tuple(_tell(what, jobs) for what, jobs in found.items() if jobs),
        seconds=max(0, ledger.last_end_ms - ledger.first_at_ms) / 1000,
        best_second=max(ledger.per_second.values(), default=0),
    )


def _tell(what: str, jobs: Iterable[str]) -> str:
    names = sorted(jobs)
    return f"{what}: {len(names)} ({', '.join(names[:3])}{' …' if len(names) > 3 else ''})"
