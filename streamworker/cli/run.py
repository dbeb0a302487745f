"""`streamworker run`: one worker process."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import Annotated

import typer

from streamworker.cli.output import clean


class LogLevel(StrEnum):
    """How much a worker tells."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Lines(logging.Formatter):
    """Readable lines; control characters in messages are made visible, since errors quote payloads."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record), lines=True)


def _log_to_stderr(level: LogLevel) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def run(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Where the app is, found from the working directory."),
    ],
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
    log_level: Annotated[LogLevel, typer.Option("--log-level", case_sensitive=False)] = LogLevel.INFO,
) -> int:
    """Run the jobs of an app until SIGTERM or Ctrl-C.

    On the first signal it stops claiming and lets running jobs end; a second signal ends at once. Redis is
    where the app says, else where STREAMWORKER_REDIS_URL says.
    """
    from streamworker.cli.target import load_app
    from streamworker.worker.worker import DEFAULT_CONCURRENCY, DEFAULT_GRACE, Worker

    _log_to_stderr(log_level)
    app = load_app(target)
    worker = Worker(
        app,
        concurrency=concurrency or DEFAULT_CONCURRENCY,
        lanes=None if lanes is None else [lane.strip() for lane in lanes.split(",") if lane.strip()],
        grace=DEFAULT_GRACE if grace is None else grace,
    )
    return worker.run()
