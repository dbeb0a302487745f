"""A Postgres with the schema and a table of a shop, an app of it, and what Redis is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from streamworker import App, Context
from streamworker.outbox.relay import relay_all
from tests.postgres.conftest import dsn as dsn
from tests.postgres.conftest import own_postgres as own_postgres
from tests.postgres.conftest import postgres as postgres
from tests.postgres.conftest import postgres_pool as postgres_pool
from tests.postgres.conftest import sql as sql
from tests.servers import BenchServer

Relaying = Callable[[], Awaitable[int]]


@pytest.fixture
async def app(dsn: str, sql: asyncpg.Connection, valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    await sql.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    async with App("shop", redis_url=valkey.url, namespace=namespace, postgres_dsn=dsn, lease="3s") as app:

        @app.task
        async def ship(ctx: Context, order: int) -> int:
            return order

        yield app


@pytest.fixture
def relaying(app: App, dsn: str) -> Relaying:
    """Tells Redis of all that waits; returns of how many requests."""

    async def relay() -> int:
        return await relay_all(app.settings, dsn, "test")

    return relay
