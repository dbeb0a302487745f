"""How much waits in a lane, and for how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from streamworker.core.job import Record
from streamworker.core.states import WAITING
from streamworker.store.connection import Argument, ReplyError
from streamworker.store.events import pairs
from streamworker.store.keys import STREAM_SUFFIX, Keys

#: Waiting entries looked at for a stream's oldest job: the first may belong to a job that is over.
HEADS = 10

Command = Callable[..., Awaitable[Any]]


async def now_ms(command: Command) -> int:
    """The time by Redis's clock."""
    seconds, micros = await command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def oldest_ms(command: Command, keys: Keys, lane: str, now: int) -> int | None:
    """The age of the oldest job that waits in the lane's streams; None when none waits."""
    ages = []
    for kind in STREAM_SUFFIX:
        at = await _head_of(command, keys, lane, kind)
        if at is not None:
            ages.append(max(0, now - at))
    return max(ages, default=None)


async def oldest_deferred_ms(command: Command, keys: Keys, lane: str, now: int) -> int | None:
    """The age of the oldest job in the backlog that is meant for the lane; None when there is none."""
    at = await _first_of(command, keys, lane, "b", "-")
    return None if at is None else max(0, now - at)


async def lanes_at_work(command: Command, keys: Keys) -> set[str]:
    """Lanes of which workers hold jobs, by the counters, whether or not an app still has them."""
    counters = pairs(await command("HGETALL", keys.stats))
    found = (
        name.decode("utf-8", "replace").partition(":") for name, count in counters.items() if int(count) > 0
    )
    return {lane for place, _, lane in found if place == "in_flight"}


async def _head_of(command: Command, keys: Keys, lane: str, kind: str) -> int | None:
    """When the first job that waits in this stream was enqueued.

    What lies beyond the group's last delivered entry waits; the group's lag is no measure of it (R14).
    """
    stream: Argument = keys.stream(lane, kind)
    try:
        groups = [pairs(group) for group in await command("XINFO", "GROUPS", stream)]
    except ReplyError as error:
        if "no such key" in str(error):
            return None
        raise
    start = f"({groups[0][b'last-delivered-id'].decode()}" if groups else "-"
    return await _first_of(command, keys, lane, kind, start)


async def _first_of(command: Command, keys: Keys, lane: str, kind: str, start: str) -> int | None:
    """When the first job of a stream from there on was enqueued."""
    for entry, fields in await command("XRANGE", keys.stream(lane, kind), start, "+", "COUNT", HEADS):
        job_id = pairs(fields).get(b"id", b"").decode("utf-8", "replace")  # b"": somebody else wrote it
        raw = await command("GET", keys.job(job_id))
        try:
            record = None if raw is None else Record.parse(job_id, raw)
        except ValueError:  # unreadable: a claim will bury it
            continue
        if record is not None and record.status in WAITING and record.entry == (kind, entry.decode()):
            return record.number("at")
    return None
