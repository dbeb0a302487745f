"""A real Postgres for these tests, one a session and version; each test has a database of its own."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import asyncpg
import pytest

from streamworker.embedded_postgres import EmbeddedPostgres, find_postgres, find_system_postgres
from streamworker.postgres import migrate
from tests.postgres import tap
from tests.postgres.stage import Stage
from tests.servers import ServerFactory

#: Narrows the versions: `wheel`, `system`.
SELECTION_VARIABLE = "STREAMWORKER_TEST_POSTGRES"
KINDS = tuple(os.environ.get(SELECTION_VARIABLE, "wheel,system").split(","))
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_pool() -> Iterator[dict[str, EmbeddedPostgres]]:
    """The session's servers by kind; use `postgres`."""
    pool: dict[str, EmbeddedPostgres] = {}
    yield pool
    for one in pool.values():
        _throw_away(one)


def _throw_away(server: EmbeddedPostgres) -> None:
    """Stop it without waiting for its hundreds of databases to be deleted: half a minute at the very end."""
    home = server._home()
    server.kill()
    rubbish = home.rename(home.with_suffix(".rubbish"))
    subprocess.run(["sh", "-c", 'rm -rf "$0" > /dev/null 2>&1 &', str(rubbish)], check=True)
    server.stop()


def running(pool: dict[str, EmbeddedPostgres], kind: str) -> EmbeddedPostgres:
    """The server of this kind, started by the first who asks."""
    if kind not in pool:
        programs = find_postgres() if kind == "wheel" else find_system_postgres()
        if programs is None:
            pytest.skip("no postgres on this machine beside that of the wheel")
        pool[kind] = EmbeddedPostgres(programs).start()
    return pool[kind]


@pytest.fixture(scope="session")
def postgres(postgres_pool: dict[str, EmbeddedPostgres]) -> EmbeddedPostgres:
    """The wheel's Postgres, shared: do not stop it (see `own_postgres`)."""
    return running(postgres_pool, "wheel")


@pytest.fixture(scope="session", params=KINDS)
def each_postgres(
    request: pytest.FixtureRequest, postgres_pool: dict[str, EmbeddedPostgres]
) -> EmbeddedPostgres:
    """The oldest and the newest Postgres that there is, in turn."""
    return running(postgres_pool, request.param)


@pytest.fixture
def own_postgres() -> Iterator[Callable[[], EmbeddedPostgres]]:
    """Makes servers for this test alone, to be killed, paused or restarted."""
    servers: list[EmbeddedPostgres] = []

    def make() -> EmbeddedPostgres:
        servers.append(EmbeddedPostgres())
        return servers[-1].start()

    yield make
    for one in servers:
        one.stop()


async def fresh_database(server: EmbeddedPostgres) -> str:
    """The DSN of a new, empty database."""
    name = f"t{next(_numbers)}"
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return server.dsn_of("postgres", name)


@pytest.fixture
async def empty_database(each_postgres: EmbeddedPostgres) -> str:
    """The DSN of an empty database, on each version."""
    return await fresh_database(each_postgres)


@pytest.fixture
async def dsn(postgres: EmbeddedPostgres) -> str:
    """The DSN of a database with the schema."""
    made = await fresh_database(postgres)
    connection = await asyncpg.connect(made)
    await migrate.migrate(connection)
    await connection.close()
    return made


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the database with the schema."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def stage(
    own_valkey: ServerFactory, own_postgres: Callable[[], EmbeddedPostgres]
) -> AsyncIterator[Stage]:
    server = own_valkey(appendonly=True, config=tap.CONFIG)
    postgres = own_postgres()
    connection = await asyncpg.connect(postgres.dsn)
    await migrate.migrate(connection)
    await connection.close()
    with ExitStack() as stack:
        made = Stage(server, postgres, stack)
        yield made
        await made.queue.close()
