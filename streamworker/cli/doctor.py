"""`streamworker doctor`: is all well, and what to do if not?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.hints import copyable
from streamworker.cli.options import AppName, Json, RedisUrl, open_queue
from streamworker.cli.output import counted, emit_json, print_table, say
from streamworker.cli.target import subject_of

if TYPE_CHECKING:
    from streamworker.ops.checks import Finding

#: Exit code when nothing could be checked.
NOT_CHECKED = 2


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="The app, for its tasks, lanes and settings."),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Put right what can be put right without harm, and check again.")
    ] = False,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> int:
    """Check server, namespace, fleet and app, and say what to do.

    The app is checked as well if it is named. Exit code 0 without a problem (warnings are none), 1 with one,
    2 if it could not be checked.

    Example: streamworker doctor shop:app
    """
    from streamworker.core.errors import ConnectionLost, ServerUnsuitable
    from streamworker.ops import doctor as examination
    from streamworker.ops.checks import Severity
    from streamworker.request import actor

    settings, known = subject_of(target, app, redis_url)
    lanes, oddities = ([], None) if known is None else (list(known.lanes), known.warnings())

    async def look() -> list[Finding]:
        async with open_queue(settings) as queue:
            found = await examination.examine(queue, lanes=lanes, oddities=oddities)
            if fix and (mended := await examination.fix(queue, found, actor=actor())):
                say(f"{counted(mended, 'finding')} put right; checked again")
                found = await examination.examine(queue, lanes=lanes, oddities=oddities)
            return found

    try:
        found = asyncio.run(look())
    except (ConnectionLost, ServerUnsuitable) as error:
        advice = "start Redis there, or say with --redis-url or STREAMWORKER_REDIS_URL where it is"
        raise CommandFailed(f"nothing could be checked: {error}; {advice}", code=NOT_CHECKED) from None
    worst = examination.worst(found)
    if as_json:
        emit_json({"status": str(worst), "checks": [_row(each) for each in found]})
    else:
        _print(found)
    return 1 if worst is Severity.PROBLEM else 0


def _row(finding: Finding) -> dict[str, Any]:
    row = finding.json()
    return row | {"advice": copyable(finding.advice) or None}


def _print(found: list[Finding]) -> None:
    print_table(["", "check", "found"], [(each.severity, each.check, each.found) for each in found])
    for each in found:
        if each.advice:
            say(f"{each.check}: {each.advice}")
    bad = [str(each.severity) for each in found]
    say(f"{counted(bad.count('problem'), 'problem')}, {counted(bad.count('warning'), 'warning')}")
