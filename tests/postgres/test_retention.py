"""What is too old goes, and nothing that is open goes with it."""

from __future__ import annotations

import asyncio
import datetime
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from streamworker.core.ids import new_job_id
from streamworker.postgres import mirror, offsets, retention
from streamworker.postgres.batch import Batch
from streamworker.postgres.connection import connect
from streamworker.postgres.retention import prune
from streamworker.postgres.writer import Writer
from streamworker.settings import Settings
from tests.postgres.journal import NOON, Journal, claimed, failed, succeeded
from tests.servers import BenchServer

DAY_MS = 86_400_000
LATER = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


async def test_old_days_and_jobs_that_ended_before_go_and_the_rest_stays(sql: asyncpg.Connection) -> None:
    offset = await offsets.begin(sql, "shop", 0, "marker")
    old_over, old_open, young = (
        new_job_id(now_ms=NOON + days * DAY_MS, random=number.to_bytes(8))
        for number, days in enumerate((0, 0, 9))
    )
    batch, journal = Batch(), Journal()
    for entry in (
        journal.enqueued(old_over, old_open),
        journal.entry(claimed(old_over)),
        journal.entry(succeeded(old_over)),
        journal.enqueued(young, after_ms=9 * DAY_MS),
        journal.entry(claimed(young)),
        journal.entry(succeeded(young)),
    ):
        batch.add(*entry)
    await Writer(sql, "m").write(batch, offset)
    now = datetime.datetime.fromtimestamp(NOON / 1000 + 10 * 86_400, datetime.UTC)

    pruned = await prune(sql, "shop", keep=datetime.timedelta(days=5), now=now)
    again = await prune(sql, "shop", keep=datetime.timedelta(days=5), now=now)

    assert ([str(day) for day in pruned.days], pruned.jobs) == (["2026-07-24"], 1)
    assert (again.days, again.jobs) == ((), 0)
    jobs = await sql.fetch("SELECT id::text FROM streamworker.jobs")
    assert {row["id"] for row in jobs} == {old_open, young}
    moves = await sql.fetch("SELECT DISTINCT job_id::text AS id FROM streamworker.job_transitions")
    assert {row["id"] for row in moves} == {young}


async def ended(sql: asyncpg.Connection, namespace: str, count: int) -> None:
    """Jobs that ended long before `LATER`."""
    offset = await offsets.begin(sql, namespace, 0, "marker")
    batch, journal = Batch(), Journal()
    for number in range(count):
        job = new_job_id(now_ms=NOON, random=number.to_bytes(8))
        for entry in (journal.enqueued(job), journal.entry(claimed(job)), journal.entry(succeeded(job))):
            batch.add(*entry)
    await Writer(sql, "m").write(batch, offset)


async def test_a_dead_letter_of_which_nobody_decided_stays_as_long_as_redis_has_it(
    sql: asyncpg.Connection,
) -> None:
    """By a shorter retention they went first: a replayed one had no task, and was lost with Redis."""
    offset = await offsets.begin(sql, "shop", 0, "marker")
    batch, journal = Batch(), Journal()
    undecided, discarded, quiet = (new_job_id(now_ms=NOON, random=bytes([n] * 8)) for n in range(3))
    for job, code in ((undecided, "broken"), (discarded, "broken"), (quiet, "cancelled")):
        batch.add(*journal.enqueued(job))
        batch.add(*journal.entry(claimed(job)))
        batch.add(*journal.entry(failed(job, code=code)))
    batch.add(*journal.entry(script="discard", actor="ann@ops", audit=f"{discarded} 0 discarded"))
    await Writer(sql, "m").write(batch, offset)
    keep, noon = datetime.timedelta(days=5), datetime.datetime.fromtimestamp(NOON / 1000, datetime.UTC)

    async def left(days: int) -> list[str]:
        await prune(sql, "shop", keep=keep, now=noon + datetime.timedelta(days=days))
        return [row["id"] for row in await sql.fetch("SELECT id::text FROM streamworker.jobs ORDER BY id")]

    assert len(await left(4)) == 3
    assert await left(29) == [undecided]
    assert await left(31) == []


