"""Dead letters go back into their lanes, or go for good.

A job that failed for good is named by its letter and epoch (D23), so that what somebody else did in the
meantime is never undone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamworker.core.errors import InvalidArgument
from streamworker.core.ids import check_job_id
from streamworker.ops.dlq.filters import Filters
from streamworker.ops.dlq.letters import DeadLetter, find, letters
from streamworker.store import scripts
from streamworker.store.connection import Argument
from streamworker.store.queue import Queue

#: Letters that one call of a script moves, and bytes of envelopes: 25 MB took 200 ms (R32, R46).
BATCH, BATCH_BYTES = 100, 524_288


@dataclass(frozen=True, slots=True)
class Skipped:
    """A letter that was left where it is. `reason` is one word, `detail` what a person needs beside it."""

    job_id: str
    reason: str
    detail: str = ""


#: Says why a letter should not be replayed, or None.
Check = Callable[[DeadLetter], Skipped | None]


@dataclass(frozen=True, slots=True)
class Moved:
    """What a replay or discard came to."""

    eligible: int
    moved: int
    skipped: tuple[Skipped, ...]

    def json(self, verb: str) -> dict[str, Any]:
        """`{eligible, <verb>, skipped: [{id, reason}]}`."""
        return {
            "eligible": self.eligible,
            verb: self.moved,
            "skipped": [{"id": each.job_id, "reason": each.reason} for each in self.skipped],
        }


async def replay(
    queue: Queue,
    which: Collection[str] | Filters,
    *,
    actor: str,
    dry_run: bool = False,
    check: Check | None = None,
) -> Moved:
    """Send dead letters back into their lanes as new epochs, with fresh attempts.

    `which` names jobs or describes them. Each is looked at first: without its envelope, with its key in
    other hands, or refused by `check`, it is skipped, and nothing of it changes. The script checks again.
    """

    async def judge(letter: DeadLetter) -> Skipped | None:
        if not letter.envelope or not letter.task:
            return Skipped(letter.job_id, "no_envelope", "its arguments are gone")
        refused = check(letter) if check is not None else None
        return refused or await _key_taken(queue, letter)

    chosen, skipped = await _choose(queue, which, judge)
    if dry_run:
        return Moved(len(chosen), 0, tuple(skipped))
    replies = await _move(queue, chosen, actor, scripts.replay, _replay_row)
    return _moved(chosen, replies, skipped)


async def discard(
    queue: Queue, which: Collection[str] | Filters, *, actor: str, dry_run: bool = False
) -> Moved:
    """Take dead letters out of the list for good; the jobs stay failed, and the log keeps who did it."""

    async def judge(_: DeadLetter) -> Skipped | None:
        return None

    chosen, skipped = await _choose(queue, which, judge)
    if dry_run:
        return Moved(len(chosen), 0, tuple(skipped))
    replies = await _move(queue, chosen, actor, scripts.discard, _name_row)
    return _moved(chosen, replies, skipped)


async def _choose(
    queue: Queue, which: Collection[str] | Filters, judge: Callable[[DeadLetter], Any]
) -> tuple[list[DeadLetter], list[Skipped]]:
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


async def _key_taken(queue: Queue, letter: DeadLetter) -> Skipped | None:
    """Whether the letter's key belongs to another job by now: then a replay would run beside that one."""
    if not letter.key_id:
        return None
    value = await queue.caller.command("GET", queue.keys.key(letter.key_id))
    holder, _, state = (value or b"").decode().partition(" ")
    if not holder or holder == letter.job_id:
        return None
    open_without_job = state.endswith(" open") and not await queue.caller.command(
        "EXISTS", queue.keys.job(holder)
    )
    return None if open_without_job else _taken_by(letter.job_id, holder)


def _taken_by(job_id: str, holder: str) -> Skipped:
    return Skipped(job_id, "key_taken", f"its key is held by job {holder}")


def _name_row(letter: DeadLetter) -> tuple[Argument, ...]:
    """Which letter is meant: another epoch of the same job is another letter (D23)."""
    return letter.letter, letter.job_id, letter.epoch


def _replay_row(letter: DeadLetter) -> tuple[Argument, ...]:
    return *_name_row(letter), letter.task or "-"


async def _move(
    queue: Queue,
    chosen: Sequence[DeadLetter],
    actor: str,
    script: Callable[..., scripts.Call],
    row: Callable[[DeadLetter], Sequence[Argument]],
) -> list[str]:
    replies: list[str] = []
    for part in _parts(chosen):
        rows = [word for letter in part for word in row(letter)]
        call = script(clock="", actor=actor, retention_ms=scripts.RETENTION_MS, rows=rows)
        replies.extend(reply.decode() for reply in await queue.run(call))
    return replies


def _parts(chosen: Sequence[DeadLetter]) -> Iterator[Sequence[DeadLetter]]:
    """What one call may move, in order."""
    part: list[DeadLetter] = []
    weight = 0
    for letter in chosen:
        if part and (len(part) >= BATCH or weight + letter.weight > BATCH_BYTES):
            yield part
            part, weight = [], 0
        part.append(letter)
        weight += letter.weight
    if part:
        yield part


def _moved(chosen: Sequence[DeadLetter], replies: Sequence[str], skipped: list[Skipped]) -> Moved:
    moved = 0
    for letter, reply in zip(chosen, replies, strict=True):
        word, _, rest = reply.partition(" ")
        match word:
            case "OK":
                moved += 1
            case "KEY_TAKEN":
                skipped.append(_taken_by(letter.job_id, rest))
            case "ALREADY":
                skipped.append(Skipped(letter.job_id, "already", "somebody else dealt with it"))
            case _:
                skipped.append(Skipped(letter.job_id, "gone", "the letter cannot be read any more"))
    return Moved(len(chosen), moved, tuple(skipped))
