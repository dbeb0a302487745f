"""`streamworker explain`: why a job is where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamworker.cli.hints import copyable
from streamworker.cli.options import AppName, Json, RedisUrl, on_queue, settings_of
from streamworker.cli.output import clean, emit_json, print_table, say

if TYPE_CHECKING:
    pass


def explain(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as enqueue printed it.")],
    sample: Annotated[
        float,
        typer.Option(
            "--sample", metavar="S", help="Watch the lane for so long to tell when its turn may come.", min=0
        ),
    ] = 1.0,
    app: AppName = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Say why a job is not running, or how it ended, from live state, and which command helps.

    Example: streamworker explain 01a22d35-48c5-7000-ab2c-b8855784618b
    """
    from streamworker.ops.explain import explain as look_into

    settings = settings_of(app, redis_url)

    found = on_queue(settings, lambda queue: look_into(queue, job_id, sample=sample))
    if as_json:
        told = found.json()
        emit_json(told | {"do": [copyable(command) for command in told["do"]]})
        return
    where = f"task {found.task}, lane {found.lane}, " if found.task else ""
    print(clean(f"{where}{found.status}: {found.answer.why}"))
    for line in found.answer.says:
        print(copyable(clean(line)))
    if found.policy:
        print()
        print_table(
            ["policy in force", "", "from"], [(rule.what, rule.value, rule.source) for rule in found.policy]
        )
    for command in found.answer.do:
        say(f"next: {command}")
