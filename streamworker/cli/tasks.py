"""`streamworker tasks`: what is declared of each task."""

from __future__ import annotations

from typing import Any

from streamworker.cli.options import AppName, Json, RedisUrl, on_queue, settings_of
from streamworker.cli.output import emit_json, print_table, say


def tasks(app: AppName = None, redis_url: RedisUrl = None, as_json: Json = False) -> None:
    """List the tasks, with what they declare: arguments, lane, retries, time limits, key and gates.

    Known are those that a worker has published, also when no worker declares them any more. Arguments in
    brackets have a default.

    Example: streamworker tasks --app shop
    """
    from streamworker.core.durations import format_ms
    from streamworker.ops import tasks as known

    settings = settings_of(app, redis_url)

    found = on_queue(settings, known.tasks)
    if as_json:
        emit_json(found)
        return
    if not found:
        say(f"note: no worker of {settings.namespace} has published a task; start one, or is the name right?")
        return
    print_table(
        ["task", "arguments", "lane", "timeout", "retry", "key", "cron", "gates"],
        [
            (
                row["task"],
                _arguments(row),
                row["lane"],
                format_ms(round(row["timeout_seconds"] * 1000)),
                row["retry"],
                row["key"],
                row["cron"],
                ", ".join(row["gates"]),
            )
            for row in found
        ],
    )


def _arguments(row: dict[str, Any]) -> str:
    named = [name if name in row["required"] else f"[{name}]" for name in row["arguments"]]
    return ", ".join([*named, "..."] if row["takes_more"] else named)
