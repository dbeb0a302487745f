"""The relay: each committed request becomes one job, whatever is refused, away, old, or told twice."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import asyncpg
import pytest

from streamworker import App, Job, ResultTimeout, SyncClient, enqueue_in
from streamworker.core.states import Disposition, Status
from streamworker.outbox import relay as relays
from streamworker.outbox import table, waiting
from streamworker.outbox.depth import measure
from streamworker.outbox.relay import Relay
from streamworker.postgres.connection import connect
from streamworker.store import placing
from tests.integration.serving import serving
from tests.outbox.conftest import Relaying
from tests.servers import ServerFactory
from tests.waiting import wait_until_async

#: As if a relay had died after it had told Redis of that one, or before.
MARK_FIRST = """UPDATE streamworker.outbox SET attempted_at = now() - interval '1 min'
WHERE id = (SELECT min(id) FROM streamworker.outbox)"""


async def ordered(app: App, sql: asyncpg.Connection, *orders: int, **options: Any) -> list[Job[Any]]:
    """Commit a request for each."""
    task = app.tasks["ship"].options(**options)
    async with sql.transaction():
        return [await enqueue_in(sql, task.call(order)) for order in orders]


async def test_a_request_that_was_told_and_not_noted_is_told_again_and_is_one_job(
    app: App, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    (job,) = await ordered(app, sql, 1)
    await relaying()
    await sql.execute("UPDATE streamworker.outbox SET published_at = NULL")  # it died before it could say so

    assert await relaying() == 1

    assert await app.queue().caller.command("XLEN", app.queue().keys.stream("normal", "a")) == 1
    assert await job.status() is Status.QUEUED


async def test_an_old_request_of_an_unknown_fate_waits_for_a_person_without_a_mirror(
    app: App, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    """Redis may have had it, run it, and forgotten it."""
    (job,) = await ordered(app, sql, 1)
    await sql.execute("UPDATE streamworker.outbox SET attempted_at = now() - interval '20 min', attempts = 1")

    assert await relaying() == 0
    (item,) = (await waiting.look(sql, app.settings.namespace, False, 10)).items
    assert (item["error"], item["refused"]) == (table.NO_MIRROR, False)

    assert await waiting.retry(sql, app.settings.namespace, None) == [job.id]
    assert await relaying() == 1


async def test_requests_that_wait_for_a_person_hold_up_no_others(
    app: App, sql: asyncpg.Connection, relaying: Relaying, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "BATCH", 2)
    *_, last = await ordered(app, sql, 1, 2, 3)
    await sql.execute("UPDATE streamworker.outbox SET attempted_at = now() - interval '20 min' WHERE id < 3")
    relay, connection = Relay(app.settings, dsn, "r"), await connect(dsn)

    for _ in range(3):
        await relay.round(connection)

    assert await app.queue().caller.command("EXISTS", app.queue().keys.job(last.id)) == 1
    attempts = await sql.fetch("SELECT attempts FROM streamworker.outbox")
    assert [row["attempts"] for row in attempts] == [1] * 3
    assert len(await waiting.retry(sql, app.settings.namespace, None)) == 2
    assert await relaying() == 2
    await connection.close()
    await relay._queue.close()


async def test_requests_that_are_rejected_hold_up_none_of_other_lanes_and_tenants(
    app: App, sql: asyncpg.Connection, relaying: Relaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round takes the first that wait: as many that were rejected again and again left no place in it."""
    monkeypatch.setattr(relays, "BATCH", 2)
    queue = app.queue()
    rules = "depth priority 0 reject\nthrottle tenant:acme 1,3600000,1 reject"
    await queue.caller.command("HSET", queue.keys.policies, "declared:admission", rules)
    first, *_ = await ordered(app, sql, 1, 2, 3, 4, tenant="acme")
    _, doubtful = await ordered(app, sql, 5, 6, lane="priority")
    others = [*await ordered(app, sql, 7), *await ordered(app, sql, 8, tenant="bank")]

    await sql.execute(
        "UPDATE streamworker.outbox SET attempted_at = now() - interval '1 min' WHERE job_id = $1::uuid",
        doubtful.id,
    )

    assert await relaying() == 3

    there = await queue.caller.command("MGET", *(queue.keys.job(each.id) for each in (first, *others)))
    assert all(there)
    waits = "SELECT count(*) FROM streamworker.outbox WHERE published_at IS NULL AND attempted_at IS NULL"
    assert await sql.fetchval(waits) == 4, "they certainly were not told; of one nobody knows"


