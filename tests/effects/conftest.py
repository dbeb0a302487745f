"""A Postgres with the schema and a table of a shop, and an app of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from streamworker import App
from tests.postgres.conftest import dsn as dsn
from tests.postgres.conftest import own_postgres as own_postgres
from tests.postgres.conftest import postgres as postgres
from tests.postgres.conftest import postgres_pool as postgres_pool
from tests.postgres.conftest import sql as sql
from tests.servers import BenchServer

SHOP = """
CREATE TABLE invoices (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payment_id text NOT NULL);
CREATE TABLE orders (
    id integer PRIMARY KEY, status text NOT NULL DEFAULT 'new',
    fence_token bigint NOT NULL DEFAULT 0, fence_holder text
);
"""


@pytest.fixture
async def shop(sql: asyncpg.Connection) -> asyncpg.Connection:
    """The database with the tables of the shop; `invoices` has no unique key that could help."""
    await sql.execute(SHOP)
    return sql


@pytest.fixture
async def app(shop: asyncpg.Connection, dsn: str, valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    async with App("shop", redis_url=valkey.url, namespace=namespace, postgres_dsn=dsn, lease="3s") as app:
        yield app
