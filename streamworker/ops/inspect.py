"""What a job, the lanes and the workers are like right now."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamworker.core import codec
from streamworker.core.errors import JobNotFound, SerializationError
from streamworker.core.ids import check_job_id, time_of
from streamworker.core.job import Envelope, Record
from streamworker.core.lane import BACKLOG
from streamworker.core.states import TERMINAL, Reason, Status
from streamworker.ops import dlq, overload
from streamworker.ops.dlq import DeadLetter
from streamworker.ops.gates import oldest_waiters
from streamworker.ops.history import History, iso, joined, read_history, with_older
from streamworker.ops.tune import pauses
from streamworker.store.depths import now_ms, oldest_ms
from streamworker.store.events import Transition, pairs
from streamworker.store.queue import Queue

#: Counters in `stats` that name a lane.
_DEPTHS = ("queued:", "turned:", "parked:", "scheduled:", "in_flight:")
#: What of them is a lane's depth: jobs that wait for their turn.
_WAIT = ("queued", "turned", "parked")


@dataclass(frozen=True, slots=True)
class JobReport:
    """All that is known of one job. Times are ms since the epoch, by Redis's clock."""

    id: str
    task: str
    lane: str
    tenant: str | None
    key: str | None
    correlation_id: str | None
    status: Status
    attempt: int
    error_class: str | None
    error_code: str | None
    error: str | None
    result: Any
    enqueued_at: int | None
    started_at: int | None
    finished_at: int | None
    history: History

    def json(self) -> dict[str, Any]:
        """The stable shape of `jobs show --json`."""
        return {
            "id": self.id,
            "task": self.task,
            "lane": self.lane,
            "tenant": self.tenant,
            "key": self.key,
            "status": str(self.status),
            "attempt": self.attempt,
            "error_class": self.error_class,
            "error_code": self.error_code,
            "error": self.error,
            "result": self.result,
            "enqueued_at": iso(self.enqueued_at),
            "started_at": iso(self.started_at),
            "finished_at": iso(self.finished_at),
            "history": self.history.json(),
            "history_complete": self.history.complete,
        }


async def show(queue: Queue, job_id: str) -> dict[str, Any]:
    """`jobs show --json`. Raises as `report`."""
    return (await report(queue, job_id)).json()


async def report(queue: Queue, job_id: str) -> JobReport:
    """What the job's record says, or its dead letter and the log once the record has expired.

    Where there is a durable record, its moves are part of the history, and jobs that Redis has forgotten are
    found there. Raises InvalidArgument for what is no job id, JobNotFound when nothing knows the job.
    """
    check_job_id(job_id)
    command = queue.caller.command
    raw = await command("GET", queue.keys.job(job_id))
    try:
        record = None if raw is None else Record.parse(job_id, raw)
    except ValueError:  # unreadable: a claim will keep it as a dead letter, which says as much
        record = None
    if record is None:
        return await _from_memory(queue, job_id)
    body = pairs(await command("HGETALL", queue.keys.body(job_id)))
    enqueued_at = record.number("at")
    history = await read_history(
        queue, job_id, since_ms=enqueued_at or time_of(job_id), version=record.version
    )
    history = await with_older(queue, job_id, history, record.version)
    succeeded = record.status is Status.SUCCEEDED
    error_class, _, error_code = ("" if succeeded else record.text("ec") or "").partition(" ")
    envelope = await _envelope(queue, record, body)
    key_id = record.text("ky") or ""
    return JobReport(
        id=job_id,
        task=record.task,
        lane=record.lane,
        tenant=record.text("tn"),
        key=envelope.key if envelope is not None else dlq.key_of(key_id),
        correlation_id=None if envelope is None else envelope.correlation_id,
        status=record.status,
        attempt=record.attempt,
        error_class=error_class or None,
        error_code=error_code or None,
        error=None if succeeded else body.get(b"error", b"").decode("utf-8", "replace") or None,
        result=_result((record.text("re") or "").encode() or body.get(b"result", b"")) if succeeded else None,
        enqueued_at=enqueued_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        history=history,
    )


def _result(data: bytes) -> Any:
    try:
        return codec.decode(data) if data else None
    except SerializationError:
        return data.decode("utf-8", "replace")


