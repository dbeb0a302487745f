"""A key stands for the arguments that were sent, whatever a handler makes of them (rails#55775)."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from streamworker import App, Context, Retry, TransientError
from tests.effects.reading import invoices, reasons
from tests.integration.serving import serving

SOON = Retry.schedule("10ms", unknown=["10ms"])
pytestmark = pytest.mark.usefixtures("no_leaks")


async def test_a_handler_that_changes_its_arguments_finds_its_effect(
    app: App, shop: asyncpg.Connection
) -> None:
    """The second attempt was told that its key had committed for other arguments: a dead letter."""

    @app.task(retry=SOON)
    async def pay(ctx: Context, payment: dict[str, Any]) -> Any:
        payment["tried"] = ctx.attempt
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment["id"])
            tx.result = payment
        if ctx.attempt == 1:
            raise TransientError("after the commit")

    async with serving(app):
        job = await pay.options(key="p1").enqueue({"id": "p1"})
        assert await job.result(10) == {"id": "p1", "tried": 1}

    assert await invoices(shop) == {"p1": 1}
    assert (await reasons(app, job.id))[-1] == "effect_committed"


async def test_the_effect_of_such_a_handler_is_found_when_its_job_is_ended(
    app: App, shop: asyncpg.Connection
) -> None:
    """It counted as none, and the job as failed although it had its effect."""

    @app.task(retry=Retry.never())
    async def pay(ctx: Context, payment: dict[str, Any]) -> Any:
        payment["tried"] = ctx.attempt
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment["id"])
            tx.result = "paid"
        raise TransientError("after the commit")

    async with serving(app):
        job = await pay.enqueue({"id": "p1"})
        assert await job.result(10) == "paid"


async def test_a_loader_of_the_first_result_gets_what_was_sent(app: App, shop: asyncpg.Connection) -> None:
    await shop.execute("ALTER TABLE invoices ADD CONSTRAINT one_each UNIQUE (payment_id)")
    await shop.execute("INSERT INTO invoices (payment_id) VALUES ('p1')")

    def load(ctx: Context, payment: dict[str, Any]) -> Any:
        return payment

    @app.task(retry=Retry.never(), duplicate_on={"one_each": load})
    async def pay(ctx: Context, payment: dict[str, Any]) -> Any:
        await shop.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment.pop("id"))

    async with serving(app):
        assert await (await pay.enqueue({"id": "p1"})).result(10) == {"id": "p1"}
