"""Dead letters that were chosen go to where they are sent, in calls of bounded size.

A job that failed for good is named by its letter and epoch (D23), so that what somebody else did in the
meantime is never undone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from streamworker.core.errors import InvalidArgument
from streamworker.core.ids import check_job_id
from streamworker.ops import tune
from streamworker.ops.dlq.checks import Skipped, taken_by
from streamworker.ops.dlq.filters import Filters
from streamworker.ops.dlq.letters import DeadLetter, find, letters
from streamworker.store import scripts
from streamworker.store.connection import Argument
from streamworker.store.queue import Queue

#: Letters that one call of a script moves, and bytes of envelopes: 25 MB took 200 ms (R32, R46).
BATCH, BATCH_BYTES = 100, 524_288

Which = Collection[str] | Filters
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moved:
    """What a replay or discard came to."""

    eligible: int
    moved: int
    skipped: tuple[Skipped, ...]
    #: Why it ended before all were moved; None: it did not.
    stopped: str | None = None

    def json(self, verb: str) -> dict[str, Any]:
        """`{eligible, <verb>, skipped: [{id, reason}]}`, and `stopped` if it was."""
        return {
            "eligible": self.eligible,
            verb: self.moved,
            "skipped": [{"id": each.job_id, "reason": each.reason} for each in self.skipped],
            **({} if self.stopped is None else {"stopped": self.stopped}),
        }


async def discard(
    queue: Queue, which: Which, *, actor: str, dry_run: bool = False, reason: str = ""
) -> Moved:
    """Take dead letters out of the list for good; the jobs stay failed, and the log keeps who did it."""

    async def judge(_: DeadLetter) -> Skipped | None:
        return None

    chosen, skipped = await choose(queue, which, judge)
    if dry_run or not chosen:
        return Moved(len(chosen), 0, tuple(skipped))
    await note(queue, actor, "discard", which, f"eligible={len(chosen)}", reason)
    moved = 0
    for part in parts(chosen):
        moved += told(part, await move(queue, part, actor, scripts.discard, name_row), skipped)
    return Moved(len(chosen), moved, tuple(skipped))


async def note(queue: Queue, actor: str, what: str, which: Which, facts: str, reason: str) -> None:
    """One line in the audit for all that follows, written before it: who, what, which, how many, and why."""
    meant = which.describe() if isinstance(which, Filters) else "ids"
    await tune.note(queue, actor, f"dlq:{what}", f"{meant};{facts}", reason)


async def choose(
    queue: Queue, which: Which, judge: Callable[[DeadLetter], Awaitable[Skipped | None]]
) -> tuple[list[DeadLetter], list[Skipped]]:
    """The letters that are meant, without their envelopes, and those that `judge` refuses."""
    chosen: list[DeadLetter] = []
    skipped: list[Skipped] = []

    async def look(letter: DeadLetter) -> None:
        refused = await judge(letter)
        if refused is None:
            # Without what a script does not need: thousands of envelopes would not fit into memory.
            chosen.append(replace(letter, envelope=b"", error="", weight=len(letter.envelope)))
        else:
            skipped.append(refused)

    if isinstance(which, Filters):
        async for letter in letters(queue):
            if which.match(letter):
                await look(letter)
        return chosen, skipped
    if isinstance(which, str):
        raise InvalidArgument("job ids", which, "pass a list of ids, not one text")
    ids = list(dict.fromkeys(check_job_id(each) for each in which))
    found = await find(queue, ids)
    for job_id in ids:
        if job_id in found:
            await look(found[job_id])
        else:
            skipped.append(Skipped(job_id, "not_found", "it has no dead letter"))
    return chosen, skipped


def name_row(letter: DeadLetter) -> tuple[Argument, ...]:
    """Which letter is meant: another epoch of the same job is another letter (D23)."""
    return letter.letter, letter.job_id, letter.epoch


def parts(chosen: Sequence[DeadLetter], most: int = BATCH) -> Iterator[list[DeadLetter]]:
    """What one call may move, in order."""
    return batches(chosen, lambda letter: letter.weight, most)


def batches(items: Iterable[T], weight_of: Callable[[T], int], most: int = BATCH) -> Iterator[list[T]]:
    """Items for one call of a script each, in order: `most` of them, and not too many bytes."""
    part: list[T] = []
    weight = 0
    for item in items:
        more = weight_of(item)
        if part and (len(part) >= most or weight + more > BATCH_BYTES):
            yield part
            part, weight = [], 0
        part.append(item)
        weight += more
    if part:
        yield part


async def move(
    queue: Queue,
    part: Sequence[DeadLetter],
    actor: str,
    script: Callable[..., scripts.Call],
    row: Callable[[DeadLetter], Sequence[Argument]],
) -> list[str]:
    """One call; its replies, one for each letter."""
    rows = [word for letter in part for word in row(letter)]
    call = script(clock="", actor=actor, retention_ms=scripts.RETENTION_MS, rows=rows)
    return [reply.decode() for reply in await queue.run(call)]


def told(part: Sequence[DeadLetter], replies: Sequence[str], skipped: list[Skipped]) -> int:
    """How many were moved; the others are added to `skipped`."""
    moved = 0
    for letter, reply in zip(part, replies, strict=True):
        word, _, rest = reply.partition(" ")
        match word:
            case "OK":
                moved += 1
            case "KEY_TAKEN":
                skipped.append(taken_by(letter.job_id, rest))
            case "ALREADY":
                skipped.append(Skipped(letter.job_id, "already", "somebody else dealt with it"))
            case _:
                skipped.append(Skipped(letter.job_id, "gone", "the letter cannot be read any more"))
    return moved
