"""`streamworker run`: one worker process, or several under a supervisor."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.edge import leave_when_told
from streamworker.cli.options import MetricsHost, MetricsPort
from streamworker.telemetry import loggers
from streamworker.telemetry.logs import LogFormat, configure

if TYPE_CHECKING:
    from streamworker.cli.companion import Companion


class LogLevel(StrEnum):
    """How much a worker tells."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


#: The format, for commands that have no option for it.
FORMAT_VARIABLE = "STREAMWORKER_LOG_FORMAT"

LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        case_sensitive=False,
        envvar=FORMAT_VARIABLE,
        help="Readable lines, of jobs only what went wrong; or JSON, with each move of each job.",
    ),
]


def log_to_stderr(level: LogLevel, form: LogFormat | None = None) -> None:
    """Everything from this level on. What is started from here logs in the same format."""
    from streamworker.core.errors import ConfigurationError

    try:
        form = form or LogFormat(os.environ.get(FORMAT_VARIABLE) or LogFormat.TEXT)
    except ValueError as error:
        raise ConfigurationError(f"{FORMAT_VARIABLE}: {error}; use {' or '.join(LogFormat)}") from None
    os.environ[FORMAT_VARIABLE] = form
    configure(form, logging.getLevelNamesMapping()[level.upper()])
    loggers.shield()


def run(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Where the app is, found from the working directory."),
    ],
    processes: Annotated[
        int,
        typer.Option("--processes", "-p", metavar="N", help="Worker processes; each has M slots.", min=1),
    ] = 1,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", metavar="M", help="Jobs that run at once.", min=1)
    ] = None,
    lanes: Annotated[
        str | None,
        typer.Option("--lanes", metavar="LANE,LANE", help="Serve only these lanes; all if not given."),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option("--grace", metavar="DURATION", help="How long running jobs may end on SIGTERM."),
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    with_mirror: Annotated[
        bool,
        typer.Option(
            "--with-mirror", help="Run `streamworker mirror run` beside it, as a process of its own."
        ),
    ] = False,
    with_relay: Annotated[
        bool,
        typer.Option(
            "--with-relay", help="Run `streamworker outbox relay` beside it, as a process of its own."
        ),
    ] = False,
    burst: Annotated[
        bool,
        typer.Option(
            "--burst",
            help="End once nothing waits, runs or is due in its lanes; with one process.",
        ),
    ] = False,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="For development: start again when a .py file below here changes."),
    ] = False,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", case_sensitive=False, help="How much it tells on stderr.")
    ] = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> int:
    """Run the jobs of an app until SIGTERM or Ctrl-C.

    On the first signal it stops claiming and lets running jobs end; a second signal ends at once. Redis is
    where the app says, else where STREAMWORKER_REDIS_URL says.

    With several processes, one that dies is started again, signals are passed on, and SIGHUP restarts one
    after the other.

    Example: streamworker run shop.tasks:app --processes 2 --concurrency 64
    """
    if burst and (processes > 1 or reload):
        from streamworker.cli.edge import CommandFailed

        other = "--reload" if reload else "--processes"
        raise CommandFailed(f"--burst is for one process that ends: leave out {other}", code=2)
    companions = [name for name, wanted in (("mirror", with_mirror), ("relay", with_relay)) if wanted]
    if companions:
        if reload:
            from streamworker.cli.edge import CommandFailed

            raise CommandFailed(f"--reload is for development: leave out --with-{companions[0]}", code=2)
        _need_postgres(companions[0], target)
    logs, endpoint = (log_level, log_format), (metrics_port, metrics_host)
    if reload:
        return _reload(target, processes, concurrency, lanes, grace, logs, endpoint)
    with ExitStack() as stack:
        beside = [stack.enter_context(_companion(name, target)) for name in companions]
        return _run(target, processes, concurrency, lanes, grace, logs, endpoint, beside, burst=burst)


