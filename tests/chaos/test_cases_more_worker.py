"""More faults of a worker's own parts, beyond the list of cases: context, threads, log, keeper."""

from __future__ import annotations

import asyncio
import contextvars
import io
import logging
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NoReturn

import pytest

from streamworker import App, Context, Retry, Worker
from streamworker.core.errors import ServerUnsuitable
from streamworker.store import handshake
from streamworker.store.connection import ReplyError
from streamworker.telemetry import loggers, transitions
from streamworker.worker.keeper import Keeper
from streamworker.worker.parts import Parts
from tests.chaos.conftest import LEASE
from tests.integration.history import Observer
from tests.integration.serving import failure, serving
from tests.proxy import Proxy
from tests.servers import BenchServer
from tests.unit.documentation import REPOSITORY
from tests.waiting import wait_until_async

ONCE = Retry.never()


@pytest.fixture
def server(valkey: BenchServer) -> BenchServer:
    """What happens within a worker is the same on each kind of server."""
    return valkey


# --- the context that handlers begin in --------------------------------------------------------------------

#: What a handler, or the app, notes for whatever it calls.
NOTE: contextvars.ContextVar[str] = contextvars.ContextVar("note", default="nothing")


@asynccontextmanager
async def noting(app: App) -> AsyncIterator[None]:
    NOTE.set("of the app")
    yield


async def test_no_handler_begins_with_what_another_has_noted(
    valkey: BenchServer, namespace: str, made: list[Parts]
) -> None:
    """cpython#140947: a connection was made anew in the context of a job, and all later ones ran in that."""
    async with App("cases", redis_url=valkey.url, namespace=namespace, lease=LEASE, lifespan=noting) as app:

        @app.task(retry=ONCE)
        async def note(ctx: Context) -> None:
            NOTE.set("of another job")
            made[0].pump.session.link.abort()  # its end is the first to find that there is no connection

        @app.task(retry=ONCE)
        async def tell(ctx: Context) -> str:
            return NOTE.get()

        async with serving(app):
            await (await note.enqueue()).result(10)
            assert await (await tell.enqueue()).result(10) == "of the app"


