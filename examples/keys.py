"""Idempotency keys: one request is one job, however often it is made.

streamworker run keys:app     # in another terminal, in this folder
python keys.py
"""

from __future__ import annotations

import asyncio

from streamworker import App, Context, IdempotencyConflict

app = App("keys")


@app.task(key="order:{order}:charge", window="7d")
async def charge(ctx: Context, order: int, cents: int) -> dict[str, object]:
    """`ctx.key` goes along to the payment provider, which can tell a second call by it."""
    return {"charged": cents, "idempotency_key": ctx.key}


async def main() -> None:
    async with app:
        first = await charge.enqueue(7, cents=1999)
        again = await charge.enqueue(7, cents=1999)
        print(first.disposition, again.disposition, first.id == again.id)
        print(await first.result(timeout="10s"))

        # Held for the window after success: still the same job.
        print((await charge.enqueue(7, cents=1999)).disposition)

        # The same key with other arguments is a mistake somewhere, and is refused.
        try:
            await charge.enqueue(7, cents=2999)
        except IdempotencyConflict as conflict:
            print("conflict with the first job:", conflict.job_id == first.id)

        # In a batch a conflict is a disposition: the others stand.
        jobs = await app.enqueue_many([charge.call(7, cents=2999), charge.call(8, cents=500)])
        print([str(job.disposition) for job in jobs])


if __name__ == "__main__":
    asyncio.run(main())
