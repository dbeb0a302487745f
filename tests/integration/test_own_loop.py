"""The loop of a worker that has a process to itself: of which kind it is, and that nothing ends it."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from streamworker import App, ConfigurationError, Context, Retry, Worker
from streamworker.worker import own_loop
from tests.integration.serving import serving
from tests.servers import BenchServer

ONCE = Retry.never()


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C is heard, as in a worker: no exception of its kind is the user's."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


def kind_of_loop() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


@pytest.mark.usefixtures("heard", "no_leaks")
@pytest.mark.parametrize("asked", [None, "", "asyncio", "uvloop"])
def test_a_worker_runs_in_the_loop_that_was_asked_for(
    valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    """With what handlers do to it: threads, an exit in a task, a stop of the loop, an end of its threads."""
    if asked == "uvloop":
        pytest.importorskip("uvloop")
    if asked is None:
        monkeypatch.delenv(own_loop.LOOP_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(own_loop.LOOP_VARIABLE, asked)
    app = App("loops", redis_url=valkey.url, namespace=namespace, lease="1s")
    found: list[Any] = []

    @app.task(retry=ONCE)
    async def kind(ctx: Context) -> str:
        return kind_of_loop()

    @app.task(retry=ONCE)
    def thread(ctx: Context) -> str:
        return threading.current_thread().name

    @app.task(retry=ONCE)
    async def end_it(ctx: Context) -> str:
        async def leave() -> None:
            sys.exit(3)

        loop = asyncio.get_running_loop()
        exiting = loop.create_task(leave())
        await asyncio.wait([exiting])
        loop.stop()
        await asyncio.sleep(0.01)
        await loop.shutdown_default_executor()
        return await asyncio.to_thread(lambda: f"after {exiting.exception()!r}")

    async def main() -> None:
        async with app, serving(app):
            for task in (kind, thread, end_it, kind):
                job = await task.enqueue()
                found.append(await job.result(10))

    assert own_loop.run(main(), slots=4, make=own_loop.maker()) == 0
    ours = "uvloop" if asked == "uvloop" else "asyncio"
    assert found == [ours, found[1], "after SystemExit(3)", ours]
    assert found[1].startswith("streamworker-job")


@pytest.mark.usefixtures("heard", "no_leaks")
def test_a_handler_that_fills_the_threads_of_the_loop_keeps_nobody_from_finding_redis(
    valkey: BenchServer, namespace: str
) -> None:
    """cpython#112169, lium-io#1164: asyncio looks up names in the threads that `asyncio.to_thread` uses."""
    url = valkey.url.replace("127.0.0.1", "localhost")
    app = App("names", redis_url=url, namespace=namespace, lease="1s")
    free, filled = threading.Event(), asyncio.Event()

    @app.task(retry=ONCE)
    async def fill(ctx: Context) -> None:
        waiting = [asyncio.ensure_future(asyncio.to_thread(free.wait)) for _ in range(40)]
        await asyncio.sleep(0)
        filled.set()
        await asyncio.gather(*waiting)

    @app.task(retry=ONCE)
    async def after(ctx: Context) -> str:
        return "found"

    async def main() -> None:
        async with app, serving(app, concurrency=4):
            filling = await fill.enqueue()
            await filled.wait()
            with Redis.from_url(valkey.url) as redis:
                redis.client_kill_filter(_type="normal", skipme=True)
            try:
                assert await (await after.enqueue()).result(10) == "found"
            finally:
                free.set()
            await filling.result(10)

    assert own_loop.run(main(), slots=4) == 0


@pytest.mark.parametrize("asked", ["gevent", "UVLOOP"])
def test_a_loop_that_is_none_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setenv(own_loop.LOOP_VARIABLE, asked)
    with pytest.raises(ConfigurationError, match="asyncio or uvloop"):
        Worker(App("loops")).run()


def test_uvloop_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(own_loop.LOOP_VARIABLE, "uvloop")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(ConfigurationError, match=r"streamworker\[uvloop\]"):
        Worker(App("loops")).run()
