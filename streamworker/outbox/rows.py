"""What a row of the outbox says, and back: the request of one enqueue, under names that outlive a version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

import orjson

from streamworker.store.scripts import NewJob

#: Where a commit with `notify=True` is told.
CHANNEL = "streamworker_outbox"
#: Columns of their own.
_COLUMNS = frozenset({"job_id", "task", "lane", "envelope"})
#: Which window a request falls into is not known before it is told: it stays a job of its own. The span of an
#: enqueue is this process's; what the envelope says leads later spans to it.
_NOT_KEPT = frozenset({"coalesce", "sending"})
_EXTRA: Mapping[str, Field[Any]] = {each.name: each for each in fields(NewJob) if each.name not in _COLUMNS}


class UnknownRequest(ValueError):
    """The row says something that this version does not know: a newer one has written it."""


def extra_of(job: NewJob) -> str:
    """What else is asked for: a JSON object of all that is not as usual."""
    said = {name: getattr(job, name) for name in _EXTRA if name not in _NOT_KEPT}
    return orjson.dumps({name: value for name, value in said.items() if value != _usual(name)}).decode()


def job_of(row: Mapping[str, Any]) -> NewJob:
    """The job of a row, `age_ms` after the row was written. Raises UnknownRequest."""
    extra = orjson.loads(row["extra"])
    if not isinstance(extra, dict):
        raise UnknownRequest(f"asks for {row['extra'][:80]}: no JSON object")
    if unknown := extra.keys() - _EXTRA.keys():
        raise UnknownRequest(f"asks for {', '.join(sorted(unknown))}: use the newer version for the relay")
    for name in ("delay_ms", "deadline_ms"):  # they count from the commit, as far as anybody knows
        if name in extra:
            extra[name] = max(1, extra[name] - row["age_ms"])
    return NewJob(str(row["job_id"]), row["task"], row["lane"], bytes(row["payload"]), **extra)


def record_lines(job: NewJob) -> str:
    """The lines of the record as Redis will have them, to restore a job that it loses soon after."""
    lines = []
    if job.key_id:
        lines += [f"ky={job.key_id}", f"kf={job.fingerprint}", f"kw={job.window_ms}"]
    for name, value, usual in (
        ("tn", job.tenant, ""),
        ("ms", job.max_starts, _usual("max_starts")),
        ("ga", job.gates, ""),
    ):
        if value != usual:
            lines.append(f"{name}={value}")
    return "".join(f"\n{line}" for line in lines)


def _usual(name: str) -> Any:
    default = _EXTRA[name].default
    assert default is not MISSING
    return default
