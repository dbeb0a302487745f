"""Ending a worker: what runs may end, the rest is handed back uncharged, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from streamworker import App, Client, Context, Job, Retry, Status, Worker
from streamworker.store import lua
from streamworker.store.keys import GROUP
from streamworker.worker import session
from tests.integration.history import Allowance, Journal, Observer, judge
from tests.processes import WorkerProcess
from tests.proxy import Proxy
from tests.servers import BenchServer, ServerFactory
from tests.waiting import Stopwatch, wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def start(
    valkey: BenchServer, namespace: str, tmp_path: Path, journal: Journal
) -> Callable[..., WorkerProcess]:
    """Makes worker processes of the app `faults_jobs`; enter them."""

    def make(*arguments: str, redis_url: str = valkey.url, lease: str = "30") -> WorkerProcess:
        # A lease that outlasts the test: nobody but the worker itself can give its jobs back.
        env = {
            "FAULTS_JOURNAL": str(journal.path),
            "FAULTS_GO": str(tmp_path / "go"),
            "STREAMWORKER_LEASE": lease,
        }
        return WorkerProcess("faults_jobs:app", *arguments, redis_url=redis_url, namespace=namespace, env=env)

    return make


@pytest.fixture
async def client(valkey: BenchServer, namespace: str) -> AsyncIterator[Client]:
    async with Client(valkey.url, app="faults", namespace=namespace) as client:
        yield client


def ended_within(worker: WorkerProcess, since: Stopwatch) -> float:
    """Seconds from `since` until the worker's clean end, those apart in which the machine was too busy."""
    assert worker.wait() == 0, worker.log_tail()
    return since.fair


def gone_without_a_trace(observer: Observer) -> list[str]:
    """What workers left in Redis: liveness keys, consumers, roles."""
    names = [key.decode() for key in observer.redis.keys(f"{observer.keys.tag}:*")]
    left = [name for name in names if ":worker:" in name or ":elect:" in name]
    for stream in (name for name in names if ":lane:" in name):
        if observer.redis.xinfo_groups(stream):
            left += [f"{stream}: {each['name']}" for each in observer.redis.xinfo_consumers(stream, GROUP)]
    return left


# --- a process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_ends_at_once(
    start: Callable[..., WorkerProcess], observer: Observer, number: signal.Signals
) -> None:
    """Issue, R47: SIGTERM and Ctrl-C end an idle worker in less than a second, with exit code 0."""
    with start() as worker:
        worker.wait_for_log("slots, lanes")
        asked = Stopwatch()
        os.kill(worker.pid, number)

        assert ended_within(worker, asked) < 1.0
        assert "Traceback" not in worker.log()
        assert worker.log().splitlines()[-1].endswith(": ended, 0 jobs handed back")

    assert gone_without_a_trace(observer) == []


async def test_sigterm_lets_jobs_end_and_hands_the_rest_back(
    start: Callable[..., WorkerProcess], client: Client, observer: Observer, journal: Journal, tmp_path: Path
) -> None:
    """Issue (B27): stop claiming, wait for `grace`, release what is left uncharged, exit 0; peers go on."""
    with start("--concurrency", "4", "--grace", "2", "--lanes", "normal") as worker:
        short = await client.enqueue("work", {"seconds": 0.3})
        thread = await client.enqueue("work_in_thread", {"seconds": 0.8})
        long = [await client.enqueue("hold", {}) for _ in range(2)]
        waiting = [await client.enqueue("work", {}) for _ in range(5)]
        await wait_until_async(lambda: len(journal.starts()) == 4, what="all slots are taken")
        asked = Stopwatch()
        worker.terminate()
        took = await asyncio.to_thread(ended_within, worker, asked)
        assert worker.log().splitlines()[-1].endswith(": ended, 2 jobs handed back")

    assert took < 3.0
    assert asked.seconds >= 2.0
    assert await short.status() is Status.SUCCEEDED
    assert await thread.status() is Status.SUCCEEDED
    for job in long:
        record = observer.record(job.id)
        assert (record.status, record.attempt, record.strikes) == (Status.QUEUED, 0, 0)
        assert observer.transitions(job.id)[-1].reason == "shutdown"
    assert {observer.record(job.id).starts for job in waiting} == {0}  # it claimed nothing more
    assert gone_without_a_trace(observer) == []

    (tmp_path / "go").touch()
    with start() as peer:
        # The peer needs no lease to run out: all of it was given back.
        assert [await job.result(10) for job in [*long, *waiting]] == [1] * 7
        peer.terminate()
        peer.wait()
    assert observer.leftovers() == []
    assert (
        judge(
            accepted=[job.id for job in (short, thread, *long, *waiting)],
            transitions=observer.transitions(),
            marks=journal.marks(),
        )
        == []
    )


async def test_a_second_signal_ends_at_once(
    start: Callable[..., WorkerProcess], client: Client, observer: Observer, journal: Journal
) -> None:
    """Issue: second signal: at once; what runs is still handed back uncharged."""
    with start("--grace", "60") as worker:
        job = await client.enqueue("hold", {})
        await wait_until_async(journal.starts, what="it runs")
        worker.terminate()
        worker.wait_for_log("stopping")
        asked = Stopwatch()
        worker.terminate()

        assert await asyncio.to_thread(ended_within, worker, asked) < 1.0

    record = observer.record(job.id)
    assert (record.status, record.attempt) == (Status.QUEUED, 0)
    assert await job.cancel()


