"""Who cancels a job that Redis has no record of is told what Postgres knows of it."""

from __future__ import annotations

import asyncio
from functools import partial

import asyncpg
import pytest

from streamworker import App, SyncClient, enqueue_in
from streamworker.core.errors import JobNotFound
from tests.integration.cli_desk import Desk


async def test_a_job_that_waits_in_the_outbox_is_not_unknown(
    app: App, sql: asyncpg.Connection, dsn: str
) -> None:
    """It would run, after its producer had read that it was never enqueued."""
    job = await enqueue_in(sql, app.tasks["ship"].call(7))

    with pytest.raises(JobNotFound, match="waits in the outbox"):
        await job.cancel()
    with (
        SyncClient(app.settings.redis_url, app=app.settings.namespace, postgres_dsn=dsn) as client,
        pytest.raises(JobNotFound, match="waits in the outbox"),
    ):
        await asyncio.to_thread(client.cancel, job.id)
    assert await job.status() == "queued"


async def test_a_job_that_is_over_for_long_is_over(
    app: App, sql: asyncpg.Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that ended a moment ago: the record of which expires after 15 minutes."""
    monkeypatch.setenv("STREAMWORKER_POSTGRES_DSN", dsn)
    job = await enqueue_in(sql, app.tasks["ship"].call(7))
    await sql.execute("UPDATE streamworker.jobs SET status = 'succeeded', version = 4")

    assert await job.cancel() is False
    with SyncClient(app.settings.redis_url, app=app.settings.namespace, postgres_dsn=dsn) as client:
        assert await asyncio.to_thread(client.cancel, job.id) is False
    with Desk(app.settings.redis_url, app.settings.namespace) as desk:
        said = await asyncio.to_thread(partial(desk.call, "jobs", "cancel", job.id, code=1))
    assert "is over already: succeeded" in said.stderr
