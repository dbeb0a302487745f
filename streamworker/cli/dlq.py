"""`streamworker dlq`: the dead letters."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import AppName, Json, RedisUrl, open_queue, settings_of
from streamworker.cli.output import emit_json, print_facts, print_table, say, short

if TYPE_CHECKING:
    from streamworker.ops.dlq import Check, Filters, Moved
    from streamworker.settings import Settings
    from streamworker.store.queue import Queue

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Jobs that failed for good: list, show, replay, discard.",
)

JobIds = Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Ids of dead jobs.")]
Task = Annotated[str | None, typer.Option("--task", metavar="T", help="Only of this task.")]
Code = Annotated[str | None, typer.Option("--code", metavar="C", help="Only with this error code.")]
LaneName = Annotated[str | None, typer.Option("--lane", metavar="L", help="Only of this lane.")]
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="T", help="Only of this tenant.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_letters(
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", help="Items at most.", min=0)] = 50,
    task: Task = None,
    code: Code = None,
    lane: LaneName = None,
    tenant: Tenant = None,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """List dead letters, the newest first."""
    from streamworker.ops import dlq

    settings = settings_of(app, redis_url)
    filters = dlq.Filters(task, code, lane, tenant)

    async def look() -> dict[str, Any]:
        async with open_queue(settings) as queue:
            return await dlq.listing(queue, limit=limit, filters=filters)

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
    say(f"{len(found['items'])} of {found['total']} dead letters")


@app.command()
def show(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the dead job.")],
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show one dead letter with its arguments and error."""
    from streamworker.ops import dlq

    settings = settings_of(app, redis_url)

    async def look() -> dict[str, Any]:
        async with open_queue(settings) as queue:
            return await dlq.show(queue, job_id)

    found = asyncio.run(look())
    if as_json:
        emit_json(found)
        return
    arguments = found.pop("args")
    error = found.pop("error")
    print_facts(
        [
            *((name.replace("_", " "), value) for name, value in found.items()),
            ("error", error),
            ("arguments", None if arguments is None else json.dumps(arguments, ensure_ascii=False)),
        ]
    )


@app.command()
def replay(
    ids: JobIds = None,
    task: Task = None,
    code: Code = None,
    lane: LaneName = None,
    tenant: Tenant = None,
    check: Annotated[
        str | None,
        typer.Option(
            "--check", metavar="MODULE:APP", help="Skip what this app does not know or could not call."
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> int:
    """Send dead jobs back into their lanes, with fresh attempts; by id, or all that the options describe.

    Skipped are jobs whose key another job has by now, and those that somebody dealt with meanwhile. Exit code
    1 when nothing could be replayed.
    """
    from streamworker.ops import dlq
    from streamworker.request import actor

    settings = settings_of(app, redis_url)
    which = _which(ids, dlq.Filters(task, code, lane, tenant))
    against = None if check is None else check_against(check)

    async def act(queue: Queue, dry: bool) -> Moved:
        return await dlq.replay(queue, which, actor=actor(), dry_run=dry, check=against)

    return _carry_out(settings, "replay", "replayed", act, which, dry_run, yes, as_json)


@app.command()
def discard(
    ids: JobIds = None,
    task: Task = None,
    code: Code = None,
    lane: LaneName = None,
    tenant: Tenant = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> int:
    """Take dead letters out of the list, for good; by id, or all that the options describe.

    The jobs stay failed, and the log keeps who decided so.
    """
    from streamworker.ops import dlq
    from streamworker.request import actor

    settings = settings_of(app, redis_url)
    which = _which(ids, dlq.Filters(task, code, lane, tenant))

    async def act(queue: Queue, dry: bool) -> Moved:
        return await dlq.discard(queue, which, actor=actor(), dry_run=dry)

    return _carry_out(settings, "discard", "discarded", act, which, dry_run, yes, as_json)


def _which(ids: list[str] | None, filters: Filters) -> list[str] | Filters:
    if ids and filters:
        raise CommandFailed("name jobs by id or describe them by options, not both", code=2)
    if not ids and not filters:
        raise CommandFailed(
            "which dead letters? Give their ids, or --task, --code, --lane or --tenant", code=2
        )
    return list(dict.fromkeys(ids)) if ids else filters


def _carry_out(
    settings: Settings,
    verb: str,
    done: str,
    act: Callable[[Queue, bool], Awaitable[Moved]],
    which: list[str] | Filters,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    async def once(dry: bool) -> Moved:
        async with open_queue(settings) as queue:
            return await act(queue, dry)

    single = isinstance(which, list) and len(which) == 1
    if not dry_run and not yes and not single:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise CommandFailed(
                f"this would {verb} several dead letters and nobody is at the terminal to ask; "
                "add --yes, or look first with --dry-run",
                code=2,
            )
        count = asyncio.run(once(True)).eligible
        if count and not _confirm(f"{verb} {count} dead letter{'s' if count != 1 else ''}?"):
            say("nothing was changed")
            return 1
    moved = asyncio.run(once(dry_run))
    if as_json:
        emit_json(moved.json(done))
    else:
        print(f"{moved.eligible} could be {done}" if dry_run else f"{moved.moved} {done}")
        for skipped in moved.skipped:
            say(f"skipped {skipped.job_id}: {skipped.reason}{': ' if skipped.detail else ''}{skipped.detail}")
    wanted = len(which) if isinstance(which, list) else 0
    reached = moved.eligible if dry_run else moved.moved
    return 1 if wanted and not reached else 0


def _confirm(question: str) -> bool:
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    return answer.strip().lower() in ("y", "yes")


def check_against(target: str) -> Check:
    """A check by the app `module:app`: the task must be known and the arguments must fit."""
    from streamworker.cli.target import load_app
    from streamworker.core.errors import UnknownTask
    from streamworker.ops.dlq import DeadLetter, Skipped
    from streamworker.task import BadArguments

    known = load_app(target)

    def check(letter: DeadLetter) -> Skipped | None:
        envelope = letter.envelope_or_none()
        if envelope is None:
            return Skipped(letter.job_id, "no_envelope", "its arguments cannot be read")
        try:
            known.find(letter.task).signature.check(envelope.args)
        except UnknownTask as error:
            return Skipped(letter.job_id, "unknown_task", str(error))
        except BadArguments as error:
            return Skipped(letter.job_id, "bad_arguments", str(error))
        return None

    return check
