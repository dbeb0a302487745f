"""DSNs as people have them: for libpq, with passwords of all kinds, and wrong."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import parse_qs, quote, urlsplit

import asyncpg
import pytest

from streamworker.core.errors import ConfigurationError, ConnectionLost
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.outbox.relay import Relay
from streamworker.postgres.connection import PostgresUnavailable, connect, passing, unavailable
from streamworker.postgres.dsn import check_dsn, redact
from streamworker.postgres.mirror import Mirror
from streamworker.settings import Settings
from tests.servers import BenchServer

#: What a password may have in it.
PASSWORD = "hunter2@:/?#[%]&= "


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://shop:hunter2@db/shop",
        "postgresql://shop:hun@ter2@db/shop",
        "postgresql://shop:a/hunter2@db/shop",
        "postgresql://shop:a?hunter2@db/shop",
        "postgresql://shop:a#hunter2@db/shop",
        "postgresql://shop:[hunter2@db/shop",
        "postgresql://shop@db/shop?sslmode=require&password=hunter2",
        "postgresql://shop@db/shop?sslpassword=hunter2&sslmode=require",
        "host=db user=shop password=hunter2 dbname=shop",
        "host=db user=shop password = 'a hunter2' dbname=shop",
        "postgresql+asyncpg://shop:hunter2@db/shop",
    ],
)
def test_no_password_is_shown_however_wrong_the_dsn_is(dsn: str) -> None:
    shown = redact(dsn)
    assert "ter2" not in shown
    assert "db" in shown


def test_what_is_no_password_is_shown() -> None:
    for dsn in ("postgresql://shop@a:5432,b:5433/shop?sslmode=require", "postgresql:///shop?host=/run"):
        assert redact(dsn) == dsn


@pytest.mark.parametrize("password", ["hunter@2", "hunter#2", "[hunter"])
def test_a_password_that_was_not_encoded_is_told_of(password: str) -> None:
    with pytest.raises(ConfigurationError, match="such as %40 for '@'") as caught:
        check_dsn(f"postgresql://shop:{password}@db/shop")
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("password", ["hunter/2", "hunter?2"])
async def test_no_words_of_the_driver_quote_a_password(password: str) -> None:
    with pytest.raises(ConfigurationError, match="such as %40 for '@'") as caught:
        await connect(f"postgresql://shop:{password}@db/shop")
    assert "hunter" not in str(caught.value)


async def test_dsns_that_were_written_for_libpq_are_taken(postgres: EmbeddedPostgres) -> None:
    root = await asyncpg.connect(postgres.dsn)
    await root.execute(f"CREATE ROLE quoter LOGIN PASSWORD '{PASSWORD}'")
    await root.close()
    dsn = postgres.dsn_of("postgres", "postgres").replace(
        "postgres@", f"quoter:{quote(PASSWORD, safe='')}@", 1
    )

    link = await connect(f"{dsn}&connect_timeout=7&keepalives_idle=30&gssencmode=disable&sslmode=prefer")
    assert await link.fetchval("SELECT current_user || ' ' || current_setting('application_name')") == (
        "quoter streamworker"
    )
    await link.close()
    link = await connect(f"{dsn}&application_name=shop+mirror&channel_binding=prefer&connect_timeout=0")
    assert await link.fetchval("SELECT current_setting('application_name')") == "shop mirror"
    await link.close()
    with pytest.raises(ConfigurationError, match="channel_binding=require, which asyncpg cannot do"):
        await connect(f"{dsn}&channel_binding=require")
    with pytest.raises(ConfigurationError, match="connect_timeout='soon': it takes whole seconds"):
        await connect(f"{dsn}&connect_timeout=soon")


async def test_who_does_not_answer_is_named() -> None:
    with pytest.raises(PostgresUnavailable, match=r"No such.* \(postgresql://shop:\*\*\*@/shop") as caught:
        await connect("postgresql://shop:hunter2@/shop?host=/nonexistent")
    assert unavailable(caught.value) is caught.value, "what was said is said once"


async def test_a_host_that_is_silent_does_not_take_the_time_of_the_others(postgres: EmbeddedPostgres) -> None:
    """As one that lost its power. After a failover the mirror never came to the new primary."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        folder = parse_qs(urlsplit(postgres.dsn).query)["host"][0]
        hosts = f"127.0.0.1:{silent.getsockname()[1]},{quote(folder, safe='')}:5432"
        link = await connect(f"postgresql://postgres@{hosts}/postgres", timeout=0.4)
        await link.close()
        ports = f"{silent.getsockname()[1]},5432"
        link = await connect(
            f"postgresql://postgres@/postgres?host=127.0.0.1,{folder}&port={ports}", timeout=0.4
        )
        await link.close()


async def test_a_server_that_takes_no_writes_is_one_that_is_away(dsn: str, sql: asyncpg.Connection) -> None:
    """As after a failover: what asyncpg says of it is no error of Postgres by its class."""
    await sql.execute(f"ALTER DATABASE {urlsplit(dsn).path[1:]} SET default_transaction_read_only = on")

    with pytest.raises(PostgresUnavailable, match="it takes no writes now") as caught:
        await connect(dsn)

    assert caught.value.kind == "read_only"
    await (await connect(dsn, writes=False)).close()


def test_a_lost_redis_is_no_error_of_postgres() -> None:
    """It is a ConnectionError as well: a reconcile said that Postgres was to be started."""
    assert not passing(ConnectionLost("no answer from redis://db"))
    assert passing(ConnectionRefusedError())


@pytest.mark.parametrize("of", [Mirror, Relay])
async def test_who_runs_for_ever_ends_for_a_dsn_that_cannot_be_used(
    of: type[Mirror | Relay], valkey: BenchServer, namespace: str
) -> None:
    """It tried again for ever, with a traceback each time."""
    endless = of(Settings(namespace, valkey.url), "postgresql://shop@db/shop?sslmode=some", "m")

    async with asyncio.timeout(5):
        with pytest.raises(ConfigurationError, match="sslmode"):
            await endless.run()