async def test_handlers_that_cannot_be_ended_do_not_keep_the_process(
    start: Callable[..., WorkerProcess], client: Client, observer: Observer, journal: Journal
) -> None:
    """R23: threads cannot be cancelled, coroutines may refuse: after grace they are handed back, and exit."""
    with start("--grace", "0.5") as worker:
        jobs = [await client.enqueue("hold_thread", {}), await client.enqueue("deaf", {})]
        await wait_until_async(lambda: len(journal.starts()) == 2, what="both run")
        asked = Stopwatch()
        worker.terminate()
        took = await asyncio.to_thread(ended_within, worker, asked)

        assert "cancel_unresponsive" in worker.log()
        assert "Traceback" not in worker.log()
    # One second more for them to obey.
    assert took < 0.5 + 1.0 + 1.0
    assert [(observer.record(job.id).status, observer.record(job.id).attempt) for job in jobs] == [
        (Status.QUEUED, 0)
    ] * 2
    for job in jobs:
        await job.cancel()


async def test_a_worker_ends_although_redis_is_gone(
    start: Callable[..., WorkerProcess], own_valkey: ServerFactory, valkey: BenchServer
) -> None:
    """Issue: graceful shutdown; what cannot be told to Redis is left to recovery."""
    server = own_valkey()
    with start("--grace", "1", redis_url=server.url) as worker:
        worker.wait_for_log("slots, lanes")
        server.kill()
        worker.wait_for_log("no session with Redis yet")
        asked = Stopwatch()
        worker.terminate()

        assert await asyncio.to_thread(ended_within, worker, asked) < 2.0
        assert "Traceback" not in worker.log()


async def test_a_rolling_deploy_loses_nothing_and_runs_nothing_twice(
    start: Callable[..., WorkerProcess], client: Client, observer: Observer, journal: Journal
) -> None:
    """B27: under load, a worker is replaced by another, three times over."""
    accepted: list[Job[Any]] = []

    enough = asyncio.Event()

    async def feed() -> None:
        while not enough.is_set():
            accepted.append(await client.enqueue("work", {"seconds": 0.02}))
            await asyncio.sleep(0.01)  # the load: up to 100 jobs a second

    with ExitStack() as workers:
        current = workers.enter_context(start("--concurrency", "8"))
        current.wait_for_log("slots, lanes")
        feeding = asyncio.create_task(feed())
        for _ in range(3):
            successor = workers.enter_context(start("--concurrency", "8"))
            await asyncio.to_thread(successor.wait_for_log, "slots, lanes")
            await wait_until_async(journal.running, what="jobs run")
            current.terminate()
            assert await asyncio.to_thread(current.wait) == 0
            current = successor
        enough.set()
        await feeding
        ids = [job.id for job in accepted]
        await wait_until_async(lambda: observer.all_over(ids), timeout=20, what="all are over")

    assert {mark.attempt for mark in journal.starts()} == {1}
    assert observer.leftovers() == []
    assert (
        judge(
            accepted=[job.id for job in accepted],
            transitions=observer.transitions(),
            marks=journal.marks(),
            allowance=Allowance(starts=1),
        )
        == []
    )


# --- a loop of one's own ---------------------------------------------------------------------------------


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    """An app with a lease that outlasts the test, and the task `endless`."""
    async with App("faults", redis_url=valkey.url, namespace=namespace, lease="30s") as app:

        @app.task(retry=Retry.never())
        async def endless(ctx: Context) -> None:
            await asyncio.Event().wait()

        yield app


async def busy(worker: Worker, app: App, observer: Observer) -> tuple[asyncio.Task[None], list[Job[Any]]]:
    """The worker's task, once it runs two jobs while a third waits."""
    serving = asyncio.create_task(worker.serve())
    jobs = await app.enqueue_many(app.tasks["endless"].call() for _ in range(3))
    await wait_until_async(
        lambda: observer.statuses(job.id for job in jobs) == {"processing": 2, "queued": 1}, what="two run"
    )
    return serving, jobs


def assert_handed_back(observer: Observer, jobs: list[Job[Any]]) -> None:
    assert gone_without_a_trace(observer) == []
    for job in jobs:
        record = observer.record(job.id)
        assert (record.status, record.attempt, record.strikes) == (Status.QUEUED, 0, 0)
    assert [observer.pending("normal", kind) for kind in ("a", "r")] == [0, 0]


async def test_stop_hands_back(app: App, observer: Observer) -> None:
    """DESIGN 12: `await .serve()` inside a loop of your own, ended by `stop`."""
    worker = Worker(app, concurrency=2, lanes=["normal"], grace=0)
    serving, jobs = await busy(worker, app, observer)

    worker.stop()
    await asyncio.wait_for(serving, 5)

    assert_handed_back(observer, jobs)


