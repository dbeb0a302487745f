"""`streamworker drain` and `throttle`: what may wait, and what is let in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import AppName, For, Json, Reason, RedisUrl, Reset, open_queue, settings_of
from streamworker.cli.output import emit_json, print_table, say

if TYPE_CHECKING:
    from streamworker.ops.overload import Throttle
    from streamworker.settings import Settings


def drain(
    on: Annotated[bool | None, typer.Option("--on/--off", help="Drain it, or let it wait.")] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="How many jobs, such as 100/s or 300/m.")
    ] = None,
    burst: Annotated[
        int | None, typer.Option("--burst", metavar="N", help="What may be drained at once after a rest.")
    ] = None,
    reset: Reset = False,
    duration: For = None,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show the backlog and how it is drained, or change that while all runs on.

    Jobs of the backlog come into their lanes at this rate, as far as those have room.

    Example: streamworker drain --rate 50/s --reason "the database is slow"
    """
    from streamworker.core.durations import format_ms
    from streamworker.ops import overload
    from streamworker.ops.history import iso
    from streamworker.request import actor

    changes = on is not None or rate is not None or burst is not None
    if reset and changes:
        raise CommandFailed("--reset takes back what was set; say either that or what to set", code=2)
    if duration is not None and not changes:
        raise CommandFailed("--for belongs to --on, --off, --rate or --burst", code=2)
    settings = settings_of(app, redis_url)

    async def act() -> tuple[overload.Drain, bool]:
        async with open_queue(settings) as queue:
            done = True
            if changes:
                await overload.set_drain(
                    queue, actor=actor(), on=on, rate=rate, burst=burst, reason=reason, duration=duration
                )
            elif reset:
                done = await overload.reset_drain(queue, actor=actor(), reason=reason)
            return await overload.drain(queue), done

    found, done = asyncio.run(act())
    if not done:
        raise CommandFailed("nothing was set; see how it is drained: streamworker drain")
    if as_json:
        emit_json(found.json())
    else:
        rated = f"{found.rate}, burst {found.rate.burst}" if found.rate else "no worker has declared a rate"
        state = "off" if not found.on else "paused" if found.paused else "on"
        until = f" until {iso(found.set.until)}" if found.set and found.set.until else ""
        by = f"; set by {found.set.by}{until}" if found.set else ""
        say(f"the drain is {state} ({rated}{by}); {found.depth} jobs in the backlog")
        rows = [
            (lane, depth, None if age is None else format_ms(age))
            for lane, (depth, age) in sorted(found.lanes.items())
        ]
        if rows:
            print_table(["meant for", "#depth", "#oldest"], rows)


def throttle(
    scope: Annotated[
        str | None,
        typer.Argument(metavar="[SCOPE]", help="lane:NAME, tenant:NAME, or tenant:* for each tenant."),
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="How many enqueues, such as 100/s or 300/m.")
    ] = None,
    burst: Annotated[
        int | None, typer.Option("--burst", metavar="N", help="How many at once after a rest.")
    ] = None,
    overflow: Annotated[
        str, typer.Option("--overflow", metavar="backlog|reject", help="What becomes of those beyond.")
    ] = "backlog",
    off: Annotated[bool, typer.Option("--off", help="Lift it.")] = False,
    duration: For = None,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show what producers may enqueue, or let a lane or tenant enqueue only so many.

    What waits already is not touched. See `drain` for the backlog, and `limits` for what may start.

    Example: streamworker throttle tenant:acme --rate 50/s --overflow backlog --reason "an import loops"
    """
    from streamworker.ops import overload
    from streamworker.request import actor

    settings = settings_of(app, redis_url)
    if scope is None:
        _list(asyncio.run(_throttles(settings)), as_json=as_json, namespace=settings.namespace)
        return
    if off == (rate is not None):
        raise CommandFailed(f"throttle {scope}: say --rate, or --off to lift it", code=2)
    if off and duration is not None:
        raise CommandFailed(f"throttle {scope}: --for belongs to --rate", code=2)
    named = scope

    async def act() -> bool:
        async with open_queue(settings) as queue:
            if rate is None:
                return await overload.lift_throttle(queue, named, actor=actor(), reason=reason)
            await overload.set_throttle(
                queue,
                named,
                rate,
                actor=actor(),
                burst=burst,
                overflow=overflow,
                reason=reason,
                duration=duration,
            )
            return True

    done = asyncio.run(act())
    now = {one.scope: one for one in asyncio.run(_throttles(settings))}
    if as_json:
        emit_json(now[named].json() if named in now else {"scope": named, "rate": None, "lifted": done})
    elif named in now:
        one = now[named]
        said = "wait in the backlog" if one.overflow == "backlog" else "are refused"
        say(f"{named}: {one.rate}, burst {one.rate.burst}; others {said}")
        say(f"lift it with: streamworker throttle {named} --off")
    elif done:
        say(f"{named} is not throttled any more")
    if not done:
        raise CommandFailed(f"{named} is not throttled; see what is: streamworker throttle")


async def _throttles(settings: Settings) -> list[Throttle]:
    from streamworker.ops import overload

    async with open_queue(settings) as queue:
        return await overload.throttles(queue)


def _list(found: list[Throttle], *, as_json: bool, namespace: str) -> None:
    if as_json:
        emit_json([one.json() for one in found])
        return
    if not found:
        say(f"note: nothing is throttled in {namespace}")
        return
    print_table(
        ["scope", "rate", "#burst", "others", "by", "reason"],
        [
            (one.scope, str(one.rate), one.rate.burst, one.overflow, one.set.by, one.set.reason)
            for one in found
        ],
    )
