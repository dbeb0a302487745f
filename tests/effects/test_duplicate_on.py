"""`duplicate_on`: what is there is a success, only for the named constraint, only if the loader finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import httpx
import pytest

from streamworker import App, ConfigurationError, Context, Retry, TransientError
from tests.effects.reading import invoices, reasons
from tests.integration.serving import failure, serving

INSERT = "INSERT INTO invoices (payment_id) VALUES ($1) RETURNING id"


@pytest.fixture
async def unique(shop: asyncpg.Connection) -> asyncpg.Connection:
    """Each payment has one invoice, as the table says."""
    await shop.execute("ALTER TABLE invoices ADD CONSTRAINT one_each UNIQUE (payment_id)")
    await shop.execute("INSERT INTO invoices (payment_id) VALUES ('p1')")
    return shop


def paying(app: App, sql: asyncpg.Connection, **options: Any) -> Any:
    @app.task(retry=Retry.never(), **options)
    async def pay(ctx: Context, payment: str) -> Any:
        return await sql.fetchval(INSERT, payment)

    return pay


async def test_the_first_result_is_the_jobs(app: App, unique: asyncpg.Connection) -> None:
    async def load(ctx: Context, payment: str) -> Any:
        return await unique.fetchval("SELECT id FROM invoices WHERE payment_id = $1", payment)

    pay = paying(app, unique, duplicate_on={"one_each": load})
    async with serving(app):
        job = await pay.enqueue("p1")
        assert await job.result(10) == 1

    assert (await reasons(app, job.id))[-1] == "duplicate"
    assert await invoices(unique) == {"p1": 1}


async def test_a_loader_may_be_a_plain_function(app: App, unique: asyncpg.Connection) -> None:
    pay = paying(app, unique, duplicate_on={"one_each": lambda ctx, payment: {"of": payment}})
    async with serving(app):
        assert await (await pay.enqueue("p1")).result(10) == {"of": "p1"}


def nothing(ctx: Context, payment: str) -> None:
    return None


def away(ctx: Context, payment: str) -> None:
    raise TransientError("no answer", code="loader_away")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"one_each": nothing}, "unique_violation_error"),
        ({"another": lambda ctx, payment: 1}, "unique_violation_error"),
        ({"one_each": away}, "loader_away"),
        ({"one_each": lambda ctx, payment: next(iter(()))}, "runtime_error"),
    ],
)
async def test_else_the_error_stands(
    app: App, unique: asyncpg.Connection, given: dict[str | int, Callable[..., Any]], code: str
) -> None:
    pay = paying(app, unique, duplicate_on=given)
    async with serving(app):
        assert (await failure(await pay.enqueue("p1"))).code == code


@pytest.mark.parametrize("status", [409, 404])
async def test_an_answer_409_may_mean_the_same(app: App, status: int) -> None:
    @app.task(duplicate_on={409: lambda ctx: "the first"})
    async def charge(ctx: Context) -> Any:
        request = httpx.Request("POST", "http://provider/charges")
        httpx.Response(status, request=request).raise_for_status()

    async with serving(app):
        job = await charge.enqueue()
        if status == 409:
            assert await job.result(10) == "the first"
        else:
            assert (await failure(job)).code == "http_404"


@pytest.mark.parametrize("given", [{500: nothing}, {"": nothing}, {"one_each": "load"}])
async def test_what_cannot_be_meant_is_refused(app: App, given: Any) -> None:
    with pytest.raises(ConfigurationError, match="duplicate_on"):
        paying(app, None, duplicate_on=given)  # type: ignore[arg-type]
