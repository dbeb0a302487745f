"""Whether the mirror of a namespace keeps up, as far as Redis can tell. Says nothing where none is on."""

from __future__ import annotations

from streamworker.ops.checks import Finding, ok, problem, warning
from streamworker.store.events import pairs
from streamworker.store.queue import Queue

#: ms that the oldest unread entry may wait.
BEHIND_MS = 60_000
#: Share of the log's bound from which on it is time to look.
FULL = 0.5


async def mirror(queue: Queue) -> list[Finding]:
    """One finding while a mirror is on."""
    command, keys = queue.caller.command, queue.keys
    marker, restoring, bound = await command("HMGET", keys.policies, "mirror", "restoring", "mirror_bound")
    if marker in (None, b"off"):
        return []
    if restoring is not None:
        return [
            problem(
                "mirror",
                "Redis lost data and is not restored yet: enqueues are refused",
                "see that `streamworker mirror run` is running, or run `streamworker mirror reconcile`",
            )
        ]
    size = int(await command("HGET", keys.stats, "log_bytes") or 0)
    entries = int(await command("XLEN", keys.events))
    found = f"{entries} entries to be read, {size} bytes"
    if bound is not None and size >= FULL * int(bound):
        return [
            problem(
                "mirror",
                f"{found}; at {int(bound)} enqueues are refused",
                "see that the mirror runs and Postgres answers; the bound is `mirror_bound` in `policies`",
            )
        ]
    if entries and await _age_ms(queue) > BEHIND_MS:
        return [
            warning(
                "mirror",
                f"{found}, behind by more than a minute",
                "see that `streamworker mirror run` is running",
            )
        ]
    return [ok("mirror", found)]


async def _age_ms(queue: Queue) -> int:
    """Age of the oldest entry."""
    head = await queue.caller.command("XRANGE", queue.keys.events, "-", "+", "COUNT", 1)
    if not head:
        return 0
    seconds, micros = await queue.caller.command("TIME")
    at_ms = int(pairs(head[0][1]).get(b"t", b"0"))
    return int(seconds) * 1000 + int(micros) // 1000 - at_ms
