"""The same change to the arguments of many dead jobs, such as a name that a producer has misspelt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamworker.core.errors import PayloadTooLarge, SerializationError
from streamworker.ops.dlq.checks import Skipped
from streamworker.ops.dlq.editing import Edit, objection, row_of
from streamworker.ops.dlq.letters import DeadLetter, read_letter
from streamworker.ops.dlq.moves import Moved, Which, choose, note, parts
from streamworker.store import scripts
from streamworker.store.connection import Argument
from streamworker.store.queue import Queue


@dataclass(frozen=True, slots=True)
class Mend:
    """What is done to arguments: names are changed first, then left out, then values given."""

    sets: Mapping[str, Any] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)  # new name by old
    drops: Collection[str] = ()

    def __bool__(self) -> bool:
        return bool(self.sets or self.renames or self.drops)

    def of(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments after it. Raises ValueError where a new name would take another argument's place."""
        changed = dict(args)
        for old, new in self.renames.items():
            if old in changed:
                if new in changed:
                    raise ValueError(f"it has {old!r} and {new!r}")
                changed[new] = changed.pop(old)
        for name in self.drops:
            changed.pop(name, None)
        return {**changed, **self.sets}


async def mend(
    queue: Queue,
    which: Which,
    change: Mend,
    *,
    actor: str,
    dry_run: bool = False,
    reason: str = "",
    shown: Callable[[Edit], None] = lambda first: None,
) -> Moved:
    """Change the arguments of many letters; each change stands in the log, and one line says who and why.

    Skipped, and left as they are: those that are `unchanged` by it, whose arguments cannot be read, or would
    be too large or refused by a replay. `shown` is given the first that is changed.
    """
    first: list[Edit] = []

    async def judge(letter: DeadLetter) -> Skipped | None:
        wanted = await _wanted(queue, letter, change)
        if isinstance(wanted, Skipped):
            return wanted
        if not first:
            first.append(wanted)
            shown(wanted)
        return None

    chosen, skipped = await choose(queue, which, judge)
    if dry_run or not chosen:
        return Moved(len(chosen), 0, tuple(skipped))
    await note(queue, actor, "edit", which, f"eligible={len(chosen)}", reason)
    moved = 0
    for part in parts(chosen):
        moved += await _edit(queue, part, change, actor, skipped)
    return Moved(len(chosen), moved, tuple(skipped))


async def _edit(
    queue: Queue, part: Sequence[DeadLetter], change: Mend, actor: str, skipped: list[Skipped]
) -> int:
    """One call for these, which are read again, since they came without arguments. How many were changed."""
    rows: list[Argument] = []
    asked: list[str] = []
    for letter in part:
        now = await read_letter(queue, letter.letter)
        wanted = _gone(letter.job_id) if now is None else await _wanted(queue, now, change)
        if isinstance(wanted, Skipped):
            skipped.append(wanted)
        else:
            rows += row_of(queue, wanted)
            asked.append(letter.job_id)
    if not rows:
        return 0
    replies = await queue.run(
        scripts.dlq_edit(clock="", actor=actor, retention_ms=scripts.RETENTION_MS, rows=rows)
    )
    lost = [job_id for job_id, reply in zip(asked, replies, strict=True) if reply == b"ALREADY"]
    skipped += map(_gone, lost)
    return len(asked) - len(lost)


def _gone(job_id: str) -> Skipped:
    return Skipped(job_id, "already", "somebody else dealt with it")


async def _wanted(queue: Queue, letter: DeadLetter, change: Mend) -> Edit | Skipped:
    """What the letter becomes, or why it stays as it is."""
    envelope = letter.envelope_or_none()
    if envelope is None:
        return Skipped(letter.job_id, "no_envelope", "its arguments cannot be read")
    try:
        wanted = Edit(letter, envelope, change.of(envelope.args))
        if not wanted.changes:
            return Skipped(letter.job_id, "unchanged", "its arguments are so already")
        if (wrong := await objection(queue, wanted)) is not None:
            return Skipped(letter.job_id, "bad_arguments", wrong)
        row_of(queue, wanted)
    except (ValueError, SerializationError, PayloadTooLarge) as error:
        return Skipped(letter.job_id, "bad_arguments", str(error))
    return wanted