async def test_cancellation_hands_back(app: App, observer: Observer) -> None:
    """R20: a cancelled scope cancels each await again: the good-bye is shielded, and then it ends."""
    worker = Worker(app, concurrency=2, lanes=["normal"], grace=0)
    serving, jobs = await busy(worker, app, observer)

    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, 5)

    assert_handed_back(observer, jobs)


async def test_a_cancelled_scope_hands_back(app: App, observer: Observer) -> None:
    """R20: the same for anyio's level-triggered cancellation, which reaches the worker's own tasks too."""
    worker = Worker(app, concurrency=2, lanes=["normal"], grace=0)

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(worker.serve)
            await worker.started.wait()
            jobs = await app.enqueue_many(app.tasks["endless"].call() for _ in range(3))
            await wait_until_async(
                lambda: observer.statuses(job.id for job in jobs) == {"processing": 2, "queued": 1},
                what="two run",
            )
            scope.cancel()

    assert scope.cancelled_caught
    assert_handed_back(observer, jobs)


async def test_what_was_delivered_and_does_not_run_is_handed_back(
    app: App, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R18 (B27, prefetched): entries that Redis delivered to us and we never heard of go back, uncharged."""
    monkeypatch.setattr(session, "PENDING_PAGE", 2)  # there are five
    worker = Worker(app, concurrency=2, lanes=["priority"], grace=0)
    serving = asyncio.create_task(worker.serve())
    await worker.started.wait()
    stream = observer.keys.stream("priority")
    await wait_until_async(
        lambda: any(each["cmd"] == "xreadgroup" for each in observer.redis.client_list()), what="it reads"
    )
    endless = app.tasks["endless"].options(lane="priority")
    running = [await endless.enqueue() for _ in range(2)]
    await wait_until_async(
        lambda: observer.statuses(job.id for job in running) == {"processing": 2}, what="two run"
    )
    lost = [await endless.enqueue() for _ in range(3)]

    # As if a read's reply had been lost on the way.
    delivered = observer.redis.xreadgroup(GROUP, worker.id, {stream: ">"})
    assert len(delivered[0][1]) == 3
    worker.stop()
    await asyncio.wait_for(serving, 5)

    assert_handed_back(observer, [*running, *lost])
    assert {observer.record(job.id).starts for job in lost} == {0}
    assert observer.pending("priority") == 0


async def test_claims_that_arrive_after_the_stop_are_handed_back(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """Issue: stop claiming: what a call under way still brings is not begun, or waited for like any other."""
    began: list[str] = []
    with Proxy(valkey.port) as proxy:
        async with App("late", redis_url=proxy.url, namespace=namespace, lease="30s") as app:

            @app.task
            async def brief(ctx: Context) -> None:
                began.append(ctx.job_id)
                await asyncio.sleep(0.2)  # a job's work

            worker = Worker(app, concurrency=4, grace="5s")
            serving = asyncio.create_task(worker.serve())
            await worker.started.wait()
            async with Client(valkey.url, app="late", namespace=namespace) as client:
                warm = await client.enqueue("brief", {})
                await warm.result(5)
                under_way = proxy.hold_next_request(lua.load("exchange").sha.encode())
                jobs = [await client.enqueue("brief", {}) for _ in range(3)]
                await wait_until_async(lambda: under_way.happened, what="a claim is under way")
                worker.stop()
                for _ in range(10):  # turns of the loop, in which its good-bye begins
                    await asyncio.sleep(0)
                under_way.release()
                await asyncio.wait_for(serving, 10)
                records = [observer.record(job.id) for job in jobs]

    assert gone_without_a_trace(observer) == []
    assert [(record.status, record.attempt) for record in records] == [(Status.QUEUED, 0)] * 3
    assert began == [warm.id]


async def test_a_worker_stopped_while_it_starts_says_good_bye_too(app: App, observer: Observer) -> None:
    """Issue: graceful shutdown, at any moment: here before the first job and right after."""
    for turns in (0, 1, 2, 5, 10, 20, 50):
        job: Job[Any] = await app.tasks["endless"].enqueue()
        worker = Worker(app, concurrency=2, grace=0)
        serving = asyncio.create_task(worker.serve())
        for _ in range(turns):
            await asyncio.sleep(0)
        worker.stop()
        await asyncio.wait_for(serving, 5)

        assert_handed_back(observer, [job])


async def test_jobs_that_end_within_grace_are_recorded(app: App, observer: Observer) -> None:
    """Issue: what runs may end: its outcome is acknowledged before the worker leaves."""
    began = asyncio.Event()

    @app.task
    async def brief(ctx: Context) -> str:
        began.set()
        await asyncio.sleep(0.2)  # a job's work
        return "done"

    worker = Worker(app, concurrency=2, grace="20s")
    serving = asyncio.create_task(worker.serve())
    job = await brief.enqueue()
    await began.wait()
    asked = Stopwatch()
    worker.stop()
    await asyncio.wait_for(serving, 5)

    assert asked.fair < 1.0  # as long as the job, not as long as the grace
    assert await job.result(1) == "done"
    assert observer.leftovers() == []
