"""`streamworker slots` and `retries`: what all workers take up while they run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import AppName, For, Json, Reason, RedisUrl, Reset, open_queue, settings_of
from streamworker.cli.output import emit_json, print_table, say

if TYPE_CHECKING:
    from streamworker.ops.retries import TaskRetries
    from streamworker.ops.slots import LaneSlots


def slots(
    lane: Annotated[str | None, typer.Argument(metavar="[LANE]", help="Such as priority.")] = None,
    reserved: Annotated[
        int | None,
        typer.Option("--reserved", metavar="N", help="Slots of each worker that serve no other lane."),
    ] = None,
    weight: Annotated[
        int | None, typer.Option("--weight", metavar="N", help="Its part of the slots that are shared.")
    ] = None,
    clamp: Annotated[
        bool,
        typer.Option("--clamp", help="Let workers with too few slots scale all reservations down alike."),
    ] = False,
    reset: Reset = False,
    duration: For = None,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show how workers share their slots between lanes, or change that while all runs on.

    Every worker takes it up within a second; what runs goes on. What is not said stays.

    Example: streamworker slots priority --reserved 24 --weight 8 --for 30m --reason "orders are late"
    """
    from streamworker.ops import slots as act
    from streamworker.ops.known import scope_is_known
    from streamworker.request import actor

    changes = reserved is not None or weight is not None
    if lane is None and (changes or reset):
        raise CommandFailed("of which lane? Such as: streamworker slots priority --reserved 8", code=2)
    if reset and changes:
        raise CommandFailed("--reset takes back what was set; say either that or what to set", code=2)
    if (duration is not None or clamp) and not changes:
        raise CommandFailed("--for and --clamp belong to --reserved or --weight", code=2)
    settings = settings_of(app, redis_url)

    async def do() -> tuple[list[LaneSlots], bool, bool]:
        async with open_queue(settings) as queue:
            done = known = True
            if lane is not None and changes:
                await act.set_slots(
                    queue,
                    lane,
                    actor=actor(),
                    reserved=reserved,
                    weight=weight,
                    reason=reason,
                    duration=duration,
                    clamp=clamp,
                )
                known = await scope_is_known(queue, f"lane:{lane}")
            elif lane is not None and reset:
                done = await act.reset_slots(queue, lane, actor=actor(), reason=reason)
            return await act.slots(queue), done, known

    found, done, known = asyncio.run(do())
    if not done:
        raise CommandFailed(f"nothing is set for lane {lane}; see what is: streamworker slots")
    if not known:
        say(f"warning: nothing in {settings.namespace} declares lane {lane}; it will hold if something does")
    if lane is not None:
        found = [one for one in found if one.lane == lane]
        if not found and not reset:
            raise CommandFailed(f"no worker declares lane {lane}; see which there are: streamworker slots")
    if as_json:
        rows = [one.json() for one in found]
        emit_json(rows if lane is None else rows[0] if rows else {"lane": lane, "set": None})
        return
    if not found:
        say(f"note: no worker of {settings.namespace} has declared its lanes")
        return
    print_table(
        ["lane", "#reserved", "#weight", "declared", "by", "until", "reason"],
        [
            (
                one.lane,
                one.reserved,
                one.weight,
                None if one.declared is None else f"{one.declared[0]}, weight {one.declared[1]}",
                *_who(None if one.set is None else one.set.json()),
            )
            for one in found
        ],
    )
    if changes:
        say(f"workers take it up within a second; take it back with: streamworker slots {lane} --reset")


def retries(
    task: Annotated[
        str | None,
        typer.Argument(metavar="[TASK]", help="A task, or * for all the others."),
    ] = None,
    multiply: Annotated[
        float | None,
        typer.Option("--multiply", metavar="X", help="Times as long, from 0.1 to 100."),
    ] = None,
    jitter: Annotated[
        float | None, typer.Option("--jitter", metavar="SHARE", help="Spread the waits: 0.3 is ±30 %.")
    ] = None,
    stop_code: Annotated[
        list[str] | None,
        typer.Option("--stop-code", metavar="CODE", help="No retry of this error code; may be repeated."),
    ] = None,
    reset: Reset = False,
    duration: For = None,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show what is set of retries, or calm them while all runs on: longer waits, more spread, none of a code.

    Every worker takes it up within a second, for retries that are decided from then on. What a server asked
    for with Retry-After is not multiplied. A stopped code makes dead letters at once. What is not said stays.

    Example: streamworker retries charge --multiply 3 --jitter 0.3 --for 1h --reason "the bank is slow"
    """
    from streamworker.ops import retries as act
    from streamworker.ops.known import scope_is_known
    from streamworker.request import actor

    changes = multiply is not None or jitter is not None or bool(stop_code)
    if task is None and (changes or reset):
        raise CommandFailed("of which task? Such as: streamworker retries charge --multiply 3", code=2)
    if reset and changes:
        raise CommandFailed("--reset takes back what was set; say either that or what to set", code=2)
    if duration is not None and not changes:
        raise CommandFailed("--for belongs to --multiply, --jitter or --stop-code", code=2)
    settings = settings_of(app, redis_url)

    async def do() -> tuple[list[TaskRetries], bool, bool]:
        async with open_queue(settings) as queue:
            done = known = True
            if task is not None and changes:
                await act.set_retries(
                    queue,
                    task,
                    actor=actor(),
                    multiply=multiply,
                    jitter=jitter,
                    stop=stop_code or (),
                    reason=reason,
                    duration=duration,
                )
                known = task == "*" or await scope_is_known(queue, f"task:{task}")
            elif task is not None and reset:
                done = await act.reset_retries(queue, task, actor=actor(), reason=reason)
            return await act.retries(queue), done, known

    found, done, known = asyncio.run(do())
    if not done:
        raise CommandFailed(f"nothing is set for {task}; see what is: streamworker retries")
    if not known:
        say(f"warning: no worker of {settings.namespace} knows {task}; it will hold if one does")
    if task is not None:
        found = [one for one in found if one.task == task]
    if as_json:
        rows = [one.json() for one in found]
        emit_json(rows if task is None else rows[0] if rows else {"task": task, "set": None})
        return
    if not found:
        of = "" if task is None else f" for {task}"
        say(f"note: nothing is set{of}: retries are as the tasks declare them")
        return
    print_table(
        ["task", "retries", "by", "until", "reason"],
        [(one.task, one.override.spoken(), *_who(one.set.json())) for one in found],
    )
    if changes:
        say(f"workers take it up within a second; take it back with: streamworker retries {task} --reset")


def _who(row: dict[str, str] | None) -> tuple[str | None, str | None, str | None]:
    return (None, None, None) if row is None else (row["by"], row["until"], row["reason"])
