"""`streamworker mirror`: the durable record in Postgres."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.edge import CommandFailed, leave_when_told
from streamworker.cli.options import (
    PATIENCE,
    AppName,
    DryRun,
    Json,
    MetricsHost,
    MetricsPort,
    OfApp,
    RedisUrl,
    settings_of,
)
from streamworker.cli.output import counted, emit_json, print_table, say
from streamworker.cli.serving import answering, stop_when_told

if TYPE_CHECKING:
    from streamworker.postgres.verify import Verified
    from streamworker.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Keep a durable record of all jobs in Postgres, and compare it with Redis.",
)

#: Objects made since the last look of the garbage collector.
GARBAGE_THRESHOLD = 200_000
#: Seconds until the thread that makes a batch ready lets the one that talks to Postgres have its turn.
SWITCH_SECONDS = 0.001

Dsn = Annotated[
    str | None,
    typer.Option("--dsn", metavar="DSN", help="Where Postgres is.", envvar="STREAMWORKER_POSTGRES_DSN"),
]


def _dsn(given: str | None) -> str:
    from streamworker.postgres.dsn import check_dsn

    if not given:
        raise CommandFailed("which Postgres? Name it with --dsn, or set STREAMWORKER_POSTGRES_DSN", code=2)
    return check_dsn(given.strip())


@app.command()
def migrate(dsn: Dsn = None, as_json: Json = False) -> None:
    """Bring the schema in Postgres up to date.

    All in one transaction: when it fails, nothing has changed. Several at once wait for each other.

    Example: streamworker mirror migrate --dsn postgresql://localhost/shop
    """
    from streamworker.postgres import connection, migrate

    where = _dsn(dsn)

    async def act() -> list[str]:
        link = await connection.connect(where)
        try:
            return [each.file for each in await migrate.migrate(link)]
        except Exception as error:
            if connection.passing(error):
                raise connection.unavailable(error) from error
            raise
        finally:
            await link.close()

    applied = asyncio.run(act())
    if as_json:
        emit_json({"applied": applied})
        return
    for name in applied:
        print(f"applied {name}")
    if not applied:
        print("the schema is up to date")


@app.command()
def sql() -> None:
    """Print the schema as one script for psql, for review, or to be applied by somebody else.

    Example: streamworker mirror sql
    """
    from streamworker.postgres import migrate

    print(migrate.render(), end="")


@app.command()
def run(
    app: AppName = None,
    redis_url: RedisUrl = None,
    dsn: Dsn = None,
    retention: Annotated[
        str, typer.Option("--retention", metavar="DURATION", help="How long moves and ended jobs are kept.")
    ] = "30d",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    of: OfApp = None,
) -> None:
    """Mirror the log of an app to Postgres until SIGTERM or Ctrl-C.

    The first start turns the mirror on: from then on the log is kept until it was mirrored. Several may run;
    one writes, the others stand by.

    Example: streamworker mirror run --app shop --metrics-port 9101
    """
    import datetime

    from streamworker.cli.run import LogLevel, log_to_stderr
    from streamworker.cli.target import load_app
    from streamworker.core import durations, garbage
    from streamworker.postgres.gauges import page
    from streamworker.postgres.mirror import Mirror
    from streamworker.settings import read_endpoint

    log_to_stderr(LogLevel.INFO)
    leave_when_told()
    settings = load_app(of).settings if of else settings_of(app, redis_url)
    mirror = Mirror(
        settings,
        _dsn(dsn or settings.postgres_dsn),
        f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}",
        retention=datetime.timedelta(seconds=durations.parse(retention, what="--retention")),
    )
    endpoint = read_endpoint(metrics_port, metrics_host)

    async def serve() -> None:
        stop_when_told(mirror.stop)
        async with answering("mirror", endpoint, mirror.gauges.ready, lambda: page(mirror.gauges)):
            await mirror.run()

    # Rows by the thousand are made and dropped: the default threshold looked through all of them again and
    # again, which took half of the time.
    garbage.settle_down(GARBAGE_THRESHOLD)
    sys.setswitchinterval(SWITCH_SECONDS)
    asyncio.run(serve())


@app.command()
def verify(
    app: AppName = None,
    redis_url: RedisUrl = None,
    dsn: Dsn = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="K", help="Differences that are shown.", min=1)
    ] = 20,
    as_json: Json = False,
) -> int:
    """Compare Redis with Postgres, job by job. Exit code 1 if they differ, or the mirror is far behind.

    What differs at first is looked at again once the mirror has come along. Reads only.

    Example: streamworker mirror verify --app shop
    """
    settings = settings_of(app, redis_url)
    found = asyncio.run(_verify(settings, _dsn(dsn)))
    if as_json:
        emit_json(found.json())
        return 0 if found.good else 1
    shown = found.differences[:limit]
    if shown:
        print_table(["job", "Redis", "Postgres"], [(each.job_id, *map(_state, each.sides)) for each in shown])
    if not found.caught_up:
        say("the mirror is behind: is `streamworker mirror run` running?")
    say(
        f"{counted(found.compared, 'job')} compared, {len(found.differences)} differ; kept aside: "
        f"{found.conflicts} moves that contradict others, {found.refused} rows that Postgres refused"
    )
    if found.without_payload:
        say(f"{found.without_payload} open jobs are older than the mirror: Postgres could not restore them")
    if found.letters_without_payload:
        say(
            f"{found.letters_without_payload} dead letters are older than the mirror: Postgres could not "
            "restore their arguments"
        )
    if found.unseen:
        say(f"{found.unseen} jobs ended, or were lost, while the mirror was not on: nobody knows their end")
    return 0 if found.good else 1


def _state(side: tuple[str, int, int] | None) -> str:
    return "-" if side is None else f"{side[0]}, version {side[2]}"


async def _verify(settings: Settings, dsn: str) -> Verified:
    from streamworker.postgres import connection
    from streamworker.postgres.verify import Verifier
    from streamworker.store.caller import Caller
    from streamworker.store.keys import Keys

    keys = Keys(settings.namespace)
    caller = Caller(settings.redis_url, keys.tag, patience=PATIENCE)
    link = await connection.connect(dsn, writes=False)
    try:
        return await Verifier(link, caller, keys).run()
    finally:
        await link.close()
        await caller.close()


@app.command()
def reconcile(
    app: AppName = None,
    redis_url: RedisUrl = None,
    dsn: Dsn = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Bring Redis back to what Postgres knows: for when Redis lost data.

    A running mirror notices most losses and does this by itself. Jobs that Postgres has as open are enqueued
    again under their ids, uncharged; what it has as finished does not run again; keys are held for what is
    left of their windows. Enqueues are refused meanwhile. Running it twice is harmless.

    Example: streamworker mirror reconcile --app shop --dry-run
    """
    from streamworker.postgres.mirror import Mirror

    mirror = Mirror(settings_of(app, redis_url), _dsn(dsn), f"{socket.gethostname()}-{os.getpid()}")
    done = asyncio.run(mirror.reconcile(dry_run=dry_run))
    if as_json:
        emit_json(done.json())
    else:
        print(done)


@app.command()
def off(app: AppName = None, redis_url: RedisUrl = None, dsn: Dsn = None, as_json: Json = False) -> None:
    """Turn the mirror of an app off: its log is capped again, and what Postgres has stays there.

    Example: streamworker mirror off --app shop
    """
    settings = settings_of(app, redis_url)
    asyncio.run(_off(settings, _dsn(dsn)))
    if as_json:
        emit_json({"app": settings.namespace, "mirror": "off"})
    else:
        print(f"the mirror of {settings.namespace} is off; `streamworker mirror run` turns it on again")


async def _off(settings: Settings, dsn: str) -> None:
    from streamworker.postgres import connection, offsets
    from streamworker.postgres.switch import Switch
    from streamworker.store.caller import Caller
    from streamworker.store.keys import Keys

    keys = Keys(settings.namespace)
    caller = Caller(settings.redis_url, keys.tag, patience=PATIENCE)
    link = await connection.connect(dsn)
    try:
        await offsets.end(link, settings.namespace, keys.shard)
        await Switch(caller, keys).off()
    finally:
        await link.close()
        await caller.close()
