"""The harness for users' tests: the same test says the same in memory and on a real server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import metadata
from typing import Any

import pytest

from streamworker import (
    App,
    BadArguments,
    Breaker,
    Cancel,
    Coalesce,
    Concurrency,
    Context,
    Dependency,
    IdempotencyConflict,
    JobFailed,
    Lane,
    PersistentError,
    Rate,
    ResultTimeout,
    Retry,
    RetryAfter,
    Skip,
    Status,
    TransientError,
)
from streamworker.core.errors import ConfigurationError
from streamworker.testing import Harness, harness
from tests.servers import BenchServer, async_client

Trial = Callable[..., Any]


@asynccontextmanager
async def _lifespan(_: App) -> AsyncIterator[dict[str, Any]]:
    yield {"carrier": "dhl", "began": asyncio.Event()}


app = App("shop", lifespan=_lifespan)


@app.task(retry=Retry.schedule("30s", "2m"), lane="priority", key="ship:{order}")
async def ship(ctx: Context, order: int, to: str = "home") -> dict[str, Any]:
    if to == "nowhere":
        raise TransientError("no answer", code="carrier_down")
    if to == "later" and ctx.attempt == 1:
        raise TransientError("not yet")
    if to == "void":
        raise PersistentError("no such place", code="bad_address")
    return {"order": order, "by": ctx.state["carrier"]}


@app.task
def mail(ctx: Context, to: str, again: int = 0) -> str:
    return f"{ctx.key != ''} {to}"


@app.task
async def fan_out(ctx: Context, count: int) -> int:
    await app.enqueue_many(mail.call(f"user{n}@example.com") for n in range(count))
    return count


@app.task(timeout="20s", retry=Retry.never())
async def hang(ctx: Context) -> None:
    ctx.state["began"].set()
    await asyncio.Event().wait()


@app.task
async def ask(ctx: Context, to: str) -> str:
    job = await mail.enqueue(to)
    return f"said: {await job.result(timeout='5s')}"


@app.task
def ask_from_a_thread(ctx: Context, to: str) -> str:
    async def enqueue() -> str:
        async with app:
            return (await mail.enqueue(to)).id

    return asyncio.run(enqueue())


@app.task(run_in="process")
def heavy(ctx: Context, n: int) -> int:
    return n * n


@app.task
async def odd(ctx: Context, how: str) -> Any:
    match how:
        case "skip":
            return Skip("done before")
        case "cancel":
            raise Cancel("no longer wanted")
        case "after":
            if ctx.attempt == 1:
                raise RetryAfter(600)
            return "at last"
        case "big":
            return "x" * 5000
        case _:
            raise ValueError(how)


@pytest.fixture(params=["memory", "valkey"])
def url(request: pytest.FixtureRequest) -> str | None:
    """None for a server in memory, else that of a real one."""
    if request.param == "memory":
        return None
    server: BenchServer = request.getfixturevalue("valkey")
    return server.url


@pytest.fixture
async def t(url: str | None) -> AsyncIterator[Harness]:
    async with harness(app, redis_url=url) as one:
        yield one


# --- running ---------------------------------------------------------------------------------------------


async def test_a_job_runs_when_it_is_drained_and_not_before(t: Harness) -> None:
    job = await ship.enqueue(7)

    assert await job.status() is Status.QUEUED
    assert await t.drain() == 1

    assert await job.result(timeout=1) == {"order": 7, "by": "dhl"}
    (seen,) = t.succeeded(ship, args={"order": 7}, times=1)
    assert (seen.id, seen.lane, seen.key, seen.attempt) == (job.id, "priority", "ship:7", 1)
    assert seen.result == {"order": 7, "by": "dhl"}


async def test_what_handlers_enqueue_runs_in_the_same_drain(t: Harness) -> None:
    await fan_out.enqueue(25)

    assert await t.drain() == 26

    t.succeeded(mail, times=25)
    t.idle()


async def test_a_handler_may_await_the_result_of_another_job(t: Harness) -> None:
    job = await ask.enqueue("a@example.com")

    await t.drain()

    assert await job.result(timeout=1) == "said: True a@example.com"


async def test_a_thread_with_a_loop_of_its_own_enqueues_to_the_same_server(t: Harness) -> None:
    job = await ask_from_a_thread.enqueue("a@example.com")

    assert await t.drain() == 2

    (sent,) = t.succeeded(mail)
    assert await job.result(timeout=1) == sent.id


async def test_a_task_for_another_process_runs_here(t: Harness) -> None:
    job = await heavy.enqueue(12)

    await t.drain()

    assert await job.result(timeout=1) == 144


async def test_a_result_that_is_awaited_before_it_is_there_comes_with_the_drain(t: Harness) -> None:
    job = await mail.enqueue("a@example.com")
    waiting = asyncio.create_task(job.result(timeout=1))  # less than a blocked read takes to look again
    await asyncio.wait([waiting], timeout=0.05)

    await t.drain()

    assert await waiting == "True a@example.com"


async def test_a_retry_waits_for_the_clock(t: Harness) -> None:
    await ship.enqueue(7, to="later")

    assert await t.drain() == 1
    (seen,) = t.retried(ship, times=1)
    assert 27 <= seen.retries[0].delay <= 33
    assert seen.due_in == seen.retries[0].delay
    t.clock.advance("26s")
    assert await t.drain() == 0
    t.clock.advance("8s")
    assert await t.drain() == 1

    (seen,) = t.succeeded(ship)
    assert (seen.attempt, seen.error_code, seen.due_in) == (2, None, None)


async def test_draining_until_idle_makes_all_attempts_in_no_time(t: Harness) -> None:
    began, clock = time.monotonic(), t.clock.now
    job = await ship.enqueue(7, to="nowhere")

    assert await t.drain(until_idle=True) == 3

    (seen,) = t.dead_lettered(ship, code="carrier_down", times=1)
    assert [retry.attempt for retry in seen.retries] == [1, 2]
    assert seen.error == "TransientError: no answer"
    t.retried(ship, code="carrier_down", times=2)
    t.retried(ship, code="another", times=0)
    assert timedelta(seconds=130) < t.clock.now - clock < timedelta(seconds=170)
    assert time.monotonic() - began < 10
    with pytest.raises(JobFailed, match="carrier_down"):
        await job.result(timeout=1)


async def test_persistent_errors_and_bad_arguments_are_dead_letters_at_once(t: Harness) -> None:
    await ship.enqueue(7, to="void")
    await app.enqueue("mail", {"to": "a", "again": "1"})
    with pytest.raises(BadArguments):
        await app.enqueue("mail", {"cc": "a"})

    assert await t.drain() == 2

    t.dead_lettered(ship, code="bad_address", args={"to": "void"}, times=1)
    t.dead_lettered(mail, times=0)
    t.retried(ship, times=0)


async def test_a_delay_and_a_deadline_follow_the_clock(t: Harness) -> None:
    late = await mail.options(delay="1h").enqueue("late@example.com")
    lost = await mail.options(deadline="1m", lane="priority").enqueue("lost@example.com")
    t.clock.advance("2m")

    assert await t.drain() == 0
    t.dead_lettered(mail, code="expired", args={"to": "lost@example.com"}, times=1)
    assert await lost.status() is Status.FAILED_TERMINAL
    assert t.job(late).delay == 3600
    assert t.job(late).due_in == 3600 - 120
    t.clock.advance(timedelta(minutes=58))
    assert await t.drain() == 1

    assert await late.status() is Status.SUCCEEDED


async def test_a_key_is_held_for_its_window_by_the_clock(t: Harness) -> None:
    first = await ship.enqueue(7)
    again = await ship.enqueue(7)
    with pytest.raises(IdempotencyConflict):
        await ship.enqueue(7, to="another place")
    await t.drain()
    t.clock.advance("23h")

    assert again.id == first.id
    assert (await ship.enqueue(7)).id == first.id
    t.clock.advance("2h")
    assert (await ship.enqueue(7)).id != first.id
    t.enqueued(ship, times=2)


async def test_an_attempt_runs_into_its_timeout_by_the_clock(t: Harness) -> None:
    t.clock.advance("1h")  # before it starts: not counted
    await hang.enqueue()
    draining = asyncio.create_task(t.drain())
    await t.state["began"].wait()
    t.clock.advance("19s")
    await asyncio.wait([draining], timeout=0.05)
    assert not draining.done()

    t.clock.advance("2s")
    await draining

    t.dead_lettered(hang, code="timeout", times=1)


async def test_a_running_handler_hears_of_its_cancellation(t: Harness) -> None:
    job = await hang.enqueue()
    draining = asyncio.create_task(t.drain())
    await t.state["began"].wait()

    assert await job.cancel()
    await draining

    assert t.job(job).error_code == "cancelled"
    t.dead_lettered(hang, times=0)


@pytest.mark.parametrize(
    ("how", "status", "result"),
    [
        ("skip", Status.SUCCEEDED, {"skipped": "done before"}),
        ("after", Status.SUCCEEDED, "at last"),
        ("big", Status.SUCCEEDED, "x" * 5000),
        ("cancel", Status.FAILED_TERMINAL, None),
        ("bug", Status.FAILED_TERMINAL, None),
    ],
)
async def test_every_way_to_end_is_seen(t: Harness, how: str, status: Status, result: object) -> None:
    job = await odd.enqueue(how)

    await t.drain(until_idle=True)

    seen = t.job(job)
    assert (seen.status, seen.result) == (status, result)
    assert seen.dead == (how == "bug")


async def test_a_handler_that_does_not_end_fails_the_drain_by_name(t: Harness) -> None:
    job = await hang.enqueue()

    with pytest.raises(AssertionError, match=rf"hang \(job {job.id}\)"):
        await t.drain(patience="50ms")


async def test_a_drain_that_gets_on_has_patience_with_each_handler() -> None:
    """It was one patience for all: many jobs, one after the other, failed it by the name of the last."""
    app = App("patient")

    @app.task(limits=[Concurrency("task", 1)])
    async def slow(ctx: Context) -> None:
        await asyncio.sleep(0.3)

    async with harness(app) as t:
        await app.enqueue_many(slow.call() for _ in range(5))

        assert await t.drain(patience="1s") == 5


# --- assertions ------------------------------------------------------------------------------------------


async def test_an_assertion_that_fails_shows_what_the_jobs_came_to(t: Harness) -> None:
    await ship.enqueue(7, to="nowhere")
    await ship.enqueue(8)
    await t.drain()

    with pytest.raises(AssertionError) as failed:
        t.dead_lettered(ship, code="carrier_down", args={"order": 7})

    said = str(failed.value).splitlines()
    assert said[0] == (
        "ship with {'order': 7} by carrier_down was dead-lettered not at all, expected at least once; "
        "the jobs of ship:"
    )
    assert said[1].startswith("  ship {'order': 7, 'to': 'nowhere'}: retry_scheduled at attempt 1, due in ")
    assert said[1].endswith("(transient, carrier_down: TransientError: no answer)")
    assert said[2] == "  ship {'order': 8}: succeeded at attempt 1"


@pytest.mark.parametrize(
    "claim",
    [
        lambda t: t.enqueued(mail),
        lambda t: t.enqueued(ship, times=2),
        lambda t: t.enqueued(ship, times=0),
        lambda t: t.enqueued(ship, args={"order": 8}),
        lambda t: t.succeeded(ship, args={"order": 7, "to": "home"}),  # a default is not sent
        lambda t: t.retried(ship),
        lambda t: t.dead_lettered("ship"),
        lambda t: t.job("01a22d59-2439-7000-b12d-5e484997d8b0"),
    ],
)
async def test_an_assertion_can_fail(claim: Trial) -> None:
    async with harness(app) as t:
        await ship.enqueue(7)
        await t.drain()

        with pytest.raises(AssertionError):
            claim(t)


async def test_idle_names_what_is_left() -> None:
    async with harness(app) as t:
        await mail.options(delay="1h").enqueue("a@example.com")

        with pytest.raises(AssertionError, match=r"mail .*a@example\.com.*: queued, due in 1h"):
            t.idle()


# --- isolation -------------------------------------------------------------------------------------------


async def test_one_test_sees_nothing_of_another() -> None:
    async with harness(app):
        await ship.enqueue(7)
    async with harness(app) as t:
        assert t.jobs() == []


async def test_a_real_server_is_left_as_it_was(valkey: BenchServer) -> None:
    async with async_client(valkey.url) as client:
        before = sorted(await client.keys("*shop*"))
        async with harness(app, redis_url=valkey.url) as t:
            await ship.enqueue(7, to="nowhere")
            await t.drain()
            assert sorted(await client.keys("*shop-test-*"))

        assert sorted(await client.keys("*shop*")) == before


async def test_the_app_has_its_own_server_again_afterwards() -> None:
    source = app._source

    async def fail() -> None:
        async with harness(app):
            assert app._source is not source
            raise RuntimeError("the test failed")

    with pytest.raises(RuntimeError, match="the test failed"):
        await fail()

    assert app._source is source


async def test_the_clock_begins_where_the_test_says() -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    async with harness(app, start=start) as one:
        await mail.enqueue("a@example.com")
        one.clock.advance("1h")
        await one.drain()

        assert one.clock.now == start + timedelta(hours=1)
        view = await app.queue().record(one.jobs()[0].id)
        assert view.number("at") == round(start.timestamp() * 1000)


def test_without_fakeredis_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    async def open_one() -> None:
        async with harness(app):
            pass

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ConfigurationError, match=r"fakeredis.*pip install 'streamworker\[testing\]'"):
        asyncio.run(open_one())
    monkeypatch.setattr(metadata, "version", lambda name: "2.40.1")
    with pytest.raises(ConfigurationError, match=r"fakeredis 2\.41 or later, not 2\.40\.1"):
        asyncio.run(open_one())


def test_the_app_alone_loads_nothing_for_tests() -> None:
    program = "import sys, streamworker.worker.worker; print([n for n in sys.modules if 'fakeredis' in n])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


async def test_deferred_jobs_run_and_merged_ones_are_one(url: str | None) -> None:
    shop = App("shop", lanes={"normal": Lane(limit=3), "priority": Lane()})
    seen: list[list[int]] = []

    @shop.task(coalesce=Coalesce("collect", window="2s"))
    async def digest(ctx: Context, items: list[int]) -> None:
        seen.append(items)

    @shop.task
    async def work(ctx: Context, n: int) -> int:
        return n

    async with harness(shop, redis_url=url) as t:
        jobs = await shop.enqueue_many(work.call(n) for n in range(8))
        assert [str(job.disposition) for job in jobs] == ["ACCEPTED"] * 3 + ["DEFERRED"] * 5
        for n in range(3):
            await digest.enqueue(items=[n])

        await t.drain(until_idle=True)

        t.succeeded(work, times=8)
        assert seen == [[0, 1, 2]]


async def test_a_breaker_hears_of_the_calls_and_lets_one_try_when_its_time_has_come(url: str | None) -> None:
    bank = Dependency(breaker=Breaker(calls=3, window="10s", open_for="10s", probes=1, ramp=0))
    shop = App("shop", dependencies={"bank": bank})
    ill = True

    @shop.task(uses=["bank"], key="pay:{n}", retry=Retry.fixed(5, "1s"))
    async def pay(ctx: Context, n: int) -> int:
        async with ctx.dependency("bank"):
            if ill:
                raise TransientError("503 from the bank")
            return n

    async with harness(shop, redis_url=url, concurrency=1) as t:
        await shop.enqueue_many(pay.call(n) for n in range(6))
        assert await t.drain() == 3, "three calls failed: the others wait"

        t.clock.advance("5s")
        assert await t.drain() == 0, "and so do their retries"

        ill = False
        t.clock.advance("5s")
        await t.drain(until_idle=True)

        t.succeeded(pay, times=6)


async def test_jobs_that_wait_for_a_token_run_when_the_clock_brings_it(url: str | None) -> None:
    shop = App("shop")

    @shop.task(limits=[Rate("task", "1/s", burst=1)])
    async def ring(ctx: Context) -> None: ...

    async with harness(shop, redis_url=url) as t:
        await shop.enqueue_many(ring.call() for _ in range(3))
        assert await t.drain() == 1
        with pytest.raises(AssertionError, match=r"2 jobs are .*\n.*: queued, parked at rate:task:ring\n"):
            t.idle()

        t.clock.advance("1s")
        assert await t.drain() == 1
        assert await t.drain(until_idle=True) == 1
        assert [job.gate for job in t.succeeded(ring)] == [None] * 3


# --- results ---------------------------------------------------------------------------------------------


async def test_a_result_that_nobody_works_on_is_not_waited_for(t: Harness) -> None:
    job = await mail.enqueue("a@example.com")

    with pytest.raises(AssertionError, match=r"is queued, and nothing has run.*await t\.drain\(\)"):
        await job.result()
    with pytest.raises(ResultTimeout):
        await job.result(timeout=0.01)


async def test_a_result_is_waited_for_while_the_test_drains(t: Harness) -> None:
    job = await mail.enqueue("a@example.com")
    waiting = asyncio.create_task(job.result())
    await asyncio.sleep(0)

    await t.drain()

    assert await waiting == "True a@example.com"


@app.task
def call_all(ctx: Context, count: int) -> None:
    asyncio.run(app.enqueue_many(mail.call(f"{n}@example.com") for n in range(count)))
    asyncio.run(mail.enqueue("boss@example.com"))


async def test_a_plain_function_enqueues_by_a_loop_of_its_own(t: Harness) -> None:
    await call_all.options(correlation_id="c-1").enqueue(2)

    assert await t.drain() == 4
    assert {job.correlation_id for job in t.succeeded(mail, times=3)} == {"c-1"}


async def test_a_change_is_seen_in_the_cache_once_the_job_is_over() -> None:
    shop, price = App("shop"), 7

    @shop.task
    async def ask(ctx: Context) -> int:
        return int(await ctx.cache.get("price", lambda: price))

    @shop.task
    async def change(ctx: Context, to: int) -> None:
        nonlocal price
        price = to
        ctx.invalidate("price")

    async with harness(shop) as t:
        for _ in range(2):
            await ask.enqueue()
            await t.drain()
            await change.enqueue(8)
            await t.drain()

        assert [job.result for job in t.succeeded(ask)] == [7, 8]
