"""Reads the transition log: which moves a job made, when, by whom and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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


def decode(fields: Mapping[bytes, bytes]) -> list[Transition]:
    """The transitions of one entry of the log, which holds one script call however many jobs it moved."""
    found: list[Transition] = []
    at = int(fields[b"t"])
    actor = fields.get(b"w", b"-").decode()
    worker = None if actor == "-" else actor
    script = fields.get(b"s", b"").decode()
    plain: Mapping[str, str] = _NO_FACTS  # task and lane of the new job before, also of those that name none
    for number, line in enumerate(fields.get(b"e", b"").decode().split("\n"), 1):
        if not line:
            continue
        job_id, before, *words = line.split(" ")
        if before != "+":
            _moved(found, number, job_id, before, words, at, worker, script)
            continue
        facts, reason = plain, "enqueued"
        if words:
            task, lane, *more = words
            facts = plain = {"task": task, "lane": lane}
            if more:
                facts = {**plain, **dict([fact.split("=", 1) for fact in more])}
                reason = "delayed" if "due" in facts else "deferred" if "backlog" in facts else "enqueued"
        elif not plain:
            raise ValueError(f"nothing says what the task of {job_id} is")
        found.append(
            _transition(
                (job_id, 0, 1, None, _QUEUED, at, 0, 0, reason, worker, script, facts, 0, 0, number, None)
            )
        )
    return found


def _moved(
    found: list[Transition],
    number: int,
    job_id: str,
    before: str,
    words: list[str],
    at: int,
    worker: str | None,
    script: str,
) -> None:
    """One line: the edge, and before it the start of a handler that a settle tells of as well (D20)."""
    after, attempt, starts, strikes, version, epoch, fence, _, reason, *rest = words
    source, target, charged, facts, moment = _STATUS[before], _STATUS[after], int(attempt), _NO_FACTS, at
    life, moves, claims, deaths = int(epoch), int(version), int(starts), int(strikes)
    if rest:
        known = dict([fact.split("=", 1) for fact in rest])
        # A token has no fence once its claim has ended: the fact is the one that ended.
        fence = known.pop("fence", fence)
        tried = known.pop("tried", attempt)  # an attempt that this very line gave back
        started = known.pop("started", None)
        if "at" in known:
            moment += int(known.pop("at"))
        if known:
            facts = known
        if started is not None:
            source = _PROCESSING
            found.append(
                _transition(
                    (job_id, life, moves - 1, _CLAIMED, source, at + int(started), int(tried), int(fence),
                     "started", worker, script, _NO_FACTS, claims, deaths, number, None)
                )
            )  # fmt: skip
    found.append(
        _transition(
            (job_id, life, moves, source, target, moment, charged, int(fence),
             reason, worker, script, facts, claims, deaths, number, None)
        )
    )  # fmt: skip


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
