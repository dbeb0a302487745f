"""Everything that talks to Postgres does so through a PgBouncer that pools by transaction, as directly."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from streamworker import App, Context, Retry, SyncClient, TransientError, enqueue_in, fenced_update
from streamworker.effects.connections import Connections
from streamworker.ops.checks import Severity
from streamworker.ops.outbox_checks import outbox
from streamworker.outbox.relay import POLL_EVERY, POOLED, Relay, relay_all
from streamworker.postgres.connection import PoolerUnfit, PostgresUnavailable, connect
from streamworker.settings import Settings
from tests.integration.cli_desk import Desk
from tests.integration.serving import serving
from tests.outbox.test_enqueue_in import WAYS, Order
from tests.pgbouncer import PgBouncer
from tests.postgres.stage import NAMESPACE, PATIENCE, Stage
from tests.servers import BenchServer
from tests.unit.documentation import text_of
from tests.waiting import wait_until_async

#: Makes PgBouncers before a database, with settings of their ini.
Bounces = Callable[..., PgBouncer]
Making = Callable[[str], Awaitable[App]]


@pytest.fixture
def bounce() -> Iterator[Bounces]:
    with ExitStack() as stack:

        def make(dsn: str, users: Mapping[str, str] | None = None, **settings: object) -> PgBouncer:
            return stack.enter_context(PgBouncer(dsn, settings, users=users))

        yield make


def documented() -> dict[str, str]:
    """The settings that docs/how-to/postgres.md asks for."""
    ini = re.search(r"<!-- test: pgbouncer -->\s+```ini\n(.*?)```", text_of("how-to/postgres.md"), re.DOTALL)
    assert ini
    return dict(re.findall(r"^(\w+) = (\S+)$", ini[1], re.MULTILINE))


# --- the mirror


@pytest.mark.timeout(PATIENCE * 3)
async def test_the_mirror_writes_exactly_what_redis_logged_whatever_becomes_of_pgbouncer(
    stage: Stage, bounce: Bounces
) -> None:
    """Two mirrors on two connections to the server, which the pooler and the server break in turn."""
    pooler = bounce(stage.postgres.dsn, **{**documented(), "default_pool_size": 2})
    env = {"STREAMWORKER_POSTGRES_DSN": pooler.dsn()}
    mirrors = [stage.process("mirror", "run", **env) for _ in range(2)]
    stage.worker()

    async def read() -> bool:
        return await stage.unread() == 0

    def paused() -> None:
        pooler.tell("PAUSE")
        pooler.tell("RESUME")

    def again() -> None:
        stage.postgres.kill()
        stage.postgres.restart()

    for fault in (paused, lambda: pooler.tell("RECONNECT"), pooler.restart, again):
        await stage.enqueue(100)
        await wait_until_async(stage.unread, what="there is something to mirror")
        await asyncio.to_thread(fault)
        await wait_until_async(read, timeout=PATIENCE, what="it is mirrored all the same")
    await wait_until_async(stage.settled, timeout=PATIENCE, what="all is over and mirrored")

    assert await stage.differences() == []
    assert await stage.odd_due_times() == []
    assert await stage.statuses() == {"succeeded": 300, "failed_terminal": 100}
    assert all(mirror.returncode is None for mirror in mirrors)
    assert "Traceback" not in "".join(mirror.log() for mirror in mirrors)


async def test_who_asks_shares_two_connections_with_the_mirror(stage: Stage, bounce: Bounces) -> None:
    """`verify`, `reconcile`, results, `jobs show` and `doctor`, each with a client of its own."""
    pooler = bounce(stage.postgres.dsn)
    stage.process("mirror", "run", STREAMWORKER_POSTGRES_DSN=pooler.dsn()).wait_for_log("it is on")
    stage.worker()
    ids = await stage.enqueue(40)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="all is over and mirrored")
    await stage.queue.caller.command("DEL", stage.keys.job(ids[0]), stage.keys.body(ids[0]))

    def ask() -> list[Any]:
        with Desk(stage.server.url, NAMESPACE) as desk, pytest.MonkeyPatch.context() as patch:
            patch.setenv("STREAMWORKER_POSTGRES_DSN", pooler.dsn())
            found = [
                desk.json("mirror", "migrate"),
                desk.json("mirror", "verify", "--app", NAMESPACE),
                desk.json("mirror", "reconcile", "--app", NAMESPACE),
                desk.json("jobs", "show", ids[0]),
                desk.json("doctor")["checks"],
            ]
        with SyncClient(stage.server.url, app=NAMESPACE, postgres_dsn=pooler.dsn()) as client:
            return [*found, client.result(ids[0])]

    applied, verified, _, shown, checks, result = await asyncio.to_thread(ask)

    assert applied == {"applied": []}
    assert verified["good"]
    assert shown["status"] == "succeeded"
    assert {row["check"]: row["severity"] for row in checks}["outbox"] == "ok"
    assert result == {"number": 0}
    assert await stage.differences() == []


# --- the way there


@pytest.mark.parametrize("size", [1, 2])
async def test_nobody_runs_the_statement_of_another(dsn: str, bounce: Bounces, size: int) -> None:
    """A statement without a name is prepared in one message and run in the next."""
    pooler = bounce(dsn, default_pool_size=size)

    async def ask(who: int) -> list[int]:
        link = await connect(pooler.dsn())
        try:
            return [await link.fetchval(f"SELECT $1::int * 10 + {who}", number) for number in range(30)]
        finally:
            await link.close()

    answers = await asyncio.gather(*map(ask, range(6)))

    assert answers == [[number * 10 + who for number in range(30)] for who in range(6)]


async def test_a_server_that_takes_writes_again_is_found(
    dsn: str, sql: asyncpg.Connection, bounce: Bounces
) -> None:
    """As after a failover. PgBouncer says what it heard first, and the mirror waited for ever."""
    pooler = bounce(dsn)
    name = urlsplit(dsn).path[1:]
    await sql.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(PostgresUnavailable, match="it takes no writes now"):
        await connect(pooler.dsn())

    await sql.execute("SET default_transaction_read_only = off")
    await sql.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await sql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    link = await connect(pooler.dsn())
    await link.execute("CREATE TABLE written (id integer)")
    await link.close()


@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_a_connection_is_again_as_it_was_made_after_a_handler_had_it(
    dsn: str, sql: asyncpg.Connection, bounce: Bounces, mode: str
) -> None:
    """From their second effect on, handlers had the time zone of the server, and no name."""
    await sql.execute(f"ALTER DATABASE {urlsplit(dsn).path[1:]} SET timezone = 'Asia/Kathmandu'")
    made = Connections(f"{bounce(dsn, pool_mode=mode).dsn()}&application_name=shop", ["normal"], 1)

    for _ in range(2):
        borrowed = await made.borrow("normal")
        for name, value in (("TimeZone", "UTC"), ("application_name", "shop")):
            assert await borrowed.connection.fetchval(f"SHOW {name}") == value
        made.hand_back(borrowed, sound=True, used=True)
        await asyncio.gather(*made._cleaning)
    assert len(made._idle) == 1
    await made.close()


async def test_what_cannot_work_is_told_with_what_to_do(
    dsn: str, bounce: Bounces, valkey: BenchServer, namespace: str
) -> None:
    by_statement = bounce(dsn, pool_mode="statement").dsn()

    (found,) = await outbox(Settings(namespace, valkey.url, postgres_dsn=by_statement))
    assert (found.severity, found.advice) == (Severity.PROBLEM, "set pool_mode = transaction")
    assert found.found.startswith("PgBouncer pools by statement")
    with pytest.raises(PoolerUnfit, match="leave it out of the DSN"):
        await connect(f"{by_statement}&statement_timeout=5000")


async def test_passwords_are_checked_by_scram(dsn: str, sql: asyncpg.Connection, bounce: Bounces) -> None:
    await sql.execute("DROP ROLE IF EXISTS scrammed")
    await sql.execute("CREATE ROLE scrammed LOGIN PASSWORD 'a pass@word'")
    pooler = bounce(dsn, auth_type="scram-sha-256", users={"scrammed": "a pass@word"})

    link = await connect(pooler.dsn("scrammed", "a pass@word"))
    assert await link.fetchval("SELECT current_user") == "scrammed"
    await link.close()
    with pytest.raises(PostgresUnavailable):
        await connect(pooler.dsn("scrammed", "another"))


# --- requests and effects


@pytest.fixture
async def making(sql: asyncpg.Connection, valkey: BenchServer, namespace: str) -> AsyncIterator[Making]:
    """Makes the app of a shop whose Postgres is at this DSN."""
    await sql.execute("CREATE TABLE orders (id integer)")
    await sql.execute("CREATE TABLE places (id integer, fence_token bigint DEFAULT 0, fence_holder text)")
    await sql.execute("INSERT INTO places SELECT generate_series(0, 19)")
    async with AsyncExitStack() as stack:

        async def make(dsn: str) -> App:
            app = App("shop", redis_url=valkey.url, namespace=namespace, postgres_dsn=dsn, lease="3s")
            await stack.enter_async_context(app)

            @app.task
            async def ship(ctx: Context, order: int) -> int:
                return order

            return app

        yield make


@pytest.mark.parametrize("order", WAYS)
async def test_every_driver_enqueues_in_its_transaction(
    order: Order, making: Making, dsn: str, sql: asyncpg.Connection, bounce: Bounces
) -> None:
    through = bounce(dsn, default_pool_size=1).dsn()
    app = await making(through)

    await order(app, through, 1, False)
    job = await order(app, through, 2, True)

    assert await sql.fetchval("SELECT array_agg(id) FROM orders") == [2]
    assert await sql.fetchval("SELECT array_agg(job_id::text) FROM streamworker.outbox") == [job.id]
    assert await relay_all(app.settings, through, "test") == 1


@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_effects_happen_once_and_requests_are_relayed(
    making: Making,
    dsn: str,
    sql: asyncpg.Connection,
    bounce: Bounces,
    mode: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By transaction on fewer connections than there are handlers; by session each needs one."""
    through = bounce(dsn, pool_mode=mode, default_pool_size=2 if mode == "transaction" else 20).dsn()
    app = await making(through)
    ship = app.tasks["ship"]

    @app.task(retry=Retry.schedule("10ms", "10ms"))
    async def pay(ctx: Context, order: int) -> Any:
        async with ctx.operation("charge") as charge:
            charge.result = order
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO orders VALUES ($1)", order)
            await fenced_update(tx, "places", {"id": order}, {}, ctx)
            tx.result = (await enqueue_in(tx, ship.call(order), notify=True)).id
        if ctx.attempt == 1:
            raise TransientError("after the commit")

    poll = 60.0 if mode == "session" else POLL_EVERY  # by session it is woken
    relay = Relay(app.settings, through, "test", listen=True, poll=poll)
    relaying = asyncio.create_task(relay.run())
    async with serving(app, concurrency=8):
        following = [await job.result(20) for job in [await pay.enqueue(number) for number in range(20)]]
        shipped = [await app.handle(job_id).result(20) for job_id in following]
    relay.stop()
    await relaying

    assert shipped == list(range(20))
    assert sorted(row["id"] for row in await sql.fetch("SELECT id FROM orders")) == shipped
    assert await sql.fetchval("SELECT count(*) FROM places WHERE fence_token > 0") == 20
    assert POOLED in caplog.text
