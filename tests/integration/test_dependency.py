"""`ctx.dependency` in handlers of a worker: time limits hold, and each call is counted where it was made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from streamworker import App, Context, Dependency, Retry, Worker
from streamworker.worker.telling import Telling
from tests.apps.calling import app as calling
from tests.integration.history import Observer
from tests.integration.serving import PATIENCE, failure, serving
from tests.servers import BenchServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    carrier = Dependency(connect_timeout="50ms", timeout="100ms")
    async with App(
        "calls", redis_url=valkey.url, namespace=namespace, lease="1s", dependencies={"carrier": carrier}
    ) as app:
        yield app


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


async def test_a_call_that_takes_too_long_ends_the_attempt_with_a_code_of_its_own(
    app: App, observer: Observer
) -> None:
    """DESIGN 4: time limits are separate, each with its own code."""
    never = asyncio.Event()

    @app.task(retry=Retry.never())
    async def whole(ctx: Context) -> None:
        async with ctx.dependency("carrier"):
            await never.wait()

    @app.task(retry=Retry.never())
    async def connecting(ctx: Context) -> None:
        async with ctx.dependency("carrier") as call:
            await call.connect(never.wait())

    async with serving(app):
        ends = [await failure(await task.enqueue()) for task in (whole, connecting)]

    assert [(end.code, end.error_class) for end in ends] == [
        ("dependency_timeout", "transient"),
        ("dependency_connect_timeout", "transient"),
    ]
    assert observer.leftovers() == []


async def test_a_dependency_that_the_app_does_not_declare_is_an_error_of_the_task(app: App) -> None:
    @app.task(retry=Retry.never())
    async def lost(ctx: Context) -> None:
        async with ctx.dependency("nobody"):
            pass

    async with serving(app):
        end = await failure(await lost.enqueue())

    assert "it has: carrier" in end.error


async def test_calls_are_counted_wherever_their_handler_runs(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """In the loop, in a thread, and in a child process."""
    calling.use_settings(replace(calling.settings, redis_url=valkey.url, namespace=namespace))
    worker = Worker(calling, concurrency=4)
    worker.telling = telling = Telling(worker)
    carrier, mail = telling.metrics.dependencies["carrier"], telling.metrics.dependencies["mail"]
    async with calling:
        serving = asyncio.create_task(worker.serve())
        try:
            for task in calling.tasks.values():
                await (await task.enqueue()).result(PATIENCE)
            await wait_until_async(
                lambda: carrier.results["ok"] == len(calling.tasks), what="each call is counted"
            )
        finally:
            worker.stop()
            await serving

    assert carrier.results == {"ok": len(calling.tasks), "error": 0, "timeout": 0}
    assert sum(carrier.duration.counts) == len(calling.tasks)
    assert mail.results == {"ok": 0, "error": 0, "timeout": 0}
