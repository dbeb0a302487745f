"""`streamworker dlq`: the dead letters, and what they died of."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamworker.cli import dlq_edit, dlq_files, dlq_moves
from streamworker.cli.letters import Asked, described
from streamworker.cli.options import AppName, Json, RedisUrl, note_nobody, on_queue, open_queue, settings_of
from streamworker.cli.output import counted, emit_json, print_facts, print_table, say, short

if TYPE_CHECKING:
    from streamworker.ops.dlq import Cause

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Jobs that failed for good: list, group, show, replay, edit, discard, export, import.",
)


@app.command("list")
@described
def list_letters(
    asked: Asked,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", help="Items at most.", min=0)] = 50,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """List dead letters, the newest first.

    Example: streamworker dlq list --task invoice --newer 1h
    """
    from streamworker.ops import dlq

    settings = settings_of(app, redis_url)

    async def look() -> dict[str, Any]:
        async with open_queue(settings) as queue:
            return await dlq.listing(queue, limit=limit, filters=await asked.filters(queue))

    found = asyncio.run(look())
    if as_json:
        emit_json(found)
        return
    print_table(
        ["id", "task", "lane", "tenant", "code", "#attempts", "dead since", "error"],
        [
            (
                row["id"],
                row["task"],
                row["lane"],
                row["tenant"],
                row["error_code"],
                row["attempts"],
                row["dead_at"],
                short(row["error"]),
            )
            for row in found["items"]
        ],
    )
    say(f"{len(found['items'])} of {counted(found['total'], 'dead letter')}")
    if not found["total"]:
        note_nobody(settings)


@app.command()
@described
def causes(asked: Asked, app: AppName = None, redis_url: RedisUrl = None, as_json: Json = False) -> None:
    """Group dead letters by task and error, the most frequent first, with some jobs of each.

    Where to begin when there are many.

    Example: streamworker dlq causes --newer 1h
    """
    from streamworker.ops import dlq

    settings = settings_of(app, redis_url)

    async def look() -> list[Cause]:
        async with open_queue(settings) as queue:
            return await dlq.causes(queue, await asked.filters(queue))

    found = asyncio.run(look())
    total = sum(cause.count for cause in found)
    if as_json:
        emit_json({"total": total, "causes": [cause.json() for cause in found]})
        return
    print_table(
        ["#count", "task", "class", "code", "oldest", "newest", "one of them", "its error"],
        [
            (
                row["count"],
                row["task"],
                row["error_class"],
                row["error_code"],
                row["oldest"],
                row["newest"],
                row["samples"][0],
                short(row["error"]),
            )
            for row in (cause.json() for cause in found)
        ],
    )
    say(f"{counted(total, 'dead letter')}, {counted(len(found), 'cause')}")
    if not total:
        note_nobody(settings)


@app.command()
def show(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the dead job.")],
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show one dead letter with its arguments, its error and every move of the job.

    Example: streamworker dlq show 01a22d35-48c5-7000-ab2c-b8855784618b
    """
    from streamworker.ops import dlq

    settings = settings_of(app, redis_url)

    found = on_queue(settings, lambda queue: dlq.show(queue, job_id))
    if as_json:
        emit_json(found)
        return
    arguments, error, history = found.pop("args"), found.pop("error"), found.pop("history")
    print_facts(
        [
            *((name.replace("_", " "), value) for name, value in found.items()),
            ("error", error),
            ("arguments", None if arguments is None else json.dumps(arguments, ensure_ascii=False)),
        ]
    )
    print()
    print_table(
        ["#version", "from", "to", "at", "reason", "error", "worker"],
        [
            (each["version"], each["from"], each["to"], each["at"], each["reason"], each.get("error_code"),
             each["worker"])
            for each in history
        ],
    )  # fmt: skip


app.command()(dlq_moves.replay)
app.command()(dlq_moves.discard)
app.command()(dlq_edit.edit)
app.command()(dlq_files.export)
app.command("import")(dlq_files.bring_back)
