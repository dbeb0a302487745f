"""`streamworker lanes`: how much waits and runs in each lane."""

from __future__ import annotations

import asyncio
from typing import Any

from streamworker.cli.options import AppName, Json, RedisUrl, open_queue, settings_of
from streamworker.cli.output import emit_json, print_table, say


def lanes(app: AppName = None, redis_url: RedisUrl = None, as_json: Json = False) -> None:
    """Show what waits and runs in each lane.

    Depth counts the jobs that wait for their turn, at a gate too, but no delays and scheduled retries.
    """
    from streamworker.core.durations import format_ms
    from streamworker.ops import inspect

    settings = settings_of(app, redis_url)

    async def look() -> list[dict[str, Any]]:
        async with open_queue(settings) as queue:
            return await inspect.lanes(queue)

    found = asyncio.run(look())
    if as_json:
        emit_json(found)
        return
    if not found:
        say(f"note: no job was ever enqueued and no worker runs in {settings.namespace}")
        return
    print_table(
        ["lane", "#depth", "#in flight", "#oldest", "paused"],
        [
            (
                row["lane"],
                row["depth"],
                row["in_flight"],
                None
                if row["oldest_age_seconds"] is None
                else format_ms(round(row["oldest_age_seconds"] * 1000)),
                "yes" if row["paused"] else "no",
            )
            for row in found
        ],
    )
