"""Replay: dead letters go back into their lanes, checked first, at a rate, and not on when it does not help.

A replay that is interrupted leaves nothing half done: what was moved is queued, the rest still has its
letter, and the same command goes on from there. Two at once share the work.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from streamworker.core.errors import InvalidArgument
from streamworker.core.job import Record
from streamworker.core.states import Status
from streamworker.ops.dlq.checks import (
    Check,
    Skipped,
    by_manifest,
    completed,
    first_time,
    key_taken,
    published,
    whole,
)
from streamworker.ops.dlq.letters import DeadLetter
from streamworker.ops.dlq.moves import BATCH, Moved, Which, choose, move, name_row, note, parts, told
from streamworker.store import scripts
from streamworker.store.connection import Argument
from streamworker.store.queue import Queue

#: Calls a second at most, and seconds between two looks at what became of the replayed jobs.
CALLS, LOOK_EVERY = 10, 0.5
#: What to do about those that failed.
SEE = "see `streamworker dlq causes --newer 10m`"
#: Replayed jobs that must have run before their failures count, and that one look reads.
MIN_RUN, LOOK_AT = 20, 1_000

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a replay goes, and how far."""

    limit: int | None = None  # letters; None: all that are eligible
    rate: float = 200.0  # letters a second
    #: Share of failures among the replayed jobs that have run, beyond which it stops.
    stop_at: float = 0.5

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InvalidArgument("limit", self.limit, "is below 1")
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise InvalidArgument("rate", self.rate, "is no number above 0")
        if not 0 <= self.stop_at <= 1:
            raise InvalidArgument("stop_at", self.stop_at, "is no share from 0 to 1")


#: As many as there are, calmly.
CALM = Pace()


async def replay(
    queue: Queue,
    which: Which,
    *,
    actor: str,
    dry_run: bool = False,
    check: Check | None = None,
    again: bool = False,
    pace: Pace = CALM,
    reason: str = "",
    progress: Progress = lambda moved, of: None,
) -> Moved:
    """Send dead letters back into their lanes as new epochs, with fresh attempts.

    `which` names jobs or describes them. Each is looked at before anything changes, and skipped: without its
    envelope, replayed before (unless `again`), of a task or with arguments that `check` refuses (by default
    what workers have published), with its key in other hands, or completed by what Postgres knows. The script
    checks the key again. `progress` is told how many of how many are moved.

    Raises PostgresUnavailable where there is a durable record that cannot be asked; then nothing changes.
    """
    checks: list[Check] = [whole] if again else [whole, first_time]
    if check is not None:
        checks.append(check)
    elif declared := await published(queue):
        checks.append(by_manifest(declared))

    async def judge(letter: DeadLetter) -> Skipped | None:
        for each in checks:
            if (refused := each(letter)) is not None:
                return refused
        return await key_taken(queue, letter)

    chosen, skipped = await choose(queue, which, judge)
    done = await completed(queue, chosen)
    skipped += [
        Skipped(letter.job_id, "key_completed", f"job {done[letter.job_id]} has done it under the same key")
        for letter in chosen
        if letter.job_id in done
    ]
    chosen = [letter for letter in chosen if letter.job_id not in done]
    if dry_run or not chosen:
        return Moved(len(chosen), 0, tuple(skipped))
    await note(queue, actor, "replay", which, f"eligible={len(chosen)};rate={pace.rate:g}", reason)
    loop = asyncio.get_running_loop()
    watch = _Watch(queue, pace.stop_at)
    wanted = chosen[: pace.limit]
    moved, stopped, next_at = 0, None, loop.time()
    for part in parts(wanted, most=max(1, min(BATCH, round(pace.rate / CALLS)))):
        await asyncio.sleep(next_at - loop.time())
        next_at = max(next_at, loop.time()) + len(part) / pace.rate
        if stopped := await watch.failing() or await _no_room(queue):
            break
        replies = await move(queue, part, actor, scripts.replay, _row)
        moved += told(part, replies, skipped)
        watch.add([letter for letter, reply in zip(part, replies, strict=True) if reply == "OK"])
        progress(moved, len(wanted))
    return Moved(len(chosen), moved, tuple(skipped), stopped)


def _row(letter: DeadLetter) -> tuple[Argument, ...]:
    return *name_row(letter), letter.task or "-"


async def _no_room(queue: Queue) -> str | None:
    """Why nothing new may go into the log, or None: a replay's line carries the envelope, as an enqueue's."""
    command, keys = queue.caller.command, queue.keys
    marker, bound = await command("HMGET", keys.policies, "mirror", "mirror_bound")
    if marker in (None, b"off") or bound is None:
        return None
    if int(await command("HGET", keys.stats, "log_bytes") or 0) < int(bound):
        return None
    return "the log has reached its bound, since the mirror does not keep up; see `streamworker doctor`"


class _Watch:
    """What becomes of the replayed jobs, as far as they have run."""

    def __init__(self, queue: Queue, stop_at: float) -> None:
        self._queue = queue
        self._stop_at = stop_at
        self._open: list[str] = []
        self._ran = self._failed = 0
        self._next_look = 0.0

    def add(self, replayed: list[DeadLetter]) -> None:
        self._open += [letter.job_id for letter in replayed]

    async def failing(self) -> str | None:
        """Why to stop, or None. A job that waits for its next try has failed as well."""
        now = asyncio.get_running_loop().time()
        if now < self._next_look or not self._open:
            return None
        self._next_look = now + LOOK_EVERY
        looked, rest = self._open[:LOOK_AT], self._open[LOOK_AT:]
        keys = [self._queue.keys.job(job_id) for job_id in looked]
        still_open = []
        for job_id, raw in zip(looked, await self._queue.caller.command("MGET", *keys), strict=True):
            if raw is None:  # its time in Redis is over
                continue
            try:
                status = Record.parse(job_id, raw).status
            except ValueError:  # unreadable: a claim will bury it
                status = Status.FAILED_TERMINAL
            if status in (Status.QUEUED, Status.CLAIMED, Status.PROCESSING):
                still_open.append(job_id)
                continue
            self._ran += 1
            self._failed += status is not Status.SUCCEEDED
        self._open = rest + still_open
        if self._ran < MIN_RUN or self._failed <= self._stop_at * self._ran:
            return None
        return f"{self._failed} of the {self._ran} replayed jobs that have run failed again; " + SEE
