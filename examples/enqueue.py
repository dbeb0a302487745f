"""Another service, which does not have the shop's code, enqueues jobs by name and waits for them.

streamworker run shop:app     # in another terminal, in this folder
python enqueue.py
"""

from __future__ import annotations

import asyncio

from streamworker import Client, JobFailed, Options, Request


async def main() -> None:
    async with Client(app="shop") as client:
        args = {"shipment_id": 7, "status": "sent"}
        job = await client.enqueue("update_shipment", args, key="shipment:7:sent", lane="priority")
        print("shipment:", await job.result(timeout="10s"))

        again = await client.enqueue("update_shipment", args, key="shipment:7:sent", lane="priority")
        print("the same once more:", again.disposition, again.id == job.id)

        lost = await client.enqueue(
            "update_shipment", {"shipment_id": 8, "status": "sent", "carrier": "pigeon"}
        )
        try:
            await lost.result(timeout="10s")
        except JobFailed as failure:
            print("unknown carrier:", failure.code)

        # Many at once: one handle for each, in order, in a few calls to Redis.
        mails = await client.enqueue_many(
            Request("send_email", {"to": f"user{number}@example.com", "subject": "Sent!"})
            for number in range(1000)
        )
        await asyncio.gather(*(mail.result(timeout="30s") for mail in mails))
        print("e-mails:", len(mails))

        (report,) = await client.enqueue_many(
            [Request("monthly_report", {"month": "2026-08"}, Options.of(tenant="acme"))]
        )
        print("report:", await report.result(timeout="10s"))
        print("status:", (await client.get(report.id)).status)


if __name__ == "__main__":
    asyncio.run(main())
