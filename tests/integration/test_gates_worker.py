"""Gates with real workers: what waits, who runs, and who is let in."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from streamworker import App, Concurrency, Context, Dependency, Job, Rate, Retry, TransientError
from streamworker.ops import gates, inspect, tune
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.servers import BenchServer, ServerFactory
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")

QUICK = Retry.schedule("50ms", "50ms", "50ms", unknown=["50ms", "50ms"])


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    """An app on the shared Valkey, with a lease of 1 s."""
    async with App(
        "gates",
        redis_url=valkey.url,
        namespace=namespace,
        lease="1s",
        dependencies={"carrier": Dependency(concurrency=2)},
    ) as app:
        yield app


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


async def results(jobs: list[Job[Any]], seconds: float = 30) -> list[Any]:
    return [await job.result(seconds) for job in jobs]


async def test_jobs_of_one_entity_run_one_at_a_time_in_order(app: App) -> None:
    running: Counter[int] = Counter()
    order: dict[int, list[int]] = {}
    overlaps = 0

    @app.task(entity="order:{order_id}")
    async def step(ctx: Context, order_id: int, number: int) -> int:
        nonlocal overlaps
        running[order_id] += 1
        overlaps += running[order_id] > 1
        order.setdefault(order_id, []).append(number)
        await asyncio.sleep(0.001)
        running[order_id] -= 1
        return ctx.attempt

    jobs = await app.enqueue_many(step.call(n % 10, n) for n in range(200))
    async with serving(app, concurrency=16):
        attempts = await results(jobs)

    assert overlaps == 0
    assert set(attempts) == {1}, "nobody is charged for waiting"
    assert all(numbers == sorted(numbers) for numbers in order.values())


async def test_a_limit_holds_and_is_used(app: App) -> None:
    running, most = 0, 0

    @app.task(limits=[Concurrency("task", 3)])
    async def call(ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    jobs = await app.enqueue_many(call.call() for _ in range(60))
    async with serving(app, concurrency=16):
        await results(jobs)

    assert most == 3


async def test_a_rate_holds_and_is_used(app: App) -> None:
    starts: list[float] = []
    loop = asyncio.get_running_loop()

    @app.task(limits=[Rate("task", "100/s", burst=10)])
    async def call(ctx: Context) -> None:
        starts.append(loop.time())

    jobs = await app.enqueue_many(call.call() for _ in range(110))
    async with serving(app, concurrency=16):
        await results(jobs)

    took = starts[-1] - starts[0]
    assert 0.95 <= took < 2.0, "110 starts at 100/s after 10 at once take one second"


async def test_two_tasks_that_share_a_dependency_share_its_limit(app: App) -> None:
    running, most = 0, 0

    async def use() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    @app.task(uses=["carrier"])
    async def send(ctx: Context) -> None:
        await use()

    @app.task(uses=["carrier"])
    async def track(ctx: Context) -> None:
        await use()

    jobs = await app.enqueue_many([*(send.call() for _ in range(20)), *(track.call() for _ in range(20))])
    async with serving(app, concurrency=16):
        await results(jobs)

    assert most == 2


async def test_a_retry_lets_the_next_of_its_entity_run(app: App) -> None:
    ran: list[str] = []

    @app.task(entity="order:{order_id}", retry=QUICK)
    async def step(ctx: Context, order_id: int, name: str) -> None:
        ran.append(f"{name}{ctx.attempt}")
        if name == "a" and ctx.attempt == 1:
            raise TransientError("no answer", code="away")

    jobs = [await step.enqueue(1, name) for name in "abc"]
    async with serving(app):
        await results(jobs)

    assert sorted(ran) == ["a1", "a2", "b1", "c1"]
    assert ran.index("b1") < ran.index("a2")


async def test_a_strict_entity_waits_for_the_retry(app: App) -> None:
    ran: list[str] = []

    @app.task(entity="order:{order_id}", entity_order="strict", retry=QUICK)
    async def step(ctx: Context, order_id: int, name: str) -> None:
        ran.append(f"{name}{ctx.attempt}")
        if name == "a" and ctx.attempt == 1:
            raise TransientError("no answer", code="away")

    jobs = [await step.enqueue(1, name) for name in "abc"]
    async with serving(app):
        await results(jobs)

    assert ran == ["a1", "a2", "b1", "c1"]


async def test_a_paused_tenant_waits_while_others_run(app: App) -> None:
    @app.task
    async def work(ctx: Context) -> str | None:
        return ctx.tenant

    async with serving(app):
        queue = app.queue()
        await tune.pause(queue, "tenant:acme", actor="me", reason="test")
        held = await work.options(tenant="acme").enqueue()
        assert await (await work.options(tenant="calm").enqueue()).result(10) == "calm"
        await wait_until_async(
            lambda: _waits(queue, "pause:tenant:acme"), what="the job is parked at the pause"
        )

        assert await tune.resume(queue, "tenant:acme", actor="me")
        assert await held.result(5) == "acme"


async def _waits(queue: Any, gate: str) -> bool:
    return any(one["gate"] == gate and one["waiting"] for one in await gates.gates(queue))


async def test_a_paused_lane_stands_still_and_goes_on_within_a_second(app: App) -> None:
    @app.task
    async def work(ctx: Context) -> str:
        return ctx.lane

    async with serving(app):
        queue = app.queue()
        await tune.pause(queue, "lane:normal", actor="me")
        held = await work.enqueue()
        assert await (await work.options(lane="priority").enqueue()).result(10) == "priority"
        (normal,) = [one for one in await inspect.lanes(queue) if one["lane"] == "normal"]
        assert (normal["paused"], normal["depth"]) == (True, 1)

        await tune.resume(queue, "lane:normal", actor="me")
        assert await held.result(3) == "normal"


async def test_a_raised_limit_moves_waiters_within_a_second(app: App) -> None:
    release = asyncio.Event()
    running = 0

    @app.task(limits=[Concurrency("task", 1)])
    async def call(ctx: Context) -> None:
        nonlocal running
        running += 1
        await release.wait()

    jobs = await app.enqueue_many(call.call() for _ in range(4))
    async with serving(app):
        await wait_until_async(lambda: running == 1, what="one runs")
        await tune.set_limit(app.queue(), "concurrency:task:call", "3", actor="me")
        await wait_until_async(lambda: running == 3, timeout=3, what="three run")
        release.set()
        await results(jobs)


async def test_a_cancelled_waiter_lets_the_next_in(app: App) -> None:
    release = asyncio.Event()
    ran: list[str] = []

    @app.task(entity="order:{order_id}")
    async def step(ctx: Context, order_id: int, name: str) -> None:
        ran.append(name)
        await release.wait()

    async with serving(app):
        jobs = {name: await step.enqueue(1, name) for name in "abc"}
        await wait_until_async(lambda: ran == ["a"], what="a runs")
        await jobs["b"].cancel()
        release.set()
        await jobs["c"].result(10)

    assert ran == ["a", "c"]


async def test_one_tenants_flood_does_not_delay_another(app: App) -> None:
    finished: list[str] = []

    @app.task
    async def work(ctx: Context) -> None:
        finished.append(ctx.tenant or "")

    flood = await app.enqueue_many(work.options(tenant="flood").call() for _ in range(2000))
    quiet = [await work.options(tenant="quiet").enqueue() for _ in range(5)]
    async with serving(app, concurrency=8):
        await results(quiet)
        before = finished.count("flood")
        await flood[-1].result(60)

    assert before < 200, "the quiet tenant waited behind the flood"
    assert finished.count("flood") == 2000


async def test_the_desk_sees_who_holds_and_who_waits(app: App) -> None:
    release = asyncio.Event()

    @app.task(entity="order:{order_id}")
    async def step(ctx: Context, order_id: int) -> None:
        await release.wait()

    async with serving(app) as worker:
        first, second = await step.enqueue(7), await step.enqueue(7)
        queue = app.queue()
        await wait_until_async(lambda: _waits(queue, "entity:order:7"), what="the second waits")
        found = await gates.gate(queue, "entity:order:7")
        release.set()
        await results([first, second])

    assert [(one["id"], one["state"], one["worker"]) for one in found["holders"]] == [
        (first.id, "runs", worker.id)
    ]
    assert [one["id"] for one in found["waiters"]] == [second.id]


async def test_losing_redis_ends_only_what_holds_an_entity(
    own_valkey: ServerFactory, namespace: str, valkey: BenchServer
) -> None:
    """D10: for the others it is enough that nobody takes them over."""
    server = own_valkey()
    app = App("cut", redis_url=server.url, namespace=namespace, lease="600ms")
    ended: dict[str, str] = {}
    release = asyncio.Event()

    async def run(name: str) -> None:
        try:
            await release.wait()
            ended[name] = "finished"
        except asyncio.CancelledError:
            ended[name] = "cancelled"
            raise

    @app.task(entity="order:{order_id}")
    async def locked(ctx: Context, order_id: int) -> None:
        running.add("locked")
        await run("locked")

    @app.task
    async def free(ctx: Context) -> None:
        running.add("free")
        await run("free")

    running: set[str] = set()
    async with app, serving(app, grace=1):
        await locked.enqueue(7)
        await free.enqueue()
        await wait_until_async(lambda: len(running) == 2, what="both run")
        server.pause()
        await wait_until_async(lambda: "locked" in ended, timeout=15, what="the one with an entity ended")
        release.set()
        await wait_until_async(lambda: "free" in ended, what="the other ended")
        server.resume()

    assert ended == {"locked": "cancelled", "free": "finished"}
