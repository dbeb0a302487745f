"""An app whose dependency falls ill when a file says so: `ill`, in `BREAKER_FOLDER`, where the journal is.

A line of the journal is `ns pid what`, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from streamworker import App, Breaker, Context, Dependency, Retry, TransientError

FOLDER = Path(os.environ["BREAKER_FOLDER"])
OPEN_FOR = float(os.environ.get("BREAKER_OPEN", "0.5"))
RAMP = float(os.environ.get("BREAKER_RAMP", "3"))
_JOURNAL = os.open(FOLDER / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

app = App(
    "breaker_jobs",
    dependencies={
        "carrier": Dependency(breaker=Breaker(calls=10, window="5s", open_for=OPEN_FOR, probes=2, ramp=RAMP))
    },
)


def note(what: str) -> None:
    os.write(_JOURNAL, f"{time.monotonic_ns()} {os.getpid()} {what}\n".encode())


@app.task(uses=["carrier"], key="{number}", retry=Retry.fixed(10, "500ms"))
async def ship(ctx: Context, number: int) -> None:
    """Calls the carrier once."""
    async with ctx.dependency("carrier"):
        note("call")
        await asyncio.sleep(0.005)
        if (FOLDER / "ill").exists():
            raise TransientError("503 from the carrier")


@app.task
async def mail(ctx: Context, number: int) -> None:
    """Calls nobody."""
    note("mail")
