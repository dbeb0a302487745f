"""`streamworker runbook`: what to do while something burns, step by step."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import AppName, Json, RedisUrl, settings_of
from streamworker.cli.output import counted, emit_json, say
from streamworker.cli.walk import Walk, somebody_is_there

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="What to do while something burns, step by step.",
)


@app.command()
def backlog(
    yes: Annotated[
        str | None,
        typer.Option(
            "--yes", metavar="STEP[,STEP]", help="Run what is proposed at these steps, without asking."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write the incident note there, as Markdown."),
    ] = None,
    critical: Annotated[
        str | None,
        typer.Option("--critical", metavar="LANE", help="The lane to favour; by default `priority`."),
    ] = None,
    sample: Annotated[
        float,
        typer.Option("--sample", metavar="S", help="Measure rates for so long.", min=0.1, max=60),
    ] = 1.0,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> int:
    """Walk through a backlog that grows: nine steps, each with what is seen and the commands that help.

    At a terminal it asks before it runs one; elsewhere it only says what it sees, unless --yes names steps:
    lane, dependency, throttle, critical, drain, retries, letters, replay, note. What takes settings back is
    never run by itself. Exit code 1 when a command that it ran failed.

    Example: streamworker runbook backlog --yes throttle,critical --report incident.md
    """
    settings = settings_of(app, redis_url)
    steps = steps_of(yes)
    if report is not None:
        check_report(report)
    if redis_url and redis_url != os.environ.get("STREAMWORKER_REDIS_URL"):
        say("note: the commands shown take Redis from STREAMWORKER_REDIS_URL; set it to the same")
    walk = Walk(settings, critical, sample, shown=not as_json)
    if as_json or steps or not somebody_is_there():
        walk.show_all()
        walk.run_steps(steps)
    else:
        walk.ask()
    after = walk.end()
    if as_json:
        emit_json(walk.json(after))
    if report is not None:
        report.write_text(asyncio.run(walk.note(after)), encoding="utf-8")
        say(f"the incident note is in {report}; add the cause and what was decided")
    failed = [one for one in walk.ran if one.code]
    if failed:
        say(f"{counted(len(failed), 'command')} of {len(walk.ran)} failed")
    return 1 if failed else 0


def steps_of(text: str | None) -> list[str]:
    """The steps that `--yes` names. Raises CommandFailed for one that is none."""
    from streamworker.ops.runbook import Step

    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    unknown = [name for name in names if name not in list(Step)]
    if unknown or (text is not None and not names):
        raise CommandFailed(
            f"--yes {text}: {unknown[0] if unknown else 'nothing'} is no step; they are {', '.join(Step)}",
            code=2,
        )
    return names


def check_report(report: Path) -> None:
    """Before anything is run. Raises CommandFailed when the note could not be written."""
    if report.exists():
        raise CommandFailed(f"{report} is there already; name another file", code=2)
    if not report.parent.is_dir() or not os.access(report.parent, os.W_OK):
        raise CommandFailed(f"{report}: no file can be written there; name another place", code=2)
