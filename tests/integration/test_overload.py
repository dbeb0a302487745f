"""What may wait and what is let in, with real workers and producers.

`OVERLOAD_DRAIN=5000` and `OVERLOAD_FLOOD=1000000` make the long form of `make soak`.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from streamworker import App, Client, Coalesce, Context, EnqueueRejected, Lane, Request, Route, SyncClient
from streamworker.core.states import Disposition
from streamworker.ops import overload
from streamworker.store import limits
from streamworker.store.events import Transition, decode, pairs
from tests.integration.serving import serving
from tests.servers import BenchServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")

DRAIN = int(os.environ.get("OVERLOAD_DRAIN", "500"))
FLOOD = int(os.environ.get("OVERLOAD_FLOOD", "20000"))
#: Jobs a second that are drained, and those that may come at once: by so much may the keeper be late.
RATE, BURST = 100, min(200, DRAIN // 5)


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    lanes = {
        "priority": Lane(limit=3, overflow="reject"),
        "normal": Lane(reserved=2, limit=40, high_water=30),
        "backlog": Lane(drain=f"{RATE}/s", burst=BURST, limit=DRAIN + 100),
    }
    routes = [Route("backlog", task="report", name="reports")]
    async with App(namespace, redis_url=valkey.url, lanes=lanes, routes=routes, lease="2s") as app:
        yield app


async def declare(app: App) -> None:
    """Say what a worker says when it starts."""
    queue = app.queue()
    await limits.declare(await queue.caller.ready(), queue.keys, app.lanes, app.bounds())


async def moves(app: App, reason: str) -> list[Transition]:
    queue = app.queue()
    entries = await queue.caller.command("XRANGE", queue.keys.events, "-", "+")
    return [move for _, fields in entries for move in decode(pairs(fields)) if move.reason == reason]


async def counters(app: App) -> dict[str, int]:
    queue = app.queue()
    found = pairs(await queue.caller.command("HGETALL", queue.keys.stats))
    return {name.decode(): int(value) for name, value in found.items() if int(value)}


async def ended(jobs: Iterable[Any], *, within: float = 10.0) -> list[Any]:
    return list(await asyncio.gather(*(job.result(within) for job in jobs)))


async def all_over(app: App) -> bool:
    """Whether nothing waits and nothing runs."""
    places = ("backlog:", "queued:", "scheduled:", "in_flight:")
    return not any(name.startswith(places) for name in await counters(app))


def seconds_since_first(found: list[Transition]) -> list[float]:
    return [(move.at_ms - found[0].at_ms) / 1000 for move in found]


def told(jobs: Iterable[Any]) -> Counter[str]:
    return Counter(str(job.disposition) for job in jobs)


# --- backlog and drain


async def test_the_backlog_is_drained_in_order_at_its_rate_and_nothing_is_lost(
    valkey: BenchServer, namespace: str
) -> None:
    """Into a lane that has room for all, so that nothing but the bucket decides."""
    lanes = {"normal": Lane(high_water=DRAIN), "backlog": Lane(drain=f"{RATE}/s", burst=BURST)}
    app = App(namespace, redis_url=valkey.url, lanes=lanes, lease="2s")

    @app.task
    async def work(ctx: Context, n: int) -> int:
        return n

    async with app:
        jobs = await app.enqueue_many(work.options(lane="backlog").call(n) for n in range(DRAIN))
        assert told(jobs) == {"DEFERRED": DRAIN}
        async with serving(app, concurrency=16):
            patience = 30 + 2 * DRAIN / RATE
            await wait_until_async(partial(all_over, app), timeout=patience, what="all jobs are over")

        returned = [move.job_id for move in await moves(app, "returned")]
        assert sorted(returned) == sorted(job.id for job in jobs)
        drained = await moves(app, "drained")
        assert [move.job_id for move in drained] == [job.id for job in jobs]
        at = seconds_since_first(drained)
        late = [when - (n - BURST) / RATE for n, when in enumerate(at, 1)]
        assert min(late) > -0.01, "never faster than its rate after the burst"
        # A tick that is late is made up for by the next, as far as the burst goes; if a machine starves the
        # keeper for longer, the rest of that time is lost. A rate that is too low is never made up for.
        starved = sum(max(0.0, after - before - BURST / RATE) for before, after in pairwise(at))
        quarter = DRAIN // 4
        drift = min(late[-quarter:]) - min(late[quarter : 2 * quarter])
        assert drift < 0.05 * (DRAIN / 2 / RATE) + starved
        assert [move.job_id for move in await moves(app, "claimed")] == [job.id for job in jobs]


async def test_no_worker_takes_from_the_backlog_while_the_drain_is_off(app: App) -> None:
    @app.task
    async def work(ctx: Context, n: int) -> int:
        return n

    await overload.set_drain(app.queue(), actor="test", on=False)
    waits = await work.options(lane="backlog").enqueue(1)
    async with serving(app):
        assert await (await work.options(delay="300ms").enqueue(2)).result(10) == 2  # by way of the keeper
        assert await waits.status() == "queued"
        assert await moves(app, "drained") == []

        await overload.set_drain(app.queue(), actor="test", on=True)
        assert await waits.result(10) == 1


async def test_the_drain_stops_by_itself_over_the_mark_and_goes_on_after(app: App) -> None:
    go_on = asyncio.Event()

    @app.task
    async def work(ctx: Context) -> None:
        await go_on.wait()

    @app.task(lane="priority")
    async def quick(ctx: Context) -> None: ...

    jobs = await app.enqueue_many(work.options(lane="backlog").call() for _ in range(50))
    async with serving(app, concurrency=3):
        # Three run, and thirty wait up to the mark.
        async def is_full() -> bool:
            found = await counters(app)
            places = ("in_flight", "queued", "backlog")
            return [found.get(f"{place}:normal") for place in places] == [3, 30, 17]

        await wait_until_async(is_full, what="the lane is full up to its mark")
        before = len(await moves(app, "drained"))
        async with Client(app.settings.redis_url, app=app.settings.namespace) as client:
            await client.enqueue("quick", delay="300ms")
            quick_done = partial(_promoted, app)
            await wait_until_async(quick_done, what="the keeper has come by again")
        assert len(await moves(app, "drained")) == before

        go_on.set()
        await ended(jobs)


async def _promoted(app: App) -> bool:
    found = await counters(app)
    return found.get("scheduled:priority", 0) == 0 and found.get("enqueued:priority:quick", 0) == 1


async def test_a_rule_and_a_task_send_to_the_backlog_and_say_so(app: App) -> None:
    @app.task
    async def report(ctx: Context) -> str:
        return ctx.lane

    @app.task(lane="backlog")
    async def tidy(ctx: Context) -> str:
        return ctx.lane

    async with serving(app):
        jobs = [await report.enqueue(), await tidy.enqueue()]
        assert told(jobs) == {"DEFERRED": 2}
        assert await ended(jobs) == ["normal", "normal"]
    assert [move.facts["backlog"] for move in await moves(app, "deferred")] == ["rule", "task"]


# --- admission


async def test_what_is_over_the_limit_is_deferred_or_refused_as_the_lane_says(app: App) -> None:
    @app.task
    async def work(ctx: Context) -> None: ...

    await declare(app)
    waiting = await app.enqueue_many(work.call() for _ in range(50))
    urgent = await app.enqueue_many(work.options(lane="priority").call() for _ in range(5))

    assert told(waiting) == {"ACCEPTED": 40, "DEFERRED": 10}
    assert told(urgent) == {"ACCEPTED": 3, "REJECTED": 2}
    assert [job.retry_after for job in urgent] == [None, None, None, 1.0, 1.0]
    with pytest.raises(EnqueueRejected, match="lane priority is full") as refused:
        await work.options(lane="priority").enqueue()
    assert refused.value.retry_after == 1.0
    found = await counters(app)
    assert found["deferred:normal:lane_full"] == 10
    assert found["rejected:priority:lane_full"] == 3


async def test_a_producer_that_waits_gets_in_when_there_is_room(app: App) -> None:
    @app.task(lane="priority")
    async def work(ctx: Context, n: int) -> int:
        return n

    await declare(app)
    first = await app.enqueue_many(work.call(n) for n in range(3))
    late = asyncio.create_task(work.options(wait="20s").enqueue(3))
    many = asyncio.create_task(app.enqueue_many([work.call(n) for n in range(4, 7)], wait="20s"))
    url, name = app.settings.redis_url, app.settings.namespace
    with SyncClient(url, app=name) as sync:
        blocking = asyncio.create_task(
            asyncio.to_thread(partial(sync.enqueue, "work", {"n": 7}, lane="priority", wait="20s"))
        )
        async with serving(app):
            jobs = [*first, await late, *await many]
            assert await ended(jobs) == list(range(7))
            assert await asyncio.to_thread((await blocking).result, 10) == 7


async def test_a_producer_that_waits_in_vain_is_refused_in_the_end(app: App) -> None:
    @app.task(lane="priority")
    async def work(ctx: Context) -> None: ...

    await declare(app)
    await app.enqueue_many(work.call() for _ in range(3))

    with pytest.raises(EnqueueRejected):
        await work.options(wait="200ms").enqueue()
    assert told(await app.enqueue_many([work.call()], wait="200ms")) == {"REJECTED": 1}


async def test_memory_is_bounded_in_a_flood(app: App) -> None:
    """Limits of 40 in the lane and of DRAIN + 100 in its backlog; then each enqueue leaves nothing."""

    @app.task
    async def work(ctx: Context, n: int) -> None: ...

    await declare(app)
    admitted, batch = 40 + DRAIN + 100, 2_000

    async def used() -> int:
        info = await app.queue().caller.command("INFO", "memory")
        (line,) = [line for line in info.decode().splitlines() if line.startswith("used_memory:")]
        return int(line.partition(":")[2])

    seen = told(await app.enqueue_many(work.call(n) for n in range(batch)))
    full = await used()
    for start in range(batch, FLOOD, batch):
        seen += told(await app.enqueue_many(work.call(n) for n in range(start, start + batch)))

    assert seen == {"ACCEPTED": 40, "DEFERRED": DRAIN + 100, "REJECTED": FLOOD - admitted}
    assert await used() - full < 2_000_000
    found = await counters(app)
    assert found["rejected:normal:backlog_full"] == FLOOD - admitted
    assert sum(count for name, count in found.items() if name.startswith("enqueued:")) == admitted


# --- coalescing


async def test_a_thousand_events_of_a_window_are_one_job_and_every_key_leads_to_it(app: App) -> None:
    @app.task(coalesce=Coalesce("collect", by="user:{user}", items="events", window="20s", limit=1_000))
    async def digest(ctx: Context, user: int, events: list[int]) -> list[int]:
        return [len(events), len(set(events)), ctx.key == ctx.job_id]

    items = [*range(750), *range(250), *range(750, 1_000)]  # some again, while the window has room

    def calls() -> list[Any]:
        return [digest.options(key=f"event:{n}").call(7, events=[item]) for n, item in enumerate(items)]

    async with serving(app):
        jobs = await app.enqueue_many(calls())
        assert told(jobs) == {"SCHEDULED": 1, "COALESCED": 1_249}
        assert {job.id for job in jobs} == {jobs[0].id}
        assert await jobs[0].result(10) == [1_000, 1_000, True]  # at once: the window was full

        again = await app.enqueue_many(calls())
        assert told(again) == {"DUPLICATE": 1_250}
        assert {job.id for job in again} == {jobs[0].id}


async def test_events_of_producers_without_the_code_are_merged_too(app: App) -> None:
    @app.task(coalesce=Coalesce("latest", by="order:{order}", window="500ms"))
    async def index(ctx: Context, order: int, version: int) -> int:
        return version

    async with serving(app), Client(app.settings.redis_url, app=app.settings.namespace) as client:
        jobs = [await client.enqueue("index", {"order": 7, "version": n}) for n in range(5)]
        requests = [Request("index", {"order": 7, "version": n}) for n in range(5, 10)]
        jobs += await client.enqueue_many(requests)
        assert [job.disposition for job in jobs] == [Disposition.SCHEDULED, *[Disposition.COALESCED] * 9]
        assert await ended(jobs) == [9] * 10
