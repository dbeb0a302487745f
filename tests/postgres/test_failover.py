"""A standby takes over from the server that the mirror, a relay and handlers write to."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.postgres.migrate import migrate
from tests.postgres import tap
from tests.postgres.stage import PATIENCE, Stage
from tests.servers import ServerFactory
from tests.waiting import wait_until_async


def home_of(server: EmbeddedPostgres) -> Path:
    return Path(parse_qs(urlsplit(server.dsn).query)["host"][0])


def stand_by(server: EmbeddedPostgres, primary: EmbeddedPostgres) -> None:
    """Let this server follow the other one, from a copy of its files. Both are shut down."""
    data, theirs = home_of(server) / "data", home_of(primary) / "data"
    shutil.rmtree(data)
    shutil.copytree(theirs, data)
    owner = theirs.stat()
    for path in (data, *data.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    with (data / "postgresql.conf").open("a") as config:
        config.write(
            f"unix_socket_directories = '{home_of(server)}'\nsynchronous_standby_names = ''\n"
            f"primary_conninfo = 'host={home_of(primary)} port=5432 user=postgres application_name=second'\n"
        )
    (data / "standby.signal").touch()
    shutil.chown(data / "standby.signal", owner.st_uid, owner.st_gid)


@pytest.fixture
def pair() -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """A server and its standby, on whose word each commit waits."""
    with (
        EmbeddedPostgres(config={"synchronous_standby_names": "'second'"}) as first,
        EmbeddedPostgres() as second,
    ):
        first.shut_down()
        second.shut_down()
        stand_by(second, first)
        first.restart()
        second.restart()
        yield first, second


@pytest.mark.timeout(PATIENCE * 2)
async def test_the_mirror_goes_on_at_the_standby_that_was_promoted(
    pair: tuple[EmbeddedPostgres, EmbeddedPostgres], own_valkey: ServerFactory
) -> None:
    """Nothing that was committed is lost, and nothing is written twice, by a DSN of both."""
    first, second = pair
    link = await asyncpg.connect(first.dsn)
    await migrate(link)
    await link.close()
    both = f"postgresql://postgres@/postgres?host={home_of(second)},{home_of(first)}"

    with ExitStack() as stack:
        stage = Stage(own_valkey(appendonly=True, config=tap.CONFIG), second, stack)
        mirror = stage.process("mirror", "run", STREAMWORKER_POSTGRES_DSN=both)
        mirror.wait_for_log("it is on", timeout=PATIENCE)
        stage.worker()
        await stage.enqueue(100)
        await wait_until_async(stage.settled, timeout=PATIENCE, what="all is over and mirrored")

        await stage.enqueue(200)
        await wait_until_async(stage.unread, what="there is something to mirror")
        await asyncio.to_thread(first.kill)
        async with stage.sql() as sql:
            assert await sql.fetchval("SELECT pg_promote()")
        await wait_until_async(stage.settled, timeout=PATIENCE, what="the rest is mirrored")

        assert await stage.differences() == []
        assert await stage.statuses() == {"succeeded": 225, "failed_terminal": 75}
        await stage.queue.close()
