"""What an admin may set for the role or the database, and what is written all the same."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import asyncpg
import pytest

from streamworker.postgres import migrate
from tests.postgres.stage import PATIENCE, Stage
from tests.waiting import wait_until_async

#: How values are read and shown, how long things may take, and what a transaction sees.
SETTINGS = {
    "array_nulls": "off",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "DateStyle": "SQL, DMY",
    "default_transaction_isolation": "serializable",
    "extra_float_digits": "-10",
    "idle_in_transaction_session_timeout": "1s",
    "IntervalStyle": "sql_standard",
    "lock_timeout": "100ms",
    "plan_cache_mode": "force_generic_plan",
    "plpgsql.extra_errors": "all",
    "plpgsql.variable_conflict": "use_column",
    "quote_all_identifiers": "on",
    "search_path": "",
    "session_replication_role": "replica",
    "standard_conforming_strings": "off",
    "statement_timeout": "5s",
    "TimeZone": "Asia/Kathmandu",
    "transform_null_equals": "on",
}


async def set_all(sql: asyncpg.Connection, database: str) -> None:
    for name, value in SETTINGS.items():
        await sql.execute(f"ALTER DATABASE {database} SET {name} = '{value}'")


@pytest.mark.timeout(PATIENCE * 2)
async def test_the_mirror_writes_the_same_whatever_is_set(stage: Stage) -> None:
    async with stage.sql() as sql:
        await set_all(sql, "postgres")
    mirror = stage.mirror_that_is_on()
    stage.worker()

    await stage.enqueue(200)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="all is over and mirrored")

    assert await stage.differences() == []
    assert await stage.odd_due_times() == []
    async with stage.sql() as sql:
        strange = await sql.fetch(
            "SELECT id FROM streamworker.jobs WHERE payload_json IS DISTINCT FROM "
            "convert_from(payload, 'UTF8')::jsonb OR finished_at < enqueued_at "
            "OR abs(extract(epoch FROM now() - updated_at)) > 600"
        )
        assert strange == []
        assert await sql.fetchval("SELECT count(*) FROM streamworker.mirror_refused") == 0
    assert "WARNING" not in mirror.log()


async def test_runners_wait_for_each_other_whatever_a_transaction_sees(empty_database: str) -> None:
    """Who had waited saw the schema as it was before, and made it once more."""
    first = await asyncpg.connect(empty_database)
    await set_all(first, urlsplit(empty_database).path[1:])
    connections = [await asyncpg.connect(empty_database) for _ in range(3)]

    await first.execute("SELECT pg_advisory_lock($1)", migrate.LOCK)
    for each in connections:
        await each.execute("SET lock_timeout = 0")
    running = [asyncio.create_task(migrate.migrate(each)) for each in connections]
    waiting = "SELECT count(*) = 3 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    await wait_until_async(lambda: first.fetchval(waiting), what="all of them wait")
    await first.execute("SELECT pg_advisory_unlock($1)", migrate.LOCK)

    assert sorted(len(each) for each in await asyncio.gather(*running)) == [0, 0, len(migrate.migrations())]
    for each in (first, *connections):
        await each.close()
