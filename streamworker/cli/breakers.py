"""`streamworker breakers`: which dependencies are left alone, and a word that stands above their calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import AppName, AtOnce, Json, Over, Reason, RedisUrl, on_queue, settings_of
from streamworker.cli.output import emit_json, print_table, say

breakers_app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    help="Show the breakers of dependencies, or force one open or closed.\n\n"
    "Example: streamworker breakers --app shop",
)

Dependency = Annotated[str, typer.Argument(metavar="DEPENDENCY", help="Its name, such as carrier.")]
For = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="How long, such as 10m; else until `auto`.")
]


@breakers_app.callback()
def breakers(
    context: typer.Context, app: AppName = None, redis_url: RedisUrl = None, as_json: Json = False
) -> None:
    """Show what each breaker is, since when and why."""
    context.obj = (app, redis_url)
    if context.invoked_subcommand is not None:
        return
    from streamworker.ops import breakers as look_at

    settings = settings_of(app, redis_url)

    found = on_queue(settings, look_at.breakers)
    if as_json:
        emit_json(found)
    elif not found:
        say(f"note: no worker of {settings.namespace} has declared a breaker; see uses= of @app.task")
    else:
        print_table(
            ["dependency", "state", "#ok", "#failed", "#waiting", "since", "until", "by", "why", "opens at"],
            [
                (
                    *(row[each] for each in ("dependency", "state", "ok", "failed", "waiting")),
                    *(row[each] for each in ("since", "until", "by", "reason")),
                    look_at.spoken(row["declared"]),
                )
                for row in found
            ],
        )


@breakers_app.command("open")
def force_open(
    context: typer.Context,
    name: Dependency,
    duration: For = None,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Let nobody use a dependency, whatever its calls say; what runs goes on.

    Example: streamworker breakers open carrier --for 2h --reason "maintenance until noon"
    """
    from streamworker.ops import breakers as act
    from streamworker.request import actor

    async def force(queue: Any) -> bool:
        await act.force_open(queue, name, actor=actor(), reason=reason, duration=duration)
        await _warn(queue, name)
        return True

    _act(context, app, redis_url, force)
    _said(name, as_json, "open", f"{name} is left alone until: streamworker breakers auto {name}")


@breakers_app.command("close")
def force_closed(
    context: typer.Context,
    name: Dependency,
    duration: For = None,
    over: Over = "60s",
    at_once: AtOnce = False,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Let all use a dependency, whatever its calls say.

    Example: streamworker breakers close carrier --reason "it refuses one tenant, the rest is well"
    """
    from streamworker.ops import breakers as act
    from streamworker.request import actor

    async def force(queue: Any) -> bool:
        await act.force_closed(
            queue, name, actor=actor(), reason=reason, duration=duration, over=0 if at_once else over
        )
        await _warn(queue, name)
        return True

    _act(context, app, redis_url, force)
    _said(name, as_json, "closed", f"{name} is used, come what may, until: streamworker breakers auto {name}")


@breakers_app.command("auto")
def leave_alone(
    context: typer.Context,
    name: Dependency,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Let the calls decide again; one that was forced open is tried by few first.

    Example: streamworker breakers auto carrier
    """
    from streamworker.ops import breakers as act
    from streamworker.request import actor

    async def leave(queue: Any) -> bool:
        return await act.leave_alone(queue, name, actor=actor(), reason=reason)

    if not _act(context, app, redis_url, leave):
        if as_json:
            emit_json({"dependency": name, "forced": None, "changed": False})
        raise CommandFailed(f"nobody has forced the breaker of {name}; see them: streamworker breakers")
    _said(name, as_json, None, f"the calls of {name} decide again")


def _act(
    context: typer.Context, app: str | None, redis_url: str | None, do: Callable[[Any], Awaitable[bool]]
) -> bool:
    given_app, given_url = context.obj
    return on_queue(settings_of(app or given_app, redis_url or given_url), do)


async def _warn(queue: Any, name: str) -> None:
    """A name that nobody declares is mostly a typing error."""
    from streamworker.core.gates import breaker_of
    from streamworker.ops.known import limit_is_known

    if not await limit_is_known(queue, breaker_of(name)):
        say(f"warning: nothing in {queue.keys.namespace} declares {name}; it will hold if something does")


def _said(name: str, as_json: bool, forced: str | None, words: str) -> None:
    if as_json:
        emit_json({"dependency": name, "forced": forced, "changed": True})
    else:
        say(words)
