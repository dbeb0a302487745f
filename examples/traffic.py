"""A producer that never ends: some jobs a second, bursts, and carriers that do not answer.

streamworker run shop:app     # in another terminal, in this folder
python traffic.py             # or: python traffic.py --seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time

from streamworker import Client, Request

#: Orders a second; one in ten comes with a burst of e-mails.
ORDERS = 20
#: Carriers by how often they are asked: one does not answer, one does not exist.
CARRIERS = {"dhl": 94, "snail": 5, "pigeon": 1}


def order(number: int) -> list[Request]:
    """What one order enqueues."""
    (carrier,) = random.choices(list(CARRIERS), list(CARRIERS.values()))
    shipment = {"shipment_id": number, "status": "sent", "carrier": carrier}
    requests = [Request("update_shipment", shipment), Request("monthly_report", {"month": "2026-08"})]
    mails = 20 if number % 10 == 0 else 1
    return requests + [
        Request("send_email", {"to": f"user{number}@example.com", "subject": f"{n}"}) for n in range(mails)
    ]


async def main(seconds: float) -> None:
    """Enqueue until it is stopped, or for so many seconds."""
    until = time.monotonic() + seconds
    first = time.time_ns() // 1_000_000  # another run has other shipments
    async with Client(app="shop") as client:
        for number in itertools.count(first):
            if time.monotonic() > until:
                break
            await client.enqueue_many(order(number))
            await asyncio.sleep(1 / ORDERS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    asyncio.run(main(parser.parse_args().seconds))
