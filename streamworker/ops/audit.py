"""What operators did, read back: from the event log, and from Postgres where there is a durable record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from streamworker.ops.history import iso
from streamworker.postgres.entries import OPERATED, Action, UnreadableEntry, read_entry
from streamworker.store.events import pairs
from streamworker.store.queue import Queue

#: Entries of the log that one read asks for.
_PAGE = 500


def plain(action: Action) -> dict[str, Any]:
    """An action as programs read it; `detail` is to which value, and why."""
    return {
        "at": iso(action.at_ms),
        "by": action.actor,
        "verb": action.action,
        "subject": action.subject,
        "detail": action.detail,
    }


async def actions(queue: Queue, since_ms: int) -> list[Action]:
    """All from that moment on by Redis's clock, the earliest first.

    What the mirror has taken from the log is read from Postgres; one that is away is passed over. Breakers
    that turned by themselves are among them, under the worker that noticed. Raises ConnectionLost.
    """
    found = {one: None async for one in _in_log(queue, since_ms)}
    if queue.settings.postgres_dsn is not None:
        found |= dict.fromkeys(await _in_postgres(queue, since_ms))
    return sorted(found, key=lambda one: one.at_ms)


async def _in_log(queue: Queue, since_ms: int) -> AsyncIterator[Action]:
    start = f"{max(1, since_ms)}-0"
    while True:
        page = await queue.caller.command("XRANGE", queue.keys.events, start, "+", "COUNT", _PAGE)
        for entry, flat in page:
            fields = pairs(flat)
            if b"a" not in fields and fields.get(b"s", b"").decode() not in OPERATED:
                continue  # most of them: moves of jobs
            try:
                for one in read_entry(entry, flat).actions:
                    yield one
            except UnreadableEntry:
                continue
        if len(page) < _PAGE:
            return
        start = f"({page[-1][0].decode()}"


async def _in_postgres(queue: Queue, since_ms: int) -> list[Action]:
    from streamworker.postgres.connection import PostgresUnavailable
    from streamworker.postgres.lookup import actions_since

    try:
        return await actions_since(queue.settings, since_ms)
    except PostgresUnavailable:
        return []
