"""What `doctor` says of an outbox: nobody relays it, Redis does not take it, some is put aside."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from streamworker import App, enqueue_in
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.ops import postgres_checks
from streamworker.ops.checks import Severity
from streamworker.ops.outbox_checks import STUCK_AFTER, judge, outbox
from streamworker.outbox.depth import Depth
from streamworker.postgres.migrate import migrations
from tests.integration.cli_desk import Desk
from tests.outbox.conftest import Relaying
from tests.postgres.conftest import each_postgres as each_postgres
from tests.postgres.conftest import fresh_database
from tests.postgres.test_rights import Roles
from tests.postgres.test_rights import roles as roles
from tests.servers import BenchServer


@pytest.mark.parametrize(
    ("depth", "severity", "words"),
    [
        (Depth(), Severity.OK, "no request waits"),
        (Depth(3, lag_seconds=STUCK_AFTER), Severity.OK, "3 requests wait for a relay, the first for 1m"),
        (Depth(1, lag_seconds=STUCK_AFTER + 1), Severity.PROBLEM, "no relay has tried it"),
        (Depth(1, lag_seconds=90, attempts=4), Severity.PROBLEM, "tried 4 times: Redis is away"),
        (Depth(1, lag_seconds=90, attempts=4, error="too big"), Severity.PROBLEM, "tried 4 times: too big"),
    ],
)
def test_a_request_that_waits_too_long_is_a_problem(depth: Depth, severity: Severity, words: str) -> None:
    (found,) = judge(depth)

    assert found.severity is severity
    assert words in found.found
    assert bool(found.advice) is (severity is not Severity.OK)


def test_what_was_put_aside_is_told_beside_the_rest() -> None:
    waiting, aside = judge(Depth(pending=100_000, refused=2))

    assert waiting.severity is Severity.OK
    assert waiting.found.startswith("100000 or more requests")
    assert (aside.severity, aside.found[:10]) == (Severity.WARNING, "2 requests")


async def test_doctor_looks_at_the_outbox_of_its_namespace(
    app: App,
    sql: asyncpg.Connection,
    dsn: str,
    valkey: BenchServer,
    relaying: Relaying,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAMWORKER_POSTGRES_DSN", dsn)
    async with sql.transaction():
        await enqueue_in(sql, app.tasks["ship"].call(1))
    await sql.execute("UPDATE streamworker.outbox SET created_at = now() - interval '5 min'")

    def ask() -> dict[str, Any]:
        with Desk(valkey.url, app.settings.namespace) as desk:
            rows = desk.json("doctor", code=1)["checks"]
        (found,) = (row for row in rows if row["check"] == "outbox")
        return found

    found = await asyncio.to_thread(ask)
    assert found["severity"] == "problem"
    assert "no relay has tried it" in found["found"]

    await relaying()
    found = await asyncio.to_thread(ask)
    assert found["severity"] == "ok"


async def test_a_postgres_that_does_not_answer_is_a_warning_and_none_is_nothing(app: App) -> None:
    (found,) = await outbox(replace(app.settings, postgres_dsn="postgresql://u@127.0.0.1:1/nothing"))
    assert found.severity is Severity.WARNING

    assert await outbox(replace(app.settings, postgres_dsn=None)) == []


async def test_a_schema_that_is_missing_is_a_problem_that_migrate_mends(
    app: App, postgres: EmbeddedPostgres, valkey: BenchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = await fresh_database(postgres)
    monkeypatch.setenv("STREAMWORKER_POSTGRES_DSN", dsn)

    def ask() -> list[dict[str, Any]]:
        with Desk(valkey.url, app.settings.namespace) as desk:
            rows = desk.json("doctor", code=1)["checks"]
        return [row for row in rows if row["check"] in ("postgres", "outbox")]

    (found,) = await asyncio.to_thread(ask)
    assert (found["check"], found["severity"]) == ("postgres", "problem")
    assert "has no schema of ours" in found["found"]
    assert "`streamworker mirror migrate`" in found["advice"]


async def test_who_may_not_read_the_migrations_says_nothing_of_them(app: App, roles: Roles) -> None:
    (found,) = await outbox(replace(app.settings, postgres_dsn=roles.dsn("app")))

    assert (found.check, found.severity) == ("outbox", Severity.OK)


async def test_a_schema_that_is_behind_or_ahead_is_a_problem(
    app: App, sql: asyncpg.Connection, dsn: str
) -> None:
    settings = replace(app.settings, postgres_dsn=dsn)

    async def checks() -> list[tuple[str, str, str]]:
        return [(each.check, str(each.severity), each.found) for each in await outbox(settings)]

    good = [("outbox", "ok", "no request waits for a relay")]
    assert await checks() == good

    await sql.execute("DELETE FROM streamworker.migrations WHERE number = 4")
    (behind, *rest) = await checks()
    assert (behind[0], behind[1], "0004_days" in behind[2]) == ("postgres", "problem", True)
    assert rest == good
    await sql.execute("INSERT INTO streamworker.migrations VALUES (4, 'x', 'y'), (5, 'next', 'z')")
    (ahead, *rest) = await checks()
    assert (ahead[0], ahead[1], "has migration 5" in ahead[2]) == ("postgres", "problem", True)
    assert rest == good
    right = next(each.checksum for each in migrations() if each.number == 4)
    await sql.execute("UPDATE streamworker.migrations SET checksum = $1 WHERE number = 4", right)
    await sql.execute("UPDATE streamworker.migrations SET usable_from = 4 WHERE number = 5")
    (ahead, *rest) = await checks()
    assert (ahead[0], ahead[1], "goes on with it" in ahead[2]) == ("postgres", "warning", True)
    assert rest == good


async def test_what_the_mirror_kept_aside_is_told_while_it_stands(
    app: App, sql: asyncpg.Connection, dsn: str
) -> None:
    settings = replace(app.settings, postgres_dsn=dsn)
    await sql.execute(
        "INSERT INTO streamworker.mirror_refused (namespace, shard, entry, data, reason) "
        "SELECT each, 0, '1-0', '', 'so' FROM unnest($1::text[]) AS each", [settings.namespace, "other"],
    )  # fmt: skip

    (aside, _) = await outbox(settings)

    assert (aside.check, aside.severity) == ("kept aside", Severity.WARNING)
    assert aside.found.startswith("0 moves in mirror_conflicts")
    assert "1 row in mirror_refused" in aside.found


async def test_who_keeps_an_old_transaction_open_is_named(
    app: App, sql: asyncpg.Connection, dsn: str, roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is updated, as the mirror's place is with each batch, gets slower until it ends."""
    settings = replace(app.settings, postgres_dsn=dsn)
    pid = await sql.fetchval("SELECT pg_backend_pid()")
    async with sql.transaction(isolation="repeatable_read"):
        await sql.execute("SELECT count(*) FROM streamworker.jobs")
        assert [each.check for each in await outbox(settings)] == ["outbox"], "it is young"
        monkeypatch.setattr(postgres_checks, "LONG_SECONDS", 0.0)

        (held, _) = await outbox(settings)

        assert (held.check, held.severity) == ("vacuum", Severity.WARNING)
        assert held.found.startswith(f"process {pid} of postgres (")
        # Another role is not told since when.
        app_role = await asyncpg.connect(dsn.replace("postgres@", "streamworker_app@", 1))
        monkeypatch.setattr(postgres_checks, "LONG_AGE", 0)
        finding = await postgres_checks._holder(app_role)
        assert finding is not None
        assert "keeps a transaction open for " in finding.found
        await app_role.close()
