"""Migrations are applied once, in order, all or none, by whoever comes first."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import asyncpg
import pytest

from streamworker.embedded_postgres import EmbeddedPostgres, find_postgres
from streamworker.postgres import migrate
from streamworker.postgres.connection import PostgresUnavailable
from streamworker.postgres.migrate import Migration, MigrationError

TABLES = {
    "jobs",
    "job_transitions",
    "processed_operations",
    "outbox",
    "operator_actions",
    "mirror_offsets",
    "mirror_conflicts",
    "mirror_refused",
    "migrations",
}


async def tables(connection: asyncpg.Connection) -> set[str]:
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'streamworker'")
    return {row["tablename"] for row in rows}


async def test_an_empty_database_gets_the_whole_schema_and_the_second_run_does_nothing(
    empty_database: str,
) -> None:
    connection = await asyncpg.connect(empty_database)

    first = await migrate.migrate(connection)
    second = await migrate.migrate(connection)

    assert [each.number for each in first] == list(range(1, len(migrate.migrations()) + 1))
    assert second == []
    assert await migrate.pending(connection) == []
    assert await tables(connection) == TABLES
    await connection.close()


async def test_runners_that_come_at_once_wait_for_each_other(empty_database: str) -> None:
    connections = [await asyncpg.connect(empty_database) for _ in range(4)]

    done = await asyncio.gather(*(migrate.migrate(each) for each in connections))

    assert sorted(len(each) for each in done) == [0, 0, 0, len(migrate.migrations())]
    for each in connections:
        await each.close()


async def test_a_failing_migration_changes_nothing(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = migrate.migrations()
    bad = Migration(len(good) + 1, "bad", "CREATE TABLE streamworker.half (); SELECT 1 / 0;")
    monkeypatch.setattr(migrate, "migrations", lambda: [*good, bad])
    connection = await asyncpg.connect(empty_database)

    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate.migrate(connection)

    assert await tables(connection) == set()
    await connection.close()


async def test_whoever_was_given_the_schema_needs_no_right_to_make_one(
    empty_database: str, each_postgres: EmbeddedPostgres
) -> None:
    root = await asyncpg.connect(empty_database)
    if not await root.fetchval("SELECT 1 FROM pg_roles WHERE rolname = 'given'"):
        await root.execute("CREATE ROLE given LOGIN")
    await root.execute("CREATE SCHEMA streamworker AUTHORIZATION given")
    connection = await asyncpg.connect(empty_database.replace("postgres@", "given@", 1))

    assert await migrate.migrate(connection) == migrate.migrations()
    assert await tables(connection) == TABLES

    await connection.close()
    await root.close()


async def test_whoever_may_read_what_was_applied_may_ask_whether_something_is_missing(
    empty_database: str,
) -> None:
    root = await asyncpg.connect(empty_database)
    await migrate.migrate(root)
    if not await root.fetchval("SELECT 1 FROM pg_roles WHERE rolname = 'looker'"):
        await root.execute("CREATE ROLE looker LOGIN")
    await root.execute(
        "GRANT USAGE ON SCHEMA streamworker TO looker; GRANT SELECT ON streamworker.migrations TO looker"
    )
    connection = await asyncpg.connect(empty_database.replace("postgres@", "looker@", 1))

    assert await migrate.migrate(connection) == []

    await connection.close()
    await root.close()


async def test_a_database_that_cannot_hold_every_text_is_refused(each_postgres: EmbeddedPostgres) -> None:
    """Each job with a letter that it lacks went to `mirror_refused`."""
    root = await asyncpg.connect(each_postgres.dsn)
    await root.execute("DROP DATABASE IF EXISTS narrow")
    await root.execute(
        "CREATE DATABASE narrow ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    connection = await asyncpg.connect(each_postgres.dsn_of("postgres", "narrow"))

    with pytest.raises(asyncpg.RaiseError, match="the encoding of database narrow is LATIN1"):
        await migrate.migrate(connection)

    assert await connection.fetchval("SELECT to_regnamespace('streamworker')") is None
    await connection.close()
    await root.close()


async def test_a_file_that_was_changed_after_it_was_applied_is_refused(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(empty_database)
    await migrate.migrate(connection)
    first, *others = migrate.migrations()
    changed = Migration(first.number, first.name, first.sql + "-- more")
    monkeypatch.setattr(migrate, "migrations", lambda: [changed, *others])

    with pytest.raises(MigrationError, match=r"0001_record\.sql was applied in another form"):
        await migrate.migrate(connection)
    await connection.close()


async def test_a_schema_of_a_newer_version_is_refused(empty_database: str) -> None:
    connection = await asyncpg.connect(empty_database)
    await migrate.migrate(connection)
    await connection.execute(
        "INSERT INTO streamworker.migrations (number, name, checksum) VALUES (99, 'later', '')"
    )

    with pytest.raises(MigrationError, match="migration 99"):
        await migrate.migrate(connection)
    with pytest.raises(PostgresUnavailable, match="migration 99") as waited:  # a release was taken back
        await migrate.require(connection)
    assert waited.value.kind == "schema"
    await connection.close()


@pytest.mark.parametrize(
    ("later", "usable"), [([4], True), ([4, 4], True), ([4, 5], False), ([None, 4], False), ([None], False)]
)
async def test_a_release_goes_on_beside_what_was_only_added_and_says_so_once(
    dsn: str, later: list[int | None], usable: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Else the mirrors of before a rolling deploy stand still until its end."""
    connection = await asyncpg.connect(dsn)
    old = migrate.migrations()[:4]
    said = ["" if number is None else f"-- Adds.\n-- usable from {number}\n" for number in later]
    new = [Migration(5 + n, "more", f"{line}SELECT 1") for n, line in enumerate(said)]
    monkeypatch.setattr(migrate, "migrations", lambda: [*old, *new])
    await migrate.migrate(connection)
    monkeypatch.setattr(migrate, "migrations", lambda: old)
    migrate._say_once.cache_clear()

    if usable:
        for _ in range(2):
            await migrate.require(connection)
        found = f"the schema has migration {4 + len(later)}, this version knows 4 and goes on with it"
        assert [each.message for each in caplog.records] == [f"Postgres: {found}: finish the upgrade"]
        assert await migrate.migrate(connection) == []
    else:
        with pytest.raises(PostgresUnavailable, match="use the newer version"):
            await migrate.require(connection)
    await connection.close()


