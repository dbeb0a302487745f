"""What became of a test's jobs, read from the log and the records, and said in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamworker.core import codec, durations
from streamworker.core.job import Envelope, Record
from streamworker.core.states import Status
from streamworker.store.events import Transition, decode, pairs
from streamworker.store.keys import Keys
from streamworker.testing.links import Shard


@dataclass(frozen=True, slots=True)
class SeenRetry:
    """One time that a job failed and was scheduled again."""

    attempt: int  # the one that failed, 1-based
    delay: float  # seconds until the next is due
    error_class: str
    error_code: str


@dataclass(frozen=True, slots=True)
class SeenJob:
    """One job as it is now, with what happened to it so far."""

    id: str
    task: str
    lane: str
    args: Mapping[str, Any]
    key: str | None
    tenant: str | None
    correlation_id: str | None
    delay: float  # seconds asked for when it was enqueued
    status: Status
    attempt: int
    retries: tuple[SeenRetry, ...]
    due_in: float | None  # seconds until it may run, for a job that waits for a time
    gate: str | None  # where it is parked, such as "entity:order:7"
    error_class: str | None
    error_code: str | None
    error: str | None
    result: Any
    dead: bool  # it has a dead letter

    def __str__(self) -> str:
        said = f"{self.task} {dict(self.args)!r}: {self.status}"
        if self.attempt:
            said += f" at attempt {self.attempt}"
        if self.due_in is not None:
            said += f", due in {durations.format_ms(round(self.due_in * 1000))}"
        if self.gate is not None:
            said += f", parked at {self.gate}"
        if self.error_code:
            said += f" ({self.error_class}, {self.error_code}{': ' if self.error else ''}{self.error or ''})"
        return said


@dataclass(slots=True)
class _Life:
    """What the log says of one job."""

    born: Transition
    moves: list[Transition] = field(default_factory=list)


class Witness:
    """Reads the jobs of one shard. Envelopes of finished jobs are gone from Redis, so they are kept here."""

    def __init__(self, shard: Shard, keys: Keys) -> None:
        self._shard = shard
        self._keys = keys
        self._envelopes: dict[str, Envelope] = {}

    def keep(self, job_id: str, envelope: bytes) -> None:
        """Remember what a producer sent, if it can be read."""
        if job_id not in self._envelopes:
            try:
                self._envelopes[job_id] = Envelope.decode(envelope)
            except ValueError:
                return

    def jobs(self) -> list[SeenJob]:
        """All jobs that were enqueued, in the order they came."""
        lives: dict[str, _Life] = {}
        for _, fields in self._shard.command("XRANGE", self._keys.events, "-", "+"):
            for move in decode(pairs(fields)):
                if move.from_status is None:
                    lives[move.job_id] = _Life(move)
                elif move.job_id in lives:
                    lives[move.job_id].moves.append(move)
        letters = {}
        for _, fields in self._shard.command("XRANGE", self._keys.dlq, "-", "+"):
            letter = pairs(fields)
            letters[letter[b"id"].decode()] = letter
        return [self._seen(job_id, life, letters.get(job_id)) for job_id, life in lives.items()]

    def _seen(self, job_id: str, life: _Life, letter: dict[bytes, bytes] | None) -> SeenJob:
        raw = self._shard.command("GET", self._keys.job(job_id))
        record = None if raw is None else Record.parse(job_id, raw)
        body = pairs(self._shard.command("HGETALL", self._keys.body(job_id)))
        last = life.moves[-1] if life.moves else life.born
        status = last.to_status
        facts = _facts(life.moves)
        failed = status is not Status.SUCCEEDED
        envelope = self._envelope(job_id, record, body, letter)
        error = body.get(b"error") or (letter or {}).get(b"error")
        return SeenJob(
            id=job_id,
            task=life.born.facts["task"],
            lane=record.lane if record is not None else life.born.facts["lane"],
            args={} if envelope is None else envelope.args,
            key=None if envelope is None else envelope.key,
            tenant=life.born.facts.get("tenant"),
            correlation_id=None if envelope is None else envelope.correlation_id,
            delay=_delay(life.born),
            status=status,
            attempt=last.attempt,
            retries=tuple(
                SeenRetry(move.attempt, _delay(move), move.facts["class"], move.facts["code"])
                for move in life.moves
                if move.to_status is Status.RETRY_SCHEDULED
            ),
            due_in=self._due_in(job_id),
            gate=None if record is None else record.gate,
            error_class=facts.get("class") if failed else None,
            error_code=facts.get("code") if failed else None,
            error=error.decode("utf-8", "replace") if failed and error else None,
            result=_result(record, body) if not failed else None,
            dead=letter is not None,
        )

    def _due_in(self, job_id: str) -> float | None:
        due = self._shard.command("ZSCORE", self._keys.schedule, job_id)
        return None if due is None else max(0.0, (float(due) - self._shard.clock.ms) / 1000)

    def _envelope(
        self, job_id: str, record: Record | None, body: dict[bytes, bytes], letter: dict[bytes, bytes] | None
    ) -> Envelope | None:
        if job_id not in self._envelopes:
            sent = body.get(b"env") or (letter or {}).get(b"env")
            if not sent and record is not None and record.entry is not None:
                kind, entry = record.entry
                stream = self._keys.stream(record.lane, kind)
                for _, fields in self._shard.command("XRANGE", stream, entry, entry):
                    sent = pairs(fields)[b"env"]
            if sent:
                self.keep(job_id, sent)
        return self._envelopes.get(job_id)


def _facts(moves: Iterable[Transition]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for move in moves:
        facts.update(move.facts)
    return facts


def _delay(move: Transition) -> float:
    return max(0, int(move.facts["due"]) - move.at_ms) / 1000 if "due" in move.facts else 0.0


def _result(record: Record | None, body: Mapping[bytes, bytes]) -> Any:
    if record is None:
        return None
    encoded = (record.text("re") or "").encode() or body.get(b"result", b"")
    return codec.decode(encoded) if encoded else None
