"""More faults of handlers, and of what looks at them, beyond the list of cases: each job comes to an end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from streamworker import App, Context, Retry, Worker
from streamworker.core.errors import ConfigurationError
from streamworker.telemetry import tracing
from streamworker.worker import runner
from streamworker.worker.sweep import SWEEP_EVERY
from tests.integration.history import Observer
from tests.integration.serving import failure, serving
from tests.servers import BenchServer

ONCE = Retry.never()


class Delegating(Exception):
    """Looks attributes up elsewhere, as wrappers of other libraries' errors do."""

    def __getattr__(self, name: str) -> NoReturn:
        raise KeyError(name)


class Unprintable(Exception):
    def __str__(self) -> NoReturn:
        raise SystemExit(1)


class Comparing(Exception):
    """Compares with nothing."""

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("cannot be compared")

    __hash__ = None  # type: ignore[assignment]


class Classless(Exception):
    """Does not say what it is, as proxies of objects that are gone."""

    @property  # type: ignore[misc]
    def __class__(self) -> NoReturn:  # type: ignore[override]
        raise ReferenceError("weakly-referenced object no longer exists")


class Untraceable(Exception):
    """Has no place that could be told."""

    @property
    def __cause__(self) -> NoReturn:  # type: ignore[override]
        raise ReferenceError("weakly-referenced object no longer exists")


@pytest.fixture
def server(valkey: BenchServer) -> BenchServer:
    """What handlers do is the same on each kind of server."""
    return valkey


#: Names that mean something on the way to a handler.
ODD_NAMES = [
    "self",
    "cls",
    "args",
    "kwargs",
    "task",
    "call",
    "callable",
    "func",
    "loop",
    "key",
    "delay",
    "",
    "a b",
]


async def test_an_argument_may_have_any_name_but_the_contexts(app: App) -> None:
    """rq#98: data of others has a field `self`, and the producer was told of two values for an argument."""
    given = dict.fromkeys(ODD_NAMES, 1)

    @app.task
    async def tell(ctx: Context, /, **data: int) -> dict[str, int]:
        return data

    @app.task
    def tell_in_a_thread(ctx: Context, /, **data: int) -> dict[str, int]:
        return data

    async with serving(app):
        for task in (tell, tell_in_a_thread):
            jobs = [
                await task.enqueue(**given),
                await task.options(lane="priority").enqueue(**given),
                await app.enqueue(task.name, given),
                *await app.enqueue_many([task.call(**given), task.options(lane="priority").call(**given)]),
            ]
            assert [await job.result(10) for job in jobs] == [given] * 5


@pytest.mark.parametrize(
    "error",
    [
        Delegating("x"),
        Unprintable("x"),
        Comparing("x"),
        RecursionError("x"),
        MemoryError(),
        GeneratorExit(),
        KeyboardInterrupt(),
        SystemExit(3),
        asyncio.CancelledError(),
        StopAsyncIteration(1),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_handler_raises_its_job_ends(app: App, error: BaseException) -> None:
    """An error whose attributes cannot be looked up left its job in progress, kept by heartbeats."""

    @app.task(retry=ONCE)
    async def fail(ctx: Context) -> None:
        raise error

    @app.task(retry=ONCE)
    def fail_in_a_thread(ctx: Context) -> None:
        raise error

    async with serving(app):
        for task in (fail, fail_in_a_thread):
            failed = await failure(await task.enqueue(), 5)
            assert failed.error_class == "unknown"


@pytest.mark.parametrize("odd", [Classless, Untraceable])
async def test_an_error_that_cannot_be_looked_at_ends_its_job(app: App, odd: type[Exception]) -> None:
    """It was in progress until its time was over, and five seconds more."""

    @app.task(retry=ONCE)
    async def fail(ctx: Context) -> None:
        raise odd("x")

    async with serving(app):
        assert odd.__name__ in (await failure(await fail.enqueue(), 3)).error


class Faulty(SpanProcessor):
    """A processor of spans that fails at one end of them."""

    def __init__(self, where: str) -> None:
        self._where = where

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        if self._where == "start":
            raise RuntimeError("no span can start")

    def on_end(self, span: ReadableSpan) -> None:
        if self._where == "end":
            raise RuntimeError("no span can end")


@pytest.fixture(params=["start", "end"])
def faulty_tracer(request: pytest.FixtureRequest) -> Iterator[None]:
    provider = TracerProvider()
    provider.add_span_processor(Faulty(request.param))
    tracing.enable(provider)
    yield
    tracing.disable()


@pytest.mark.usefixtures("faulty_tracer")
async def test_a_tracer_that_fails_keeps_no_producer_and_no_job_waiting(app: App) -> None:
    """The producer's enqueue never returned, and a job that had run was never settled."""

    @app.task(retry=ONCE)
    async def add(ctx: Context, a: int, b: int) -> int:
        return a + b

    async with serving(app), asyncio.timeout(10):
        job = await add.enqueue(1, 2)
        assert await job.result(5) == 3


async def test_a_job_that_is_cancelled_while_its_worker_stops_is_told(app: App, observer: Observer) -> None:
    """procrastinate#1598: a worker that was shutting down did not look for cancels any more."""
    begun = asyncio.Event()

    @app.task(timeout="60s", retry=ONCE)
    async def long(ctx: Context) -> None:
        begun.set()
        await asyncio.sleep(30)

    worker = Worker(app, grace="20s")
    serving_ = asyncio.create_task(worker.serve())
    job = await long.enqueue()
    await begun.wait()

    worker.stop()
    await job.cancel()

    assert (await failure(job, 5)).code == "cancelled"
    await asyncio.wait_for(serving_, 5)
    assert observer.leftovers() == []


async def test_the_cost_of_waiting_grows_with_the_waiters_and_not_with_their_square(
    app: App, observer: Observer
) -> None:
    """Each result that came had Redis told of all that were still waited for."""

    @app.task
    async def number(ctx: Context, n: int) -> int:
        return n

    count = 1_000
    async with serving(app, concurrency=64):
        before = observer.redis.info("stats")["total_net_input_bytes"]
        jobs = await app.enqueue_many(number.call(n) for n in range(count))
        assert await asyncio.gather(*(job.result(60) for job in jobs)) == list(range(count))
        sent = observer.redis.info("stats")["total_net_input_bytes"] - before

    assert sent / count < 15_000  # bytes for each job; 29,000 before


async def test_a_worker_that_is_run_in_a_thread_says_what_to_do_instead(app: App) -> None:
    """It failed at its first signal handler, in asyncio's words."""
    with pytest.raises(ConfigurationError, match="await serve"):
        await asyncio.to_thread(Worker(app).run)


async def test_a_handler_that_was_given_up_is_not_collected_as_garbage(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cpython#88831: loops keep no tasks. It was ended where the collector ran, and its slot freed there."""
    monkeypatch.setattr(runner, "UNRESPONSIVE_AFTER", 0.05)
    collected, leaving = [], False

    @app.task(retry=ONCE, timeout="50ms")
    async def deaf(ctx: Context) -> None:
        while not leaving:
            try:
                await asyncio.Event().wait()  # that nobody else has
            except asyncio.CancelledError:
                continue
            except GeneratorExit:
                collected.append(ctx.job_id)
                raise

    async with serving(app, grace=0.1):
        others = asyncio.all_tasks()
        job = await deaf.enqueue()
        assert (await failure(job, 5)).code == "timeout"
        await asyncio.sleep(3 * SWEEP_EVERY)  # until nobody looks at it any more
        gc.collect()
        leaving = True
        for task in asyncio.all_tasks() - others:
            task.cancel()

    assert collected == []