async def test_what_was_migrated_before_that_was_written_down_is_brought_up_to_date(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("ALTER TABLE streamworker.migrations DROP COLUMN usable_from")
    await migrate.require(connection)
    ours = migrate.migrations()
    monkeypatch.setattr(migrate, "migrations", lambda: [*ours, Migration(len(ours) + 1, "more", "SELECT 1")])

    assert len(await migrate.migrate(connection)) == 1
    await connection.close()


async def test_what_mirror_sql_prints_is_what_migrate_does(
    empty_database: str, each_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    script = tmp_path / "schema.sql"
    script.write_text(migrate.render())
    psql = find_postgres() / "psql"

    command = [str(psql), "-q", "-v", "ON_ERROR_STOP=1", "-f", str(script), empty_database]
    await asyncio.to_thread(subprocess.check_call, command)

    connection = await asyncpg.connect(empty_database)
    assert await migrate.migrate(connection) == []
    assert await tables(connection) == TABLES
    await connection.close()


async def test_a_day_is_made_once_and_old_days_go(empty_database: str) -> None:
    import datetime

    connection = await asyncpg.connect(empty_database)
    await migrate.migrate(connection)
    days = [datetime.date(2026, 7, each) for each in (30, 31)] + [datetime.date(2026, 8, 1)]

    made = [await connection.fetchval("SELECT streamworker.ensure_day($1)", day) for day in days * 2]
    gone = await connection.fetch("SELECT streamworker.drop_days_before($1) AS day", days[2])

    assert made == [True] * 3 + [False] * 3
    assert [row["day"] for row in gone] == days[:2]
    assert {name for name in await tables(connection) if "2026" in name} == {"job_transitions_20260801"}
    await connection.close()
