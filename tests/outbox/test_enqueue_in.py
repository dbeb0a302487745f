"""`enqueue_in`: with every kind of connection, the job is there if and only if the transaction commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psycopg
import pytest
import sqlalchemy
from opentelemetry.sdk.trace import TracerProvider
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from streamworker import App, ConfigurationError, Disposition, InvalidArgument, Job, enqueue_in
from streamworker.core.job import Envelope
from streamworker.core.states import Status
from streamworker.telemetry import tracing
from tests.integration.serving import serving
from tests.outbox.conftest import Relaying

#: Enqueues one order within a transaction, and ends it as it is told to.
Order = Callable[[App, str, int, bool], Awaitable[Job[Any]]]
INSERT = "INSERT INTO orders VALUES ({})"


class _Rollback(Exception):
    """Ends a transaction."""


def call_of(app: App, order: int) -> Any:
    return app.tasks["ship"].call(order)


def url_of(dsn: str, driver: str) -> sqlalchemy.URL:
    """The same as SQLAlchemy writes it, whose socket is a query."""
    parts = urlsplit(dsn)
    return sqlalchemy.URL.create(
        f"postgresql+{driver}",
        username="postgres",
        database=parts.path.lstrip("/"),
        query={"host": parse_qs(parts.query)["host"][0]},
    )


async def by_asyncpg(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(INSERT.format(order))
        job: Job[Any] = await enqueue_in(connection, call_of(app, order))
        await (transaction.commit() if commit else transaction.rollback())
        return job
    finally:
        await connection.close()


async def by_asyncpg_pool(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(INSERT.format(order))
        job: Job[Any] = await enqueue_in(connection, call_of(app, order))
        await (transaction.commit() if commit else transaction.rollback())
        return job


async def by_psycopg(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    with psycopg.connect(dsn) as connection:
        connection.execute(INSERT.format(order).encode())
        job: Job[Any] = enqueue_in(connection, call_of(app, order))
        connection.commit() if commit else connection.rollback()
        return job


async def by_psycopg_cursor(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(INSERT.format(order).encode())
        job: Job[Any] = enqueue_in(cursor, call_of(app, order))
        connection.commit() if commit else connection.rollback()
        return job


async def by_async_psycopg(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute(INSERT.format(order).encode())
        job: Job[Any] = await enqueue_in(connection, call_of(app, order))
        await (connection.commit() if commit else connection.rollback())
        return job


async def by_session(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    engine = sqlalchemy.create_engine(url_of(dsn, "psycopg"))
    with Session(engine) as session:
        session.execute(sqlalchemy.text(INSERT.format(order)))
        job: Job[Any] = enqueue_in(session, call_of(app, order))
        session.commit() if commit else session.rollback()
    engine.dispose()
    return job


async def by_scoped_session(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    engine = sqlalchemy.create_engine(url_of(dsn, "psycopg"))
    session = scoped_session(sessionmaker(engine))
    session.execute(sqlalchemy.text(INSERT.format(order)))
    job: Job[Any] = enqueue_in(session, call_of(app, order))
    session.commit() if commit else session.rollback()
    session.remove()
    engine.dispose()
    return job


async def by_core(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    engine = sqlalchemy.create_engine(url_of(dsn, "psycopg"))
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(INSERT.format(order)))
        job: Job[Any] = enqueue_in(connection, call_of(app, order))
        connection.commit() if commit else connection.rollback()
    engine.dispose()
    return job


async def by_async_session(app: App, dsn: str, order: int, commit: bool, driver: str = "asyncpg") -> Job[Any]:
    engine = create_async_engine(url_of(dsn, driver))
    async with AsyncSession(engine) as session:
        await session.execute(sqlalchemy.text(INSERT.format(order)))
        job: Job[Any] = await enqueue_in(session, call_of(app, order))
        await (session.commit() if commit else session.rollback())
    await engine.dispose()
    return job


async def by_async_session_and_psycopg(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    return await by_async_session(app, dsn, order, commit, "psycopg")


async def by_async_core(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    engine = create_async_engine(url_of(dsn, "asyncpg"))
    async with engine.connect() as connection:
        await connection.execute(sqlalchemy.text(INSERT.format(order)))
        job: Job[Any] = await enqueue_in(connection, call_of(app, order))
        await (connection.commit() if commit else connection.rollback())
    await engine.dispose()
    return job


async def by_django(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    return await asyncio.to_thread(_by_django, app, dsn, order, commit)


def _by_django(app: App, dsn: str, order: int, commit: bool) -> Job[Any]:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure()
        django.setup()
    from django.db import transaction
    from django.db.utils import ConnectionHandler

    parts = urlsplit(dsn)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": "postgres",
        "HOST": parse_qs(parts.query)["host"][0],
    }
    connection = ConnectionHandler({"default": database})["default"]
    before, transaction.get_connection = transaction.get_connection, lambda using=None: connection
    jobs: list[Job[Any]] = []
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(INSERT.format(order))
            jobs.append(enqueue_in(connection, call_of(app, order)))
            if not commit:
                raise _Rollback
    except _Rollback:
        pass
    finally:
        transaction.get_connection = before
        connection.close()
    return jobs[0]


WAYS: list[Order] = [
    by_asyncpg,
    by_asyncpg_pool,
    by_psycopg,
    by_psycopg_cursor,
    by_async_psycopg,
    by_session,
    by_scoped_session,
    by_core,
    by_async_session,
    by_async_session_and_psycopg,
    by_async_core,
    by_django,
]


@pytest.mark.parametrize("order", WAYS)
async def test_the_job_is_there_if_and_only_if_the_transaction_commits(
    order: Order, app: App, dsn: str, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    gone = await order(app, dsn, 1, False)
    assert await sql.fetchval("SELECT count(*) FROM streamworker.outbox") == 0
    assert await sql.fetchval("SELECT count(*) FROM streamworker.jobs") == 0

    job = await order(app, dsn, 2, True)
    row = await sql.fetchrow("SELECT * FROM streamworker.jobs")
    told = await relaying()

    assert row is not None
    assert (str(row["id"]), row["status"], row["version"], row["task"]) == (job.id, "queued", 0, "ship")
    assert (told, job.disposition) == (1, Disposition.ACCEPTED)
    assert await sql.fetchval("SELECT array_agg(id) FROM orders") == [2]
    async with serving(app):
        assert await job.result(10) == 2
    assert gone.id != job.id


async def test_all_that_was_said_of_the_job_arrives(
    app: App, dsn: str, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    task = app.tasks["ship"].options(
        key="ship:7", tenant="acme", delay="1h", deadline="2h", lane="priority", correlation_id="c1"
    )
    async with sql.transaction():
        job = await enqueue_in(sql, task.call(7))
    await sql.execute("UPDATE streamworker.outbox SET created_at = now() - interval '30 min'")
    await relaying()

    queue = app.queue()
    record = await queue.record(job.id)
    seconds, _ = await queue.caller.command("TIME")
    due, deadline = (record.number(name) or 0 for name in ("du", "dl"))
    assert (record.lane, record.text("tn"), record.text("ky")) == ("priority", "acme", "ship::ship:7")
    assert due / 1000 - int(seconds) == pytest.approx(1800, abs=30), "the delay counts from the commit"
    assert deadline / 1000 - int(seconds) == pytest.approx(5400, abs=30)
    assert await job.status() is Status.QUEUED
    row = await sql.fetchrow("SELECT tenant, key, correlation_id, record FROM streamworker.jobs")
    assert row is not None
    assert tuple(row)[:3] == ("acme", "ship:7", "c1")
    assert "\nky=ship::ship:7\n" in row["record"]


async def test_a_clock_that_was_put_back_makes_no_delay_longer(
    app: App, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    """As after a failover to a server whose clock is behind."""
    job = await enqueue_in(sql, app.tasks["ship"].options(delay="10m").call(7))
    await sql.execute("UPDATE streamworker.outbox SET created_at = now() + interval '1 hour'")
    await relaying()

    queue = app.queue()
    seconds, _ = await queue.caller.command("TIME")
    due = (await queue.record(job.id)).number("du") or 0
    assert due / 1000 - int(seconds) == pytest.approx(600, abs=30)


async def test_times_count_from_the_request_in_a_transaction_that_began_long_before(
    app: App, sql: asyncpg.Connection
) -> None:
    """A deadline that was shorter than the transaction had been open was over before the job began."""
    async with sql.transaction():
        await sql.execute("SELECT pg_sleep(0.05)")
        await enqueue_in(sql, app.tasks["ship"].options(deadline="10m").call(7))
        assert await sql.fetchval("SELECT created_at - now() > interval '40ms' FROM streamworker.outbox")


async def test_a_request_that_is_traced_arrives_in_its_trace(
    app: App, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    tracing.enable(TracerProvider())
    try:
        with TracerProvider().get_tracer("shop").start_as_current_span("request") as span:
            async with sql.transaction():
                job = await enqueue_in(sql, app.tasks["ship"].call(7))
    finally:
        tracing.disable()
    envelope = Envelope.decode(await sql.fetchval("SELECT payload FROM streamworker.outbox"))
    await relaying()

    assert envelope.trace is not None
    assert envelope.trace.split("-")[1] == f"{span.get_span_context().trace_id:032x}"
    assert (await app.queue().record(job.id)).status == Status.QUEUED


async def test_a_handlers_transaction_takes_requests_along(
    app: App, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    ship = app.tasks["ship"]

    @app.task
    async def pay(ctx: Any, order: int) -> Any:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT.format(order))
            tx.result = (await enqueue_in(tx, ship.call(order))).id

    async with serving(app):
        following = await (await pay.enqueue(7)).result(10)
        await relaying()
        job: Job[Any] = app.handle(following)
        assert await job.result(10) == 7


def test_what_is_no_connection_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match="no connection that is known"):
        enqueue_in(object(), call_of(app, 1))


def test_a_task_is_no_call(app: App) -> None:
    task: Any = app.task(name="pay")(lambda ctx, order: None)

    with pytest.raises(InvalidArgument, match=r"make it by task\.call"):
        enqueue_in(object(), task)


@asynccontextmanager
async def listening(dsn: str) -> AsyncIterator[asyncio.Queue[str]]:
    heard: asyncio.Queue[str] = asyncio.Queue()
    connection = await asyncpg.connect(dsn)
    await connection.add_listener("streamworker_outbox", lambda *args: heard.put_nowait(args[-1]))
    yield heard
    await connection.close()


async def test_a_listener_is_told_only_if_asked_for(app: App, dsn: str, sql: asyncpg.Connection) -> None:
    async with listening(dsn) as heard:
        await enqueue_in(sql, call_of(app, 1))
        await enqueue_in(sql, call_of(app, 2), notify=True)

        assert await asyncio.wait_for(heard.get(), 10) == app.settings.namespace
        assert heard.empty()
