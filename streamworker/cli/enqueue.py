"""`streamworker enqueue`: one job, by the name of its task."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamworker.cli.edge import CommandFailed, read_json
from streamworker.cli.options import (
    AppName,
    Arguments,
    Json,
    RedisUrl,
    TaskName,
    Tenant,
    open_queue,
    settings_of,
)
from streamworker.cli.output import emit_json, say

if TYPE_CHECKING:
    from streamworker.store.queue import Queue


def enqueue(
    task: TaskName,
    arguments: Arguments = "{}",
    key: Annotated[
        str | None, typer.Option("--key", metavar="K", help="Idempotency key: the same key runs once.")
    ] = None,
    lane: Annotated[
        str | None, typer.Option("--lane", metavar="L", help="Lane; the task's own if not given.")
    ] = None,
    tenant: Tenant = None,
    delay: Annotated[str | None, typer.Option("--delay", metavar="5s", help="Not before this long.")] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="10m", help="Give the job up after this long.")
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option("--correlation-id", metavar="C", help="Kept with the job, for tracing.")
    ] = None,
    wait: Annotated[
        str, typer.Option("--wait", metavar="10s", help="Try again for so long if it is refused.")
    ] = "0s",
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Enqueue one job and print its id.

    The task's code is not needed: its lane, key and limits are those that workers have published, where no
    option says otherwise. With a key that is in use for the same arguments the id is that of the earlier job.

    Example: streamworker enqueue update_shipment '{"shipment_id": 7}' --key shipment:7:sent
    """
    from streamworker.client import handle_of, place_named
    from streamworker.core.states import Disposition
    from streamworker.core.template import check_task_name
    from streamworker.request import Options
    from streamworker.store.queue import QueueSource

    settings = settings_of(app, redis_url)
    options = Options.of(
        key=key,
        lane=lane,
        tenant=tenant,
        delay=delay,
        deadline=deadline,
        correlation_id=correlation_id,
        wait=wait,
    )
    name, args = check_task_name(task), read_arguments(arguments)

    async def place() -> tuple[str, Disposition, str]:
        async with open_queue(settings) as queue:
            job, held, placed = await place_named(queue, name, args, options)
            handle = handle_of(placed, job, held, QueueSource(settings))
            await _warn(queue, name, lane)
            return handle.id, handle.disposition, placed.status

    job_id, disposition, status = asyncio.run(place())
    if disposition is Disposition.DUPLICATE:
        say(f"note: the key is in use with the same arguments, so this is the earlier job, {status}")
    if as_json:
        emit_json({"id": job_id, "disposition": str(disposition)})
    else:
        print(job_id)


async def _warn(queue: Queue, task: str, lane: str | None) -> None:
    """Say what is probably a typing error. The job was accepted: a deploy may bring what is missing."""
    from streamworker.core.errors import UnknownTask
    from streamworker.core.lane import BACKLOG
    from streamworker.ops import known

    if queue.declared(task) is None:
        names, app = await known.tasks(queue), queue.keys.namespace
        said = (
            UnknownTask(task, names)
            if names
            else f"no worker of {app} has published a task; is the name right?"
        )
        say(f"warning: the job waits for a worker that knows its task: {said}")
    if lane not in (None, BACKLOG) and (lanes := await known.lanes(queue)) and lane not in lanes:
        say(f"warning: no app has a lane {lane}, there are {', '.join(sorted(lanes))}; the job waits there")


def read_arguments(text: str) -> dict[str, Any]:
    """The JSON object in `text`, or on stdin when it is `-`. Raises CommandFailed with the position."""
    where, are = "the arguments", "are"
    if text == "-":
        where, are = "stdin", "is"
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise CommandFailed(f"stdin is not UTF-8: {error.reason} at byte {error.start}", code=2) from None
    try:
        value = read_json(text)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise CommandFailed(
            f"{where} {are} no valid JSON: {error.msg} at {at}{_context(text, error.pos)}; "
            """write an object such as '{"shipment_id": 7}'""",
            code=2,
        ) from None
    if not isinstance(value, dict):
        raise CommandFailed(
            f"{where} must be a JSON object of names and values, not {_kind(value)}; "
            """write it such as '{"shipment_id": 7}'""",
            code=2,
        )
    return value


def _context(text: str, position: int) -> str:
    near = text[max(0, position - 10) : position + 10]
    return f" near {near!r}" if near else ""


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case list():
            return "an array"
        case str():
            return "a text"
        case _:
            return "a number"
