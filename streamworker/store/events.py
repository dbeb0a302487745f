"""Reads the transition log: which moves a job made, when, by whom and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

from streamworker.core.states import Status

#: A dict finds a state faster than the enum does, and there are many.
_STATUS = {status.value: status for status in Status}
_QUEUED, _CLAIMED, _PROCESSING = Status.QUEUED, Status.CLAIMED, Status.PROCESSING
_NO_FACTS: Mapping[str, str] = {}


class Transition(NamedTuple):
    """One edge of one job's life; a tuple, since a frozen dataclass takes five times as long to make."""

    job_id: str
    epoch: int
    version: int
    from_status: Status | None  # None: the job was enqueued
    to_status: Status
    at_ms: int
    attempt: int
    fence: int
    reason: str
    worker: str | None
    script: str
    #: What only some edges have: class, code, due, policy, task, lane, tenant, backlog.
    facts: Mapping[str, str] = _NO_FACTS
    starts: int = 0
    strikes: int = 0
    line: int = 1  # which of the entry's lines tells of it
    error: str | None = None  # its text, where there is a durable record


#: Makes one of a tuple with all its fields, in a third of the time that a call of the class takes.
_transition = cast("Callable[[tuple[Any, ...]], Transition]", partial(tuple.__new__, Transition))


class Edge(NamedTuple):
    """What a line says beside job, fence and moment: often many lines of an entry say the same."""

    source: Status | None
    target: Status
    attempt: int
    starts: int
    strikes: int
    version: int
    epoch: int
    reason: str
    facts: Mapping[str, str]
    #: The attempt that began, where the line stands for claimed -> processing as well (D20).
    tried: int | None = None


class Line(NamedTuple):
    """What an entry says of one job: one edge, or two."""

    job_id: str
    edge: Edge
    fence: int
    offset: int | None  # ms, to be added to the entry's time: when the handler began

    def moves(self, number: int, at_ms: int, worker: str | None, script: str) -> list[Transition]:
        """The transitions that the line stands for; `number` is its place in the entry, from 1."""
        job_id, edge, fence, offset = self
        source, target, attempt, starts, strikes, version, epoch, reason, facts, tried = edge
        found = []
        if tried is not None:
            source = _PROCESSING
            found.append(
                _transition(
                    (job_id, epoch, version - 1, _CLAIMED, source, at_ms + (offset or 0), tried, fence,
                     "started", worker, script, _NO_FACTS, starts, strikes, number, None)
                )
            )  # fmt: skip
        elif offset is not None:
            at_ms += offset
        found.append(
            _transition(
                (job_id, epoch, version, source, target, at_ms, attempt, fence,
                 reason, worker, script, facts, starts, strikes, number, None)
            )
        )  # fmt: skip
        return found


_line = cast("Callable[[tuple[Any, ...]], Line]", partial(tuple.__new__, Line))


def decode(fields: Mapping[bytes, bytes]) -> list[Transition]:
    """The transitions of one entry of the log, which holds one script call however many jobs it moved."""
    at, worker, script = int(fields[b"t"]), actor(fields), fields.get(b"s", b"").decode()
    return [
        move
        for number, line in enumerate(lines(fields), 1)
        for move in line.moves(number, at, worker, script)
    ]


def actor(fields: Mapping[bytes, bytes]) -> str | None:
    """Who called, as an entry names them; None for producers."""
    name = fields.get(b"w", b"-").decode()
    return None if name == "-" else name


def lines(fields: Mapping[bytes, bytes]) -> list[Line]:
    """The lines of one entry. Raises ValueError, KeyError, IndexError for what is none."""
    text = fields.get(b"e", b"").decode()
    found: list[Line] = []
    if not text:
        return found
    edge: Edge | None = None  # of the line before
    born: Edge | None = None  # of the new job before
    for line in text.split("\n"):
        words = line.split(" ")
        how = words[1]
        if how == "=":
            if edge is None:
                raise ValueError(f"nothing says how {words[0]} moved")
            offset = int(words[3]) if len(words) > 3 else None
            found.append(_line((words[0], edge, int(words[2]), offset)))
        elif how == "+":
            if len(words) > 2:
                edge, born = _enqueued(words)
            elif born is None:
                raise ValueError(f"nothing says what the task of {words[0]} is")
            else:
                edge = born
            found.append(_line((words[0], edge, 0, None)))
        else:
            moved = _moved(words)
            found.append(moved)
            edge = moved.edge
    return found


def _enqueued(words: list[str]) -> tuple[Edge, Edge]:
    """The edge of a new job, and that of those after it which name no task."""
    _, _, task, lane, *more = words
    facts = {"task": task, "lane": lane}
    plain = edge = Edge(None, _QUEUED, 0, 0, 0, 1, 0, "enqueued", facts)
    if more:
        facts = {**facts, **dict([fact.split("=", 1) for fact in more])}
        reason = "delayed" if "due" in facts else "deferred" if "backlog" in facts else "enqueued"
        edge = edge._replace(facts=facts, reason=reason)
    return edge, plain


def _moved(words: list[str]) -> Line:
    """A line that says all: the edge, and whether the start of a handler comes before it (D20)."""
    job_id, before, after, attempt, starts, strikes, version, epoch, fence, _, reason, *rest = words
    facts, tried, offset = _NO_FACTS, None, None
    if rest:
        known = dict([fact.split("=", 1) for fact in rest])
        # A token has no fence once its claim has ended: the fact is the one that ended.
        fence = known.pop("fence", fence)
        moment = known.pop("at", None)
        started = known.pop("started", None)
        charged = known.pop("tried", attempt)  # an attempt that this very line gave back
        if started is not None:
            moment, tried = started, int(charged)
        offset = None if moment is None else int(moment)
        if known:
            facts = known
    edge = Edge(_STATUS[before], _STATUS[after], int(attempt), int(starts), int(strikes), int(version),
                int(epoch), reason, facts, tried)  # fmt: skip
    return _line((job_id, edge, int(fence), offset))


#: Bytes that an entry counts for beyond its lines and parts.
ENTRY_BYTES = 64
#: Fields that each entry has and that do not count: number, time, script, who called.
_HEAD = (b"n", b"t", b"s", b"w")
#: What an entry may have beside its lines while a mirror is on, by the first letter of the field's name; the
#: number that follows says to which line it belongs.
PARTS = {"p": "the envelope", "k": "the record's lines", "r": "the result", "x": "the error text"}


def parts(fields: Mapping[bytes, bytes]) -> dict[int, dict[str, bytes]]:
    """What an entry has beside its lines, by line and letter (see `PARTS`)."""
    found: dict[int, dict[str, bytes]] = {}
    for name, value in fields.items():
        if len(name) > 1:
            letter, number = _part(name)
            of_line = found.get(number)
            if of_line is None:
                found[number] = {letter: value}
            else:
                of_line[letter] = value
    return found


@lru_cache(maxsize=4096)
def _part(name: bytes) -> tuple[str, int]:
    return name[:1].decode(), int(name[1:])


def size_of(fields: Mapping[bytes, bytes]) -> int:
    """Bytes that an entry counts for in the log's bound, as `commit` has counted them."""
    return ENTRY_BYTES + sum(map(len, fields.values())) - sum([len(fields.get(name, b"")) for name in _HEAD])


def pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    """A flat reply of names and values as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
