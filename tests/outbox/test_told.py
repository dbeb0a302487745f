"""A job of the outbox after Redis was told of it, where no mirror reads what becomes of it."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from streamworker import App, Job, JobMissing, SyncClient, enqueue_in
from streamworker.postgres import lookup
from streamworker.postgres.lookup import Remembered
from streamworker.settings import Settings
from tests.integration.serving import serving
from tests.outbox.conftest import Relaying
from tests.outbox.test_explain import forget, found


async def test_a_job_that_redis_has_forgotten_waits_in_no_outbox(
    app: App, sql: asyncpg.Connection, dsn: str, relaying: Relaying
) -> None:
    """It was queued for ever, and who asked for its result waited for ever."""
    job = await enqueue_in(sql, app.tasks["ship"].call(7))
    await relaying()
    async with serving(app):
        assert await job.result(10) == 7
    await forget(app, job.id)

    for asked in (job.result(5), job.status(), job.cancel()):
        with pytest.raises(JobMissing, match="has ended, or was lost, and no mirror"):
            await asked
    with (
        SyncClient(app.settings.redis_url, app=app.settings.namespace, postgres_dsn=dsn) as client,
        pytest.raises(JobMissing, match="no mirror"),
    ):
        await asyncio.to_thread(client.result, job.id, timeout=5)
    assert (await found(app, job.id)).answer.why in ("unseen", "succeeded")


@pytest.mark.parametrize("asked", ["result", "status", "cancel"])
async def test_a_relay_that_comes_between_two_looks_makes_no_job_missing(
    app: App, sql: asyncpg.Connection, relaying: Relaying, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Redis was asked before it was told, Postgres after that: Redis is asked again."""
    job: Job[int] = await enqueue_in(sql, app.tasks["ship"].call(7))
    find = lookup.find

    async def late(settings: Settings, job_id: str, *, moves: bool = True) -> Remembered | None:
        await relaying()
        return await find(settings, job_id, moves=moves)

    monkeypatch.setattr(lookup, "find", late)
    if asked == "result":
        async with serving(app):
            assert await job.result(10) == 7
    else:
        assert await getattr(job, asked)() == {"status": "queued", "cancel": True}[asked]
