"""What a batch of moves makes of each job: one row for a job, as the newest of its moves left it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from streamworker.core.ids import shard_of
from streamworker.core.states import TERMINAL, Status
from streamworker.core.text import truncate_text
from streamworker.postgres.batch import Step
from streamworker.postgres.entries import OPERATED
from streamworker.store.events import Transition

#: A NUL in JSON text: jsonb refuses it (R44). An odd number of backslashes, or it is no escape.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NUL_ESCAPE = b"\\u0000"
_BACKSLASH = ord("\\")  # bytes are looked through for a number ten times as fast as for other bytes
#: To look a member up in its enum takes as long as all else that is done for a field.
_PROCESSING, _SUCCEEDED, _FAILED = Status.PROCESSING, Status.SUCCEEDED, Status.FAILED_TERMINAL


#: Scripts whose caller is not who has the job.
_OTHERS = OPERATED | {"drain"}


@dataclass(slots=True)
class JobRow:
    """A row of `jobs`, of which a batch may know only some. Times are ms since the epoch."""

    id: str
    shard: int = 0
    task: str | None = None
    lane: str | None = None
    tenant: str | None = None
    key: str | None = None
    correlation_id: str | None = None
    status: str = ""
    attempt: int = 0
    starts: int = 0
    strikes: int = 0
    epoch: int = -1
    version: int = 0
    fence: int = 0
    worker: str | None = None
    reason: str = ""
    error_class: str | None = None
    error_code: str | None = None
    error: str | None = None
    payload: bytes | None = None
    payload_json: bytes | None = None  # the same where jsonb can hold it
    result: bytes | None = None
    result_json: bytes | None = None
    record: str | None = None
    key_id: str | None = None
    fingerprint: str | None = None
    key_window_ms: int | None = None
    enqueued_ms: int | None = None
    due_ms: int | None = None
    deadline_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    updated_ms: int = 0
    #: It has another envelope than before: events were merged into it, or it was replayed.
    recast: bool = False

    def apply(self, move: Transition, parts: Mapping[str, bytes]) -> None:
        """One more move, with what came along. An older one than is known only adds facts."""
        (_, epoch, version, source, status, at_ms, attempt, fence, reason, worker, script, facts, starts,
         strikes, _, _) = move  # fmt: skip
        if source is None:
            self._enqueued(move, parts)
        if epoch != self.epoch:
            if epoch < self.epoch:
                return
            if self.epoch > -1:
                self._forget()
            if source is _FAILED and "p" in parts:  # replayed, maybe with other arguments
                self.recast = True
                self.carry(parts["p"])
        elif version <= self.version:
            return
        self.status, self.reason, self.updated_ms = status, reason, at_ms
        self.attempt, self.starts, self.strikes = attempt, starts, strikes
        self.epoch, self.version, self.fence = epoch, version, fence
        self.due_ms = None
        if facts:
            self._told(facts, parts)
        if worker is not None and script not in _OTHERS:
            self.worker = worker
        if status is _PROCESSING:
            self.started_ms = at_ms
        elif status is _SUCCEEDED:
            self.error_class = self.error_code = self.error = None
            self.result = result = parts.get("r")
            self.result_json = result if read_json(result)[1] else None
        self.finished_ms = at_ms if status in TERMINAL else None

    def _told(self, facts: Mapping[str, str], parts: Mapping[str, bytes]) -> None:
        if "due" in facts:
            self.due_ms = int(facts["due"])
        if "lane" in facts:
            self.lane = facts["lane"]
        if "events" in facts and "p" in parts:
            self.recast = True
            self.carry(parts["p"])
        if "code" in facts:
            self.error_class, self.error_code = facts.get("class"), facts["code"]
            self.error = error_text(parts.get("x"))

    def _forget(self) -> None:
        """A replay begins a new life."""
        self.error_class = self.error_code = self.error = None
        self.started_ms = self.deadline_ms = self.result = self.result_json = None

    def _enqueued(self, move: Transition, parts: Mapping[str, bytes]) -> None:
        facts = move.facts
        self.task, self.lane, self.tenant = facts["task"], facts["lane"], facts.get("tenant")
        self.enqueued_ms = move.at_ms
        if (payload := parts.get("p")) is not None:
            self.carry(payload)
        if (lines := parts.get("k")) is not None:
            told = enqueued_with(lines)
            self.record, self.key_id, self.fingerprint, self.key_window_ms, self.deadline_ms = told

    def carry(self, payload: bytes) -> None:
        """Its envelope, and what that says of it."""
        self.payload = payload
        names, self.payload_json = names_in(payload)
        if names is not None:
            self.key, self.correlation_id = names


def names_in(payload: bytes | None) -> tuple[tuple[str | None, str | None] | None, bytes | None]:
    """Key and correlation id of an envelope, None where it is none; and the envelope if jsonb can hold it."""
    envelope, storable = read_json(payload)
    names = None
    if isinstance(envelope, dict):
        key, correlation_id = envelope.get("k"), envelope.get("c")
        names = None if key is None else _name(key), None if correlation_id is None else _name(correlation_id)
    return names, payload if storable else None


#: The record's lines, identity, fingerprint and window of its key, and its deadline, in ms.
Enqueued = tuple[str | None, str | None, str | None, int | None, int | None]


def enqueued_with(lines: bytes | None) -> Enqueued:
    """What the lines of a new record say."""
    if lines is None:
        return None, None, None, None, None
    record = text(lines)
    fields = dict(line.split("=", 1) for line in record.split("\n") if "=" in line)
    window, deadline = fields.get("kw"), fields.get("dl")
    return (
        record,
        fields.get("ky"),
        fields.get("kf"),
        int(window) if window else None,
        int(deadline) if deadline else None,
    )


def fold(job_id: str, steps: Iterable[Step]) -> JobRow:
    """The row of one job that moved. Raises InvalidArgument when the id is none."""
    row = JobRow(job_id, shard_of(job_id))
    for move, parts, _ in steps:
        row.apply(move, parts)
    return row


def text(data: bytes) -> str:
    """Bytes as text that Postgres takes."""
    return data.decode("utf-8", "replace").replace("\x00", "\ufffd")


def error_text(data: bytes | None) -> str | None:
    """An error's text, bounded and storable (R44)."""
    return truncate_text(data.decode("utf-8", "replace")) if data else None


def read_json(data: bytes | None) -> tuple[Any, bool]:
    """What JSON says, None where it is none; and whether jsonb could hold it."""
    if not data:
        return None, False
    try:
        value = orjson.loads(data)
    except ValueError:
        return None, False
    return value, _BACKSLASH not in data or _NUL_ESCAPE not in data or _NUL.search(data) is None


def _name(value: Any) -> str | None:
    return value.replace("\x00", "\ufffd") if isinstance(value, str) else None
