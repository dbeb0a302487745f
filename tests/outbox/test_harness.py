"""The harness with a Postgres: effects and requests are the test's own, and nothing of them stays."""

from __future__ import annotations

import asyncpg
import pytest

from streamworker import App, Context, Lane, Rate
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.outbox.enqueue import enqueue_in
from streamworker.testing import harness, migrate
from tests.postgres.conftest import fresh_database
from tests.servers import BenchServer

TABLES = ("outbox", "jobs", "processed_operations")


@pytest.fixture(params=["memory", "valkey"])
def url(request: pytest.FixtureRequest) -> str | None:
    """None for a server in memory, else that of a real one."""
    return None if request.param == "memory" else str(request.getfixturevalue("valkey").url)


@pytest.fixture
def shop(dsn: str) -> App:
    """Its Redis is not there: a test that goes to it fails."""
    return App("shop", redis_url="redis://127.0.0.1:1", postgres_dsn=dsn)


async def namespaces(sql: asyncpg.Connection) -> set[str]:
    found: set[str] = set()
    for table in TABLES:
        found |= {row[0] for row in await sql.fetch(f"SELECT namespace FROM streamworker.{table}")}
    return found


async def test_what_a_chain_has_in_postgres_is_the_tests_own(
    url: str | None, shop: App, sql: asyncpg.Connection
) -> None:
    runs: list[int] = []
    seen: set[str] = set()

    @shop.task
    async def mail(ctx: Context, order: int) -> str:
        return f"mailed {order}"

    @shop.task(key="pay:{order}")
    async def pay(ctx: Context, order: int) -> None:
        async with ctx.transaction() as tx:
            runs.append(order)
            await enqueue_in(tx, mail.call(order))
        seen.update(await namespaces(sql))

    for _ in range(2):
        async with harness(shop, redis_url=url) as t:
            await pay.enqueue(1)
            assert await t.drain() == 2

            t.succeeded(pay, times=1)
            assert t.succeeded(mail, args={"order": 1}, times=1)[0].result == "mailed 1"
            t.idle()

    assert runs == [1, 1], "each test begins anew"
    assert len(seen) == 2
    assert all(each.startswith("shop-test-") for each in seen)
    assert await namespaces(sql) == set()
    assert shop.settings.namespace == "shop"


async def test_a_request_of_the_test_itself_is_told_by_a_drain(shop: App, sql: asyncpg.Connection) -> None:
    @shop.task
    async def mail(ctx: Context, order: int) -> str:
        return f"mailed {order}"

    async with harness(shop) as t:
        async with sql.transaction():
            job = await enqueue_in(sql, mail.options(delay="1h").call(7))
        with pytest.raises(AssertionError, match=r"1 call.*enqueue_in.*await t\.drain\(\)"):
            t.enqueued(mail)
        with pytest.raises(AssertionError, match=r"outbox.*drain"):
            await job.result()

        assert await t.drain(until_idle=True) == 1

        assert await job.result() == "mailed 7"


async def test_without_a_postgres_the_failure_says_where_the_request_waits(
    dsn: str, sql: asyncpg.Connection
) -> None:
    shop = App("shop", postgres_dsn=None)

    @shop.task
    async def mail(ctx: Context) -> None: ...

    async with harness(shop) as t:
        await enqueue_in(sql, mail.call())
        await t.drain()

        with pytest.raises(AssertionError, match=r"harness\(app, postgres_dsn=\.\.\.\)"):
            t.enqueued(mail)
    async with harness(shop, postgres_dsn=dsn) as t:
        await enqueue_in(sql, mail.call())
        await t.drain()

        t.succeeded(mail)


async def test_a_request_that_no_job_comes_of_is_told_of(shop: App, sql: asyncpg.Connection) -> None:
    @shop.task
    async def mail(ctx: Context, order: int) -> None: ...

    async with harness(shop) as t:
        await mail.options(key="a").enqueue(0)
        await enqueue_in(sql, mail.options(key="a").call(1))
        await t.drain()

        with pytest.raises(AssertionError, match=r"outbox:\n  mail .*key is held by .* other arguments"):
            t.enqueued(mail, args={"order": 1})
        t.idle()


async def test_a_request_that_finds_no_room_is_not_over(dsn: str, sql: asyncpg.Connection) -> None:
    shop = App("shop", lanes={"normal": Lane(limit=1, overflow="reject")}, postgres_dsn=dsn)

    @shop.task(limits=[Rate("task", "1/h", burst=1)])
    async def mail(ctx: Context) -> None: ...

    async with harness(shop) as t:
        await mail.enqueue()
        await t.drain()
        await mail.enqueue()
        await enqueue_in(sql, mail.call())
        await t.drain()

        with pytest.raises(AssertionError, match=r"2 jobs are not over[^$]*outbox:\n  mail .*no room"):
            t.idle()


async def test_a_test_without_effects_asks_no_postgres() -> None:
    shop = App("shop", postgres_dsn="postgresql://127.0.0.1:1/nowhere")

    @shop.task
    async def mail(ctx: Context) -> None: ...

    async with harness(shop) as t:
        job = shop.handle((await mail.enqueue()).id)
        await t.drain()

        assert await job.result() is None


async def test_the_cache_is_the_tests_own(valkey: BenchServer, url: str | None) -> None:
    shop = App("shop", redis_url=valkey.url)
    loads: list[str] = []

    @shop.task
    async def price(ctx: Context) -> int:
        def load() -> int:
            loads.append("")
            return 7

        return int(await ctx.cache.get("price", load))

    for _ in range(2):
        async with harness(shop, redis_url=url) as t:
            for _ in range(2):
                await price.enqueue()
                await t.drain()
            t.succeeded(price, times=2)

    assert len(loads) == 2, "one load in each test"


async def test_a_fixture_makes_the_tables(postgres: EmbeddedPostgres) -> None:
    empty = await fresh_database(postgres)
    shop = App("shop", postgres_dsn=empty)

    @shop.task
    async def pay(ctx: Context) -> str:
        async with ctx.transaction() as tx:
            tx.result = "paid"
        return "paid"

    for _ in range(2):
        migrate(empty)

    async with harness(shop) as t:
        await pay.enqueue()
        await t.drain()

        t.succeeded(pay)
