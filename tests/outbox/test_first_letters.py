"""The mirror is turned on late: what was dead by then comes back whole after a loss of Redis (D19)."""

from __future__ import annotations

from dataclasses import replace

import asyncpg

from streamworker import App, Client, Context, PersistentError
from streamworker.core.states import Status
from streamworker.ops import dlq
from streamworker.ops.dlq.letters import DeadLetter
from streamworker.postgres import offsets
from streamworker.postgres.mirror import Mirror
from streamworker.postgres.switch import Switch
from streamworker.postgres.verify import Verifier
from tests.integration.serving import failure, serving
from tests.outbox.test_first_mirror import mirroring
from tests.outbox.test_first_mirror import shop as shop
from tests.waiting import wait_until_async

ANN = "ann@ops"


async def deaths(app: App, *orders: int) -> list[str]:
    """Jobs that died, each for its order; their ids."""

    @app.task
    async def refuse(ctx: Context, order: int) -> None:
        raise PersistentError(f"order {order} is closed", code="closed")

    async with serving(app):
        jobs = [await refuse.options(key=f"order-{order}").enqueue(order) for order in orders]
        for job in jobs:
            await failure(job)
    return [job.id for job in jobs]


async def all_letters(app: App) -> dict[str, DeadLetter]:
    return {letter.job_id: letter async for letter in dlq.letters(app.queue())}


async def all_read(app: App) -> None:
    queue = app.queue()

    async def read() -> bool:
        return await queue.caller.command("XLEN", queue.keys.events) == 0

    await wait_until_async(read, what="the log is mirrored")


async def test_letters_that_are_older_than_the_mirror_come_back_whole_and_replayed_jobs_too(
    shop: App, sql: asyncpg.Connection, dsn: str
) -> None:
    queue = shop.queue()
    whole, trimmed, replayed = await deaths(shop, 1, 2, 3)
    before = await all_letters(shop)
    await queue.caller.command("XTRIM", queue.keys.events, "MAXLEN", 2)  # as a keeper might have

    async with mirroring(shop, dsn):
        assert (await dlq.replay(queue, [replayed], actor=ANN)).moved == 1
        await all_read(shop)
    found = await Verifier(sql, queue.caller, queue.keys).run(patience=0.1)
    assert (found.differences, found.without_payload) == ([], 0)
    await queue.caller.command("FLUSHALL")
    done = await Mirror(shop.settings, dsn, "m").reconcile()

    assert (done.restored, done.without_payload, done.dead_letters) == ([replayed], [], 2)
    after = await all_letters(shop)
    assert {each: replace(letter, letter="") for each, letter in after.items()} == {
        each: replace(before[each], letter="") for each in (whole, trimmed)
    }
    assert (await dlq.replay(queue, [whole, trimmed], actor=ANN)).moved == 2


async def test_a_replayed_job_comes_back_with_what_an_operator_made_of_it(
    shop: App, sql: asyncpg.Connection, dsn: str
) -> None:
    queue = shop.queue()
    async with mirroring(shop, dsn):
        (dead,) = await deaths(shop, 1)
        edit = await dlq.prepare(queue, dead)
        await dlq.edit(queue, replace(edit, args={"order": 7}), actor=ANN)
        assert (await dlq.replay(queue, [dead], actor=ANN)).moved == 1
        await all_read(shop)
    await queue.caller.command("FLUSHALL")
    assert (await Mirror(shop.settings, dsn, "m").reconcile()).restored == [dead]

    assert (await queue.record(dead)).status is Status.QUEUED
    async with serving(shop):

        async def over() -> bool:
            return (await queue.record(dead)).status is Status.FAILED_TERMINAL

        await wait_until_async(over, what="it is over again")
    assert (await all_letters(shop))[dead].error.endswith("order 7 is closed")


async def test_verify_tells_of_letters_without_arguments(
    shop: App, sql: asyncpg.Connection, dsn: str
) -> None:
    queue = shop.queue()
    async with mirroring(shop, dsn):
        _, replayed = await deaths(shop, 1, 2)
        await dlq.replay(queue, [replayed], actor=ANN)
        await all_read(shop)
    await sql.execute("UPDATE streamworker.jobs SET payload = NULL")  # as an older mirror left them
    found = await Verifier(sql, queue.caller, queue.keys).run(patience=0.1)
    assert (found.without_payload, found.letters_without_payload) == (1, 1)

    async with mirroring(shop, dsn):
        await all_read(shop)

        async def completed() -> bool:
            found = await Verifier(sql, queue.caller, queue.keys).run(patience=0.1)
            return (found.without_payload, found.letters_without_payload) == (0, 0)

        await wait_until_async(completed, what="their envelopes are taken in")
    assert await sql.fetchval("SELECT count(*) FROM streamworker.jobs WHERE payload IS NULL") == 0


async def test_ends_that_only_redis_has_seen_are_taken_in_and_nothing_runs_again(
    shop: App, sql: asyncpg.Connection, dsn: str
) -> None:
    """The mirror was off meanwhile, and a keeper has trimmed the log."""
    queue = shop.queue()

    @shop.task
    async def refuse(ctx: Context, order: int) -> None:
        raise PersistentError(f"order {order} is closed", code="closed")

    async with mirroring(shop, dsn):
        done, dead = await shop.tasks["ship"].enqueue(1), await refuse.enqueue(2)
        await all_read(shop)
    await offsets.end(sql, "late", 0)
    await Switch(queue.caller, queue.keys).off()
    async with serving(shop):
        assert await done.result(10) == 1
        await failure(dead)
    before = await all_letters(shop)
    await queue.caller.command("DEL", queue.keys.events)

    async with mirroring(shop, dsn):
        pass
    found = await Verifier(sql, queue.caller, queue.keys).run(patience=0.1)
    assert (found.differences, found.unseen) == ([], 0)
    await queue.caller.command("FLUSHALL")
    restored = await Mirror(shop.settings, dsn, "m").reconcile()

    assert (restored.restored, restored.dead_letters) == ([], 1)
    assert replace((await all_letters(shop))[dead.id], letter="") == replace(before[dead.id], letter="")
    async with Client(shop.settings.redis_url, app="late", postgres_dsn=dsn) as client:
        assert await client.result(done.id, timeout=1) == 1
