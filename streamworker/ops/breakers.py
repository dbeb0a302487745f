"""Breakers: what each is and why, and an operator's word that stands above the calls."""

from __future__ import annotations

from typing import Any

from streamworker.core import durations
from streamworker.core.breaker import BreakerState, Standing, read_standings
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError, InvalidArgument
from streamworker.core.gates import breaker_of
from streamworker.core.limits import check_dependency_name
from streamworker.ops.history import iso
from streamworker.ops.tune import change
from streamworker.store.events import pairs
from streamworker.store.queue import Queue

#: How the fields of `policies` begin that hold what workers declare of breakers.
_DECLARED = f"declared:{breaker_of('')}"


async def standings(queue: Queue) -> dict[str, Standing]:
    """Those that are not simply closed, by gate."""
    text = await queue.caller.command("GET", queue.keys.breakers)
    return read_standings((text or b"").decode())


async def breakers(queue: Queue) -> list[dict[str, Any]]:
    """`breakers --json`: each that workers have declared or somebody has forced, by dependency.

    `ok` and `failed` are the calls that it judges by now: those of half a window to a whole one.
    """
    command = queue.caller.command
    known = pairs(await command("HGETALL", queue.keys.policies))
    declared = {
        field.decode().removeprefix(_DECLARED): value.decode()
        for field, value in known.items()
        if field.decode().startswith(_DECLARED)
    }
    found = await standings(queue)
    waiting = pairs(await command("HGETALL", queue.keys.waiting))
    rows = []
    for name in sorted(declared.keys() | {one.dependency for one in found.values()}):
        gate = breaker_of(name)
        one = found.get(gate)
        counts = (await command("GET", queue.keys.breaker(name)) or b"0 0 0 0 0").decode().split()
        waits = waiting.get(gate.encode(), b"").decode().split()
        rows.append(
            {
                "dependency": name,
                "state": BreakerState.CLOSED if one is None else one.state,
                "since": None if one is None else iso(one.since),
                "until": None if one is None else iso(one.until),
                "by": None if one is None else one.by,
                "reason": None if one is None or one.reason == "-" else one.reason,
                "ok": int(counts[1]) + int(counts[3]),
                "failed": int(counts[2]) + int(counts[4]),
                "waiting": sum(map(int, waits[1::2])),
                "probing": await command("ZCARD", queue.keys.gate(gate)),
                "declared": declared.get(name),
            }
        )
    return rows


def spoken(figures: str | None) -> str | None:
    """What workers declare, as people read it."""
    if figures is None:
        return None
    percent, calls, window, open_ms, probes, ramp = map(int, figures.split(","))
    window_text, open_text, ramp_text = (durations.format_ms(each) for each in (window, open_ms, ramp))
    return (
        f"{percent} % of {calls} calls or more in {window_text}, open for {open_text}, {probes} try, "
        f"then over {ramp_text}"
    )


async def force_open(
    queue: Queue, dependency: str, *, actor: str, reason: str = "", duration: Duration | None = None
) -> None:
    """Let nobody use it, whatever the calls say; for a time, after which few try, or until `leave_alone`."""
    await change(queue, actor, "open", _gate(dependency), f"{_ms(duration)} 0", reason)


async def force_closed(
    queue: Queue,
    dependency: str,
    *,
    actor: str,
    reason: str = "",
    duration: Duration | None = None,
    over: Duration = 60.0,
) -> None:
    """Let all use it, whatever the calls say; those that waited come in evenly `over` a time."""
    ramp_ms = durations.to_ms(over, what="over")
    await change(queue, actor, "close", _gate(dependency), f"{_ms(duration)} {ramp_ms}", reason)


async def leave_alone(queue: Queue, dependency: str, *, actor: str, reason: str = "") -> bool:
    """Let the calls decide again; one that was forced open is tried first. False: nobody had forced it."""
    return await change(queue, actor, "auto", _gate(dependency), "", reason)


def _gate(dependency: str) -> str:
    try:
        return breaker_of(check_dependency_name(dependency))
    except ConfigurationError as error:
        raise InvalidArgument("dependency", dependency, str(error)) from None


def _ms(duration: Duration | None) -> int:
    return 0 if duration is None else max(1, durations.to_ms(duration, what="for"))
