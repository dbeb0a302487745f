"""A small shop: three tasks, two lanes, and what each failure turns into.

streamworker run shop:app                 # from this folder, with STREAMWORKER_REDIS_URL if it is not local
streamworker enqueue update_shipment '{"shipment_id": 7, "status": "sent"}' --app shop
"""

from __future__ import annotations

from streamworker import App, Context, PersistentError, Retry, TransientError

app = App("shop")

#: Carriers that this example knows, and whether they answer.
CARRIERS = {"dhl": True, "snail": False}


@app.task(
    lane="priority",
    key="shipment:{shipment_id}:update-status:{status}",
    retry=Retry.schedule("30s", "2m", "10m"),
    timeout="20s",
)
async def update_shipment(
    ctx: Context, shipment_id: int, status: str, carrier: str = "dhl"
) -> dict[str, object]:
    """Tell the carrier. A second enqueue of the same status is the same job."""
    answers = CARRIERS.get(carrier)
    if answers is None:
        raise PersistentError(f"no carrier is called {carrier!r}", code="unknown_carrier")
    if not answers:
        raise TransientError(f"{carrier} does not answer", code="carrier_down")
    ctx.log.info("shipment %s is %s", shipment_id, status)
    return {"shipment_id": shipment_id, "status": status}


@app.task(timeout="10s")
async def send_email(ctx: Context, to: str, subject: str) -> None:
    """Hand an e-mail over. It may be handed over twice: `ctx.key` lets the mail service notice."""
    ctx.log.info("to %s: %s (%s)", to, subject, ctx.key)


@app.task(timeout="1m")
def monthly_report(ctx: Context, month: str) -> int:
    """A plain function runs in a thread, so that it may block."""
    return sum(ord(letter) for letter in month)
