"""`streamworker lanes`: how much waits and runs in each lane."""

from __future__ import annotations

import asyncio
from typing import Any

from streamworker.cli.options import AppName, Json, RedisUrl, open_queue, settings_of
from streamworker.cli.output import emit_json, print_table, say


def lanes(app: AppName = None, redis_url: RedisUrl = None, as_json: Json = False) -> None:
    """Show what waits and runs in each lane, and its slots of each worker.

    Depth counts the jobs that wait for their turn, at a gate too, and scheduled those
    that wait for their time: retries and delays.

    Example: streamworker lanes --app shop
    """
    from streamworker.core.durations import format_ms
    from streamworker.ops import inspect, slots

    settings = settings_of(app, redis_url)

    async def look() -> list[dict[str, Any]]:
        async with open_queue(settings) as queue:
            shares = {one.lane: one.json() for one in await slots.slots(queue)}
            rows = await inspect.lanes(queue)
            return [row | {"slots": shares.get(row["lane"])} for row in rows]

    found = asyncio.run(look())
    if as_json:
        emit_json(found)
        return
    if not found:
        say(f"note: no job was ever enqueued and no worker runs in {settings.namespace}")
        return
    print_table(
        [
            "lane",
            "#depth",
            "#in flight",
            "#scheduled",
            "#oldest",
            "paused",
            "#reserved",
            "#weight",
            "slots by",
        ],
        [
            (
                row["lane"],
                row["depth"],
                row["in_flight"],
                row["scheduled"],
                None
                if row["oldest_age_seconds"] is None
                else format_ms(round(row["oldest_age_seconds"]) * 1000),
                "yes" if row["paused"] else "no",
                *_shares(row["slots"]),
            )
            for row in found
        ],
    )


def _shares(slots: dict[str, Any] | None) -> tuple[object, object, object]:
    """Reserved, weight, and who has set them."""
    if slots is None:
        return None, None, None
    return slots["reserved"], slots["weight"], None if slots["set"] is None else slots["set"]["by"]
