"""`streamworker route`: which lane a job would wait in, and which rule says so."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from streamworker.cli.enqueue import read_arguments
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
from streamworker.cli.output import emit_json, print_table, say


def route(
    task: TaskName,
    arguments: Arguments = "{}",
    tenant: Tenant = None,
    lane: Annotated[
        str | None, typer.Option("--lane", metavar="L", help="Lane that the producer names.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show each rule that is looked at, and why it fits or not.")
    ] = False,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Print the lane that a job would wait in. Nothing is enqueued.

    The rules are those that the worker that started last has published.

    Example: streamworker route report '{"month": 7}' --tenant acme --explain
    """
    from streamworker.core.router import Decision, Step
    from streamworker.core.template import check_task_name
    from streamworker.request import Options, explain_route

    settings = settings_of(app, redis_url)
    options = Options.of(lane=lane, tenant=tenant)
    name, args = check_task_name(task), read_arguments(arguments)

    async def ask() -> tuple[bool, Decision, list[Step]]:
        async with open_queue(settings) as queue:
            await queue.know([name])
            await queue.feel(queue.router)
            declared = queue.declared(name)
            found = explain_route(name, args, options, declared, queue.router, queue.pressure)
            return declared is not None, *found

    known, decision, steps = asyncio.run(ask())
    if not known:
        say(f"note: no worker of {settings.namespace} has published the task {name}")
    if as_json:
        emit_json({"lane": decision.lane, "why": decision.why or None, "steps": list(map(_json, steps))})
        return
    if explain:
        print_table(
            ["rule", "lane", "fits", "because"],
            [(step.rule, step.lane, "yes" if step.fits else "no", step.because) for step in steps],
        )
    print(decision.lane)


def _json(step: Any) -> dict[str, Any]:
    return {"rule": step.rule, "lane": step.lane, "fits": step.fits, "because": step.because}
