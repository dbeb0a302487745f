"""A task that makes a cached value old; its cache is at `CACHE_PORT`."""

from __future__ import annotations

import os

from streamworker import App, Cache, Context

app = App("killed_cache", cache=Cache(f"redis://127.0.0.1:{os.environ['CACHE_PORT']}"))


@app.task
async def change(ctx: Context, key: str) -> str:
    ctx.invalidate(key)
    return "new"
