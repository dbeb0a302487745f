"""A shop whose handlers die where they are told to: in the test's own words, or by the plan of a payment.

`EFFECTS_DIE` names a point at which this process dies: of the calls to Redis as in tests/crash_points, or of
a transaction. `EFFECTS_RUNS` is a folder in which each run of a handler leaves a byte.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamworker import App, Context, PersistentError, Retry, Skip, enqueue_in, fenced_update, touch
from streamworker.core.lane import Lane
from streamworker.effects import operations
from tests.crash_points import seam
from tests.crash_points.points import Point, Role, Step

#: Where a process may die around the commit and the settle that tells of it.
POINTS = (
    "before begin",
    "before operation",
    "after operation",
    "before commit",
    "in commit",
    "after commit",
    "exchange settle before",
    "exchange settle sent",
    "exchange settle answered",
)
#: From here on the effect is committed, or will be.
COMMITTED = POINTS[POINTS.index("after commit") :]
#: By the number of a payment: what its runs do. `-` is no death; all later runs are as usual.
PLANS: Sequence[Sequence[str]] = (
    ["-"],
    ["before"],
    ["inside"],
    ["committed"],
    ["-"],
    ["wrong after commit"],
    ["returned"],
    ["-"],
)
#: The last attempt dies after its commit.
TO_THE_LAST = ("before", "inside", "committed")

SOON = Retry.schedule("20ms", "20ms", "20ms", unknown=["20ms", "20ms"])
_point = os.environ.get("EFFECTS_DIE", "")
app = App(
    "effects",
    lanes={f"p{number}": Lane() for number in range(len(POINTS))} | {"normal": Lane()},
    lease="1s",
)


def note(folder: str, name: str, text: str = "") -> None:
    """Tell the test."""
    Path(folder, name).write_text(text)


def told(folder: str, name: str) -> bool:
    """What the test tells."""
    return Path(folder, name).exists()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_of(name: object) -> int:
    """Which run of it this is, from 1; whatever became of those before."""
    path = Path(os.environ["EFFECTS_RUNS"], str(name))
    with path.open("ab") as runs:
        runs.write(b".")
    return path.stat().st_size


async def invoice(ctx: Context, number: int, at: str) -> Any:
    """Write the invoice of a payment, once; die at that moment."""
    if at == "before":
        die()
    async with ctx.transaction() as tx:
        await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", f"p{number}")
        if at == "inside":
            die()
        tx.result = number
    if at == "committed":
        die()
    if at == "wrong after commit":
        raise PersistentError("the effect is committed, and the handler fails")
    if at == "returned":
        asyncio.get_running_loop().call_soon(die)


@app.task(retry=SOON, key="payment:{number}")
async def pay(ctx: Context, number: int) -> Any:
    """Dies in its first run by its plan."""
    plan, run = PLANS[number % len(PLANS)], run_of(f"pay-{number}")
    await invoice(ctx, number, plan[run - 1] if run <= len(plan) else "-")


@app.task(retry=SOON, key="payment:{number}")
async def pay_to_the_last(ctx: Context, number: int) -> Any:
    """Dies in each of its attempts; in the last one after the commit."""
    run = run_of(f"pay-{number}")
    await invoice(ctx, number, TO_THE_LAST[run - 1] if run <= len(TO_THE_LAST) else "-")


@app.task(retry=Retry.never(), key="payment:{number}")
async def pay_at_once(ctx: Context, number: int) -> Any:
    """One attempt; this process may die at a point."""
    await invoice(ctx, number, "-")


@app.task(retry=SOON, key="payment:{number}")
async def pay_simply(ctx: Context, number: int) -> Any:
    """Some attempts; this process may die at a point."""
    await invoice(ctx, number, "-")


@app.task(retry=SOON, timeout="60s")
async def hold(ctx: Context, folder: str, how: str) -> Any:
    """The first attempt stands still, loop and all, until it is told to go on; the others do not."""
    await asyncio.sleep(0.3)  # its start is marked, so that its death is charged, and the next is attempt 2
    try:
        if how == "transaction":
            async with ctx.transaction() as tx:
                await tx.execute("INSERT INTO invoices (payment_id) VALUES ('held')")
                _stand_still(folder, ctx.attempt)
                tx.result = ctx.attempt
        else:
            _write_with_a_fence(ctx, folder)
    finally:
        note(folder, f"over-{ctx.attempt}")


def _write_with_a_fence(ctx: Context, folder: str) -> None:
    """In one go: nobody can tell the handler in between that its claim is lost."""
    import psycopg

    assert app.settings.postgres_dsn is not None
    with psycopg.connect(app.settings.postgres_dsn, autocommit=True) as sql:
        touch(sql, "orders", {"id": 7}, ctx)
        _stand_still(folder, ctx.attempt)
        try:
            fenced_update(sql, "orders", {"id": 7}, {"status": f"by {ctx.attempt}"}, ctx)
        except Exception as error:
            note(folder, "refused", f"{ctx.attempt} {type(error).__name__}")
            raise


def _stand_still(folder: str, attempt: int) -> None:
    note(folder, "holds")
    while attempt == 1 and not told(folder, "go"):
        time.sleep(0.02)


@app.task(key="order:{order}:place", retry=SOON)
async def place(ctx: Context, order: int) -> Any:
    await _step(ctx, order, "place", pay_order)


@app.task(key="order:{order}:pay", retry=SOON)
async def pay_order(ctx: Context, order: int) -> Any:
    await _step(ctx, order, "pay", ship)


@app.task(key="order:{order}:ship", retry=SOON)
async def ship(ctx: Context, order: int) -> Any:
    await _step(ctx, order, "ship", None)


async def _step(ctx: Context, order: int, step: str, following: Any) -> None:
    run, shift = run_of(f"{step}-{order}"), ("place", "pay", "ship").index(step)
    at = ("before", "inside", "committed", "-", "-", "-")[(order + 2 * shift) % 6] if run == 1 else "-"
    if at == "before":
        die()
    async with ctx.transaction() as tx:
        await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", f"{step}-{order}")
        if following is not None:
            await enqueue_in(tx, following.call(order))
        if at == "inside":
            die()
    if at == "committed":
        die()


@app.task(retry=SOON)
async def update(ctx: Context, order: int, status: str, version: int) -> Any:
    """A later version has been here: there is nothing to do."""
    async with ctx.transaction() as tx:
        changed = await tx.execute(
            "UPDATE orders SET status = $2, version = $3 WHERE id = $1 AND version < $3",
            order,
            status,
            version,
        )
    return version if changed == "UPDATE 1" else Skip(f"version {version} is old")


def _arm() -> None:
    """Let this process die at its point."""
    if _point.startswith("exchange"):
        call, step = _point.rsplit(" ", 1)
        seam.install(Point(Role.WORKER, call, Step(step)))
        return
    import asyncpg.transaction

    start, commit = asyncpg.transaction.Transaction.start, asyncpg.transaction.Transaction.commit
    take = operations.take

    async def armed_start(self: Any) -> None:
        if _point == "before begin":
            die()
        await start(self)

    async def armed_take(*args: Any, **options: Any) -> Any:
        if _point == "before operation":
            die()
        found = await take(*args, **options)
        if _point == "after operation":
            die()
        return found

    async def armed_commit(self: Any) -> None:
        if _point == "before commit":
            die()
        if _point == "in commit":  # what it sends is on its way
            asyncio.get_running_loop().call_soon(die)
        await commit(self)
        if _point == "after commit":
            die()

    asyncpg.transaction.Transaction.start = armed_start  # type: ignore[method-assign]
    asyncpg.transaction.Transaction.commit = armed_commit  # type: ignore[method-assign]
    operations.take = armed_take


if _point:
    _arm()
