"""`streamworker settings` and `undo`: what operators have set, and how it is taken back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import AppName, Json, Reason, RedisUrl, on_queue, open_queue, settings_of
from streamworker.cli.output import emit_json, print_table, say, short

if TYPE_CHECKING:
    from streamworker.ops.settings import Change, Setting


def settings(
    changes: Annotated[
        bool, typer.Option("--changes", help="The last changes instead, the newest first, with their ids.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", help="With --changes: so many at most.", min=1)
    ] = 20,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show all that operators have set and that still holds: who, when, why and until when.

    Example: streamworker settings --changes
    """
    from streamworker.ops import settings as look_at

    wanted = settings_of(app, redis_url)

    async def look() -> tuple[list[Setting], list[Change]]:
        async with open_queue(wanted) as queue:
            if changes:
                return [], (await look_at.changes(queue))[:limit]
            return await look_at.settings(queue), []

    set_now, changed = asyncio.run(look())
    if as_json:
        emit_json([one.json() for one in (changed if changes else set_now)])
    elif changes:
        _show_changes([one.json() for one in changed], wanted.namespace)
    elif not set_now:
        say(f"note: no operator has set anything in {wanted.namespace}")
    else:
        rows = [one.json() for one in set_now]
        columns = ("what", "name", "value", "by", "since", "until", "then", "reason")
        print_table(columns, [tuple(_cell(row[name]) for name in columns) for row in rows])


def _show_changes(rows: list[dict[str, object]], namespace: str) -> None:
    if not rows:
        say(f"note: no operator has changed anything in {namespace}")
        return
    columns = ("id", "at", "by", "what", "name", "change", "undoes", "reason")
    print_table(["#id", *columns[1:]], [tuple(_cell(row[name]) for name in columns) for row in rows])
    say("take one back with: streamworker undo ID, or the last with: streamworker undo --last")


def _cell(value: object) -> object:
    return value if value is None else short(value)


def undo(
    change: Annotated[
        int | None, typer.Argument(metavar="[ID]", help="A change, see `settings --changes`.", min=1)
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The last change that nobody has taken back.")] = False,
    over: Annotated[
        str, typer.Option("--over", metavar="TIME", help="After a pause: the time over which jobs come in.")
    ] = "60s",
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Take a change back: what stood before holds again. Undoing an undo is a redo.

    Refused when somebody has changed the same thing since. Purges and replays cannot be taken back.

    Example: streamworker undo --last --reason "it did not help"
    """
    from streamworker.ops import undo as act
    from streamworker.request import actor

    if (change is None) != last:
        raise CommandFailed(
            "which change? Say --last, or an id from: streamworker settings --changes", code=2
        )
    settings = settings_of(app, redis_url)

    undone = on_queue(
        settings, lambda queue: act.undo(queue, change, actor=actor(), reason=reason, over=over)
    )
    row = undone.change.json()
    if as_json:
        emit_json({"undone": row, "by": [_said(*each) for each in undone.rows]})
        return
    say(f"change {row['id']} is taken back: {row['what']} {row['name']}, {row['change']} by {row['by']}")
    say("see what holds now: streamworker settings")


def _said(verb: str, name: str, value: str) -> dict[str, str | None]:
    return {"verb": verb, "name": name, "value": value or None}
