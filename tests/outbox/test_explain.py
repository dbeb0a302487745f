"""Of a job that Redis has no record of, `explain` and `jobs show` say what Postgres and the log know."""

from __future__ import annotations

import asyncpg
import pytest

from streamworker import App, enqueue_in
from streamworker.ops import inspect
from streamworker.ops.explain import Explanation, explain
from tests.integration.serving import serving
from tests.outbox.conftest import Relaying


async def committed(app: App, sql: asyncpg.Connection) -> str:
    async with sql.transaction():
        return (await enqueue_in(sql, app.tasks["ship"].call(7))).id


async def forget(app: App, job_id: str) -> None:
    queue = app.queue()
    await queue.caller.command("DEL", queue.keys.job(job_id), queue.keys.body(job_id))


async def found(app: App, job_id: str) -> Explanation:
    return await explain(app.queue(), job_id, sample=0)


async def test_it_waits_in_the_outbox(app: App, sql: asyncpg.Connection) -> None:
    job_id = await committed(app, sql)

    told = await found(app, job_id)

    assert (told.status, told.answer.why) == ("queued", "in_outbox")
    assert "streamworker outbox list" in told.answer.do
    assert "fail" not in " ".join(told.answer.says)


@pytest.mark.parametrize(("reason", "why"), [("claimed", "missing"), ("unseen", "unseen")])
async def test_postgres_has_it_as_open_and_redis_does_not_know_it(
    app: App, sql: asyncpg.Connection, reason: str, why: str
) -> None:
    job_id = await committed(app, sql)
    await sql.execute("UPDATE streamworker.jobs SET version = 2, status = 'claimed', reason = $1", reason)

    told = await found(app, job_id)

    assert (told.status, told.answer.why) == ("claimed", why)
    assert "failed for good" not in " ".join(told.answer.says)
    assert ("streamworker mirror reconcile --dry-run" in told.answer.do) == (why == "missing")


async def test_the_log_knows_the_end_that_postgres_has_not_read(
    app: App, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    """The mirror is behind, and the record has expired meanwhile."""
    job_id = await committed(app, sql)
    await relaying()
    async with serving(app):
        assert await app.handle(job_id).result(10) == 7
    await forget(app, job_id)

    told, shown = await found(app, job_id), await inspect.show(app.queue(), job_id)

    assert (told.status, told.answer.why) == ("succeeded", "succeeded")
    assert (shown["status"], shown["attempt"]) == ("succeeded", 1)
    assert shown["finished_at"] is not None
