"""An entry of the log as the mirror reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamworker.store import events
from streamworker.store.events import Line, Transition

#: Scripts that an operator calls: their moves are operator actions as well.
OPERATED = frozenset({"cancel", "replay", "discard", "tune"})
#: The end of the year 9999: what Python and Postgres both have a name for.
MAX_MS = 253_402_300_800_000


class UnreadableEntry(Exception):
    """An entry that is not in the form of docs/reference/events.md."""


@dataclass(frozen=True, slots=True)
class Action:
    """What an operator did or asked for."""

    at_ms: int
    actor: str
    action: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One script call: the moves that it made, what came with them, what was asked for."""

    id: str
    sequence: int
    at_ms: int
    size: int  # bytes, as the log's bound counts them
    worker: str | None
    script: str
    lines: list[Line]
    parts: Mapping[int, Mapping[str, bytes]]
    actions: tuple[Action, ...]

    @property
    def moves(self) -> list[Transition]:
        """The transitions that its lines stand for."""
        return [
            move
            for number, line in enumerate(self.lines, 1)
            for move in line.moves(number, self.at_ms, self.worker, self.script)
        ]


def read_entry(entry_id: bytes, flat: list[bytes]) -> Entry:
    """From one entry of XRANGE. Raises UnreadableEntry."""
    fields = events.pairs(flat)
    try:
        lines = events.lines(fields)
        at_ms, sequence = int(fields[b"t"]), int(fields[b"n"])
        if not (0 <= at_ms < MAX_MS and 0 < sequence < 2**63):
            raise ValueError(f"time {at_ms} or number {sequence} is impossible")
        actor, script = fields.get(b"w", b"-").decode(), fields.get(b"s", b"").decode()
        operated = b"a" in fields or script in OPERATED
        return Entry(
            entry_id.decode(),
            sequence,
            at_ms,
            events.size_of(fields),
            None if actor == "-" else actor,
            script,
            lines,
            events.parts(fields) if len(fields) > 5 else {},
            tuple(_actions(fields, at_ms, actor, script, lines)) if operated else (),
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UnreadableEntry(f"{type(error).__name__}: {error}") from None


def _actions(
    fields: Mapping[bytes, bytes], at_ms: int, actor: str, script: str, lines: list[Line]
) -> list[Action]:
    found = []
    actor = actor.replace("\x00", "\ufffd")
    if script in OPERATED:
        found += [
            Action(at_ms, actor, line.edge.reason, line.job_id, f"epoch {line.edge.epoch}") for line in lines
        ]
    for line in fields.get(b"a", b"").decode().replace("\x00", "\ufffd").split("\n"):
        if line:
            subject, epoch, what = line.split(" ", 2)
            if subject == "-":  # of no job: what was set, for whom or what, to which value and why
                verb, subject, detail = what.split(" ", 2)
                found.append(Action(at_ms, actor, verb, subject, detail))
            else:
                found.append(Action(at_ms, actor, what, subject, f"epoch {epoch}"))
    return found


def raw(flat: list[bytes]) -> bytes:
    """The entry as it stands in the log, to be kept where it cannot be read."""
    return b"\n".join(b"%b=%b" % (name, value) for name, value in zip(flat[::2], flat[1::2], strict=False))
