"""Dead letters: list them, look at one, send them back into their lanes, or let them go.

A job that failed for good is named by its letter and epoch (D23), so that what somebody else did in the
meantime is never undone. There is no index by job id: finding letters means paging through the stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamworker.core.errors import InvalidArgument, StreamworkerError
from streamworker.core.gates import entity_of
from streamworker.core.ids import check_job_id
from streamworker.core.job import Envelope
from streamworker.ops.history import iso
from streamworker.store import scripts
from streamworker.store.connection import Argument
from streamworker.store.events import pairs
from streamworker.store.queue import Queue

#: Letters of one read: each may carry an envelope of 256 kB.
PAGE = 50
#: Letters that one call of a script moves, and bytes of envelopes: 25 MB took 200 ms (R32, R46).
BATCH, BATCH_BYTES = 100, 524_288


class DeadLetterNotFound(StreamworkerError):
    """The job has no dead letter: it was replayed or discarded, it did not fail, or it never was."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"job {job_id} has no dead letter; `streamworker jobs show {job_id}` says what it is"
        )


def _task_of(envelope: bytes) -> str:
    try:
        return Envelope.decode(envelope).task
    except ValueError:
        return ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One entry of the dead-letter stream. Times are ms since the epoch, by Redis's clock."""

    letter: str  # id in the stream
    job_id: str
    task: str
    lane: str
    tenant: str | None
    error_class: str
    error_code: str
    error: str
    reason: str
    attempts: int
    starts: int
    strikes: int
    epoch: int
    version: int
    enqueued_at: int
    dead_at: int
    worker: str | None
    key_id: str
    gates: str
    envelope: bytes
    weight: int = 0  # bytes of the envelope, where that was left out

    @classmethod
    def parse(cls, letter: bytes, flat: list[bytes]) -> DeadLetter:
        """From one entry of XRANGE."""
        raw = {name.decode(): value for name, value in pairs(flat).items()}
        if not raw.get("task"):  # its record could not be read
            raw["task"] = _task_of(raw.get("env", b"")).encode()

        def text(name: str) -> str:
            return raw.get(name, b"").decode("utf-8", "replace")

        def number(name: str) -> int:
            return int(raw.get(name) or 0)

        return cls(
            letter.decode(),
            text("id"),
            text("task"),
            text("lane"),
            text("tenant") or None,
            text("class"),
            text("code"),
            text("error"),
            text("reason"),
            number("attempt"),
            number("starts"),
            number("strikes"),
            number("epoch"),
            number("version"),
            number("at"),
            number("dead_at"),
            text("worker") or None,
            text("ky"),
            text("ga"),
            raw.get("env", b""),
        )

    @property
    def entity(self) -> str | None:
        """The entity whose jobs run one at a time, such as `order:7`; None without one."""
        return entity_of(self.gates)

    def envelope_or_none(self) -> Envelope | None:
        """What the producer sent, None if it is gone or cannot be read."""
        try:
            return Envelope.decode(self.envelope)
        except ValueError:
            return None

    def json(self) -> dict[str, Any]:
        """The item of `dlq list --json`."""
        return {
            "id": self.job_id,
            "task": self.task,
            "lane": self.lane,
            "tenant": self.tenant,
            "entity": self.entity,
            "error_class": self.error_class,
            "error_code": self.error_code,
            "error": self.error,
            "attempts": self.attempts,
            "dead_at": iso(self.dead_at),
        }


def key_of(key_id: str) -> str | None:
    """The user's key in a key's identity (`task:entity:key`), None when there is only a digest of it.

    Task and entity have their colons escaped, the key has not.
    """
    parts = key_id.split(":", 2)
    return parts[2] if len(parts) == 3 and not key_id.startswith("#") else None


@dataclass(frozen=True, slots=True)
class Filters:
    """Which letters are meant; None lets everything through."""

    task: str | None = None
    code: str | None = None
    lane: str | None = None
    tenant: str | None = None

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.task, self.code, self.lane, self.tenant))

    def match(self, letter: DeadLetter) -> bool:
        return (
            self.task in (None, letter.task)
            and self.code in (None, letter.error_code)
            and self.lane in (None, letter.lane)
            and self.tenant in (None, letter.tenant)
        )


async def letters(queue: Queue, *, newest_first: bool = False) -> AsyncIterator[DeadLetter]:
    """All dead letters, in pages."""
    command, edge = ("XREVRANGE", "+") if newest_first else ("XRANGE", "-")
    other = "-" if newest_first else "+"
    while True:
        page = await queue.caller.command(command, queue.keys.dlq, edge, other, "COUNT", PAGE)
        for entry, fields in page:
            yield DeadLetter.parse(entry, fields)
        if len(page) < PAGE:
            return
        edge = f"({page[-1][0].decode()}"


async def read_letter(queue: Queue, letter: str) -> DeadLetter | None:
    """The letter of that stream id, if it is still there."""
    found = await queue.caller.command("XRANGE", queue.keys.dlq, letter, letter)
    return DeadLetter.parse(*found[0]) if found else None


async def find(queue: Queue, ids: Collection[str]) -> dict[str, DeadLetter]:
    """The newest letter of each of these jobs that has one."""
    wanted, found = set(ids), dict[str, DeadLetter]()
    async for letter in letters(queue, newest_first=True):
        if letter.job_id in wanted:
            found[letter.job_id] = letter
            wanted.discard(letter.job_id)
            if not wanted:
                break
    return found


async def listing(queue: Queue, *, limit: int = 50, filters: Filters | None = None) -> dict[str, Any]:
    """`dlq list --json`: how many letters there are, and the newest `limit` of them.

    With filters `total` counts what matches, which reads the whole stream.
    """
    filters = filters or Filters()
    items: list[dict[str, Any]] = []
    total = 0
    if not filters:
        total = int(await queue.caller.command("XLEN", queue.keys.dlq))
    async for letter in letters(queue, newest_first=True):
        if not filters and len(items) >= limit:
            break
        if filters.match(letter):
            total += bool(filters)
            if len(items) < limit:
                items.append(letter.json())
    return {"total": total, "items": items}


async def show(queue: Queue, job_id: str) -> dict[str, Any]:
    """`dlq show --json`: the item of `dlq list` and all else that the letter has.

    Raises InvalidArgument for what is no job id, DeadLetterNotFound.
    """
    found = (await find(queue, [check_job_id(job_id)])).get(job_id)
    if found is None:
        raise DeadLetterNotFound(job_id)
    envelope = found.envelope_or_none()
    return {
        **found.json(),
        "key": envelope.key if envelope is not None else key_of(found.key_id),
        "correlation_id": None if envelope is None else envelope.correlation_id,
        "args": None if envelope is None else envelope.args,
        "starts": found.starts,
        "strikes": found.strikes,
        "epoch": found.epoch,
        "reason": found.reason,
        "worker": found.worker,
        "enqueued_at": iso(found.enqueued_at),
    }


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
