"""`streamworker workers`: which workers are alive."""

from __future__ import annotations

from streamworker.cli.options import AppName, Json, RedisUrl, on_queue, settings_of
from streamworker.cli.output import emit_json, print_table, say


def workers(app: AppName = None, redis_url: RedisUrl = None, as_json: Json = False) -> None:
    """Show which workers are alive.

    Alive is who gave a sign of life within two leases.

    Example: streamworker workers --app shop
    """
    from streamworker.ops import inspect

    settings = settings_of(app, redis_url)

    found = on_queue(settings, inspect.workers)
    if as_json:
        emit_json(found)
        return
    if not found:
        say(f"note: no worker of {settings.namespace} is alive; start one: streamworker run MODULE:APP")
        return
    print_table(
        ["id", "app", "host", "#pid", "lanes", "#slots", "started"],
        [
            (
                row["id"],
                row["app"],
                row["host"],
                row["pid"],
                ", ".join(row["lanes"]),
                row["concurrency"],
                row["started_at"],
            )
            for row in found
        ],
    )
