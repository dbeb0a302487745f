"""`streamworker pause`, `resume` and `limits`: what operators change at run time."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import (
    AppName,
    AtOnce,
    For,
    Json,
    Over,
    Reason,
    RedisUrl,
    on_queue,
    open_queue,
    settings_of,
)
from streamworker.cli.output import emit_json, print_table, say

Scope = Annotated[
    str, typer.Argument(metavar="SCOPE", help="lane:NAME, tenant:NAME, task:NAME or dependency:NAME.")
]

#: What `limits` shows of each.
FIGURES = ("in_force", "declared", "set")

limits_app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    help="Show the limits, or set others while all runs on.\n\nExample: streamworker limits --app shop",
)


def pause(
    scope: Scope,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long, such as 10m; else until resume.")
    ] = None,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Hold back a lane, a tenant, a task or a dependency.

    What runs goes on; what would start waits, holds no slot and is charged no attempt.

    Example: streamworker pause dependency:carrier --for 10m --reason "the carrier is down"
    """
    from streamworker.ops import tune
    from streamworker.ops.known import scope_is_known
    from streamworker.request import actor

    settings = settings_of(app, redis_url)

    async def act() -> tuple[list[tune.Pause], bool]:
        async with open_queue(settings) as queue:
            await tune.pause(queue, scope, actor=actor(), reason=reason, duration=duration)
            return await tune.pauses(queue), await scope_is_known(queue, scope)

    pauses, known = asyncio.run(act())
    (found,) = [one for one in pauses if one.scope == scope]
    if not known:
        say(f"warning: nothing in {settings.namespace} declares {scope}; it will be paused if something does")
    if as_json:
        emit_json({**found.json(), "known": known})
        return
    until = f"until {found.json()['until']}" if found.until else f"until: streamworker resume {scope}"
    say(f"{scope} is paused {until}")


def resume(
    scope: Annotated[
        str,
        typer.Argument(
            metavar="SCOPE",
            help="lane:NAME, tenant:NAME, task:NAME or dependency:NAME; or overdue, the jobs that come back "
            "by a ramp after an outage.",
        ),
    ],
    over: Over = "60s",
    at_once: AtOnce = False,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """End a pause. Those that waited come in evenly over a time, so that nothing opens at once.

    Example: streamworker resume dependency:carrier --over 2m
    """
    from streamworker.ops import tune
    from streamworker.request import actor

    settings = settings_of(app, redis_url)

    resumed = on_queue(
        settings,
        lambda queue: tune.resume(queue, scope, actor=actor(), reason=reason, over=0 if at_once else over),
    )
    if as_json:
        emit_json({"scope": scope, "resumed": resumed})
    elif resumed:
        say(f"{scope} runs again; see who waits: streamworker gates")
    if not resumed:
        raise CommandFailed(f"{scope} is not paused; see what is: streamworker gates")


@limits_app.callback()
def limits(
    context: typer.Context, app: AppName = None, redis_url: RedisUrl = None, as_json: Json = False
) -> None:
    """Show the limits that tasks declare and operators have set."""
    context.obj = (app, redis_url)
    if context.invoked_subcommand is not None:
        return
    from streamworker.ops import tune

    settings = settings_of(app, redis_url)

    found = on_queue(settings, tune.limits)
    if as_json:
        emit_json([row | {each: tune.plain(row["kind"], row[each]) for each in FIGURES} for row in found])
        return
    if not found:
        say(f"note: no worker of {settings.namespace} has declared a limit; see limits= of @app.task")
        return
    print_table(
        ["limit", "in force", "declared", "set"],
        [(row["name"], *(tune.spoken(row["kind"], row[each]) for each in FIGURES)) for row in found],
    )


LimitName = Annotated[
    str, typer.Argument(metavar="LIMIT", help="A gate or a declared limit, such as rate:task:mail.")
]


@limits_app.command("set")
def set_limit(
    context: typer.Context,
    name: LimitName,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="200/s for a rate, else a number.")],
    burst: Annotated[int | None, typer.Option("--burst", metavar="N", help="What may start at once.")] = None,
    duration: For = None,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Let other figures hold, for jobs that wait as well.

    Example: streamworker limits set rate:tenant:acme 5/s --reason "a loop in their import"
    """
    from streamworker.ops import tune
    from streamworker.ops.known import limit_is_known
    from streamworker.request import actor

    given_app, given_url = context.obj
    settings = settings_of(app or given_app, redis_url or given_url)
    figures = tune.figures_of(name, value, burst)
    kind = name.partition(":")[0]

    async def act() -> bool:
        async with open_queue(settings) as queue:
            await tune.set_limit(queue, name, figures, actor=actor(), reason=reason, duration=duration)
            return await limit_is_known(queue, name)

    known = asyncio.run(act())
    if not known:
        say(f"warning: no task of {settings.namespace} declares {name}; it will hold if one does")
    if as_json:
        emit_json({"name": name, "set": tune.plain(kind, figures), "known": known})
    else:
        said = tune.spoken(kind, figures)
        until = f"until: streamworker limits reset {name}" if duration is None else f"for {duration}"
        say(f"{name} is {said} {until}")


@limits_app.command("reset")
def reset_limit(
    context: typer.Context,
    name: LimitName,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Let what the tasks declare hold again.

    Example: streamworker limits reset rate:tenant:acme
    """
    from streamworker.ops import tune
    from streamworker.request import actor

    given_app, given_url = context.obj
    settings = settings_of(app or given_app, redis_url or given_url)

    reset = on_queue(settings, lambda queue: tune.reset_limit(queue, name, actor=actor(), reason=reason))
    if as_json:
        emit_json({"name": name, "reset": reset})
    elif reset:
        say(f"{name} is what the tasks declare")
    if not reset:
        raise CommandFailed(f"no operator has set {name}; see what is set: streamworker limits")
