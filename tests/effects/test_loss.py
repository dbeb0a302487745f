"""Redis loses everything while the mirror is behind: jobs may run again, and each effect is there once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest

from streamworker import Request, Status, enqueue_in
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.postgres.migrate import migrate
from streamworker.request import Options
from streamworker.store.caller import Caller
from tests.apps import effects_jobs
from tests.effects.conftest import SHOP
from tests.effects.stage import NAMESPACE, Shop
from tests.servers import ServerFactory
from tests.waiting import wait_until_async

JOBS = int(os.environ.get("STREAMWORKER_EFFECTS_JOBS", "16"))
PATIENCE = 90 + 2 * JOBS
pytestmark = pytest.mark.timeout(3 * PATIENCE)


@pytest.fixture
async def shop_on(
    own_valkey: ServerFactory, own_postgres: Callable[[], EmbeddedPostgres], tmp_path: Path
) -> AsyncIterator[Shop]:
    postgres = own_postgres()
    sql = await asyncpg.connect(postgres.dsn)
    await migrate(sql)
    await sql.execute(SHOP)
    with ExitStack() as stack:
        yield Shop(own_valkey(), postgres.dsn, sql, tmp_path, stack)
    await sql.close()


async def test_after_a_flush_with_the_mirror_behind_each_invoice_exists_once(shop_on: Shop) -> None:
    caller = Caller(shop_on.server.url, "{effects:0}")
    mirror = shop_on.start("mirror", "run", "--app", NAMESPACE)
    mirror.wait_for_log("mirroring", timeout=30)
    mirror.pause()
    shop_on.fleet(1, concurrency=8)
    async with shop_on.client() as client:
        requests = [
            Request("pay_simply", {"number": number}, Options(key=f"payment:{number}"))
            for number in range(JOBS)
        ]

        async def paid() -> bool:
            return len(await shop_on.invoices()) >= JOBS // 2

        await client.enqueue_many(requests)
        await wait_until_async(paid, timeout=PATIENCE, what="half are paid, and Postgres knows of no job")
        await caller.command("FLUSHALL")
        mirror.resume()
        again = await client.enqueue_many(requests)
        ended = await shop_on.all_over(client, [job.id for job in again], timeout=PATIENCE)

    await caller.close()
    assert ended == {Status.SUCCEEDED: JOBS}
    assert await shop_on.invoices() == {f"p{number}": 1 for number in range(JOBS)}


async def test_a_request_of_the_outbox_survives_a_loss_that_comes_before_the_mirror_has_read_it(
    shop_on: Shop,
) -> None:
    """Its row came first, so it is known, told or not."""
    caller = Caller(shop_on.server.url, "{effects:0}")
    mirror = shop_on.start("mirror", "run", "--app", NAMESPACE)
    mirror.wait_for_log("mirroring", timeout=30)
    await wait_until_async(
        lambda: shop_on.sql.fetchval("SELECT commits > 0 FROM streamworker.mirror_offsets"),
        timeout=30,
        what="the mirror has taken in what there was",
    )
    mirror.pause()
    relay = shop_on.start("outbox", "relay", "--app", NAMESPACE)
    call = effects_jobs.pay_simply.call(1)
    async with shop_on.sql.transaction():
        await shop_on.sql.execute("SELECT 1")
        job = await enqueue_in(shop_on.sql, call)

    async def told() -> bool:
        return bool(await shop_on.sql.fetchval("SELECT published_at IS NOT NULL FROM streamworker.outbox"))

    await wait_until_async(told, timeout=30, what="Redis has it")
    await caller.command("FLUSHALL")
    mirror.resume()
    mirror.wait_for_log("1 jobs restored", timeout=30)
    shop_on.fleet(1)
    async with shop_on.client() as client:
        ended = await shop_on.all_over(client, [job.id], timeout=PATIENCE)

    relay.terminate()
    await caller.close()
    assert ended == {Status.SUCCEEDED: 1}
    assert await shop_on.invoices() == {"p1": 1}
