"""What bounds a job and a worker: attempts, starts, timeouts, deadlines, cancels, slots."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from streamworker import App, Context, Job, Lane, Retry, Snooze, Status, TransientError
from tests.integration.history import Observer
from tests.integration.serving import failure, serving
from tests.servers import BenchServer
from tests.waiting import Stopwatch, wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    """An app on the shared Valkey, with a lease of 1 s."""
    async with App("limits", redis_url=valkey.url, namespace=namespace, lease="1s") as app:
        yield app


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


# --- time limits -----------------------------------------------------------------------------------------


async def test_a_coroutine_that_takes_too_long_is_cancelled(app: App, observer: Observer) -> None:
    """DESIGN 4: `timeout` is for one attempt; a timeout is transient and retried."""
    cancelled: list[int] = []

    @app.task(timeout="100ms", retry=Retry.schedule("20ms"))
    async def slow(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(ctx.attempt)
            raise

    async with serving(app):
        failed = await failure(await slow.enqueue())

    assert cancelled == [1, 2]
    assert (failed.code, failed.error_class) == ("timeout", "transient")
    assert "100ms" in failed.error


async def test_a_thread_that_takes_too_long_is_settled_and_keeps_its_slot(
    app: App, observer: Observer
) -> None:
    """R23: threads cannot be cancelled: the outcome is recorded, the slot is taken until the thread ends."""
    release = threading.Event()
    order: list[str] = []

    @app.task(timeout="100ms", retry=Retry.never())
    def stuck(ctx: Context) -> None:
        release.wait(20)
        order.append("the thread ended")

    @app.task
    async def next_one(ctx: Context) -> None:
        order.append("the next began")

    async with serving(app, concurrency=1):
        failed = await failure(await stuck.enqueue())
        after = await next_one.enqueue()
        # Several rounds of the reader, keeper and sweep that would hand the slot out if it were free.
        sweeps = observer.redis.hget(observer.keys.sweep, "at")
        await wait_until_async(
            lambda: observer.redis.hget(observer.keys.sweep, "at") != sweeps, what="a sweep went by"
        )
        assert await after.status() is Status.QUEUED
        release.set()
        await after.result(5)

    assert failed.code == "timeout"
    assert order == ["the thread ended", "the next began"]


async def test_a_handler_that_swallows_its_cancellation_is_overruled(app: App) -> None:
    """R23: after 5 s the job is settled over its head; the slot stays taken until the handler ends."""
    release = asyncio.Event()
    order: list[str] = []

    @app.task(timeout="100ms", retry=Retry.never())
    async def stubborn(ctx: Context) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                order.append("told to end")
        order.append("ended")

    @app.task
    async def next_one(ctx: Context) -> None:
        order.append("the next began")

    watch = Stopwatch()
    async with serving(app, concurrency=1):
        failed = await failure(await stubborn.enqueue())
        took, fair = watch.seconds, watch.fair
        after = await next_one.enqueue()
        assert await after.status() is Status.QUEUED
        release.set()
        await after.result(5)

    assert failed.code == "timeout"
    assert took > 5.0
    assert fair < 6.5
    assert order == ["told to end", "ended", "the next began"]


async def test_a_deadline_ends_a_job_wherever_it_is(app: App, observer: Observer) -> None:
    """D9: `expired` while it runs, while it waits for a slot, scheduled, and before a late retry."""
    ran: list[str] = []

    @app.task(retry=Retry.schedule("30s"))
    async def work(ctx: Context, what: str) -> None:
        ran.append(what)
        if what == "fails":
            raise TransientError("its retry would come too late")
        await asyncio.Event().wait()

    async with serving(app, lanes=["normal"]):
        jobs = {
            "running": await work.options(deadline="300ms").enqueue("running"),
            "queued": await work.options(deadline="300ms", lane="priority").enqueue("queued"),
            "scheduled": await work.options(delay="250ms", deadline="300ms", lane="priority").enqueue("late"),
            "retry": await work.options(deadline="5s").enqueue("fails"),
        }
        ends = {name: await failure(job) for name, job in jobs.items()}

    assert {name: (end.code, end.error_class) for name, end in ends.items()} == dict.fromkeys(
        jobs, ("expired", "persistent")
    )
    assert sorted(ran) == ["fails", "running"]
    assert observer.leftovers() == []


# --- cancel ----------------------------------------------------------------------------------------------


async def test_what_nobody_holds_is_cancelled_at_once(app: App, observer: Observer) -> None:
    """D9: queued, delayed and between attempts: terminal in the same script, never run, no dead letter."""
    ran: list[str] = []

    @app.task(retry=Retry.schedule("30s"))
    async def work(ctx: Context, what: str) -> None:
        ran.append(what)
        if what == "between":
            raise TransientError("again")

    async with serving(app, lanes=["normal"]):
        queued = await work.options(lane="priority", key="k").enqueue("queued")
        delayed = await work.options(delay="10s").enqueue("delayed")
        between = await work.enqueue("between")
        await wait_until_async(
            lambda: observer.record(between.id).status is Status.RETRY_SCHEDULED, what="the retry waits"
        )
        jobs = (queued, delayed, between)

        assert [await job.cancel() for job in jobs] == [True, True, True]
        assert [await job.status() for job in jobs] == [Status.FAILED_TERMINAL] * 3
        assert [(await failure(job)).code for job in jobs] == ["cancelled"] * 3
        assert [await job.cancel() for job in jobs] == [True, True, True]  # they are, whoever asks again

        done = await work.options(lane="normal").enqueue("done")
        await done.result(5)
        assert not await done.cancel()

    assert ran == ["between", "done"]
    assert observer.dead_letters() == {}
    assert observer.leftovers() == []


async def test_a_running_job_hears_of_its_cancel_with_the_next_heartbeat(
    app: App, observer: Observer
) -> None:
    """D9: running: a flag, told by heartbeat; a success wins, anything else becomes cancelled."""
    started = asyncio.Event()
    heard: list[float] = []
    succeed_now = asyncio.Event()

    @app.task
    async def obedient(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append(time.monotonic())
            raise

    @app.task
    async def winner(ctx: Context) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await succeed_now.wait()
        return "won"

    async with serving(app):
        job, other = await obedient.enqueue(), await winner.enqueue()
        await started.wait()
        await wait_until_async(
            lambda: observer.statuses([job.id, other.id]) == {"processing": 2}, what="both run"
        )
        asked = time.monotonic()
        assert await job.cancel()
        assert await other.cancel()
        failed = await failure(job)

        assert await other.result(5) == "won"

    assert failed.code == "cancelled"
    assert heard[0] - asked < 1 / 3 + 0.3  # a third of the lease, and a busy machine
    assert observer.dead_letters() == {}


# --- starts ----------------------------------------------------------------------------------------------


async def test_a_job_that_always_snoozes_ends_too_many_starts(app: App, observer: Observer) -> None:
    """DESIGN 3: starts count every claim and are never given back, so that no loop is free."""
    starts: list[int] = []

    @app.task(max_starts=5)
    async def sleepy(ctx: Context) -> Snooze:
        starts.append(ctx.attempt)
        return Snooze("10ms")

    @app.task
    async def by_default(ctx: Context) -> Snooze:
        starts.append(-1)
        return Snooze("10ms")

    async with serving(app):
        jobs: list[Job[Any]] = [await sleepy.enqueue(), await by_default.enqueue()]
        ends = [await failure(job) for job in jobs]

    assert [(end.code, end.error_class) for end in ends] == [("too_many_starts", "unknown")] * 2
    assert Counter(starts) == {1: 5, -1: 20}
    assert observer.record(jobs[0].id).starts == 5
    assert observer.dead_letters().keys() == {job.id for job in jobs}
    assert observer.leftovers() == []


# --- slots -----------------------------------------------------------------------------------------------


async def test_a_hundred_long_jobs_do_not_keep_an_urgent_one_waiting(app: App, observer: Observer) -> None:
    """DESIGN 7, Slots: reserved slots serve only their lane."""
    release = asyncio.Event()

    @app.task
    async def long(ctx: Context) -> None:
        await release.wait()

    @app.task(lane="priority")
    async def urgent(ctx: Context) -> float:
        return time.monotonic()

    async with serving(app, concurrency=16):
        jobs = await app.enqueue_many(long.call() for _ in range(100))
        # priority keeps its 4; normal fills its own 4 and the 8 shared ones.
        await wait_until_async(
            lambda: observer.statuses(job.id for job in jobs)["processing"] == 12, what="normal is full"
        )
        asked, watch = time.monotonic(), Stopwatch()
        began = await asyncio.gather(*[(await urgent.enqueue()).result(5) for _ in range(4)])
        assert max(began) - asked - watch.waited < 0.5
        assert observer.statuses(job.id for job in jobs)["queued"] == 88
        release.set()
        await asyncio.gather(*(job.result(10) for job in jobs))

    assert observer.leftovers() == []


async def test_shared_slots_follow_the_weights_while_both_lanes_wait(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """DESIGN 7, Slots: 4 : 1 while both have work."""
    lanes = {"priority": Lane(weight=4), "normal": Lane(weight=1)}
    started: list[str] = []

    async with App("weights", redis_url=valkey.url, namespace=namespace, lanes=lanes) as app:

        @app.task
        async def work(ctx: Context) -> None:
            started.append(ctx.lane)
            await asyncio.sleep(0.002)  # a job's work: it holds its slot for a moment

        both = [(lane, app.tasks["work"].options(lane=lane)) for lane in lanes]
        jobs = await app.enqueue_many(task.call() for _ in range(400) for _, task in both)
        async with serving(app, concurrency=10):
            await asyncio.gather(*(job.result(20) for job in jobs))

    # The first 400 starts: neither lane has run dry by then.
    first = Counter(started[:400])
    assert 3.0 < first["priority"] / first["normal"] < 5.0


async def test_a_backlog_in_one_lane_flows_while_the_other_is_empty(app: App, observer: Observer) -> None:
    """D7: whoever waits in the blocking read for one lane must not miss that another's slots are free."""

    @app.task
    async def work(ctx: Context) -> None:
        await asyncio.sleep(0.005)  # a job's work

    jobs = await app.enqueue_many(work.call() for _ in range(200))
    watch = Stopwatch()
    async with serving(app, concurrency=8):
        await asyncio.gather(*(job.result(20) for job in jobs))
        took = watch.fair

    # 200 jobs of 5 ms in the 5 slots that are normal's or shared are 0.2 s; a blocking read is 1 s.
    assert took < 2.0