async def test_what_operators_did_to_jobs_goes_with_them_and_what_they_set_stays(
    sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cancel is a word of an operator, also a program's."""
    monkeypatch.setattr(retention, "CHUNK", 2)
    jobs = [new_job_id(now_ms=NOON, random=bytes([n] * 8)) for n in range(5)]
    await sql.executemany(
        "INSERT INTO streamworker.operator_actions (namespace, shard, at, actor, action, subject, detail) "
        "VALUES ('shop', 0, to_timestamp($1::float8), 'ann@ops', $2, $3, '')",
        [*((NOON / 1000, "cancelled", job) for job in jobs), (NOON / 1000, "pause", "lane:normal"),
         (NOON / 1000 + 86_400 * 40, "cancelled", jobs[0])],
    )  # fmt: skip
    keep, noon = datetime.timedelta(days=5), datetime.datetime.fromtimestamp(NOON / 1000, datetime.UTC)

    async def pruned(days: int) -> tuple[int, bool]:
        done = await prune(sql, "shop", keep=keep, now=noon + datetime.timedelta(days=days), seconds=0)
        return done.actions, done.more

    assert await pruned(29) == (0, False)
    assert [await pruned(31) for _ in range(3)] == [(2, True), (2, True), (1, False)]
    left = await sql.fetch("SELECT action FROM streamworker.operator_actions ORDER BY at")
    assert [row["action"] for row in left] == ["pause", "cancelled"]


async def test_what_was_kept_aside_goes_after_the_retention_of_moves(sql: asyncpg.Connection) -> None:
    """It stayed for ever."""
    noon = datetime.datetime.fromtimestamp(NOON / 1000, datetime.UTC)
    times = [
        (namespace, noon + datetime.timedelta(days=day)) for namespace in ("shop", "bank") for day in (0, 3)
    ]
    await sql.executemany(
        "INSERT INTO streamworker.mirror_conflicts (noticed_at, namespace, shard, job_id, epoch, version, "
        "at, entry, move) VALUES ($2, $1, 0, gen_random_uuid(), 0, 1, now(), '1-0', '')", times,
    )  # fmt: skip
    await sql.executemany(
        "INSERT INTO streamworker.mirror_refused (refused_at, namespace, shard, entry, data, reason) "
        "VALUES ($2, $1, 0, '1-0', '', 'so')", times,
    )  # fmt: skip

    done = await prune(sql, "shop", keep=datetime.timedelta(days=5), now=noon + datetime.timedelta(days=6))

    assert (done.conflicts, done.refused, done.more) == (1, 1, False)
    assert await sql.fetchval("SELECT count(*) FROM streamworker.mirror_conflicts") == 3
    assert await sql.fetchval("SELECT count(*) FROM streamworker.mirror_refused") == 3


async def test_where_the_right_is_missing_words_stay_and_the_mirror_goes_on(
    sql: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Roles that were made by an older version of the docs."""
    await ended(sql, "shop", 1)
    await sql.execute("CREATE ROLE older; GRANT USAGE ON SCHEMA streamworker TO older")
    await sql.execute("GRANT SELECT, DELETE ON ALL TABLES IN SCHEMA streamworker TO older")
    await sql.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA streamworker TO older")
    for table in ("operator_actions", "mirror_conflicts", "mirror_refused"):
        await sql.execute(f"REVOKE DELETE ON streamworker.{table} FROM older")
    await sql.execute("SET ROLE older")

    pruned = await prune(sql, "shop", keep=datetime.timedelta(days=5), now=LATER)

    assert (pruned.jobs, pruned.more) == (1, False)
    assert "permission denied for table operator_actions" in caplog.text
    assert "permission denied for table mirror_refused" in caplog.text
    await sql.execute("RESET ROLE; DROP OWNED BY older; DROP ROLE older")


async def test_a_job_whose_end_nobody_knows_goes_as_well(sql: asyncpg.Connection) -> None:
    """Of no row that is open for ever anybody takes leave."""
    offset = await offsets.begin(sql, "shop", 0, "marker")
    batch, job = Batch(), new_job_id(now_ms=NOON, random=bytes(8))
    batch.add(*Journal().enqueued(job))
    await Writer(sql, "m").write(batch, offset)
    keep, noon = datetime.timedelta(days=5), datetime.datetime.fromtimestamp(NOON / 1000, datetime.UTC)

    assert (await prune(sql, "shop", keep=keep, now=LATER)).jobs == 0
    await sql.execute("UPDATE streamworker.jobs SET reason = 'unseen', updated_at = $1", noon)

    assert (await prune(sql, "shop", keep=keep, now=noon + datetime.timedelta(days=4))).jobs == 0
    assert (await prune(sql, "shop", keep=keep, now=noon + datetime.timedelta(days=6))).jobs == 1


async def test_another_namespaces_jobs_are_its_own_to_delete(sql: asyncpg.Connection) -> None:
    await ended(sql, "bank", 1)

    pruned = await prune(sql, "shop", keep=datetime.timedelta(days=5), now=LATER)

    assert pruned.jobs == 0
    assert await sql.fetchval("SELECT count(*) FROM streamworker.jobs") == 1


async def test_what_is_too_old_goes_in_steps_that_keep_the_log_waiting_for_a_moment_each(
    sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CHUNK", 2)
    await ended(sql, "shop", 5)
    left, reached = [], retention.BEGINNING
    for _ in range(3):
        keep = datetime.timedelta(days=5)
        pruned = await prune(sql, "shop", keep=keep, now=LATER, seconds=0, after=reached)
        reached = pruned.reached
        left.append((pruned.jobs, pruned.more))

    assert left == [(2, True), (2, True), (1, False)]


async def test_who_reads_old_days_keeps_no_old_job(dsn: str, sql: asyncpg.Connection) -> None:
    """The days stay until the next look; the mirror took it for a Postgres that is away."""
    await ended(sql, "shop", 1)
    await sql.execute("ALTER FUNCTION streamworker.drop_days_before(date) SET lock_timeout = '50ms'")
    reader = await asyncpg.connect(dsn)
    await reader.execute("BEGIN; SELECT count(*) FROM streamworker.job_transitions")

    pruned = await prune(sql, "shop", keep=datetime.timedelta(days=5), now=LATER)

    assert (pruned.days, pruned.jobs) == ((), 1)
    await reader.close()


async def test_a_view_of_an_old_day_keeps_no_old_job(
    sql: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await ended(sql, "shop", 1)
    await sql.execute("CREATE VIEW mine AS SELECT * FROM streamworker.job_transitions_20260724")

    pruned = await prune(sql, "shop", keep=datetime.timedelta(days=5), now=LATER)

    assert (pruned.days, pruned.jobs) == ((), 1)
    assert "because other objects depend on it" in caplog.text


async def test_old_days_go_where_backslashes_escape(dsn: str, sql: asyncpg.Connection) -> None:
    """As databases have it whose programs are older than 2010: no day had a name that ours look for."""
    await ended(sql, "shop", 1)
    await sql.execute(f"ALTER DATABASE {urlsplit(dsn).path[1:]} SET standard_conforming_strings = off")
    connection = await connect(dsn)

    pruned = await prune(connection, "shop", keep=datetime.timedelta(days=5), now=LATER)

    assert len(pruned.days) == 1
    await connection.close()


async def test_who_reads_all_days_keeps_no_new_day_waiting(dsn: str, sql: asyncpg.Connection) -> None:
    """Such as pg_dump, which holds its locks for as long as it takes."""
    await sql.execute("SELECT streamworker.ensure_day('2026-07-24')")
    reader = await asyncpg.connect(dsn)
    await reader.execute("BEGIN; SELECT count(*) FROM streamworker.job_transitions")

    async with asyncio.timeout(5):
        assert await sql.fetchval("SELECT streamworker.ensure_day('2026-07-25')")

    await reader.close()


async def test_a_clock_that_is_ahead_throws_nothing_away(
    dsn: str, sql: asyncpg.Connection, valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the mirror's machine, while Redis has the right time."""
    offset = await offsets.begin(sql, namespace, 0, "marker")
    batch, journal = Batch(), Journal(at_ms=int(time.time() * 1000))
    job = new_job_id(now_ms=journal.at_ms, random=bytes(8))
    for entry in (journal.enqueued(job), journal.entry(claimed(job)), journal.entry(succeeded(job))):
        batch.add(*entry)
    writer = Writer(sql, "m")
    await writer.write(batch, offset)
    ahead = SimpleNamespace(time=lambda: time.time() + 90 * 86_400, monotonic=time.monotonic)
    monkeypatch.setattr(mirror, "time", ahead)
    one = mirror.Mirror(Settings(namespace, valkey.url), dsn, "m")
    pipe: Any = SimpleNamespace(writer=writer)

    await one._prune(sql, pipe)

    assert await sql.fetchval("SELECT count(*) FROM streamworker.job_transitions") == 4
    assert await sql.fetchval("SELECT count(*) FROM streamworker.jobs") == 1
    await one._caller.close()
