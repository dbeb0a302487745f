"""`streamworker cron`: what runs by itself."""

from __future__ import annotations

import typer

from streamworker.cli.options import AppName, Json, RedisUrl, on_queue, settings_of
from streamworker.cli.output import emit_json, print_table, say

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at what runs by itself.")


@app.callback()
def _group() -> None:
    """Look at what runs by itself."""


@app.command("list")
def list_(app: AppName = None, redis_url: RedisUrl = None, as_json: Json = False) -> None:
    """List the crons: when each runs next, when it ran last, and what came of it.

    Known are those that a worker has published, also when no worker declares them any more: such a one is
    overdue.

    Example: streamworker cron list --app shop
    """
    from streamworker.ops.crons import crons

    settings = settings_of(app, redis_url)

    found = on_queue(settings, crons)
    if as_json:
        emit_json(found)
        return
    if not found:
        say(f"note: no worker of {settings.namespace} has published a cron; declare one with @app.cron(...)")
        return
    print_table(
        ["name", "spec", "tz", "overlap", "next tick", "last tick", "last job", "status", "#skipped"],
        [
            (
                row["name"],
                row["spec"],
                row["tz"],
                row["overlap"],
                f"overdue since {row['overdue_since']}" if row["overdue_since"] else row["next_tick"],
                row["last_tick"],
                row["last_job_id"],
                row["last_job_status"],
                row["skipped"],
            )
            for row in found
        ],
    )
