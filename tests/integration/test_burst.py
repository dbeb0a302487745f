"""`run --burst`: a worker that ends by itself once there is nothing left to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from streamworker import App, Concurrency, Context, RetryAfter, Status, Worker
from streamworker.ops import tune
from streamworker.store.keys import Keys
from streamworker.worker import burst
from streamworker.worker.burst import Burst
from tests.integration.serving import PATIENCE, serving
from tests.processes import WorkerProcess
from tests.servers import BenchServer
from tests.waiting import wait_until_async


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    async with App("idle", redis_url=valkey.url, namespace=namespace) as app:
        yield app


TellsAtOnce = Callable[[str], Awaitable[None]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> TellsAtOnce:
    """Waits until the worker has told of this; it does so with each look."""
    monkeypatch.setattr(burst, "TELL_EVERY", 0.0)
    caplog.set_level(logging.INFO, logger="streamworker.worker")

    async def wait(text: str) -> None:
        await wait_until_async(lambda: text in caplog.text, what=f"it says: {text}")

    return wait


async def run_in_burst(app: App, *, lanes: list[str] | None = None) -> None:
    """Serve until the worker ends by itself."""
    async with asyncio.timeout(PATIENCE):
        await Worker(app, concurrency=2, lanes=lanes, burst=True).serve()


async def test_it_ends_when_all_is_done_and_what_that_enqueued_too(app: App) -> None:
    ran: list[int] = []

    @app.task(limits=[Concurrency("task", 1)])
    async def count(ctx: Context, number: int) -> None:
        ran.append(number)
        if number:
            await count.enqueue(number - 1)

    await app.enqueue_many([count.call(3) for _ in range(5)])

    await run_in_burst(app)

    assert sorted(ran) == sorted([3, 2, 1, 0] * 5)


async def test_without_jobs_it_ends_at_once(app: App) -> None:
    await run_in_burst(app)


async def test_a_job_that_runs_for_long_is_waited_for_wherever_it_runs(app: App, told: TellsAtOnce) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow(ctx: Context) -> None:
        began.set()
        await go.wait()

    async with serving(app):
        job = await slow.enqueue()
        await began.wait()
        ending = asyncio.create_task(run_in_burst(app))
        await told("in a burst: 1 job left")
        assert not ending.done()
        go.set()
        await ending

        assert await job.status() is Status.SUCCEEDED


async def test_what_is_due_later_stays(app: App) -> None:
    @app.task
    async def nothing(ctx: Context) -> None: ...

    @app.task
    async def later(ctx: Context) -> None:
        raise RetryAfter(600)

    soon, late = await nothing.enqueue(), await nothing.options(delay=600).enqueue()
    again = await later.enqueue()

    await run_in_burst(app)

    assert await soon.status() is Status.SUCCEEDED
    assert await late.status() is Status.QUEUED
    assert await again.status() is Status.RETRY_SCHEDULED
    await late.cancel()
    await again.cancel()


async def test_what_is_due_and_not_moved_yet_is_left_to_do(app: App, told: TellsAtOnce) -> None:
    @app.task
    async def nothing(ctx: Context) -> None: ...

    job = await nothing.options(delay=0.05).enqueue()
    caller = app.queue().caller
    ended = asyncio.Event()
    looking = asyncio.create_task(Burst(["normal"], Keys(app.settings.namespace), caller, ended.set).run())

    await told("in a burst: 1 job left")  # no worker is there to move it
    assert not ended.is_set()

    await job.cancel()
    await looking
    assert ended.is_set()


async def test_jobs_of_other_lanes_are_no_reason_to_stay(app: App) -> None:
    @app.task
    async def nothing(ctx: Context) -> None: ...

    urgent, usual = await nothing.options(lane="priority").enqueue(), await nothing.enqueue()

    await run_in_burst(app, lanes=["priority"])

    assert await urgent.status() is Status.SUCCEEDED
    assert await usual.status() is Status.QUEUED
    await usual.cancel()


async def test_a_lane_that_is_paused_is_waited_for(app: App, told: TellsAtOnce) -> None:
    @app.task
    async def nothing(ctx: Context) -> None: ...

    await tune.pause(app.queue(), "lane:normal", actor="test")
    job = await nothing.enqueue()
    ending = asyncio.create_task(run_in_burst(app))
    await told("in a burst: 1 job left")
    assert not ending.done()

    await tune.resume(app.queue(), "lane:normal", actor="test", over=0)
    await told("nothing is left to do")
    await ending

    assert await job.status() is Status.SUCCEEDED


async def test_the_command_ends_with_0(app: App, valkey: BenchServer, namespace: str) -> None:
    """As CI and cron jobs of a cluster need it."""
    with WorkerProcess("cli_app:app", "--burst", redis_url=valkey.url, namespace=namespace) as process:
        assert process.wait() == 0
    assert "nothing is left to do" in process.log()
