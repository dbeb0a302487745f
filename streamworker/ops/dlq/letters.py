"""Dead letters as the stream has them. There is no index by job id: finding one means paging through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Any

from streamworker.core.errors import StreamworkerError
from streamworker.core.gates import entity_of
from streamworker.core.job import Envelope
from streamworker.ops.history import iso
from streamworker.store.events import pairs
from streamworker.store.queue import Queue

#: Letters of one read: each may carry an envelope of 256 kB.
PAGE = 50


#: Digits of a number at most, and the last moment that can be written, in ms since the epoch.
MAX_DIGITS, LATEST = 15, 253_402_300_799_999


class DeadLetterNotFound(StreamworkerError):
    """The job has no dead letter: it was replayed or discarded, it did not fail, or it never was."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"job {job_id} has no dead letter; `streamworker jobs show {job_id}` says what it is"
        )


def task_of(envelope: bytes) -> str:
    """The task that the producer named, '' when that cannot be read."""
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
        """From one entry of XRANGE. One that somebody else wrote is read as well, and hides no other."""
        raw = {name.decode("utf-8", "replace"): value for name, value in pairs(flat).items()}
        if not raw.get("task"):  # its record could not be read
            raw["task"] = task_of(raw.get("env", b"")).encode()

        def text(name: str) -> str:
            return raw.get(name, b"").decode("utf-8", "replace")

        def number(name: str) -> int:
            value = raw.get(name, b"")
            return min(int(value), LATEST) if value.isdigit() and len(value) <= MAX_DIGITS else 0

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

    @property
    def correlation_id(self) -> str | None:
        """What the producer gave, so that the job can be found in logs; None without a readable envelope."""
        envelope = self.envelope_or_none()
        return None if envelope is None else envelope.correlation_id

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
            "correlation_id": self.correlation_id,
        }


def key_of(key_id: str) -> str | None:
    """The user's key in a key's identity (`task:entity:key`), None when there is only a digest of it.

    Task and entity have their colons escaped, the key has not.
    """
    parts = key_id.split(":", 2)
    return parts[2] if len(parts) == 3 and not key_id.startswith("#") else None


async def entries(queue: Queue, *, newest_first: bool = False) -> AsyncIterator[tuple[bytes, list[bytes]]]:
    """All entries of the stream, read in pages: their ids, and names and values in turn."""
    command, edge = ("XREVRANGE", "+") if newest_first else ("XRANGE", "-")
    other = "-" if newest_first else "+"
    while True:
        page = await queue.caller.command(command, queue.keys.dlq, edge, other, "COUNT", PAGE)
        for entry, flat in page:
            yield entry, flat
        if len(page) < PAGE:
            return
        edge = f"({page[-1][0].decode()}"


async def letters(queue: Queue, *, newest_first: bool = False) -> AsyncIterator[DeadLetter]:
    """All dead letters."""
    async for entry, flat in entries(queue, newest_first=newest_first):
        yield DeadLetter.parse(entry, flat)


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
