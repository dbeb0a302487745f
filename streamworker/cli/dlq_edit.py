"""`streamworker dlq edit`: the arguments of one dead job, in an editor as well, or of many."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamworker.cli.dlq_moves import Count, Everything, carry_out, somebody_is_there
from streamworker.cli.edge import CommandFailed, read_json
from streamworker.cli.letters import Asked, Chosen, JobIds, described
from streamworker.cli.options import AppName, DryRun, Json, Reason, RedisUrl, Yes, open_queue, settings_of
from streamworker.cli.output import counted, emit_json, say
from streamworker.core.text import inert_json

if TYPE_CHECKING:
    from streamworker.ops.dlq import Edit, Mend, Moved, Which
    from streamworker.settings import Settings
    from streamworker.store.queue import Queue


@described
def edit(
    asked: Asked,
    ids: JobIds = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=JSON", help="Give one argument this value; repeat it."),
    ] = None,
    renames: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="OLD=NEW", help="Give one argument this name; repeat it."),
    ] = None,
    drops: Annotated[
        list[str] | None, typer.Option("--drop", metavar="NAME", help="Leave one argument out; repeat it.")
    ] = None,
    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="All arguments of one job, a JSON object.")
    ] = None,
    everything: Everything = False,
    count: Count = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> int:
    """Change the arguments with which dead jobs will be replayed; of one without options in $EDITOR.

    The jobs stay dead until they are replayed, in their lanes and behind the gates that they had. What was
    changed stands in the log. Of several, those are left alone whose arguments are so already, or that a
    replay would refuse.

    Example: streamworker dlq edit --task invoice --code bad_arguments --rename totl=total --dry-run
    """
    from streamworker.ops import dlq

    settings = settings_of(app, redis_url)
    chosen = Chosen.of(ids, asked, everything)
    change = dlq.Mend(_values(sets), _names(renames), drops or ())
    if args is not None and change:
        raise CommandFailed(
            "--set, --rename and --drop change some arguments, --args gives all: one way", code=2
        )
    if len(chosen.ids) == 1 and count is None:
        return _edit_one(settings, chosen.ids[0], change, args, reason, dry_run, yes, as_json)
    if not change:
        raise CommandFailed(
            "several are changed in the same way: say how by --set, --rename or --drop", code=2
        )
    return _edit_many(settings, change, chosen, count, reason, dry_run, yes, as_json)


def _edit_many(
    settings: Settings,
    change: Mend,
    chosen: Chosen,
    count: int | None,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    from streamworker.ops import dlq
    from streamworker.request import actor

    async def act(queue: Queue, which: Which, dry: bool) -> Moved:
        return await dlq.mend(
            queue, which, change, actor=actor(), dry_run=dry, reason=reason, shown=_show if dry else _silent
        )

    return carry_out(settings, ("edit", "edited"), act, chosen, count, dry_run, yes, as_json)


def _show(found: Edit) -> None:
    say(f"such as {found.letter.job_id}:")
    _say_changes(found)


def _silent(found: Edit) -> None: ...


def _edit_one(
    settings: Settings,
    job_id: str,
    change: Mend,
    args: str | None,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    from dataclasses import replace

    from streamworker.ops import dlq
    from streamworker.request import actor

    async def look() -> Edit:
        async with open_queue(settings) as queue:
            return await dlq.prepare(queue, job_id)

    async def act(wanted: Edit) -> tuple[dict[str, list[Any]], str | None]:
        async with open_queue(settings) as queue:
            if dry_run:
                return wanted.changes, await dlq.objection(queue, wanted)
            changes = await dlq.edit(queue, wanted, actor=actor(), reason=reason)
            return changes, await dlq.objection(queue, wanted)

    found = asyncio.run(look())
    wanted = replace(found, args=_changed(found, change, args))
    asks = not yes and not dry_run and somebody_is_there()
    if asks or dry_run:
        _say_changes(wanted)
    if asks:
        print("keep this? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            say("nothing was changed")
            return 1
    changes, objection = asyncio.run(act(wanted))
    if objection is not None:
        say(f"warning: a replay would be refused: {objection}")
    if as_json:
        emit_json({"id": job_id, "changes": changes})
    elif dry_run:
        say(f"{counted(len(changes), 'argument')} would be changed")
    else:
        say(f"{counted(len(changes), 'argument')} changed; {dlq.replay_command(job_id, found.letter.epoch)}")
    return 0


def _say_changes(wanted: Edit) -> None:
    for name, (old, new) in wanted.changes.items():
        before = json.dumps(old, ensure_ascii=False) if name in wanted.envelope.args else "(none)"
        after = json.dumps(new, ensure_ascii=False) if name in wanted.args else "(none)"
        say(f"{name}: {before} -> {after}")


def _values(sets: list[str] | None) -> dict[str, Any]:
    found = {}
    for each in sets or ():
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise CommandFailed(f"--set {each!r}: write NAME=JSON, such as total=99", code=2)
        found[name] = _json(value, f"--set {name}")
    return found


def _names(renames: list[str] | None) -> dict[str, str]:
    found = {}
    for each in renames or ():
        old, _, new = each.partition("=")
        if not old or not new:
            raise CommandFailed(f"--rename {each!r}: write OLD=NEW, such as totl=total", code=2)
        found[old] = new
    return found


def _changed(found: Edit, change: Mend, args: str | None) -> dict[str, Any]:
    if args is not None:
        return _object(args, "--args")
    if change:
        try:
            return change.of(found.envelope.args)
        except ValueError as error:
            raise CommandFailed(f"job {found.letter.job_id} stays as it is: {error}") from None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandFailed("no terminal for an editor: say what to change with --set or --args", code=2)
    text = inert_json(json.dumps(found.envelope.args, indent=2, ensure_ascii=False))
    return _object(_in_editor(text), "the file")


def _in_editor(text: str) -> str:
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory(prefix="streamworker-") as folder:
        file = Path(folder) / "arguments.json"
        file.write_text(text + "\n", encoding="utf-8")
        try:
            ended = subprocess.run([*command, str(file)], check=False).returncode
        except OSError as error:
            raise CommandFailed(f"the editor {command[0]!r} does not start: {error}; set EDITOR") from None
        if ended:
            raise CommandFailed(f"the editor ended with {ended}; nothing was changed")
        return file.read_text(encoding="utf-8")


def _json(text: str, what: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise CommandFailed(f"{what}: {error}; texts need quotes, such as '\"a text\"'", code=2) from None


def _object(text: str, what: str) -> dict[str, Any]:
    found = _json(text, what)
    if not isinstance(found, dict):
        raise CommandFailed(f"{what}: arguments are a JSON object", code=2)
    return found
