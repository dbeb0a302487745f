"""A producer that never ends: some jobs a second, bursts, and carriers that do not answer.

streamworker run shop:app     # in another terminal, in this folder
python traffic.py             # or: python traffic.py --orders 100
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


async def main(orders: int | None) -> None:
    """Enqueue so many orders, or until it is stopped."""
    first = time.time_ns() // 1_000_000  # another run has other shipments
    async with Client(app="shop") as client:
        for number in itertools.count(first) if orders is None else range(first, first + orders):
            await client.enqueue_many(order(number))
            await asyncio.sleep(1 / ORDERS)
    print(f"{orders} orders")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, help="how many; without it, no end")
    asyncio.run(main(parser.parse_args().orders))
