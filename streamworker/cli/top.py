"""`streamworker top`: the lanes at work, live."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import AppName, Json, RedisUrl, open_queue, settings_of
from streamworker.cli.output import clean, console, counted, emit_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from streamworker.ops.top import Frame, LaneRow
    from streamworker.settings import Settings


#: Columns of a terminal from which on there is room between those of the table.
WIDE = 96


def top(
    every: Annotated[
        float,
        typer.Option("--every", metavar="S", help="Look again after so many seconds.", min=0.2, max=3600),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture, and end.")] = False,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show the lanes at work until Ctrl-C: what waits, how old it is, what comes and goes, what blocks.

    `empty in` is when nothing waits any more, if all goes on as since the last look. Scripts take --once or
    --json.

    Example: streamworker top --once
    """
    from streamworker.ops.top import watch

    settings = settings_of(app, redis_url)

    async def one() -> Frame:
        async with open_queue(settings) as queue:
            return await watch(queue, min(every, 1.0))

    if as_json:
        emit_json(asyncio.run(one()).json())
    elif once:
        out = console()
        out.print(picture(asyncio.run(one()), settings.namespace))
    elif not sys.stdout.isatty():
        raise CommandFailed("no terminal to show a live picture: add --once or --json", code=2)
    else:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_live(settings, every))


async def _live(settings: Settings, every: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from streamworker.core.errors import ConnectionLost
    from streamworker.ops.top import frame, look

    out = Console(markup=False, highlight=False, emoji=False)
    async with open_queue(settings) as queue:
        before = None
        seen: RenderableType = Text()
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                try:
                    now, drain = await look(queue)
                except ConnectionLost as error:
                    if before is None:
                        raise
                    away = Text(f"{clean(error)}; looking again", style="red")
                    live.update(Group(away, seen), refresh=True)
                else:
                    seen = picture(frame(before, now, drain), settings.namespace, tight=out.width < WIDE)
                    live.update(seen, refresh=True)
                    before = now
                await asyncio.sleep(every)


def picture(frame: Frame, namespace: str, *, tight: bool = False) -> RenderableType:
    """A frame as people see it; `tight`: for a terminal in which columns would be cut else."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lanes = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0 if tight else (0, 1))
    lanes.add_column("lane", no_wrap=True)
    for name in ("ready", "parked", "sched", "running", "oldest", "in/s", "out/s", "empty in"):
        lanes.add_column(name, justify="right", no_wrap=True)
    lanes.add_column("", no_wrap=True)
    for row in frame.lanes:
        lanes.add_row(
            clean(row.lane),
            *map(str, (row.ready, row.parked, row.scheduled, row.in_flight)),
            Text(_seconds(row.oldest), style=_alarm(row)),
            _rate(row.came_in),
            _rate(row.went_out),
            _seconds(row.empty_in),
            Text("paused" if row.paused else "" if row.pressure == "ok" else row.pressure, style="yellow"),
        )
    head = Text(
        f"{namespace}: {counted(frame.workers, 'worker')}, {counted(frame.dead, 'dead letter')}"
        + ("" if not frame.dying else f" (+{frame.dying:.3g}/s)")
        + (f", backlog {frame.backlog}{'' if frame.draining else ', not drained'}" if frame.backlog else ""),
        style="bold",
    )
    gates = [Text(f"{count:>8} wait at {clean(gate)}") for gate, count in frame.gates]
    return Group(head, Text(), lanes, *([Text(), *gates] if gates else []))


def _alarm(row: LaneRow) -> str:
    late = row.oldest is not None and row.target is not None and row.oldest > row.target
    return "red" if late else ""


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _seconds(value: float | None) -> str:
    from streamworker.core import durations

    return "-" if value is None else durations.format_ms(round(value) * 1000) if value >= 1 else "<1s"
