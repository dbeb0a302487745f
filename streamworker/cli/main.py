"""`streamworker`: run workers, enqueue and look at jobs, deal with dead letters."""

from __future__ import annotations

from typing import Annotated

import typer

from streamworker.cli import (
    breakers,
    cron,
    dashboards,
    demo,
    dlq,
    doctor,
    enqueue,
    explain,
    exporter,
    gates,
    jobs,
    lanes,
    lua,
    mirror,
    outbox,
    overload,
    purge,
    route,
    run,
    runbook,
    settings,
    slots,
    top,
    tune,
    workers,
)
from streamworker.cli.edge import Commands


def _version(asked: bool) -> None:
    if asked:
        from streamworker import __version__

        print(f"streamworker {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="streamworker",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A job queue on Redis Streams for services that must stay predictable while things fail."""


app.command("run")(run.run)
app.command("enqueue")(enqueue.enqueue)
app.add_typer(jobs.app, name="jobs")
app.add_typer(dlq.app, name="dlq")
app.add_typer(cron.app, name="cron")
app.command("top")(top.top)
app.command("lanes")(lanes.lanes)
app.command("route")(route.route)
app.command("workers")(workers.workers)
app.command("explain")(explain.explain)
app.command("gates")(gates.gates)
app.add_typer(tune.limits_app, name="limits")
app.add_typer(breakers.breakers_app, name="breakers")
app.command("pause")(tune.pause)
app.command("resume")(tune.resume)
app.command("throttle")(overload.throttle)
app.command("drain")(overload.drain)
app.command("slots")(slots.slots)
app.command("retries")(slots.retries)
app.command("settings")(settings.settings)
app.command("undo")(settings.undo)
app.command("purge")(purge.purge)
app.add_typer(runbook.app, name="runbook")
app.command("doctor")(doctor.doctor)
app.command("exporter")(exporter.exporter)
app.command("demo")(demo.demo)
app.add_typer(mirror.app, name="mirror")
app.add_typer(outbox.app, name="outbox")
app.add_typer(dashboards.app, name="dashboards")
app.add_typer(lua.app, name="lua")


def main() -> None:
    """The entry point of the command and of `python -m streamworker`."""
    app(prog_name="streamworker")
