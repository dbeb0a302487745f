"""A job's moves, found in the transition log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from streamworker.store.events import Transition, decode, pairs
from streamworker.store.queue import Queue

#: Entries of the log that one read asks for. An entry may hold the moves of 500 jobs.
PAGE = 200
#: Where to begin looking: so long before the job was enqueued. Ids only say where to look (R15), so what is
#: not found there is looked for in the rest of the log.
MARGIN_MS = 60_000


def iso(ms: int | None) -> str | None:
    """A moment in ms since the epoch as ISO 8601 in UTC, such as `2026-07-24T10:00:00.123Z`."""
    if ms is None:
        return None
    whole, rest = divmod(ms, 1000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"


@dataclass(frozen=True, slots=True)
class History:
    """What the log still has of one job, in the order of the versions."""

    moves: tuple[Transition, ...]
    #: No version between the first and the last is missing.
    complete: bool

    def json(self) -> list[dict[str, Any]]:
        """The rows of `jobs show --json`; what only some moves have is not in the others."""
        return [
            {
                "version": move.version,
                "from": None if move.from_status is None else str(move.from_status),
                "to": str(move.to_status),
                "at": iso(move.at_ms),
                "worker": move.worker,
                "fence": move.fence,
                "reason": move.reason,
                **_extras(move),
            }
            for move in self.moves
        ]


async def read_history(queue: Queue, job_id: str, *, since_ms: int, version: int | None) -> History:
    """The moves of a job that was enqueued at `since_ms`.

    `version` is the newest one to look for, None when nothing but the log knows the job. Reads the log in
    pages, and no further than needed.
    """
    found: dict[int, Transition] = {}
    start = f"{max(1, since_ms - MARGIN_MS)}-0"  # Redis takes no `(0-0` as an end

    def enough() -> bool:
        return version is not None and _complete(found, version)

    async for entry in _pages(queue, start, "+"):
        _collect(entry, job_id, version, found)
        if enough():
            break
    else:
        if 1 not in found or version is not None:
            async for entry in _pages(queue, "-", f"({start}"):
                _collect(entry, job_id, version, found)
                if enough():
                    break
    moves = tuple(found[number] for number in sorted(found))
    newest = version if version is not None else max(found, default=0)
    return History(moves, newest > 0 and _complete(found, newest))


def _extras(move: Transition) -> dict[str, Any]:
    """Error, due time and policy of the moves that have them."""
    facts = move.facts
    found = {
        "error_class": facts.get("class"),
        "error_code": facts.get("code"),
        "error": move.error,
        "due_at": iso(int(facts["due"])) if "due" in facts else None,
        "policy": facts.get("policy"),
    }
    return {name: value for name, value in found.items() if value is not None}


def joined(older: Iterable[Transition], newer: History, *, version: int | None = None) -> History:
    """One history of what Postgres has and what the log still has.

    `version` is the newest move that the history has to have, by default the newest that there is.
    """
    found = {move.version: move for move in newer.moves}
    found.update({move.version: move for move in older})  # the same moves, with their error texts
    moves = tuple(found[number] for number in sorted(found))
    newest = version if version is not None else max(found, default=0)
    return History(moves, newest > 0 and _complete(found, newest))


async def with_older(queue: Queue, job_id: str, history: History, version: int | None) -> History:
    """The history with the moves that the mirror has taken from the log; `version` as of `read_history`."""
    if queue.settings.postgres_dsn is None:
        return history
    from streamworker.postgres import lookup
    from streamworker.postgres.connection import PostgresUnavailable

    try:
        found = await lookup.find(queue.settings, job_id)
    except PostgresUnavailable:
        return history  # incomplete, and it says so
    return history if found is None else joined(found.moves, history, version=version)


def _complete(found: Iterable[int], version: int) -> bool:
    return set(found) >= set(range(1, version + 1))


def _collect(
    fields: dict[bytes, bytes], job_id: str, version: int | None, found: dict[int, Transition]
) -> None:
    if f"{job_id} ".encode() not in fields.get(b"e", b""):
        return
    for move in decode(fields):
        # A move that came after the record was read belongs to the next look.
        if move.job_id == job_id and (version is None or move.version <= version):
            found.setdefault(move.version, move)


async def _pages(queue: Queue, start: str, end: str) -> AsyncIterator[dict[bytes, bytes]]:
    while True:
        page = await queue.caller.command("XRANGE", queue.keys.events, start, end, "COUNT", PAGE)
        for _, fields in page:
            yield pairs(fields)
        if len(page) < PAGE:
            return
        start = f"({page[-1][0].decode()}"
