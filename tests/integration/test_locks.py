"""`ctx.lock`: one handler at a time, with a token, and told when it is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamworker import (
    App,
    ConfigurationError,
    Context,
    Dependency,
    InvalidArgument,
    JobFailed,
    LockBusy,
    LockLost,
    Retry,
    SyncClient,
)
from streamworker.core.classify import classify
from streamworker.core.states import ErrorClass
from streamworker.flow import locks
from streamworker.flow.locks import Asked, Locks
from streamworker.store import scripts
from streamworker.store.connection import SyncLink
from streamworker.store.keys import Keys
from tests.integration.serving import ThreadWorker, failure, serving
from tests.servers import BenchServer, async_client
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    async with App(
        "locks", redis_url=valkey.url, namespace=namespace, dependencies={"carrier": Dependency()}
    ) as app:
        yield app


async def test_one_handler_at_a_time_and_tokens_grow(app: App) -> None:
    inside, tokens = 0, []

    @app.task
    async def write(ctx: Context, order_id: int) -> None:
        nonlocal inside
        async with ctx.lock(f"order:{order_id}") as lock:
            inside += 1
            assert inside == 1
            tokens.append(lock.token)
            await asyncio.sleep(0.005)
            inside -= 1

    async with serving(app):
        for job in await app.enqueue_many(write.call(7) for _ in range(10)):
            await job.result(20)

    assert tokens == sorted(set(tokens))
    assert len(tokens) == 10


async def test_a_plain_function_may_lock(app: App) -> None:
    inside: list[int] = []

    @app.task
    def write(ctx: Context) -> int:
        with ctx.lock("report") as lock:
            inside.append(1)
            assert len(inside) == 1
            inside.pop()
            return lock.token

    async with serving(app):
        tokens = [await job.result(20) for job in await app.enqueue_many(write.call() for _ in range(6))]

    assert len(set(tokens)) == 6


async def test_who_waits_in_vain_is_told_and_tried_again(app: App) -> None:
    release = asyncio.Event()

    @app.task
    async def hold(ctx: Context) -> None:
        async with ctx.lock("x"):
            await release.wait()

    @app.task(retry=Retry.never())
    async def want(ctx: Context) -> None:
        async with ctx.lock("x", wait="50ms"):
            pass

    async with serving(app):
        first = await hold.enqueue()
        await wait_until_async(lambda: _held(app), what="the lock is held")
        error = await failure(await want.enqueue())
        release.set()
        await first.result(10)

    assert (error.error_class, error.code) == ("transient", "lock_busy")


async def _held(app: App) -> bool:
    return bool(await app.queue().caller.command("EXISTS", app.queue().keys.lock("x")))


async def test_a_lock_that_is_lost_ends_its_block(app: App, valkey: BenchServer, namespace: str) -> None:
    began = asyncio.Event()

    @app.task(retry=Retry.never(), timeout="20s")
    async def hold(ctx: Context) -> None:
        async with ctx.lock("x", ttl="300ms"):
            began.set()
            await asyncio.sleep(20)

    async with serving(app), async_client(valkey.url) as redis:
        job = await hold.enqueue()
        await began.wait()
        await redis.set(Keys(namespace).lock("x"), "other:1 9", px=10_000)
        error = await failure(job)

    assert error.code == "lock_lost"


async def test_a_lock_lives_on_while_it_is_held(app: App) -> None:
    @app.task
    async def hold(ctx: Context) -> bool:
        async with ctx.lock("x", ttl="200ms") as lock:
            await asyncio.sleep(0.7)
            lock.check()
            return await _held(app)

    async with serving(app):
        assert await (await hold.enqueue()).result(10) is True


def test_a_handler_that_blocks_the_loop_keeps_its_lock(valkey: BenchServer, namespace: str) -> None:
    """It is renewed from a thread (R22): nobody else gets it, and the token stays."""
    app = App("locks", redis_url=valkey.url, namespace=namespace)
    key, tokens = Keys(namespace).lock("x"), list[int]()

    @app.task(timeout="20s", retry=Retry.never())
    async def hold(ctx: Context) -> None:
        link = SyncLink(valkey.url)
        async with ctx.lock("x", ttl="800ms") as lock:
            end = time.monotonic() + 2.4
            while time.monotonic() < end:
                assert link.call("PTTL", key) > 0
                time.sleep(0.02)  # noqa: ASYNC251 - the fault of which the lock must not suffer
            lock.check()
            tokens.append(lock.token)
        link.close()

    with ThreadWorker(app), SyncClient(valkey.url, app=namespace) as client:
        job_id = client.enqueue("hold", {}).id
        client.result(job_id, timeout=20)

    assert len(tokens) == 1


def test_a_lock_that_is_lost_in_a_blocking_handler_is_told_by_check(
    valkey: BenchServer, namespace: str
) -> None:
    app = App("locks", redis_url=valkey.url, namespace=namespace)
    seen: list[str] = []

    @app.task(timeout="20s", retry=Retry.never())
    async def hold(ctx: Context) -> None:
        link = SyncLink(valkey.url)
        async with ctx.lock("x", ttl="800ms") as lock:
            link.call("SET", Keys(namespace).lock("x"), "other:1 9", "PX", 1000)
            try:
                while True:
                    time.sleep(0.02)  # noqa: ASYNC251 - as above
                    lock.check()
            except LockLost as error:
                seen.append(error.code)
                raise
            finally:
                link.close()

    with ThreadWorker(app), SyncClient(valkey.url, app=namespace) as client:
        job_id = client.enqueue("hold", {}).id
        with pytest.raises(JobFailed):
            client.result(job_id, timeout=20)

    assert seen == ["lock_lost"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ttl": "30s"}, ConfigurationError),
        ({"ttl": "0s"}, ConfigurationError),
        ({"name": ""}, InvalidArgument),
    ],
)
async def test_locks_that_cannot_be_meant_are_refused(
    app: App, options: dict[str, Any], error: type[Exception]
) -> None:
    seen: list[Exception] = []

    @app.task(timeout="20s", retry=Retry.never())
    async def hold(ctx: Context) -> None:
        try:
            ctx.lock(options.pop("name", "x"), **options)
        except Exception as found:
            seen.append(found)

    async with serving(app):
        await (await hold.enqueue()).result(10)

    assert isinstance(seen[0], error)
    if error is ConfigurationError:
        assert classify(seen[0]).error_class is ErrorClass.PERSISTENT, "no retry mends the code"


async def test_a_lock_through_a_slow_call_is_warned_of_once(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "SLOW_CALL", 0.01)
    monkeypatch.setattr(locks, "_warned", set())

    @app.task
    async def send(ctx: Context) -> None:
        async with ctx.lock("x"), ctx.dependency("carrier"):
            await asyncio.sleep(0.02)

    with caplog.at_level(logging.WARNING, "streamworker"):
        async with serving(app):
            for job in await app.enqueue_many(send.call() for _ in range(2)):
                await job.result(10)

    assert sum("through a call of carrier" in record.message for record in caplog.records) == 1


async def test_a_context_of_a_tests_own_has_every_lock(app: App) -> None:
    context = Context("j", "send", "j", 1, 1, "normal", None, "c")

    async with context.lock("x") as lock:
        assert lock.token == 1

    def plain() -> int:
        own = Context("j", "send", "j", 1, 1, "normal", None, "c")
        with own.lock("x") as lock:
            return lock.token

    assert await asyncio.to_thread(plain) == 1


class Desk:
    """Locks of two attempts, on a server of their own."""

    def __init__(self, app: App, *, hold: asyncio.Event | None = None) -> None:
        self.app = app
        self.sent = asyncio.Event()
        self._hold = hold

    async def run(self, call: scripts.Call) -> Any:
        reply = await self.app.queue().run(call)
        if self._hold is not None and call.script.name == "lock/acquire":
            self.sent.set()
            await self._hold.wait()
        return reply

    def locks(self, holder: str) -> Locks:
        loop = asyncio.get_running_loop()
        return Locks(self.run, holder=holder, task="pack", timeout=10.0, loop=loop, renewals=None)


async def test_a_lock_that_a_handler_holds_already_is_refused(app: App) -> None:
    """The end of the inner block would free it, and others come in beside the rest of the outer one."""
    mine, others = (Desk(app).locks(holder) for holder in ("one:1", "two:2"))

    async with mine.lock("x", None, 0):
        with pytest.raises(ConfigurationError, match="holds it already") as misused:
            async with mine.lock("x", None, 0):
                pass
        with pytest.raises(LockBusy, match="another handler") as busy:
            await others.lock("x", None, 0).acquire()
        assert not busy.value.own
    assert misused.value.lasting


@pytest.mark.parametrize("how", ["a group", "a load"])
async def test_who_waits_in_vain_for_a_lock_of_its_own_handler_is_told_so(app: App, how: str) -> None:
    """A task that was begun in the block, or a plain function that loads for the cache."""
    mine = Desk(app).locks("one:1")

    def load() -> int:
        with mine.lock("x", None, 0.05):
            return 1

    async def part() -> None:
        async with mine.lock("x", None, 0.05):
            pass

    async def inside() -> None:
        if how == "a load":
            await app.cache.get("k", load)
        async with asyncio.TaskGroup() as group:
            group.create_task(part())

    async with mine.lock("x", None, 0):
        with pytest.raises((LockBusy, ExceptionGroup)) as busy:
            await inside()

    assert "another part of this handler holds the lock" in repr(busy.value)


async def test_parts_of_a_handler_that_run_beside_each_other_take_turns(app: App) -> None:
    mine, inside, most = Desk(app).locks("one:1"), 0, 0

    async def part() -> None:
        nonlocal inside, most
        async with mine.lock("x", None, 5):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.005)
            inside -= 1

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(part())

    assert most == 1


async def test_a_lock_whose_reply_nobody_waits_for_is_given_back(app: App) -> None:
    desk = Desk(app, hold=asyncio.Event())
    waiting = asyncio.create_task(desk.locks("one:1").lock("x", None, 0).acquire())
    await desk.sent.wait()

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert not await _held(app)


async def test_a_plain_with_in_a_coroutine_is_refused(app: App) -> None:
    """It would wait for the very loop that it blocks, and the worker with it."""
    lock = Desk(app).locks("one:1").lock("x", None, 0)

    with pytest.raises(ConfigurationError, match="async with") as misused, lock:
        pass
    assert misused.value.lasting
    app.cache.loop = asyncio.get_running_loop()
    with pytest.raises(ConfigurationError, match="await"):
        app.cache.get_sync("k", lambda: 1)


async def test_a_block_that_ends_without_its_lock_says_so(app: App) -> None:
    """A block that waits for nothing after the loss cannot be cancelled."""
    with pytest.raises(LockLost):
        async with Desk(app).locks("one:1").lock("x", None, 0) as lock:
            lock.lose()


async def test_locks_are_told_by_what_became_of_them(valkey: BenchServer, namespace: str) -> None:
    told: list[tuple[str, Asked]] = []
    app = App(namespace, redis_url=valkey.url)
    async with app:

        def locks(holder: str) -> Locks:
            return Locks(
                lambda call: app.queue().run(call),
                holder=holder,
                task="pack",
                timeout=10.0,
                loop=asyncio.get_running_loop(),
                renewals=None,
                told=lambda name, asked, _: told.append((name, asked)),
            )

        first, second = locks("one:1"), locks("two:2")
        async with first.lock("order:7", None, 0):
            with pytest.raises(LockBusy):
                await second.lock("order:7", None, 0).acquire()
            waiting = asyncio.create_task(second.lock("order:7", None, 10).acquire())
            await asyncio.sleep(0)
        await waiting

    assert told[:3] == [("order:7", Asked.WON), ("order:7", Asked.BUSY), ("order:7", Asked.HELD)]
    assert told[3:] == [("order:7", Asked.CONTENDED)]