def _need_postgres(name: str, target: str) -> None:
    """Raises CommandFailed where nobody says where Postgres is: a companion would die again and again."""
    from streamworker.cli.edge import CommandFailed
    from streamworker.cli.target import load_app

    if importlib.util.find_spec("asyncpg") is None:
        raise CommandFailed(f"--with-{name} needs asyncpg: pip install 'streamworker[postgres]'", code=2)
    if os.environ.get("STREAMWORKER_POSTGRES_DSN") or load_app(target).settings.postgres_dsn:
        return
    raise CommandFailed(
        f"--with-{name} needs Postgres: set STREAMWORKER_POSTGRES_DSN, or App(postgres_dsn=...)", code=2
    )


#: The commands of what may run beside a worker.
_COMPANIONS = {"mirror": ("mirror", "run"), "relay": ("outbox", "relay")}


def _companion(name: str, target: str) -> Companion:
    """A process of its own, that imports the app for its settings."""
    from streamworker.cli.companion import Companion

    return Companion(name, [sys.executable, "-m", "streamworker", *_COMPANIONS[name], "--of", target])


def _run(
    target: str,
    processes: int,
    concurrency: int | None,
    lanes: str | None,
    grace: str | None,
    logs: tuple[LogLevel, LogFormat],
    endpoint: tuple[int | None, str | None],
    beside: Sequence[Companion] = (),
    *,
    burst: bool,
) -> int:
    log_to_stderr(*logs)
    leave_when_told()
    if processes > 1:
        return _supervise(target, processes, concurrency, lanes, grace, logs, endpoint, beside)
    from streamworker.cli.target import load_app
    from streamworker.settings import DEFAULT_GRACE, read_endpoint
    from streamworker.worker import signals
    from streamworker.worker.worker import DEFAULT_CONCURRENCY, Worker

    read_endpoint(*endpoint)  # refused before the app is imported
    app = load_app(target)
    worker = Worker(
        app,
        concurrency=concurrency or DEFAULT_CONCURRENCY,
        lanes=None if lanes is None else [lane.strip() for lane in lanes.split(",") if lane.strip()],
        grace=DEFAULT_GRACE if grace is None else grace,
        metrics_port=endpoint[0],
        metrics_host=endpoint[1],
        burst=burst,
    )
    try:
        worker.run()
    except KeyboardInterrupt:  # the second one, when its loop was closed
        if not worker.stopping:
            raise
    signals.leave_with(worker.code)
    return worker.code


def _supervise(
    target: str,
    processes: int,
    concurrency: int | None,
    lanes: str | None,
    grace: str | None,
    logs: tuple[LogLevel, LogFormat],
    endpoint: tuple[int | None, str | None],
    beside: Sequence[Companion] = (),
) -> int:
    """Run workers as children. The app is theirs to import."""
    from streamworker.core import durations
    from streamworker.settings import DEFAULT_GRACE, read_endpoint
    from streamworker.worker.first_process import warn_of_shell
    from streamworker.worker.supervisor import Supervisor

    warn_of_shell()
    supervisor = Supervisor(
        _command(target, logs, concurrency=concurrency, lanes=lanes, grace=grace),
        processes=processes,
        grace=durations.parse(DEFAULT_GRACE if grace is None else grace, what="grace"),
        endpoint=read_endpoint(*endpoint),
        beside=beside,
    )
    return supervisor.run()


def _command(target: str, logs: tuple[LogLevel, LogFormat], **options: object) -> list[str]:
    """The command line of one worker."""
    command = [sys.executable, "-m", "streamworker", "run", target]
    options = {"log_level": logs[0], "log_format": logs[1], **options}
    for name, value in options.items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    return command


def _reload(
    target: str,
    processes: int,
    concurrency: int | None,
    lanes: str | None,
    grace: str | None,
    logs: tuple[LogLevel, LogFormat],
    endpoint: tuple[int | None, str | None],
) -> int:
    """Run one worker as a child that is started anew with each change."""
    from streamworker.cli.edge import CommandFailed
    from streamworker.cli.reload import run_reloading
    from streamworker.core import durations
    from streamworker.settings import DEFAULT_GRACE

    if processes > 1:
        raise CommandFailed("--reload is for development, with one process: leave out --processes", code=2)
    command = _command(
        target,
        logs,
        concurrency=concurrency,
        lanes=lanes,
        grace=grace,
        metrics_port=endpoint[0],
        metrics_host=endpoint[1],
    )
    return run_reloading(
        command, grace=durations.parse(DEFAULT_GRACE if grace is None else grace, what="grace")
    )