async def _envelope(queue: Queue, record: Record, body: Mapping[bytes, bytes]) -> Envelope | None:
    """What the producer sent, from where it is by now: the entry, the body or the dead letter."""
    data = body.get(b"env", b"")
    if not data and record.entry is not None:
        kind, entry = record.entry
        stream = queue.keys.stream(record.lane, kind, record.text("tn") or "")
        found = await queue.caller.command("XRANGE", stream, entry, entry)
        data = pairs(found[0][1]).get(b"env", b"") if found else b""
    if not data and (letter_id := record.text("dq")):
        letter = await dlq.read_letter(queue, letter_id)
        data = letter.envelope if letter is not None else b""
    try:
        return Envelope.decode(data) if data else None
    except ValueError:
        return None


async def _from_memory(queue: Queue, job_id: str) -> JobReport:
    """A job that has no record any more: from Postgres if there is one, else from its traces in Redis."""
    if queue.settings.postgres_dsn is None:
        return await _from_traces(queue, job_id)
    from streamworker.postgres import lookup

    found = await lookup.find(queue.settings, job_id)
    if found is None:
        return await _from_traces(queue, job_id)
    row = found.row
    history = await read_history(queue, job_id, since_ms=row["enqueued_at"] or time_of(job_id), version=None)
    known = joined(found.moves, history)
    report = JobReport(
        id=job_id,
        task=row["task"] or "",
        lane=row["lane"] or "",
        tenant=row["tenant"],
        key=row["key"],
        correlation_id=row["correlation_id"],
        status=found.status,
        attempt=row["attempt"],
        error_class=row["error_class"],
        error_code=row["error_code"],
        error=row["error"],
        result=_result(row["result"] or b""),
        enqueued_at=row["enqueued_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        history=known,
    )
    newest = known.moves[-1] if known.moves else None
    return report if newest is None or newest.version <= (row["version"] or 0) else _moved_on(report, newest)


def _moved_on(report: JobReport, newest: Transition) -> JobReport:
    """What the log knows and Postgres has not read yet: the mirror is behind."""
    moves = report.history.moves
    facts, failed = _facts(moves), newest.to_status is not Status.SUCCEEDED
    started = _starts(moves)
    return replace(
        report,
        task=report.task or facts.get("task", ""),
        lane=report.lane or facts.get("lane", ""),
        status=newest.to_status,
        attempt=newest.attempt,
        error_class=facts.get("class") if failed else None,
        error_code=facts.get("code") if failed else None,
        started_at=started[-1] if started else report.started_at,
        finished_at=newest.at_ms if newest.to_status in TERMINAL else None,
    )


def _starts(moves: Sequence[Transition]) -> list[int]:
    """When its handlers began; that its committed effect was found is no start of one."""
    found: list[int] = []
    looked = False
    for move in moves:
        if move.to_status is Status.CLAIMED:
            looked = move.reason == Reason.BURIAL
        elif move.to_status is Status.PROCESSING and not looked:
            found.append(move.at_ms)
    return found


async def _from_traces(queue: Queue, job_id: str) -> JobReport:
    """A job whose record has expired, put together from its dead letter and its moves."""
    letter = (await dlq.find(queue, [job_id])).get(job_id)
    history = await read_history(
        queue,
        job_id,
        since_ms=letter.enqueued_at if letter is not None else time_of(job_id),
        version=letter.version if letter is not None and letter.version else None,
    )
    if letter is None and not history.moves:
        raise JobNotFound(job_id)
    moves = history.moves
    last = moves[-1] if moves else None
    first = moves[0] if moves and moves[0].version == 1 else None
    status = Status.FAILED_TERMINAL if letter is not None or last is None else last.to_status
    facts = _facts(moves)
    failed = status is not Status.SUCCEEDED
    envelope = letter.envelope_or_none() if letter is not None else None
    started = _starts(moves)
    finished = last.at_ms if last is not None and last.to_status in TERMINAL else None
    return JobReport(
        id=job_id,
        task=letter.task if letter is not None else facts.get("task", ""),
        lane=letter.lane if letter is not None else facts.get("lane", ""),
        tenant=letter.tenant if letter is not None else facts.get("tenant"),
        key=_key(letter, envelope),
        correlation_id=None if envelope is None else envelope.correlation_id,
        status=status,
        attempt=letter.attempts if letter is not None else last.attempt if last is not None else 0,
        error_class=letter.error_class if letter is not None else facts.get("class") if failed else None,
        error_code=letter.error_code if letter is not None else facts.get("code") if failed else None,
        error=(letter.error or None) if letter is not None else None,
        result=None,
        enqueued_at=letter.enqueued_at if letter is not None else first.at_ms if first is not None else None,
        started_at=started[-1] if started else None,
        finished_at=letter.dead_at if letter is not None else finished,
        history=history,
    )


def _key(letter: DeadLetter | None, envelope: Envelope | None) -> str | None:
    if envelope is not None:
        return envelope.key
    return dlq.key_of(letter.key_id) if letter is not None else None


def _facts(moves: Collection[Transition]) -> dict[str, str]:
    """The newest value of each fact that the moves carry."""
    facts: dict[str, str] = {}
    for move in moves:
        facts.update(move.facts)
    return facts


# --- lanes -----------------------------------------------------------------------------------------------


async def lanes(queue: Queue, names: Collection[str] = ()) -> list[dict[str, Any]]:
    """`lanes --json`: depth, jobs in flight, those scheduled and age of the oldest waiting job, lane by lane.

    Known are the lanes that ever had a job, those of living workers, and `names`. `depth` counts the jobs
    that wait for their turn, at a gate too; `scheduled` those that wait for their time: retries and delays.
    `oldest_age_seconds` is since the job was enqueued, at a gate too, None when nothing waits. The backlog
    comes last.
    """
    stats = pairs(await queue.caller.command("HGETALL", queue.keys.stats))
    counters = {name.decode(): int(value) for name, value in stats.items()}
    known = set(names)
    for field in counters:
        prefix, _, lane = field.partition(":")
        if f"{prefix}:" in _DEPTHS and lane:
            known.add(lane)
    for worker in await workers(queue):
        known.update(worker["lanes"])
    known.discard(BACKLOG)
    now = await now_ms(queue.caller.command)
    paused = {one.scope for one in await pauses(queue) if one.state == "paused"}
    parked = await oldest_waiters(queue)
    return [
        {
            "lane": lane,
            "depth": sum(max(0, counters.get(f"{place}:{lane}", 0)) for place in _WAIT),
            "in_flight": max(0, counters.get(f"in_flight:{lane}", 0)),
            "scheduled": max(0, counters.get(f"scheduled:{lane}", 0)),
            "oldest_age_seconds": await _oldest_age(queue, lane, now, parked.get(lane)),
            "paused": f"lane:{lane}" in paused,
        }
        for lane in sorted(known)
    ] + await _backlog(queue)


async def _backlog(queue: Queue) -> list[dict[str, Any]]:
    """The same of the backlog, once it ever had a job. It is paused while it is not drained."""
    found = await overload.drain(queue)
    if not found.lanes:
        return []
    return [
        {
            "lane": BACKLOG,
            "depth": found.depth,
            "in_flight": 0,
            "scheduled": 0,
            "oldest_age_seconds": None if found.oldest_ms is None else found.oldest_ms / 1000,
            "paused": found.paused or not found.on,
        }
    ]


async def _oldest_age(queue: Queue, lane: str, now: int, parked: int | None) -> float | None:
    ages = [await oldest_ms(queue.caller.command, queue.keys, lane, now)]
    if parked is not None:
        ages.append(max(0, now - parked))
    return max((age / 1000 for age in ages if age is not None), default=None)


# --- workers ---------------------------------------------------------------------------------------------


async def workers(queue: Queue) -> list[dict[str, Any]]:
    """`workers --json`: the workers that gave a sign of life within two leases, oldest first.

    `started_at` is by the worker's own clock.
    """
    command, keys = queue.caller.command, queue.keys
    ids = sorted(name.decode() for name in await command("HKEYS", keys.workers))
    raw = await asyncio.gather(*(command("HGETALL", keys.worker(each)) for each in ids))
    left = await asyncio.gather(*(command("PTTL", keys.worker(each)) for each in ids))
    found = [
        _worker(
            each,
            {field.decode(): value.decode("utf-8", "replace") for field, value in pairs(flat).items()},
            int(left_ms),
        )
        for each, flat, left_ms in zip(ids, raw, left, strict=True)
        if flat  # else it is gone
    ]
    return sorted(found, key=lambda each: (each["started_at"] or "", each["id"]))


def _worker(worker_id: str, fields: Mapping[str, str], left_ms: int) -> dict[str, Any]:
    def number(name: str) -> int | None:
        value = fields.get(name, "")
        return int(value) if value.isdecimal() else None

    return {
        "id": worker_id,
        "app": fields.get("app"),
        "host": fields.get("host"),
        "pid": number("pid"),
        "lanes": [lane for lane in fields.get("lanes", "").split(",") if lane],
        "concurrency": number("concurrency"),
        "version": fields.get("version"),
        "lease_ms": number("lease_ms"),
        "started_at": iso(number("started_at")),
        "session": number("session"),
        "expires_in_seconds": max(0, left_ms) / 1000,
    }
