"""What a batch of moves makes of each job: one row for a job, as the newest of its moves left it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from streamworker.core.ids import shard_of
from streamworker.core.states import TERMINAL, Status
from streamworker.core.text import truncate_text
from streamworker.postgres.entries import OPERATED
from streamworker.store.events import Transition

#: A NUL in JSON text: jsonb refuses it (R44). An odd number of backslashes, or it is no escape.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NOTHING: Mapping[str, bytes] = {}


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
    payload_json: str | None = None
    result: bytes | None = None
    result_json: str | None = None
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

    def apply(self, move: Transition, parts: Mapping[str, bytes] = _NOTHING) -> None:
        """One more move, with what came along. An older one than is known only adds facts."""
        if move.from_status is None:
            self._enqueued(move, parts)
        if (move.epoch, move.version) <= (self.epoch, self.version):
            return
        if move.epoch > self.epoch > -1:
            self._forget()
        facts = move.facts
        self.status, self.reason = move.to_status.value, move.reason
        self.attempt, self.starts, self.strikes = move.attempt, move.starts, move.strikes
        self.epoch, self.version, self.fence = move.epoch, move.version, move.fence
        self.updated_ms = move.at_ms
        self.due_ms = int(facts["due"]) if "due" in facts else None
        if "lane" in facts:
            self.lane = facts["lane"]
        if move.worker is not None and move.script not in OPERATED:
            self.worker = move.worker
        if "code" in facts:
            self.error_class, self.error_code = facts.get("class"), facts["code"]
            self.error = error_text(parts.get("x"))
        if move.to_status is Status.PROCESSING:
            self.started_ms = move.at_ms
        elif move.to_status is Status.SUCCEEDED:
            self.error_class = self.error_code = self.error = None
            self.result = parts.get("r")
            self.result_json = json_text(self.result)
        self.finished_ms = move.at_ms if move.to_status in TERMINAL else None

    def _forget(self) -> None:
        """A replay begins a new life."""
        self.error_class = self.error_code = self.error = None
        self.started_ms = self.deadline_ms = self.result = self.result_json = None

    def _enqueued(self, move: Transition, parts: Mapping[str, bytes]) -> None:
        self.task, self.lane, self.tenant = move.facts["task"], move.facts["lane"], move.facts.get("tenant")
        self.enqueued_ms = move.at_ms
        payload = parts.get("p")
        if payload is not None:
            self.payload, self.payload_json = payload, json_text(payload)
            self.key, self.correlation_id = names_in(payload)
        lines = parts.get("k")
        if lines is not None:
            self.record = text(lines)
            fields = dict(line.split("=", 1) for line in self.record.split("\n") if "=" in line)
            self.key_id, self.fingerprint = fields.get("ky"), fields.get("kf")
            self.key_window_ms = int(fields["kw"]) if fields.get("kw") else None
            self.deadline_ms = int(fields["dl"]) if fields.get("dl") else None


def fold(moves: list[tuple[Transition, Mapping[str, bytes]]]) -> dict[str, JobRow]:
    """One row for each job that moved, by id in order."""
    rows: dict[str, JobRow] = {}
    for move, parts in moves:
        row = rows.get(move.job_id)
        if row is None:
            row = rows[move.job_id] = JobRow(move.job_id, shard_of(move.job_id))
        row.apply(move, parts)
    return dict(sorted(rows.items()))


def text(data: bytes) -> str:
    """Bytes as text that Postgres takes."""
    return data.decode("utf-8", "replace").replace("\x00", "\ufffd")


def error_text(data: bytes | None) -> str | None:
    """An error's text, bounded and storable (R44)."""
    return truncate_text(data.decode("utf-8", "replace")) if data else None


def json_text(data: bytes | None) -> str | None:
    """The same as text for jsonb, None where jsonb could not hold it."""
    if not data or _NUL.search(data):
        return None
    try:
        orjson.loads(data)
        return data.decode()
    except ValueError:
        return None


def names_in(payload: bytes) -> tuple[str | None, str | None]:
    """Idempotency key and correlation id of an envelope."""
    try:
        envelope: Any = orjson.loads(payload)
    except ValueError:
        return None, None
    if not isinstance(envelope, dict):
        return None, None
    return _name(envelope.get("k")), _name(envelope.get("c"))


def _name(value: Any) -> str | None:
    return value.replace("\x00", "\ufffd") if isinstance(value, str) else None
