"""Options that many commands share, and the queue that they name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from streamworker.cli import hints
from streamworker.cli.edge import CommandFailed
from streamworker.cli.output import say

if TYPE_CHECKING:
    from streamworker.settings import Settings
    from streamworker.store.queue import Queue

T = TypeVar("T")

#: Seconds that a command waits for a Redis that does not answer.
PATIENCE = 2.0

AppName = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="NAME",
        help="Whose jobs: the app's name, or its namespace.",
        envvar="STREAMWORKER_NAMESPACE",
    ),
]
RedisUrl = Annotated[
    str | None,
    typer.Option("--redis-url", metavar="URL", help="Where Redis is.", envvar="STREAMWORKER_REDIS_URL"),
]
#: Without `envvar`: what stands there may be no port, see `settings.read_endpoint`.
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="P",
        help="Answer /healthz, /readyz and /metrics there.",
        min=0,
        max=65_535,
    ),
]
MetricsHost = Annotated[
    str | None,
    typer.Option(
        "--metrics-host",
        metavar="HOST",
        help="On this address; by default for this machine only.",
    ),
]
#: For what `run` starts beside its workers.
OfApp = Annotated[
    str | None, typer.Option("--of", metavar="MODULE:APP", help="The app, for its settings.", hidden=True)
]
TaskName = Annotated[str, typer.Argument(metavar="TASK", help="Name of the task.")]
Arguments = Annotated[
    str, typer.Argument(metavar="JSON", help="Its arguments, a JSON object; - reads stdin.")
]
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="T", help="For whom the job is.")]
Reset = Annotated[bool, typer.Option("--reset", help="Let what the app declares hold again.")]
Over = Annotated[
    str, typer.Option("--over", metavar="TIME", help="Over which time those that waited come in.")
]
AtOnce = Annotated[bool, typer.Option("--at-once", help="Let all of them in now.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the log.")]
For = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", help="How long, such as 10m; else until taken back."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]


def settings_of(app: str | None, redis_url: str | None) -> Settings:
    """The settings for one command. Raises CommandFailed without a name, ConfigurationError."""
    from streamworker.settings import read

    app = (app or "").strip()  # a variable may have been read from a file, with its line's end
    if not app:
        raise CommandFailed("which app? Name it with --app NAME, or set STREAMWORKER_NAMESPACE", code=2)
    hints.remember(app, redis_url)
    return read(app, redis_url=redis_url or None, namespace=app)


@asynccontextmanager
async def open_queue(settings: Settings) -> AsyncIterator[Queue]:
    """The queue of these settings, for one command. Raises InvalidArgument for an impossible name."""
    from streamworker.core.errors import InvalidArgument
    from streamworker.store.queue import Queue

    try:
        queue = Queue(settings, patience=PATIENCE)
    except ValueError as error:
        raise InvalidArgument("app", settings.namespace, str(error).partition(": ")[2]) from None
    try:
        yield queue
    finally:
        await queue.close()


def on_queue(settings: Settings, act: Callable[[Queue], Awaitable[T]]) -> T:
    """What `act` gives for the queue of these settings. Raises as `open_queue`, and what `act` raises."""

    async def run() -> T:
        async with open_queue(settings) as queue:
            return await act(queue)

    return asyncio.run(run())


def note_nobody(settings: Settings) -> None:
    """Say so, beside an empty answer, if no worker and no job was ever there: a typing error is no calm."""
    from streamworker.ops import known

    if not on_queue(settings, known.anybody):
        say(f"note: no job was ever enqueued and no worker runs in {settings.namespace}; is the name right?")
