"""Undo: an operator's change is taken back, unless somebody has changed the same thing since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamworker.core.durations import Duration, to_ms
from streamworker.core.errors import StreamworkerError
from streamworker.ops import tune
from streamworker.ops.history import iso
from streamworker.ops.settings import Change, changes, read, shown_name
from streamworker.store.depths import now_ms
from streamworker.store.queue import Queue

#: verb, name and value, as `tune` takes them.
Row = tuple[str, str, str]


class NotUndone(StreamworkerError):
    """A change cannot be taken back; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Undone:
    """What was taken back, and by which settings."""

    change: Change
    rows: tuple[Row, ...]


async def undo(
    queue: Queue, change_id: int | None = None, *, actor: str, reason: str = "", over: Duration = tune.RAMP
) -> Undone:
    """Let hold again what stood before a change: the one with this id, or the last that nobody took back.

    Those that a pause held back come in evenly `over` a time. Undoing an undo is a redo. Raises NotUndone.
    """
    known, now = await changes(queue), await now_ms(queue.caller.command)
    change = choose(known, change_id, now_ms=now)
    rows = inverse(change, now_ms=now, ramp_ms=to_ms(over, what="over"))
    latest = next(one for one in known if (one.topic, one.name) == (change.topic, change.name))
    said = f"takes back {change.id}, {change.spoken()} by {change.by}" + (f": {reason}" if reason else "")
    expected = ("expect", f"{change.topic} {change.name}", str(latest.id), str(change.id))
    replies = await tune.send(queue, actor, [expected, *((*row, said) for row in rows)])
    if replies == ["CHANGED"]:
        raise NotUndone(f"{_named(change)} was changed by somebody else just now; see: streamworker settings")
    return Undone(change, tuple(rows))


def choose(known: Sequence[Change], change_id: int | None, *, now_ms: int) -> Change:
    """The change that is meant, if it can be taken back; `known` with the newest first. Pure.

    Those whose time is over have gone back by themselves: they are neither the last nor in the way of earlier
    ones. Raises NotUndone.
    """
    back = _taken_back(known)
    over = {one.id for one in known if one.ends_at is not None and one.ends_at <= now_ms}
    if change_id is None:
        left = [one for one in known if not one.undoes and one.id not in back]
        last = next((one for one in left if one.id not in over), left[0] if left else None)
        if last is None:
            raise NotUndone("no change is known that could be taken back")
        return last
    found = next((one for one in known if one.id == change_id), None)
    if found is None:
        raise NotUndone(f"no change {change_id} is known; see the last: streamworker settings --changes")
    if found.id in back:
        raise NotUndone(f"change {found.id} was taken back already, by change {back[found.id]}")
    for one in known:
        if one.id <= found.id or (one.topic, one.name) != (found.topic, found.name) or one.id in back:
            continue
        if one.undoes > found.id or one.id in over:  # what came in between is gone again
            continue
        raise NotUndone(
            f"{_named(found)} was changed since, by {one.by} at {iso(one.at)}: {one.spoken()}; take that "
            f"back first: streamworker undo {one.id}"
        )
    return found


def _taken_back(known: Sequence[Change]) -> dict[int, int]:
    """The changes that are taken back, and by which; an undo that was itself taken back does not count."""
    back: dict[int, int] = {}
    for one in known:  # the newest first: whether it was taken back is known by now
        if one.undoes and one.id not in back:
            back[one.undoes] = one.id
    return back


def inverse(change: Change, *, now_ms: int, ramp_ms: int) -> list[Row]:
    """The settings that bring back what stood before. Pure. Raises NotUndone when its time is over."""
    if change.ends_at is not None and change.ends_at <= now_ms:
        raise NotUndone(
            f"the time of change {change.id} was over at {iso(change.ends_at)}: there is nothing to take back"
        )
    match change.topic:
        case "pause":
            return [_pause(change, now_ms, ramp_ms)]
        case "breaker":
            return [_breaker(change, now_ms)]
        case _:
            return _setting(change, now_ms)


def _setting(change: Change, now_ms: int) -> list[Row]:
    topic, name = change.topic, change.name
    before = read(topic, name, change.before)
    timed = before if before is not None and before.until is not None else None
    lasting = before if timed is None else timed.below
    rows: list[Row] = []
    if lasting is not None:
        rows.append((topic, name, lasting.value))
    else:
        rows.append(("reset" if topic == "limit" else topic, name, ""))
    if timed is not None and timed.until is not None and timed.until > now_ms:
        rows.append((topic, name, f"{timed.value};for={timed.until - now_ms}"))
    return rows


def _pause(change: Change, now_ms: int, ramp_ms: int) -> Row:
    state, _, rest = change.before.partition(" ")
    till = int(rest.split(" ")[0]) if rest else 0
    if state == "paused" and (not till or till > now_ms):
        return "pause", change.name, str(till - now_ms) if till else ""
    if change.verb == "resume":
        raise NotUndone(
            f"{change.name} would run again by now without change {change.id}: there is nothing to take back"
        )
    return "resume", change.name, str(ramp_ms)


def _breaker(change: Change, now_ms: int) -> Row:
    if change.before:
        state, till_text, length, *_ = change.before.split(" ")
        till = int(till_text)
        if not till or till > now_ms:
            left = till - now_ms if till else 0
            return ("open" if state == "open" else "close"), change.name, f"{left} {length}"
    if change.verb == "auto":
        raise NotUndone(
            f"the calls of {_named(change)} would decide by now without change {change.id}: "
            "there is nothing to take back"
        )
    return "auto", change.name, ""


def _named(change: Change) -> str:
    return f"{change.topic} {shown_name(change.topic, change.name)}"
