"""An app whose handler raises whatever code it is told to, for tests of how many series there may be.

Redis is looked at for metrics more often than elsewhere, so that the tests are short.
"""

from __future__ import annotations

from streamworker import App, Concurrency, Context, PersistentError, Retry, TransientError
from streamworker.worker import watcher

watcher.LOOK_EVERY, watcher.TERM = 0.5, 2.0

app = App("hostile")


@app.task(retry=Retry.schedule("1s"), entity="thing:{thing}", limits=[Concurrency("tenant", 2)])
async def tell(ctx: Context, thing: str, code: str = "", fatal: bool = False) -> None:
    """Fail with this code, or succeed without one."""
    if code:
        raise (PersistentError if fatal else TransientError)("as told", code=code)
    async with ctx.lock(thing):
        return
