"""Purge: jobs that wait in a lane end as cancelled, oldest first, so many and no more.

What runs is not touched, and neither is what was enqueued after the purge began. Each batch is one call: a
purge that is interrupted leaves nothing half done, and the same command goes on with the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

from streamworker.core.errors import DoesNotFit, InvalidArgument
from streamworker.core.job import Record
from streamworker.core.lane import BACKLOG, check_lane_name
from streamworker.core.states import WAITING
from streamworker.core.template import check_task_name, check_tenant
from streamworker.core.text import truncate_text
from streamworker.ops import overload, tune
from streamworker.store import scripts
from streamworker.store.connection import Argument
from streamworker.store.depths import now_ms
from streamworker.store.events import pairs
from streamworker.store.queue import Queue

#: Jobs that one call ends at most: to expire 100 took Redis 6 ms (R32).
BATCH = 100
#: Entries, and members of the schedule, that one read asks for.
PAGE = 500
#: Where jobs of a lane wait, by the first letter of the record's entry: in its streams and behind turnstiles.
_STREAMS, _GATE, _SCHEDULE, _BACKLOG = "rqat", "g", "-", "b"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which jobs of a lane; the lane `backlog` is the backlogs of all lanes. Raises InvalidArgument."""

    lane: str
    task: str | None = None
    tenant: str | None = None
    #: Those that wait at gates, for their time, or in the lane's backlog as well.
    parked: bool = False
    scheduled: bool = False
    deferred: bool = False

    def __post_init__(self) -> None:
        check_lane_name(self.lane)
        if self.task is not None:
            check_task_name(self.task)
        if self.tenant is not None:
            check_tenant(self.tenant)
        if self.lane == BACKLOG and (self.parked or self.scheduled):
            raise InvalidArgument("lane", BACKLOG, "has no jobs at gates or in the schedule")

    @property
    def places(self) -> str:
        """First letters of the entries of what is meant."""
        if self.lane == BACKLOG:
            return _BACKLOG
        more = {_GATE: self.parked, _SCHEDULE: self.scheduled, _BACKLOG: self.deferred}
        return _STREAMS + "".join(letter for letter, meant in more.items() if meant)

    def takes(self, record: Record, before_ms: int) -> bool:
        """Whether this job is meant, if it was there by then. Pure."""
        return (
            record.status in WAITING
            and record.lane == self.lane
            and record.fields["en"][0] in self.places
            and record.text("bu") is None
            and self.task in (None, record.task)
            and self.tenant in (None, record.text("tn"))
            and (record.number("at") or 0) <= before_ms
        )

    def describe(self) -> str:
        """In one word, for the audit."""
        said = [f"task={self.task}"] if self.task else []
        said += [f"tenant={self.tenant}"] if self.tenant else []
        said += [word for word in ("parked", "scheduled", "deferred") if getattr(self, word)]
        return ";".join(said) or "all"


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge came to. `flagged`: their effect may be committed, so a worker looks first."""

    found: int
    purged: int
    flagged: int
    #: Those that were claimed, or moved, between the look and the call.
    missed: int

    def json(self, which: Selection) -> dict[str, Any]:
        """The stable shape of `purge --json`."""
        return {
            "lane": which.lane,
            "task": which.task,
            "tenant": which.tenant,
            "places": [
                word
                for word in ("queued", "parked", "scheduled", "deferred")
                if word == "queued" or getattr(which, word)
            ],
            "found": self.found,
            "purged": self.purged,
            "flagged": self.flagged,
            "missed": self.missed,
        }


def agrees(count: int, found: int) -> bool:
    """Whether a count that was typed is near enough to what is there: jobs come and go meanwhile. Pure.

    A tenth of it more or fewer; of fewer than ten, none.
    """
    return abs(count - found) <= count // 10


async def count(queue: Queue, which: Selection) -> int:
    """How many jobs are meant by now."""
    before = await now_ms(queue.caller.command)
    found = 0
    async for _, records in _found(queue, which, before):
        found += len(records)
    return found


async def purge(
    queue: Queue,
    which: Selection,
    most: int,
    *,
    actor: str,
    reason: str = "",
    progress: Progress = lambda purged, of: None,
) -> Purged:
    """End these jobs as `cancelled`, `most` of them at most, and tell `progress` after each batch.

    Raises DoesNotFit when another number is there than `most`, see `agrees`; then nothing changes.
    """
    before = await now_ms(queue.caller.command)
    found = await count(queue, which)
    if not agrees(most, found):
        raise DoesNotFit("count", most, f"but {found} jobs are there; nothing was changed")
    why = truncate_text(f"purged by {actor}" + (f": {' '.join(reason.split())}" if reason.strip() else ""))
    facts = f"{which.describe()};count={most};found={found}"
    await tune.note(queue, actor, f"purge:{which.lane}", facts, reason)
    purged = flagged = missed = 0
    async for one, records in _found(queue, which, before):
        for start in range(0, len(records), BATCH):
            part = records[start : start + BATCH][: most - purged - flagged]
            if not part:
                return Purged(found, purged, flagged, missed)
            replies = await _end(queue, one, part, actor, why)
            purged += replies.count(b"OK")
            flagged += replies.count(b"FLAGGED")
            missed += len(part) - replies.count(b"OK") - replies.count(b"FLAGGED")
            progress(purged + flagged, min(most, found))
    return Purged(found, purged, flagged, missed)


async def _end(queue: Queue, which: Selection, part: list[Record], actor: str, why: str) -> list[bytes]:
    rows: list[Argument] = [word for record in part for word in (record.job_id, record.epoch)]
    call = scripts.purge(
        clock="",
        actor=actor,
        retention_ms=scripts.RETENTION_MS,
        lane=which.lane,
        places=which.places,
        why=why,
        rows=rows,
    )
    return list(await queue.run(call))


async def _found(
    queue: Queue, which: Selection, before_ms: int
) -> AsyncIterator[tuple[Selection, list[Record]]]:
    """What is meant, page by page; with the lane, which for a backlog is the one that they are meant for.

    First who would move on into a place that is looked at later: a job that leaves lets the next one in.
    """
    if which.lane == BACKLOG:
        lanes = await overload.backlog(queue.caller, queue.keys)
        for lane in lanes:
            one = replace(which, lane=lane, deferred=True)
            async for ids in _stream(queue, queue.keys.stream(lane, "b")):
                records = await _records(queue, one, ids, before_ms)
                yield one, [record for record in records if record.fields["en"][0] == _BACKLOG]
        return
    for walk in _walks(queue, which):
        async for ids in walk:
            yield which, await _records(queue, which, ids, before_ms)


def _walks(queue: Queue, which: Selection) -> list[AsyncIterator[list[str]]]:
    walks: list[AsyncIterator[list[str]]] = []
    if which.scheduled:
        walks.append(_scheduled(queue))
    if which.deferred:
        walks.append(_stream(queue, queue.keys.stream(which.lane, "b")))
    if which.parked:
        walks.append(_parked(queue, which.lane))
    walks.append(_turned(queue, which.lane))
    walks += [_stream(queue, queue.keys.stream(which.lane, kind)) for kind in ("r", "q", "a")]
    return walks


async def _records(queue: Queue, which: Selection, ids: list[str], before_ms: int) -> list[Record]:
    if not ids:
        return []
    found = []
    raws = await queue.caller.command("MGET", *(queue.keys.job(job_id) for job_id in ids))
    for job_id, raw in zip(ids, raws, strict=True):
        try:
            record = None if raw is None else Record.parse(job_id, raw)
        except ValueError:  # unreadable: a claim will bury it
            continue
        if record is not None and which.takes(record, before_ms):
            found.append(record)
    return found


async def _stream(queue: Queue, stream: str) -> AsyncIterator[list[str]]:
    """Job ids of a stream's entries, up to the last that is there now."""
    command = queue.caller.command
    last = await command("XREVRANGE", stream, "+", "-", "COUNT", 1)
    if not last:
        return
    start, end = "-", last[0][0].decode()
    while page := await command("XRANGE", stream, start, end, "COUNT", PAGE):
        named = (pairs(fields).get(b"id") for _, fields in page)  # None: somebody else wrote it
        yield [job_id.decode("utf-8", "replace") for job_id in named if job_id is not None]
        if len(page) < PAGE:
            return
        start = f"({page[-1][0].decode()}"


async def _turned(queue: Queue, lane: str) -> AsyncIterator[list[str]]:
    """Those behind the turnstiles of a lane, tenant by tenant."""
    for field in await queue.caller.command("HKEYS", queue.keys.turnstile):
        of, _, tenant = field.decode().partition(" ")
        if of == lane and tenant:
            async for ids in _stream(queue, queue.keys.stream(lane, "t", tenant)):
                yield ids


async def _parked(queue: Queue, lane: str) -> AsyncIterator[list[str]]:
    """Those that wait at gates, gate by gate."""
    command = queue.caller.command
    for gate in await command("HKEYS", queue.keys.waiting):
        waiters = await command("ZRANGE", queue.keys.waiters(lane, gate.decode()), 0, -1)
        for start in range(0, len(waiters), PAGE):
            yield [job_id.decode() for job_id in waiters[start : start + PAGE]]


async def _scheduled(queue: Queue) -> AsyncIterator[list[str]]:
    """Those that wait for their time, of all lanes."""
    cursor = 0
    while True:
        reply = await queue.caller.command("ZSCAN", queue.keys.schedule, cursor, "COUNT", PAGE)
        yield [job_id.decode() for job_id in reply[1][::2]]
        cursor = int(reply[0])
        if not cursor:
            return
