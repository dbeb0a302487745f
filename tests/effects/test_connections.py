"""Connections that handlers have in turn."""

from __future__ import annotations

import asyncpg
import pytest

from streamworker import App, Context, Retry
from streamworker.effects import connections
from streamworker.effects.connections import Connections
from streamworker.worker import schema
from tests.integration.serving import serving
from tests.waiting import wait_until_async


async def test_a_connection_that_nobody_used_for_long_is_not_used_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands between may have dropped it without a word: a handler waited half a minute in vain."""
    made = Connections(dsn, ["normal"], 2)

    async def server_process() -> int:
        async with made.connection("normal") as link:
            return int(await link.fetchval("SELECT pg_backend_pid()"))

    first = await server_process()
    assert await server_process() == first

    monkeypatch.setattr(connections, "IDLE_SECONDS", -1)
    assert await server_process() != first
    await made.close()


@pytest.mark.parametrize("of", ["transaction", "operation"])
async def test_a_job_waits_for_a_schema_that_is_missing(
    app: App, shop: asyncpg.Connection, of: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was an error that nobody declared: two attempts, and a dead letter."""
    caplog.set_level("INFO")
    await shop.execute("ALTER TABLE streamworker.processed_operations RENAME TO gone")

    @app.task(retry=Retry.schedule(*["1s"] * 9, unknown=["1s"]))
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() if of == "transaction" else ctx.operation("charge"):
            pass

    async with serving(app):
        job = await pay.enqueue()
        await wait_until_async(lambda: "(transient, connection_error)" in caplog.text, what="it is met")
        await shop.execute("ALTER TABLE streamworker.gone RENAME TO processed_operations")
        await job.result(10)


@pytest.mark.parametrize("state", ["as it should be", "behind", "missing", "newer", "away"])
async def test_a_worker_says_at_its_start_that_the_schema_is_missing(
    shop: asyncpg.Connection, dsn: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the first job that wants an effect tells, long after the deploy."""
    if state == "behind":
        await shop.execute("DELETE FROM streamworker.migrations WHERE number = 4")
    elif state == "missing":
        await shop.execute("DROP SCHEMA streamworker CASCADE")
    elif state == "newer":
        await shop.execute(
            "INSERT INTO streamworker.migrations (number, name, checksum) VALUES (99, 'x', 'y')"
        )

    await schema.look("postgresql://127.0.0.1:1/none" if state == "away" else dsn, "w-1")

    said = {
        "behind": "0004_days_beside_readers.sql is not applied",
        "missing": "it has no schema of ours, nothing was migrated",
        "newer": "the schema has migration 99",
    }
    assert [
        each.getMessage() for each in caplog.records if said.get(state, "") not in each.getMessage()
    ] == []
    assert len(caplog.records) == (state in said)


async def test_each_worker_looks_for_it(
    app: App, shop: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await shop.execute("DELETE FROM streamworker.migrations WHERE number = 4")

    @app.task
    async def work(ctx: Context) -> None:
        pass

    async with serving(app):
        await wait_until_async(lambda: "mirror migrate" in caplog.text, what="it says so")
        await (await work.enqueue()).result(10)