async def test_a_worker_of_one_lane_leaves_the_others_alone(app: App, observer: Observer) -> None:
    """DESIGN 12: `--lanes`: hard isolation is a process per lane."""

    @app.task
    async def work(ctx: Context) -> str:
        return ctx.lane

    async with serving(app, lanes=["priority"]):
        other = await work.enqueue()
        mine = await work.options(lane="priority").enqueue()

        assert await mine.result(5) == "priority"
        assert await other.status() is Status.QUEUED

    async with serving(app):
        assert await other.result(5) == "normal"


async def test_a_worker_of_one_lane_leaves_the_struck_jobs_of_others_alone(
    app: App, observer: Observer
) -> None:
    """D22: it sweeps all lanes, and so finds the dead job; running it is for those who serve its lane."""

    @app.task(retry=Retry.fixed(3, "50ms", unknown=["50ms", "50ms"]))
    async def work(ctx: Context) -> str:
        return ctx.lane

    job = await work.enqueue()
    assert await asyncio.to_thread(observer.claim_as_ghost, "normal") == job.id
    async with serving(app, lanes=["priority"]):
        await wait_until_async(lambda: observer.record(job.id).strikes == 1, what="it is recovered")
        # Long enough for several looks into quarantine, told by the sweeps that go on meanwhile.
        later = (observer.sweeps() or 0) + 1500
        await wait_until_async(lambda: (observer.sweeps() or 0) > later, what="some sweeps went by")
        assert await job.status() is Status.RETRY_SCHEDULED
        mine = await work.options(lane="priority").enqueue()
        assert await mine.result(5) == "priority"

    async with serving(app, lanes=["normal"]):
        assert await job.result(10) == "normal"
    assert observer.leftovers() == []


async def test_no_more_handlers_run_than_there_are_slots(app: App, observer: Observer) -> None:
    """DESIGN 2: a slot holds one job; the pump's two calls in flight must not overfill it."""
    running, most = 0, 0

    @app.task
    async def work(ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)  # a job's work
        running -= 1

    async with serving(app, concurrency=5, lanes=["normal"]):
        jobs = await app.enqueue_many(work.call() for _ in range(300))
        await asyncio.gather(*(job.result(10) for job in jobs))

    assert most == 5
    assert observer.leftovers() == []
