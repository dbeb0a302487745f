"""A lane's pressure reaches the producers' rules: measured by a keeper, read where a rule wants to know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from streamworker import App, Client, Context, Lane, Route, SyncClient
from streamworker.store import pressures
from tests.integration.cli_desk import Desk
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.servers import BenchServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    """`normal` is over its mark with 5 jobs; what would wait there then goes to `bulk`."""
    async with App(
        "pressed",
        redis_url=valkey.url,
        namespace=namespace,
        lanes={"normal": Lane(pressure=(3, 5)), "bulk": Lane()},
        routes=[Route("bulk", pressure="over", name="spill")],
    ) as app:

        @app.task
        async def work(ctx: Context) -> None: ...

        yield app


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


def told(observer: Observer) -> str:
    return str((observer.redis.hget(observer.keys.policies, "pressure:normal") or b"ok").decode())


async def test_a_keeper_measures_the_lanes_that_have_marks(app: App, observer: Observer) -> None:
    work = app.tasks["work"]
    async with serving(app, lanes=["bulk"]):
        jobs = await app.enqueue_many(work.call() for _ in range(4))
        await wait_until_async(lambda: told(observer) == "high", what="it is over the first mark")
        jobs += await app.enqueue_many(work.call() for _ in range(4))
        await wait_until_async(lambda: told(observer) == "over", what="it is over the second")
        assert observer.redis.hget(observer.keys.policies, "pressure:bulk") is None

    async with serving(app):
        await asyncio.gather(*(job.result(10) for job in jobs))
        await wait_until_async(lambda: told(observer) == "ok", what="it is empty")


async def test_the_age_of_the_oldest_job_is_pressure_too(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    lanes = {"normal": Lane(target="100ms"), "bulk": Lane()}
    async with App("aged", redis_url=valkey.url, namespace=namespace, lanes=lanes) as app:

        @app.task
        async def work(ctx: Context) -> None: ...

        job = await work.enqueue()
        async with serving(app, lanes=["bulk"]):
            await wait_until_async(lambda: told(observer) == "over", what="it has waited twice its target")
        async with serving(app):
            await job.result(10)
            await wait_until_async(lambda: told(observer) == "ok", what="nothing waits")


async def test_producers_of_each_kind_go_by_it(
    app: App, observer: Observer, valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pressures, "FRESH", 0.0)  # asked for each time
    work = app.tasks["work"]
    async with serving(app):  # publishes the rules
        pass
    lanes: dict[str, set[str]] = {}
    async with Client(valkey.url, app="pressed", namespace=namespace) as client:
        for level in ("ok", "high", "over"):
            observer.redis.hset(observer.keys.policies, "pressure:normal", level)
            with SyncClient(valkey.url, app="pressed", namespace=namespace) as sync:
                ids = [
                    (await work.enqueue()).id,
                    (await app.enqueue("work", {})).id,
                    (await client.enqueue("work")).id,
                    sync.enqueue("work").id,
                ]
            ids += [job.id for job in await app.enqueue_many(work.call() for _ in range(2))]
            with Desk(valkey.url, namespace) as desk:
                ids.append((await asyncio.to_thread(desk.call, "enqueue", "work")).stdout.strip())
                routed = await asyncio.to_thread(desk.call, "route", "work")
            lanes[level] = {observer.record(job_id).lane for job_id in ids} | {routed.stdout.strip()}

    assert lanes == {"ok": {"normal"}, "high": {"normal"}, "over": {"bulk"}}
    async with serving(app):
        await wait_until_async(lambda: observer.leftovers(lanes=app.lanes) == [], what="all have run")


async def test_who_has_no_such_rule_does_not_ask(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    lanes = {"normal": Lane(pressure=(1, 1)), "bulk": Lane()}
    async with App("plain", redis_url=valkey.url, namespace=namespace, lanes=lanes) as app:

        @app.task
        async def work(ctx: Context) -> None: ...

        async with serving(app):
            job = await work.enqueue()
            await job.result(10)

        assert not app.router.by_pressure
        assert pressures.Pressures().wanted(app.router) == []
