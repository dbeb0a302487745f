"""An app for tests of the command line: one task that adds, and one that fails in an ugly way."""

from __future__ import annotations

from streamworker import App, Context, PersistentError

app = App("cli")


@app.task
async def add(ctx: Context, a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


@app.task
async def spit(ctx: Context, text: str) -> None:
    """Fail with whatever text it is given, and log it too."""
    ctx.log.warning("spitting %s", text)
    raise PersistentError(text, code="ugly")
