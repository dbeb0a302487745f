"""`streamworker outbox`: requests that were committed to Postgres, on their way to Redis."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamworker.cli.edge import CommandFailed, leave_when_told
from streamworker.cli.mirror import Dsn, _dsn
from streamworker.cli.options import AppName, Json, MetricsHost, MetricsPort, OfApp, RedisUrl, settings_of
from streamworker.cli.output import emit_json, print_table, say
from streamworker.cli.serving import answering, stop_when_told

if TYPE_CHECKING:
    from streamworker.outbox.waiting import Waiting
    from streamworker.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Relay requests that were committed to Postgres (enqueue_in), and look after those that wait.",
)


@app.command()
def relay(
    app: AppName = None,
    redis_url: RedisUrl = None,
    dsn: Dsn = None,
    poll: Annotated[
        str, typer.Option("--poll", metavar="DURATION", help="How often to look when nothing waits.")
    ] = "200ms",
    listen: Annotated[
        bool,
        typer.Option("--listen", help="Be woken by enqueue_in(..., notify=True); not through PgBouncer."),
    ] = False,
    keep: Annotated[
        str, typer.Option("--keep", metavar="DURATION", help="How long rows stay once Redis has them.")
    ] = "7d",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    of: OfApp = None,
) -> None:
    """Tell Redis of committed requests until SIGTERM or Ctrl-C.

    Several may run: each row is told by one of them at a time, those of one entity in order. A row that Redis
    refuses by itself is put aside; the others wait while Redis or Postgres is away.

    Example: streamworker outbox relay --app shop
    """
    import datetime

    from streamworker.cli.run import LogLevel, log_to_stderr
    from streamworker.cli.target import load_app
    from streamworker.core import durations
    from streamworker.outbox.gauges import page
    from streamworker.outbox.relay import Relay
    from streamworker.settings import read_endpoint

    log_to_stderr(LogLevel.INFO)
    leave_when_told()
    settings = load_app(of).settings if of else settings_of(app, redis_url)
    where = _dsn(dsn or settings.postgres_dsn)
    keeping = datetime.timedelta(seconds=durations.parse(keep, what="--keep"))
    every = durations.parse(poll, what="--poll")
    endpoint = read_endpoint(metrics_port, metrics_host)

    async def serve() -> None:
        name = f"{socket.gethostname()}-{os.getpid()}"
        relay = Relay(settings, where, name, poll=every, listen=listen, keep=keeping)
        stop_when_told(relay.stop)
        async with answering("relay", endpoint, relay.gauges.ready, lambda: page(relay.gauges)):
            await relay.run()

    asyncio.run(serve())


@app.command("list")
def list_(
    app: AppName = None,
    redis_url: RedisUrl = None,
    dsn: Dsn = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only those that were put aside.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="K", help="Rows at most.", min=1)] = 50,
    as_json: Json = False,
) -> int:
    """Show the requests that Redis does not have yet, the oldest first. Exit code 1 if any was put aside.

    Example: streamworker outbox list
    """
    settings = settings_of(app, redis_url)
    found = asyncio.run(_list(settings, _dsn(dsn), refused, limit))
    if as_json:
        emit_json({"waiting": found.waiting, "refused": found.refused, "items": found.items})
        return 1 if found.refused else 0
    if found.items:
        rows = [
            (each["id"], each["task"], each["age"], each["attempts"], each["error"] or "")
            for each in found.items
        ]
        print_table(["job", "task", "age", "attempts", "error"], rows)
    say(f"{found.waiting} wait, {found.refused} were put aside")
    return 1 if found.refused else 0


async def _list(settings: Settings, dsn: str, refused: bool, limit: int) -> Waiting:
    from streamworker.outbox import waiting

    found: Waiting = await _with_postgres(
        dsn, lambda link: waiting.look(link, settings.namespace, refused, limit)
    )
    return found


@app.command()
def retry(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[ID…]", help="Of these jobs only.")] = None,
    app: AppName = None,
    redis_url: RedisUrl = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Tell Redis again of requests that were put aside, or of which nobody knows whether it was told.

    Look first: one that Redis had long ago, and has forgotten since, would run again.

    Example: streamworker outbox retry 01a22d35-48c5-7000-ab2c-b8855784618b
    """
    settings = settings_of(app, redis_url)
    again = asyncio.run(_retry(settings, _dsn(dsn), jobs))
    if as_json:
        emit_json({"retried": again})
    else:
        print(f"{len(again)} requests are tried again")


@app.command()
def discard(
    jobs: Annotated[
        list[str], typer.Argument(metavar="ID…", help="The jobs, of requests that were put aside.")
    ],
    app: AppName = None,
    redis_url: RedisUrl = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Give up requests that were put aside: their jobs end as `discarded`, and no alert speaks of them.

    For those that can never become jobs, as when another one has their key. There is no way back.

    Example: streamworker outbox discard 01a22d35-48c5-7000-ab2c-b8855784618b
    """
    settings = settings_of(app, redis_url)
    over = asyncio.run(_discard(settings, _dsn(dsn), jobs))
    if as_json:
        emit_json({"discarded": over})
    else:
        print(f"{len(over)} requests are discarded")


async def _discard(settings: Settings, dsn: str, jobs: list[str]) -> list[str]:
    from streamworker.outbox import waiting

    ids = _ids(jobs)
    found: list[str] = await _with_postgres(dsn, lambda link: waiting.discard(link, settings.namespace, ids))
    return found


def _ids(jobs: list[str]) -> list[str]:
    from streamworker.core.errors import InvalidArgument
    from streamworker.core.ids import check_job_id

    try:
        return [check_job_id(each) for each in jobs]
    except InvalidArgument as error:
        raise CommandFailed(str(error), code=2) from None


async def _retry(settings: Settings, dsn: str, jobs: list[str] | None) -> list[str]:
    from streamworker.outbox import waiting

    ids = _ids(jobs) if jobs else None
    found: list[str] = await _with_postgres(dsn, lambda link: waiting.retry(link, settings.namespace, ids))
    return found


async def _with_postgres(dsn: str, act: Any) -> Any:
    """Raises PostgresUnavailable."""
    from streamworker.postgres import connection

    link = await connection.connect(dsn)
    try:
        return await act(link)
    except Exception as error:
        if connection.passing(error):
            raise connection.unavailable(error) from error
        raise
    finally:
        await link.close()