async def test_what_the_app_has_noted_is_there_after_a_new_session_too(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """The heartbeat asked for it, from its thread, which has no context."""
    async with App("cases", redis_url=valkey.url, namespace=namespace, lease=LEASE, lifespan=noting) as app:

        @app.task(retry=ONCE)
        async def tell(ctx: Context) -> str:
            return NOTE.get()

        async with serving(app) as worker:
            key = observer.keys.worker(worker.id)
            observer.redis.delete(key)
            await wait_until_async(lambda: observer.redis.exists(key), what="there is a session again")
            assert await (await tell.enqueue()).result(10) == "of the app"


async def test_a_task_factory_of_the_apps_that_knows_no_context_does(app: App) -> None:
    loop = asyncio.get_running_loop()

    @app.task(retry=ONCE)
    async def work(ctx: Context) -> int:
        return ctx.attempt

    loop.set_task_factory(lambda loop, work: asyncio.Task(work, loop=loop))
    try:
        async with serving(app):
            assert await (await work.enqueue()).result(10) == 1
    finally:
        loop.set_task_factory(None)


# --- threads -----------------------------------------------------------------------------------------------


@contextmanager
def no_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[list[str]]:
    """While the block lasts no thread of that name can be started; the names of those that were refused."""
    refused: list[str] = []
    start = threading.Thread.start

    def fickle(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fickle)
        yield refused


@pytest.mark.parametrize("before", [0, 1], ids=["the first thread", "a later thread"])
async def test_a_thread_that_cannot_be_started_costs_its_job_nothing(
    app: App, observer: Observer, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """It was charged an attempt, and the pool, which had kept the call, made it later all the same."""
    runs: list[int] = []
    release = threading.Event()

    @app.task(retry=ONCE)
    def hold(ctx: Context) -> None:
        release.wait(10)

    @app.task(retry=ONCE, timeout="300ms")
    def work(ctx: Context) -> int:
        runs.append(ctx.attempt)
        return ctx.attempt

    async with serving(app):
        holding = [await hold.enqueue() for _ in range(before)]
        await wait_until_async(
            lambda: all(observer.record(job.id).status == "processing" for job in holding),
            what="threads are taken",
        )
        with no_threads(monkeypatch, "streamworker-job") as refused:
            job = await work.enqueue()
            await wait_until_async(lambda: len(refused) >= 5, what="it waits for longer than it may run")
        assert await job.result(10) == 1
        release.set()
        for held in holding:
            await held.result(10)

    assert runs == [1]
    assert observer.record(job.id).starts == 1


async def test_a_job_that_waits_for_a_thread_can_be_cancelled(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    @app.task(retry=ONCE)
    def work(ctx: Context) -> None:
        runs.append(ctx.attempt)

    with no_threads(monkeypatch, "streamworker-job") as refused:
        async with serving(app):
            job = await work.enqueue()
            await wait_until_async(lambda: refused, what="it waits for a thread")
            await job.cancel()
            assert (await failure(job, 5)).code == "cancelled"

    assert runs == []


async def test_a_lock_that_no_thread_can_renew_is_not_given(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was held in name only, and so were all that came later: the thread counted as started."""

    @app.task(retry=Retry.schedule("50ms"))
    async def work(ctx: Context) -> int:
        async with ctx.lock("it", ttl="300ms") as lock:
            await asyncio.sleep(0.5)
            lock.check()
            return ctx.attempt

    async with serving(app):
        with no_threads(monkeypatch, "streamworker-locks") as refused:
            job = await work.enqueue()
            await wait_until_async(lambda: refused, what="no lock is given")
        assert await job.result(10) == 2


async def test_too_many_open_files_are_waited_for_when_a_connection_is_made_anew(
    valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py reads a file for each connection. That error ended the reader, and the worker with it."""
    make, refusing, refused = handshake.unconnected, False, 0

    def fickle(*arguments: Any) -> Any:
        nonlocal refused
        if refusing and refused < 12:
            refused += 1
            raise OSError(24, "Too many open files: '…/METADATA'")
        return make(*arguments)

    monkeypatch.setattr("streamworker.store.dialling.unconnected", fickle)
    with Proxy(valkey.port) as proxy:
        async with App("cases", redis_url=proxy.url, namespace=namespace, lease=LEASE) as app:

            @app.task(retry=ONCE)
            async def work(ctx: Context) -> int:
                return ctx.attempt

            async with serving(app):
                refusing = True
                proxy.cut_all()
                await wait_until_async(lambda: refused >= 12, what="all have tried again")
                assert await (await work.enqueue()).result(10) == 1


# --- the log -----------------------------------------------------------------------------------------------


class Broken(logging.Handler):
    """A user's handler that lets its errors out, as those do that send lines over a network."""

    def emit(self, record: logging.LogRecord) -> NoReturn:
        raise ConnectionRefusedError("no log server")


def _broken_filter(record: logging.LogRecord) -> bool:
    raise KeyError("request_id")


@pytest.fixture(params=["handler", "filter"])
def broken_log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loggers, "_said", set())
    names = ("streamworker", "streamworker.worker", "streamworker.transitions")
    handler = Broken()
    for logger in map(logging.getLogger, names):
        if request.param == "handler":
            logger.addHandler(handler)
        else:
            logger.addFilter(_broken_filter)
    level = logging.getLogger(names[-1]).level
    logging.getLogger(names[-1]).setLevel(logging.INFO)  # lines of each move as well
    yield
    logging.getLogger(names[-1]).setLevel(level)
    for logger in map(logging.getLogger, names):
        logger.removeHandler(handler)
        logger.removeFilter(_broken_filter)


def test_all_loggers_of_the_package_are_shielded() -> None:
    sources = [path.read_text() for path in (REPOSITORY / "streamworker").rglob("*.py")]
    named = {name for text in sources for name in re.findall(r'getLogger\("(streamworker[^"]*)"\)', text)}

    assert {*named, transitions.LOGGER} == set(loggers.NAMES)


@pytest.mark.usefixtures("broken_log")
async def test_a_log_that_cannot_be_written_ends_no_worker_and_no_job(
    app: App, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker ended at its first line, and a job whose failure could not be told was never settled."""

    @app.task(retry=Retry.schedule("10ms", unknown=["10ms"]))
    async def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise OSError("told as a warning")
        return ctx.attempt

    async with serving(app):
        assert await (await work.enqueue()).result(10) == 2

    assert capsys.readouterr().err.count("cannot be written") == 1


class Closed(io.StringIO):
    def flush(self) -> NoReturn:
        raise BrokenPipeError("nobody reads it")


def _fail() -> NoReturn:
    raise ValueError("a handler that cannot be closed")


@pytest.mark.parametrize("stream", [None, Closed()], ids=["no stdout", "a broken pipe"])
async def test_a_worker_leaves_whatever_becomes_of_its_last_words(
    app: App, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None
) -> None:
    """With stdout closed, as daemons have it, it stayed for as long as the handler that does not end."""
    left: list[int] = []
    leave: Callable[[str], Any] = Worker(app)._leave
    with monkeypatch.context() as patch:
        patch.setattr(os, "_exit", left.append)
        patch.setattr(logging, "shutdown", _fail)
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        leave("a handler")

    assert left == [0]


# --- the keeper --------------------------------------------------------------------------------------------


async def test_a_step_of_the_keeper_that_fails_keeps_no_other_from_being_done(
    app: App, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asynq#1140: one record that could not be read stopped all recovery, for days."""

    async def refuse(self: Keeper) -> NoReturn:
        raise ReplyError("ERR a fault @user_script:7")

    async def err(self: Keeper) -> NoReturn:
        raise LookupError("a reply that cannot be read")

    for step, fault in {"promote": refuse, "wake": err, "drain": refuse}.items():
        monkeypatch.setattr(Keeper, step, fault)

    @app.task(retry=ONCE)
    async def work(ctx: Context) -> int:
        return ctx.attempt

    async with serving(app):
        await wait_until_async(observer.sweeps, what="a sweep")


async def test_a_keeper_that_is_refused_asks_less_and_less_often(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change of the password each worker of a fleet tried to connect ten times a second."""
    keeper = Keeper(app, "w")
    pauses: list[float] = []

    async def refuse(role: str) -> NoReturn:
        raise ServerUnsuitable("redis refused the password", "check it")

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 12:
            keeper.stop()

    monkeypatch.setattr(keeper, "elected", refuse)
    monkeypatch.setattr(keeper, "_pause", pause)
    await keeper.run()

    assert min(pauses[6:]) >= 0.5
