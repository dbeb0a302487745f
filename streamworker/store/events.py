"""Reads the transition log: which moves a job made, when, by whom and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from streamworker.core.states import Status

#: A dict finds a state faster than the enum does, and there are many.
_STATUS = {status.value: status for status in Status}
_NO_FACTS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Transition:
    """One edge of one job's life."""

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
    #: What only some edges have: class, code, due, policy, task, lane, tenant.
    facts: Mapping[str, str] = field(default_factory=dict)
    starts: int = 0
    strikes: int = 0
    line: int = 1  # which of the entry's lines tells of it
    error: str | None = None  # its text, where there is a durable record


def decode(fields: Mapping[bytes, bytes]) -> Iterator[Transition]:
    """The transitions of one entry of the log, which holds one script call however many jobs it moved."""
    at = int(fields[b"t"])
    worker = fields.get(b"w", b"-").decode()
    script = fields.get(b"s", b"").decode()
    new = ""
    for number, line in enumerate(fields.get(b"e", b"").decode().split("\n"), 1):
        _, plus, enqueued = line.partition(" + ")
        if plus:
            new = " ".join(enqueued.split(" ", 2)[:2])  # task and lane, also of those that name none
        elif line.endswith(" +"):
            line = f"{line} {new}"
        if line:
            yield from _line(number, line, at, None if worker == "-" else worker, script)


def _line(number: int, line: str, at: int, worker: str | None, script: str) -> Iterator[Transition]:
    """One line: the edge, and before it the start of a handler that a settle tells of as well (D20)."""
    job_id, before, after, *words = line.split(" ")
    if before == "+":
        yield _enqueued(number, job_id, after, words, at, worker, script)
        return
    attempt, starts, strikes, version, epoch, fence, _, reason, *rest = words
    facts: dict[str, str] = {}
    started = None
    tried, moment = attempt, at
    for fact in rest:
        name, _, value = fact.partition("=")
        match name:
            case "fence":  # the one that ended: the token that follows has none
                fence = value
            case "started":
                started = int(value)
            case "at":
                moment = at + int(value)
            case "tried":  # an attempt that this very line gave back
                tried = value
            case _:
                facts[name] = value
    counted = (int(starts), int(strikes), number)
    life, moves = int(epoch), int(version)
    if started is not None:
        yield Transition(
            job_id,
            life,
            moves - 1,
            Status.CLAIMED,
            Status.PROCESSING,
            at + started,
            int(tried),
            int(fence),
            "started",
            worker,
            script,
            _NO_FACTS,
            *counted,
        )
    yield Transition(
        job_id,
        life,
        moves,
        Status.PROCESSING if started is not None else _STATUS[before],
        _STATUS[after],
        moment,
        int(attempt),
        int(fence),
        reason,
        worker,
        script,
        facts or _NO_FACTS,
        *counted,
    )


def _enqueued(
    number: int, job_id: str, task: str, words: list[str], at: int, worker: str | None, script: str
) -> Transition:
    """The short line of a new job: id + task lane [name=value ...]."""
    lane, *rest = words
    facts = {"task": task, "lane": lane, **dict(fact.split("=", 1) for fact in rest)}
    reason = "delayed" if "due" in facts else "enqueued"
    return Transition(job_id, 0, 1, None, Status.QUEUED, at, 0, 0, reason, worker, script, facts, line=number)


#: Bytes that an entry counts for beyond its lines and parts.
ENTRY_BYTES = 64
#: What an entry may have beside its lines while a mirror is on, by the first letter of the field's name; the
#: number that follows says to which line it belongs.
PARTS = {"p": "the envelope", "k": "the record's lines", "r": "the result", "x": "the error text"}


def parts(fields: Mapping[bytes, bytes]) -> dict[int, dict[str, bytes]]:
    """What an entry has beside its lines, by line and letter (see `PARTS`)."""
    found: dict[int, dict[str, bytes]] = {}
    for name, value in fields.items():
        if len(name) > 1:
            found.setdefault(int(name[1:]), {})[name[:1].decode()] = value
    return found


def size_of(fields: Mapping[bytes, bytes]) -> int:
    """Bytes that an entry counts for in the log's bound, as `commit` has counted them."""
    return ENTRY_BYTES + sum(len(value) for name, value in fields.items() if name not in b"ntsw")


def pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    """A flat reply of names and values as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
