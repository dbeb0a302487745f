"""Workers die at every moment around an effect, and are frozen: each effect is there once, each job succeeds.

`STREAMWORKER_EFFECTS_JOBS` says how many payments and orders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest

from streamworker import Request, Status
from streamworker.request import Options
from tests.apps import effects_jobs
from tests.effects.stage import Shop
from tests.servers import ServerFactory
from tests.waiting import wait_until, wait_until_async

JOBS = int(os.environ.get("STREAMWORKER_EFFECTS_JOBS", "16"))
#: Seconds that everything may take, whatever was ordered.
PATIENCE = 90 + 2 * JOBS
pytestmark = pytest.mark.timeout(3 * PATIENCE)


@pytest.fixture
def shop_on(own_valkey: ServerFactory, shop: asyncpg.Connection, dsn: str, tmp_path: Path) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(own_valkey(), dsn, shop, tmp_path, stack)


async def test_payments_survive_the_deaths_of_their_workers(shop_on: Shop) -> None:
    shop_on.fleet(2)
    async with shop_on.client() as client:
        jobs = await client.enqueue_many(Request("pay", {"number": number}) for number in range(JOBS))
        ended = await shop_on.all_over(client, [job.id for job in jobs], timeout=PATIENCE)

    assert ended == {Status.SUCCEEDED: JOBS}
    assert await shop_on.invoices() == {f"p{number}": 1 for number in range(JOBS)}
    why = await shop_on.reasons()
    assert shop_on.deaths > 0, "some died in their worker, others in the child that has those with strikes"
    assert why["recovered"] + why["died"] >= JOBS // 8
    assert why["effect_committed"] > 0, "of those that died after the commit, and those that failed after it"


async def test_a_last_attempt_that_dies_after_its_commit_has_succeeded(shop_on: Shop) -> None:
    shop_on.fleet(1)
    async with shop_on.client() as client:
        for number in range(max(1, JOBS // 50)):
            job = await client.enqueue("pay_to_the_last", {"number": number})
            await shop_on.all_over(client, [job.id], timeout=PATIENCE)
            assert await client.result(job.id) == number
            why = await shop_on.reasons()
            deaths = why[f"{job.id} recovered"] + why[f"{job.id} died"] + why[f"{job.id} burial"]
            assert deaths >= 3
            assert why[f"{job.id} effect_committed"] == 1

    assert set((await shop_on.invoices()).values()) == {1}


async def test_a_worker_may_die_at_every_point_between_the_effect_and_the_settle(shop_on: Shop) -> None:
    """All points at once, a lane each; then a worker that lives."""
    dying = [
        shop_on.worker("--lanes", f"p{number}", "--concurrency", "1", EFFECTS_DIE=point)
        for number, point in enumerate(effects_jobs.POINTS)
    ]
    async with shop_on.client() as client:
        jobs = [
            await client.enqueue(
                "pay_at_once" if point in effects_jobs.COMMITTED else "pay_simply",
                {"number": number},
                lane=f"p{number}",
            )
            for number, point in enumerate(effects_jobs.POINTS)
        ]
        for worker in dying:
            wait_until(lambda worker=worker: worker.returncode is not None, timeout=PATIENCE, what="it dies")  # type: ignore[misc]
        shop_on.worker()
        ended = await shop_on.all_over(client, [job.id for job in jobs], timeout=PATIENCE)

    assert [worker.returncode for worker in dying] == [-9] * len(dying)
    assert ended == {Status.SUCCEEDED: len(jobs)}
    assert await shop_on.invoices() == {f"p{number}": 1 for number in range(len(jobs))}


@pytest.mark.parametrize("how", ["fence", "transaction"])
async def test_a_frozen_worker_that_comes_back_writes_nothing(
    shop_on: Shop, tmp_path: Path, how: str
) -> None:
    """It stood still for longer than its lease; another one has gone on meanwhile."""
    await shop_on.sql.execute("INSERT INTO orders (id) VALUES (7)")
    frozen = shop_on.worker()
    async with shop_on.client() as client:
        job = await client.enqueue("hold", {"folder": str(tmp_path), "how": how})
        wait_until((tmp_path / "holds").exists, timeout=30, what="the handler stands still")
        frozen.pause()
        shop_on.worker()
        await shop_on.all_over(client, [job.id], timeout=PATIENCE)
        (tmp_path / "go").touch()
        frozen.resume()
        wait_until((tmp_path / "over-1").exists, timeout=30, what="the first attempt has ended")

        assert (await client.get(job.id)).status is Status.SUCCEEDED
    if how == "fence":
        assert (tmp_path / "refused").read_text() == "1 FencedOut"
        assert await shop_on.sql.fetchval("SELECT status FROM orders") != "by 1"
    else:
        assert await shop_on.invoices() == {"held": 1}


async def test_orders_are_placed_paid_and_shipped_once_each(shop_on: Shop) -> None:
    """Each step commits together with the request of the next one."""
    orders = max(6, JOBS // 4)
    shop_on.fleet(2, concurrency=1)  # each death is its own job's: three deaths of neighbours would end one
    relay = shop_on.start("outbox", "relay", "--app", "effects")
    async with shop_on.client() as client:
        first = await client.enqueue_many(
            Request("place", {"order": order}, Options(key=f"order:{order}:place")) for order in range(orders)
        )

        async def some_paid() -> bool:
            shop_on.tend()
            return any(step.startswith("pay") for step in await shop_on.invoices())

        async def shipped() -> bool:
            shop_on.tend()
            return len([step for step in await shop_on.invoices() if step.startswith("ship")]) == orders

        await wait_until_async(some_paid, timeout=PATIENCE, what="some have come further")
        relay.kill()
        shop_on.start("outbox", "relay", "--app", "effects")
        await wait_until_async(shipped, timeout=PATIENCE, what="all are shipped")
        rows = await shop_on.sql.fetch("SELECT job_id::text FROM streamworker.outbox")
        followers = [row["job_id"] for row in rows]
        ended = await shop_on.all_over(client, [*(job.id for job in first), *followers], timeout=PATIENCE)

    assert ended == {Status.SUCCEEDED: 3 * orders}
    assert await shop_on.invoices() == {
        f"{step}-{order}": 1 for step in ("place", "pay", "ship") for order in range(orders)
    }


async def test_an_older_version_that_comes_later_is_skipped(shop_on: Shop) -> None:
    await shop_on.sql.execute("ALTER TABLE orders ADD version integer NOT NULL DEFAULT 3")
    await shop_on.sql.execute("INSERT INTO orders (id) VALUES (7)")
    shop_on.worker()
    async with shop_on.client() as client:
        for version, status, result in (
            (5, "sent", 5),
            (4, "packed", {"skipped": "version 4 is old"}),
        ):
            job = await client.enqueue("update", {"order": 7, "status": status, "version": version})
            assert await client.result(job.id, timeout=PATIENCE) == result

    assert await shop_on.sql.fetchval("SELECT status FROM orders") == "sent"
