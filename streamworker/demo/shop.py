"""The shop of the demo: what its tasks do is decided by their arguments, so that each run is alike."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamworker.app import App
from streamworker.context import Context
from streamworker.core.errors import PersistentError
from streamworker.core.retry import Retry

#: Set for workers whose stdin is a pipe from the demo: when it closes, nobody is left to stop them.
LEASHED = "STREAMWORKER_DEMO_LEASHED"


def chance(*facts: object) -> float:
    """A number from 0 to 1 that looks random and is always the same for the same facts."""
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


@asynccontextmanager
async def leash(_: App) -> AsyncIterator[None]:
    """End this worker with the demo that started it, even if that was killed."""
    if os.environ.pop(LEASHED, ""):  # the worker's own: its child processes have another stdin
        threading.Thread(target=_die_with_parent, name="leash", daemon=True).start()
    yield


def _die_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


app = App("demo", lifespan=leash)

#: Short, so that a run of half a minute sees every retry to its end.
QUICK = Retry.schedule("1s", "2s", "3s", unknown=("1s", "2s"))


#: Seconds that the carrier gets to answer.
CARRIER_TIMEOUT = 0.05


@app.task(retry=QUICK, timeout="5s")
async def update_shipment(ctx: Context, shipment_id: int, status: str) -> dict[str, object]:
    """Tell the carrier. One call in ten times out, which is worth another try; that one is answered."""
    hangs = ctx.attempt == 1 and chance("hangs", shipment_id) < 0.1
    answer_after = 60.0 if hangs else 0.002 + 0.02 * chance("carrier", shipment_id, ctx.attempt)
    async with asyncio.timeout(CARRIER_TIMEOUT):
        await asyncio.sleep(answer_after)
    return {"shipment_id": shipment_id, "status": status}


@app.task(key="payment:{order_id}", retry=QUICK, timeout="5s")
async def charge_payment(ctx: Context, order_id: int, cents: int) -> str:
    """Charge an order once: the key makes a second request for it the same job."""
    if cents <= 0:
        raise PersistentError(f"order {order_id}: {cents} cents cannot be charged", code="bad_amount")
    await asyncio.sleep(0.002 + 0.01 * chance("bank", order_id, ctx.attempt))
    return f"receipt for {ctx.key}"


@app.task(retry=QUICK, timeout="5s")
def send_email(ctx: Context, to: str, subject: str) -> None:
    """Hand an e-mail over. A plain function: it runs in a thread and may block."""
    time.sleep(0.001 + 0.005 * chance("mail", to, subject, ctx.attempt))


@app.task(retry=QUICK, timeout="5s")
async def crash(ctx: Context, why: str) -> None:
    """Kill the process that runs it, as a segmentation fault would."""
    ctx.log.warning("attempt %d: this job kills its worker (%s)", ctx.attempt, why)
    os.kill(os.getpid(), signal.SIGKILL)
