"""What `doctor` says of an outbox: nobody relays it, Redis does not take it, some is put aside."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from streamworker import App, enqueue_in
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.ops.checks import Severity
from streamworker.ops.outbox_checks import STUCK_AFTER, judge, outbox
from streamworker.outbox.depth import Depth
from tests.integration.cli_desk import Desk
from tests.outbox.conftest import Relaying
from tests.postgres.conftest import fresh_database
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


async def test_a_postgres_that_does_not_answer_is_a_warning_and_one_without_outbox_is_none(
    app: App, postgres: EmbeddedPostgres
) -> None:
    (found,) = await outbox(replace(app.settings, postgres_dsn="postgresql://u@127.0.0.1:1/nothing"))
    assert found.severity is Severity.WARNING

    assert await outbox(replace(app.settings, postgres_dsn=await fresh_database(postgres))) == []
    assert await outbox(replace(app.settings, postgres_dsn=None)) == []