async def test_what_was_put_aside_can_be_given_up(
    app: App, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    first, spoilt, aside = await ordered(app, sql, 1, 2, 3)
    await sql.executemany(
        "UPDATE streamworker.outbox SET extra = $2 WHERE job_id = $1::uuid",
        [(spoilt.id, "no such thing"), (aside.id, "[1]")],
    )
    await relaying()
    namespace = app.settings.namespace
    assert (await measure(sql, namespace)).refused == 2

    assert await waiting.discard(sql, "another", [spoilt.id]) == []
    assert await waiting.discard(sql, namespace, [first.id, spoilt.id]) == [spoilt.id], "no other one"

    assert (await measure(sql, namespace)).refused == 1
    assert await waiting.retry(sql, namespace, None) == [aside.id], "it cannot be tried again"
    assert await spoilt.status() is Status.FAILED_TERMINAL
    assert await first.status() is Status.QUEUED
    await table.prune(sql, namespace, datetime.timedelta(0), 10)
    assert await sql.fetchval("SELECT count(*) FROM streamworker.outbox") == 1


async def test_an_old_request_that_redis_still_knows_is_over(
    app: App, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    await ordered(app, sql, 1)
    await relaying()
    await sql.execute(
        "UPDATE streamworker.outbox SET published_at = NULL, attempted_at = now() - interval '20 min'"
    )

    assert await relaying() == 1

    assert await sql.fetchval("SELECT published_at IS NOT NULL FROM streamworker.outbox")


@pytest.mark.parametrize("mirrored", [False, True])
async def test_with_a_mirror_an_old_request_is_told_only_if_it_never_was(
    app: App, sql: asyncpg.Connection, relaying: Relaying, mirrored: bool
) -> None:
    (job,) = await ordered(app, sql, 1)
    await sql.execute("UPDATE streamworker.outbox SET attempted_at = now() - interval '20 min'")
    await sql.execute(
        "INSERT INTO streamworker.mirror_offsets (namespace, shard, marker) VALUES ($1, 0, 'm')",
        app.settings.namespace,
    )
    if mirrored:  # it has read that the job was there
        await sql.execute("UPDATE streamworker.jobs SET version = 4, status = 'succeeded'")

    assert await relaying() == 1

    there = await app.queue().caller.command("EXISTS", app.queue().keys.job(job.id))
    assert there == (0 if mirrored else 1)


async def test_while_the_mirror_is_behind_an_old_request_waits(
    app: App, sql: asyncpg.Connection, dsn: str
) -> None:
    (job,) = await ordered(app, sql, 1)
    await sql.execute("UPDATE streamworker.outbox SET attempted_at = now() - interval '20 min'")
    await sql.execute(
        "INSERT INTO streamworker.mirror_offsets (namespace, shard, marker) VALUES ($1, 0, 'm')",
        app.settings.namespace,
    )
    other = await app.tasks["ship"].enqueue(2)  # in the log, and not read
    connection = await connect(dsn)
    relay = Relay(app.settings, dsn, "r")

    assert await relay.round(connection) == 0
    assert "behind" in await sql.fetchval("SELECT error FROM streamworker.outbox")
    await app.queue().caller.command("DEL", app.queue().keys.events)  # read
    assert await relay.round(connection) == 1
    await ordered(app, sql, 1)
    await sql.execute("UPDATE streamworker.outbox SET attempted_at = now() - interval '20 min'")
    await app.tasks["ship"].enqueue(2)
    assert await relay.round(connection) == 0, "it is behind again"

    await connection.close()
    await relay._queue.close()
    assert await app.queue().caller.command("EXISTS", *map(app.queue().keys.job, (job.id, other.id))) == 2


async def test_a_request_whose_key_is_held_is_answered_by_that_job(
    app: App, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    task = app.tasks["ship"].options(key="k")
    first = await task.enqueue(1)
    async with sql.transaction():
        same = await enqueue_in(sql, task.call(1))
        other = await enqueue_in(sql, task.call(2))

    await relaying()

    rows = {str(row["job_id"]): row for row in await sql.fetch("SELECT * FROM streamworker.outbox")}
    assert rows[same.id]["outcome"] == f"{Disposition.DUPLICATE} {first.id}"
    assert rows[other.id]["refused_at"] is not None
    assert first.id in rows[other.id]["error"]
    ended = await sql.fetch("SELECT id::text, status, error_code FROM streamworker.jobs ORDER BY id")
    assert [tuple(row) for row in ended] == [
        (each, "failed_terminal", "superseded") for each in sorted((same.id, other.id))
    ]


async def test_what_redis_refuses_by_itself_is_put_aside_and_the_others_arrive(
    app: App, sql: asyncpg.Connection, dsn: str
) -> None:
    """A line break where a name belongs: the script raises for the whole call."""
    jobs = await ordered(app, sql, *range(6))
    bad = jobs[3].id
    rewrite = "UPDATE streamworker.outbox SET extra = $2 WHERE job_id = $1::uuid"
    await sql.execute(rewrite, bad, '{"tenant": "a\\nb"}')
    unknown = jobs[4].id
    await sql.execute(rewrite, unknown, '{"of_tomorrow": 1}')
    connection = await connect(dsn)
    relay = Relay(app.settings, dsn, "r")

    while await relay.round(connection) or not await _is_aside(sql, bad):
        pass

    await connection.close()
    await relay._queue.close()
    assert await app.queue().caller.command("XLEN", app.queue().keys.stream("normal", "a")) == 4
    aside = await sql.fetch(
        "SELECT job_id::text, attempts, error FROM streamworker.outbox WHERE published_at IS NULL"
    )
    found = {row["job_id"]: (row["attempts"], row["error"]) for row in aside}
    assert set(found) == {bad, unknown}
    assert found[bad][0] == 5
    assert found[unknown] == (1, "asks for of_tomorrow: use the newer version for the relay")


async def _is_aside(sql: asyncpg.Connection, job_id: str) -> bool:
    return bool(
        await sql.fetchval(
            "SELECT refused_at IS NOT NULL FROM streamworker.outbox WHERE job_id = $1::uuid", job_id
        )
    )


async def test_requests_of_one_entity_are_told_in_their_order_by_several_relays(
    app: App, sql: asyncpg.Connection, dsn: str
) -> None:
    @app.task(entity="order:{order}")
    async def move(ctx: Any, order: int, step: int) -> None: ...

    async with sql.transaction():
        for step in range(6):
            for order in (1, 2):
                await enqueue_in(sql, move.call(order, step))
    one, two = await connect(dsn), await connect(dsn)
    namespace = app.settings.namespace
    marked = await table.mark(sql, namespace, 3)  # orders 1, 2, 1
    async with one.transaction():
        mine = await table.lock(one, namespace, marked)
        everything = await table.mark(two, namespace, 100)
        async with two.transaction():
            theirs = await table.lock(two, namespace, everything)

    assert [row.entity for row in mine] == ["order:1", "order:2", "order:1"]
    assert theirs == [], "an earlier one of the entity is not told yet"
    await one.close()
    await two.close()


async def test_requests_wait_while_redis_is_away_and_are_not_marked(
    app: App, sql: asyncpg.Connection, dsn: str, own_valkey: ServerFactory
) -> None:
    server = own_valkey(appendonly=True)
    settings = type(app.settings)(app.settings.namespace, server.url, postgres_dsn=dsn)
    relay = Relay(settings, dsn, "r")
    running = asyncio.create_task(relay.run())
    server.kill()
    await ordered(app, sql, 1, 2)

    await wait_until_async(lambda: relay._away, what="it notices")
    assert await sql.fetchval("SELECT count(attempted_at) FROM streamworker.outbox") == 0
    server.restart()
    await wait_until_async(lambda: relay.published == 2, timeout=20, what="they arrive")

    relay.stop()
    await running


async def test_while_redis_takes_no_jobs_requests_wait_unmarked(
    app: App,
    sql: asyncpg.Connection,
    dsn: str,
    own_valkey: ServerFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for one that was told before, as far as anybody knows; those of later calls as well."""
    monkeypatch.setattr(placing, "BATCH", 1)
    server = own_valkey(config={"maxmemory": "1mb"})
    settings = type(app.settings)(app.settings.namespace, server.url, postgres_dsn=dsn)
    await ordered(app, sql, 1, 2, 3)
    await sql.execute(MARK_FIRST)
    relay, connection = Relay(settings, dsn, "r"), await connect(dsn)

    assert await relay.round(connection) == 0
    marks = await sql.fetch("SELECT attempted_at FROM streamworker.outbox ORDER BY id")
    assert [row["attempted_at"] is not None for row in marks] == [True, False, False]

    await connection.close()
    await relay._queue.close()


async def test_what_was_told_is_not_looked_through_each_time(
    app: App, sql: asyncpg.Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody's transaction is old it cannot be vacuumed: of 100,000 rows a look took 0.1 seconds."""
    monkeypatch.setattr(relays, "MARGIN", 2)
    relay, connection = Relay(app.settings, dsn, "r"), await connect(dsn)
    for _ in range(2):
        await ordered(app, sql, *range(4))
        assert await relay.round(connection) == 4
    await sql.execute("UPDATE streamworker.outbox SET published_at = NULL WHERE id IN (3, 4)")

    assert await relay.round(connection) == 1, "rows that are committed a little late come at once"
    assert await sql.fetchval("SELECT id FROM streamworker.outbox WHERE published_at IS NULL") == 3
    relay._next_look_back = 0.0
    assert await relay.round(connection) == 1, "and the others later"

    relay._next_look_back = 0.0
    assert await relay.round(connection) == 0
    assert relay._above == 6, "with nothing to tell it looks at the newest"
    await connection.close()
    await relay._queue.close()


async def test_a_relay_that_listens_comes_at_once(app: App, sql: asyncpg.Connection, dsn: str) -> None:
    relay = Relay(app.settings, dsn, "r", poll=60, listen=True)
    running = asyncio.create_task(relay.run())

    async def has_looked() -> bool:
        return bool(
            await sql.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name = 'streamworker' AND state = 'idle' AND query LIKE '%DELETE%'"
            )
        )

    await wait_until_async(has_looked, what="its first look is over, and it waits")
    await enqueue_in(sql, app.tasks["ship"].call(1), notify=True)
    await wait_until_async(lambda: relay.published == 1, what="it came")

    relay.stop()
    await running


async def test_what_was_told_is_dropped_after_a_while(
    app: App, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    import datetime

    await ordered(app, sql, 1)
    await relaying()
    await ordered(app, sql, 2)
    await sql.execute("UPDATE streamworker.outbox SET published_at = published_at - interval '8 days'")

    assert await table.prune(sql, app.settings.namespace, datetime.timedelta(days=7), 10) == 1

    assert await sql.fetchval("SELECT count(*) FROM streamworker.outbox") == 1
    assert await sql.fetchval("SELECT count(*) FROM streamworker.jobs") == 1, "nobody else would ever end it"


async def test_what_was_told_goes_as_fast_as_it_comes(
    app: App, sql: asyncpg.Connection, dsn: str, relaying: Relaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went by 10,000 every ten minutes: of more than 17 a second the rest stayed for ever."""
    monkeypatch.setattr(relays, "PRUNED", 2)
    await ordered(app, sql, *range(7))
    await relaying()
    await sql.execute("UPDATE streamworker.outbox SET published_at = published_at - interval '8 days'")
    relay = Relay(app.settings, dsn, "r", poll=0.01)
    running = asyncio.create_task(relay.run())

    async def none() -> bool:
        return await sql.fetchval("SELECT count(*) FROM streamworker.outbox") == 0

    await wait_until_async(none, what="all have gone")
    relay.stop()
    await running


async def test_a_job_of_the_outbox_runs(app: App, sql: asyncpg.Connection, relaying: Relaying) -> None:
    jobs = await ordered(app, sql, *range(20))
    await relaying()

    async with serving(app):
        assert [await job.result(10) for job in jobs] == list(range(20))


async def test_a_job_that_waits_in_the_outbox_is_queued_and_its_result_is_waited_for(
    app: App, sql: asyncpg.Connection, dsn: str, relaying: Relaying
) -> None:
    (job,) = await ordered(app, sql, 7)
    settings = app.settings

    assert await job.status() is Status.QUEUED
    with pytest.raises(ResultTimeout):
        await job.result("50ms")
    with SyncClient(settings.redis_url, app="shop", namespace=settings.namespace, postgres_dsn=dsn) as client:
        assert (await asyncio.to_thread(client.get, job.id)).status is Status.QUEUED
        waiting_for = asyncio.create_task(asyncio.to_thread(client.result, job.id, timeout=30))
        also = asyncio.create_task(job.result(30))
        async with serving(app):
            await relaying()
            assert (await waiting_for, await also) == (7, 7)
