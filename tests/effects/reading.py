"""What became of a shop, and of a job."""

from __future__ import annotations

from typing import Any

import asyncpg

from streamworker import App
from streamworker.store.events import decode, pairs


async def invoices(sql: asyncpg.Connection) -> dict[str, int]:
    """How many there are of each payment."""
    rows = await sql.fetch("SELECT payment_id, count(*) AS many FROM invoices GROUP BY 1")
    return {row["payment_id"]: row["many"] for row in rows}


async def operations(sql: asyncpg.Connection) -> list[Any]:
    return list(await sql.fetch("SELECT * FROM streamworker.processed_operations ORDER BY created_at"))


async def reasons(app: App, job_id: str) -> list[str]:
    """Why the job made each of its moves."""
    queue = app.queue()
    entries = await queue.caller.command("XRANGE", queue.keys.events, "-", "+")
    moves = [move for _, flat in entries for move in decode(pairs(flat)) if move.job_id == job_id]
    return [move.reason for move in sorted(moves, key=lambda move: (move.epoch, move.version))]
