"""An app for an incident: its carrier is slow while a file says so, and starts are written down.

`INCIDENT_FOLDER` holds `slow` and the journal, whose lines are `asked started`, in ns by the clock that all
processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from streamworker import App, Context, Dependency, Lane

FOLDER = Path(os.environ["INCIDENT_FOLDER"])
#: Seconds that the carrier takes when it is well, and when it is not.
WELL, ILL = 0.01, 5.0
#: What the priority lane promises, in seconds; and what the backlog is drained by, in jobs a second.
TARGET = 1.0
DRAIN = int(os.environ["INCIDENT_DRAIN"])
_JOURNAL = os.open(FOLDER / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

app = App(
    "incident",
    lanes={
        # Enough while all is well: those who pay need 12 slots of 32, and are sure of 8.
        "priority": Lane(0, 1, target=TARGET),
        "normal": Lane(0, 3, target=2.0, high_water=20_000),
        "backlog": Lane(drain=f"{DRAIN}/s"),
    },
    dependencies={"carrier": Dependency(concurrency=64, timeout=20)},
)


@app.task(lane="priority")
async def pay(ctx: Context, asked: int) -> None:
    """Somebody waits for it."""
    os.write(_JOURNAL, f"{asked} {time.monotonic_ns()}\n".encode())
    await asyncio.sleep(0.5)


@app.task(uses=["carrier"], key="shipment:{number}")
async def ship(ctx: Context, number: int) -> None:
    """Calls the carrier."""
    async with ctx.dependency("carrier"):
        await asyncio.sleep(ILL if (FOLDER / "slow").exists() else WELL)


@app.task
async def resize(ctx: Context, number: int) -> None:
    """What a tenant has too many of."""
    await asyncio.sleep(0.01)


@app.task
async def report(ctx: Context, number: int) -> None:
    """What may wait."""
