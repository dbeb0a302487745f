"""A task that reads and changes a cached value, in a thread or in a process."""

from __future__ import annotations

import os
from typing import Any

from streamworker import App, Context

app = App("cache_jobs", redis_url=os.environ.get("STREAMWORKER_REDIS_URL"))


def register(app: App, how: Any) -> Any:
    @app.task(run_in=how, name="read")
    def read(ctx: Context, key: str) -> str:
        ctx.invalidate(key)
        return str(ctx.cache.get_sync(key, lambda: f"loaded {key}"))

    return read
