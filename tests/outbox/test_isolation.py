"""A relay whose role an admin has set to look at the database as it stood when its transaction began."""

from __future__ import annotations

from urllib.parse import urlsplit

import asyncpg
import pytest

from streamworker import App, enqueue_in
from streamworker.outbox.doubt import Doubt
from streamworker.outbox.relay import relay_all


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_what_the_mirror_writes_while_a_relay_is_in_doubt_is_seen(
    app: App, sql: asyncpg.Connection, dsn: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job had run, and Redis had forgotten it: it was told again, and ran again."""
    await sql.execute(
        f"ALTER DATABASE {urlsplit(dsn).path[1:]} SET default_transaction_isolation = '{level}'"
    )
    async with sql.transaction():
        job = await enqueue_in(sql, app.tasks["ship"].call(1))
    await sql.execute("UPDATE streamworker.outbox SET attempted_at = now() - interval '20 min'")
    await sql.execute(
        "INSERT INTO streamworker.mirror_offsets (namespace, shard, marker) VALUES ($1, 0, 'm')",
        app.settings.namespace,
    )

    async def read_up(self: Doubt) -> bool:
        """The mirror comes to the end of the log only now."""
        await sql.execute("UPDATE streamworker.jobs SET version = 4, status = 'succeeded'")
        return True

    monkeypatch.setattr(Doubt, "_read_up", read_up)
    assert await relay_all(app.settings, dsn, "test") == 1

    queue = app.queue()
    assert await queue.caller.command("EXISTS", queue.keys.job(job.id)) == 0
    assert await sql.fetchval("SELECT outcome FROM streamworker.outbox") == "ACCEPTED"
