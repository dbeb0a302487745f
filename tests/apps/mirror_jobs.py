"""An app for tests of the mirror: jobs that succeed, fail once, or fail for good."""

from __future__ import annotations

import os

from streamworker import App, Context, PersistentError, Retry, TransientError

app = App("mirrored")
SHORT = Retry.schedule("50ms", "50ms", "50ms", unknown=["50ms", "50ms"])


def note(ctx: Context) -> None:
    """One line for each start, in a file that outlives the worker."""
    path = os.environ.get("MIRROR_STARTS")
    if path:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{ctx.job_id}\n".encode())
        os.close(descriptor)


@app.task(retry=SHORT)
async def good(ctx: Context, number: int) -> dict[str, int]:
    note(ctx)
    return {"number": number}


@app.task(retry=SHORT)
async def flaky(ctx: Context, number: int) -> int:
    note(ctx)
    if ctx.attempt == 1:
        raise TransientError(f"the first time of {number}")
    return number


@app.task(retry=SHORT)
async def bad(ctx: Context, number: int) -> None:
    note(ctx)
    raise PersistentError(f"no way for {number}", code="no_way")
