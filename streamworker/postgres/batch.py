"""What one transaction writes: entries of the log, and their moves by job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from streamworker.postgres.entries import MAX_MS, Entry, UnreadableEntry, raw, read_entry
from streamworker.store.events import Transition

if TYPE_CHECKING:
    from streamworker.postgres.ready import Ready

_NOTHING: Mapping[str, bytes] = {}
_DAY_MS = 86_400_000


class Step(NamedTuple):
    """A move with what came along, and the entry that told of it. A tuple, since there are many."""

    move: Transition
    parts: Mapping[str, bytes]
    entry: Entry


#: Makes one of a tuple, as in `store/events.py`.
_step = cast("Callable[[tuple[Any, ...]], Step]", partial(tuple.__new__, Step))


@dataclass(frozen=True, slots=True)
class Refusal:
    """What could not be taken, and why."""

    entry: str
    job_id: str | None
    data: bytes
    sqlstate: str | None
    reason: str


@dataclass(slots=True)
class Batch:
    """Entries in the order of the log."""

    entries: list[Entry] = field(default_factory=list)
    unreadable: list[Refusal] = field(default_factory=list)
    #: Id and size of each entry, readable or not.
    read: list[tuple[str, int]] = field(default_factory=list)
    lines: int = 0  # one or two moves each
    size: int = 0  # bytes
    #: What it comes to if all of it is new, once somebody has made that.
    ready: Ready | None = None

    def add(self, entry_id: bytes, flat: list[bytes]) -> None:
        """One entry of XRANGE. What cannot be read is kept as it is: it must not stop the others."""
        try:
            entry = read_entry(entry_id, flat)
        except UnreadableEntry as error:
            data = raw(flat)
            self.unreadable.append(Refusal(entry_id.decode(), None, data, None, str(error)))
            self.read.append((entry_id.decode(), len(data)))
            self.size += len(data)
            return
        self.entries.append(entry)
        self.read.append((entry.id, entry.size))
        self.lines += len(entry.lines)
        self.size += entry.size

    def steps(self, only: Collection[str] | None = None) -> dict[str, list[Step]]:
        """The moves by job, jobs in order of their ids; `only` of these jobs."""
        found: dict[str, list[Step]] = {}
        if only is not None and not only:
            return found
        for entry in self.entries:
            for number, line in enumerate(entry.lines, 1):
                job_id = line.job_id
                if only is not None and job_id not in only:
                    continue
                parts = entry.parts.get(number, _NOTHING)
                steps = found.setdefault(job_id, [])
                for move in line.moves(number, entry.at_ms, entry.worker, entry.script):
                    steps.append(_step((move, parts, entry)))
        return dict(sorted(found.items()))

    def repeats(self, sequence: int) -> set[str]:
        """Ids of the entries up to that number: they were committed before, or the count began anew."""
        return {entry.id for entry in self.entries if entry.sequence <= sequence}

    def days(self) -> set[int]:
        """The days of the moves, counted from the epoch. A moment that no row can have has none."""
        found = set()
        for entry in self.entries:
            if entry.lines:
                moments = {entry.at_ms + (line.offset or 0) for line in entry.lines}
                found.update([ms // _DAY_MS for ms in (entry.at_ms, *moments) if 0 <= ms < MAX_MS])
        return found


def describe(steps: Iterable[Step]) -> bytes:
    """A job's moves as a person may read them, with the bytes that came along."""
    lines: list[bytes] = []
    for step in steps:
        lines.append(line_of(step.move).encode("utf-8", "backslashreplace"))
        lines += [b"%s: %s" % (name.encode(), value) for name, value in step.parts.items()]
    return b"\n".join(lines)


def line_of(move: Transition) -> str:
    """A move in one line."""
    facts = "".join(f" {name}={value}" for name, value in move.facts.items())
    return (
        f"{move.job_id} {move.epoch}.{move.version} {move.from_status or '+'} -> {move.to_status} "
        f"attempt={move.attempt} fence={move.fence} {move.reason} by {move.worker or '-'}{facts}"
    )
