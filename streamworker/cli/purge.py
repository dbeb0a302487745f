"""`streamworker purge`: jobs that wait in a lane are cancelled, once their number was said."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import AppName, Json, Reason, RedisUrl, open_queue, settings_of
from streamworker.cli.output import counted, emit_json, say

if TYPE_CHECKING:
    from streamworker.ops.purge import Purged


def purge(
    lane: Annotated[str, typer.Argument(metavar="LANE", help="Its name; backlog: those of all lanes.")],
    count: Annotated[
        int | None,
        typer.Option("--count", metavar="N", help="How many you say they are, and so many at most.", min=0),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="T", help="Only of this task.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="T", help="Only of this tenant.")] = None,
    parked: Annotated[bool, typer.Option("--parked", help="Those that wait at gates too.")] = False,
    scheduled: Annotated[
        bool, typer.Option("--scheduled", help="Those that wait for their time too: delays and retries.")
    ] = False,
    deferred: Annotated[
        bool, typer.Option("--deferred", help="Those of the lane that wait in the backlog too.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many there are.")] = False,
    reason: Reason = "",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> int:
    """Cancel jobs that wait in a lane, for good, the oldest first. What runs is not touched.

    Their number has to be typed, or given with --count; the purge is refused when it is off by more than a
    tenth, since jobs come and go meanwhile, and ends no more than that. What is enqueued after it began
    stays. Ended early, the same command goes on with the rest. It cannot be undone.

    Example: streamworker purge bulk --tenant acme --count 41200 --reason "they flooded us, and agreed"
    """
    from streamworker.ops import purge as act
    from streamworker.request import actor

    which = act.Selection(lane, task, tenant, parked=parked, scheduled=scheduled, deferred=deferred)
    settings = settings_of(app, redis_url)

    async def look() -> int:
        async with open_queue(settings) as queue:
            return await act.count(queue, which)

    async def do(most: int) -> Purged:
        async with open_queue(settings) as queue:
            with _progress() as told:
                return await act.purge(queue, which, most, actor=actor(), reason=reason, progress=told)

    if dry_run:
        found = asyncio.run(look())
        if as_json:
            emit_json(act.Purged(found, 0, 0, 0).json(which))
        else:
            print(f"{found} could be purged")
        return 0
    if count is None:
        count = _agreed(asyncio.run(look()), lane)
    purged = asyncio.run(do(count))
    if as_json:
        emit_json(purged.json(which))
    else:
        print(f"{purged.purged} purged")
        if purged.flagged:
            say(f"{purged.flagged} may have committed an effect: a worker looks, and ends them then")
        if purged.missed:
            say(f"{purged.missed} had moved on meanwhile and were left alone")
    return 0


def _agreed(found: int, lane: str) -> int:
    """Ask the person at the terminal for the number. Raises CommandFailed when there is none, or another."""
    if not found:
        return 0
    said = f"this would cancel {counted(found, 'job')} that wait in lane {lane}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandFailed(f"{said}: add --count {found}", code=2)
    print(f"{said}, for good. Type their number: ", end="", file=sys.stderr, flush=True)
    typed = sys.stdin.readline().strip()
    if typed != str(found):
        raise CommandFailed(f"there are {found}, another number was given; nothing was changed")
    return found


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar at a terminal."""
    if not sys.stderr.isatty():
        yield lambda purged, of: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("purging", total=None)
        yield lambda purged, of: bar.update(row, completed=purged, total=of)
