"""An app for tests of child processes: its handler says something."""

from __future__ import annotations

from streamworker import App, Context

app = App("process")


@app.task(run_in="process")
def say(ctx: Context) -> None:
    """Log a line."""
    ctx.log.info("hello from a child")
