"""`streamworker`: run workers, enqueue and look at jobs, deal with dead letters."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated

import typer

from streamworker.cli.edge import TERMINATED, Commands, leave_when_told

#: Each command, in the order of the help: a module of this package, and its function or group there.
COMMANDS = {
    "run": "run.run",
    "enqueue": "enqueue.enqueue",
    "jobs": "jobs.app",
    "dlq": "dlq.app",
    "cron": "cron.app",
    "top": "top.top",
    "lanes": "lanes.lanes",
    "route": "route.route",
    "workers": "workers.workers",
    "tasks": "tasks.tasks",
    "explain": "explain.explain",
    "gates": "gates.gates",
    "limits": "tune.limits_app",
    "breakers": "breakers.breakers_app",
    "pause": "tune.pause",
    "resume": "tune.resume",
    "throttle": "overload.throttle",
    "drain": "overload.drain",
    "slots": "slots.slots",
    "retries": "slots.retries",
    "settings": "settings.settings",
    "undo": "settings.undo",
    "purge": "purge.purge",
    "runbook": "runbook.app",
    "doctor": "doctor.doctor",
    "exporter": "exporter.exporter",
    "demo": "demo.demo",
    "mirror": "mirror.app",
    "outbox": "outbox.app",
    "dashboards": "dashboards.app",
    "lua": "lua.app",
}
#: A shell that completes a command line sets it, and is told of all commands.
_COMPLETING = "_STREAMWORKER_COMPLETE"


def command_line(only: str | None = None) -> typer.Typer:
    """The whole command; with `only` it knows that one alone, and imports no other."""
    app = typer.Typer(
        name="streamworker",
        cls=Commands,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(root)
    for name, place in COMMANDS.items():
        if only is not None and name != only:
            continue
        module, _, attribute = place.partition(".")
        found = getattr(importlib.import_module(f"streamworker.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _version(asked: bool) -> None:
    if asked:
        from streamworker import __version__

        print(f"streamworker {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A job queue on Redis Streams for services that must stay predictable while things fail."""


def main() -> None:
    """The entry point of the command and of `python -m streamworker`.

    Half of the time until a worker is ready would go into commands that nobody asked for.
    """
    leave_when_told(TERMINATED)
    first = next(iter(sys.argv[1:]), None)
    known = first in COMMANDS and _COMPLETING not in os.environ
    command_line(first if known else None)(prog_name="streamworker")
