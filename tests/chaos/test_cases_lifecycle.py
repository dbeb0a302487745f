"""Cases of workers that come and go: stops, cancels, deploys, names that stay behind, series, networks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamworker import App, Client, Context, PersistentError, Retry, Snooze, Status, TransientError, Worker
from streamworker.ops import inspect
from streamworker.store.keys import GROUP
from streamworker.worker import folding
from streamworker.worker.telling import Telling
from tests.chaos.bench import Bench
from tests.chaos.conftest import LEASE
from tests.chaos.scale import SCALE
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.servers import BenchServer
from tests.waiting import Stopwatch, wait_until, wait_until_async

#: Seconds that a connection waits for a reply, and the longest pause before the next attempt (R17, R42).
REPLY_TIMEOUT, LONGEST_PAUSE = 5.0, 1.0


# --- shutdown --------------------------------------------------------------------------------------------


def test_sigterm_lets_the_short_end_and_hands_back_the_long_and_the_waiting(kind: str) -> None:
    """B27: no new reads, what ends within the grace succeeds, the rest is free at once, uncharged; exit 0."""
    with Bench(kind=kind, lease=10 * LEASE, workers=0, respawn=False) as bench:
        leaving = bench.add_worker("--concurrency", "3", "--lanes", "normal", "--grace", "1s")
        short = [bench.enqueue("work", {"seconds": seconds}) for seconds in (0.7, 0.9)]
        long = bench.enqueue("hold")
        waiting = [bench.enqueue("quick") for _ in range(5)]
        for job in (*short, long):
            bench.wait_running(job)
        asked = Stopwatch()
        assert bench.stop_worker(leaving) == 0
        took, fair = asked.seconds, asked.fair

        record = bench.record(long)
        assert (record.status, record.attempt, record.strikes) == ("queued", 0, 0)
        assert {bench.record(job).starts for job in waiting} == {0}
        assert {bench.record(job).status for job in short} == {Status.SUCCEEDED}
        peer = bench.add_worker()
        up = Stopwatch()
        bench.wait_running(long)
        bench.wait_over(waiting)
        picked_up = up.fair
        bench.release()
        run = bench.finish()

    assert took >= 1.0
    assert fair < 1.0 + 1.0 + 1.0  # a second for what is cancelled, and one for the machine
    assert picked_up < 1.5
    assert [start.attempt for start in run.starts(long)] == [1, 1]
    assert run.starts(long)[1].worker == peer.name
    assert "Traceback" not in leaving.process.log()


# --- cancel ----------------------------------------------------------------------------------------------


def test_a_cancel_outlives_the_workers_that_are_killed_right_after_it(kind: str) -> None:
    """B30: queued, scheduled, delivered, running, between attempts: none runs again, all end as cancelled."""
    with Bench(kind=kind, lease=LEASE, workers=1, concurrency=2, arguments=("--lanes", "normal")) as bench:
        (worker,) = bench.fleet.workers
        running = bench.enqueue("hold")
        bench.wait_running(running)
        between = bench.enqueue("flaky", {"failures": 9})
        wait_until(
            lambda: any(edge.to_status == "retry_scheduled" for edge in bench.log(between)),
            what="it failed once",
        )
        blocker = bench.enqueue("hold")
        bench.wait_running(blocker)
        scheduled = bench.enqueue("quick", delay="1500ms")
        delivered = bench.enqueue("quick")
        read = bench.redis.xreadgroup(GROUP, worker.name, {bench.keys.stream("normal"): ">"})
        assert [fields[b"id"].decode() for _, fields in read[0][1]] == [delivered]
        queued = bench.enqueue("quick")
        jobs = [running, between, scheduled, delivered, queued]

        for job in jobs:
            assert bench.client.cancel(job)
        bench.kill(worker)
        killed = time.time()
        bench.release()
        bench.wait_over([*jobs, blocker])
        # Past the time at which the scheduled one would have been due.
        wait_until(lambda: bench.redis.zcard(bench.keys.schedule) == 0, what="nothing is scheduled")
        late = bench.enqueue("quick", delay="1500ms")
        bench.wait_over([late])
        bench.wait_up()
        run = bench.finish()

    for job in jobs:
        last = next(edge for edge in reversed(run.history.transitions) if edge.job_id == job)
        assert (last.to_status, last.facts["code"]) == ("failed_terminal", "cancelled")
        assert [start for start in run.starts(job) if start.at > killed] == [], "it ran again"
    assert [run.starts(job) for job in (scheduled, delivered, queued)] == [[], [], []]


async def test_a_running_job_hears_of_its_cancel_within_a_heartbeat_and_is_not_tried_again(
    app: App, observer: Observer
) -> None:
    """B30: whatever its handler makes of the cancellation, but for a success, it ends as cancelled."""
    heard: list[float] = []
    begun = 0

    @app.task(retry=Retry.schedule("1ms", "1ms", unknown=["1ms", "1ms"]))
    async def stubborn(ctx: Context, then: str) -> Any:
        nonlocal begun
        begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append(time.monotonic())
            match then:
                case "obeys":
                    raise
                case "fails":
                    raise TransientError("to be tried again") from None
                case "snoozes":
                    return Snooze("1ms")

    async with serving(app):
        jobs = [await stubborn.enqueue(then) for then in ("obeys", "fails", "snoozes")]
        await wait_until_async(
            lambda: observer.statuses(job.id for job in jobs) == {"processing": 3}, what="they run"
        )
        asked = time.monotonic()
        assert [await job.cancel() for job in jobs] == [True] * 3
        await wait_until_async(lambda: observer.all_over([job.id for job in jobs]), what="all are over")

    assert begun == 3
    assert max(heard) - asked < LEASE / 3 + 0.5
    assert [observer.record(job.id).text("ec") for job in jobs] == ["persistent cancelled"] * 3
    assert observer.dead_letters() == {}
    assert observer.leftovers() == []


# --- deploys ---------------------------------------------------------------------------------------------


def test_a_task_that_only_the_next_release_knows_waits_for_it_uncharged(kind: str) -> None:
    """B42: old workers hand it back; it is not lost, charged or counted, and runs when new ones come."""
    with Bench(
        kind=kind, lease=LEASE, workers=1, app="case_jobs:app", env={"CASE_OLD": "1"}, respawn=False
    ) as bench:
        (old,) = bench.fleet.workers
        job = bench.enqueue("new.task")
        wait_until(lambda: bench.record(job).number("du") is not None, what="it is handed back with a delay")
        back = bench.record(job)
        assert (back.status, back.attempt, back.starts, back.strikes) == ("queued", 0, 0, 0)
        wait_until(
            lambda: [line.reason for line in bench.log(job)][-1:] == ["unknown_task"], what="the log says why"
        )

        bench.fleet._env["CASE_OLD"] = ""
        bench.add_worker()
        bench.stop_worker(old)
        bench.wait_over([job])
        run = bench.finish()

    (start,) = run.starts(job)
    assert start.attempt == 1
    assert run.path(job)[-1] == "succeeded"


# --- names that stay behind ------------------------------------------------------------------------------

_TEN_WORKERS = """
import asyncio, os, sys
from streamworker import App, Worker

def serve():
    app = App("cases", redis_url=sys.argv[1], namespace=sys.argv[2], lease="1s")
    asyncio.run(Worker(app, concurrency=1).serve())

children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        serve()
        os._exit(0)
    children.append(child)
print(*children, flush=True)
sys.stdin.read()
"""


async def test_of_stopped_and_killed_workers_no_record_stays(
    app: App, server: BenchServer, namespace: str, observer: Observer
) -> None:
    """B77: ten that stop take theirs along at once, ten that are killed lose it by its TTL; no names stay."""

    async def listed() -> int:
        return len(await inspect.workers(app.queue()))

    stopping = [Worker(app, concurrency=1) for _ in range(10)]
    tasks = [asyncio.create_task(worker.serve()) for worker in stopping]
    await wait_until_async(lambda: all(worker.started.is_set() for worker in stopping), what="ten serve")
    assert await listed() == 10
    for worker in stopping:
        worker.stop()
    await asyncio.gather(*tasks)
    assert await listed() == 0
    assert names(observer) == set()

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _TEN_WORKERS, server.url, namespace),
        cwd=Path(__file__).parents[2],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    pids = [int(word) for word in (await process.stdout.readline()).split()]
    await wait_until_async(listed_is(app, 10), timeout=20, what="ten more serve")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    keys = observer.redis.keys(observer.keys.worker("*"))
    assert min(observer.redis.pttl(key) for key in keys) > 0
    async with serving(app):
        await wait_until_async(listed_is(app, 1), timeout=10, what="only the living one is listed")
        await wait_until_async(lambda: len(names(observer)) <= 1, timeout=10, what="the names are forgotten")
    process.stdin.close()
    await process.wait()

    assert await listed() == 0
    elections = observer.keys.elect("*")
    await wait_until_async(lambda: observer.redis.keys(elections) == [], what="the last election is over")


def listed_is(app: App, count: int) -> Any:
    async def is_so() -> bool:
        return len(await inspect.workers(app.queue())) == count

    return is_so


def names(observer: Observer) -> set[str]:
    """The consumers of all streams."""
    streams = observer.redis.scan_iter(match=f"{observer.keys.tag}:lane:*", count=1_000)
    return {
        one["name"].decode()
        for stream in streams
        if observer.redis.xinfo_groups(stream)
        for one in observer.redis.xinfo_consumers(stream, GROUP)
    }


# --- series without end ----------------------------------------------------------------------------------


async def test_series_depend_on_lanes_and_tasks_and_never_on_jobs_or_workers(
    server: BenchServer, namespace: str, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B74: workers with names of their own, tasks nobody knows, codes made up for a job: no new series.

    What nobody knows is told as `other`, from the first such job on, and in Redis it becomes that as well.
    """
    monkeypatch.setattr(folding, "FOLD_ABOVE", 30)  # by the keeper of the next round, and not after 2,000
    rounds, jobs = 10 * SCALE, 40
    counted = 0

    class Odd(PersistentError): ...

    def fresh() -> App:
        app = App("cases", redis_url=server.url, namespace=namespace, lease=LEASE)

        @app.task(retry=Retry.schedule("1ms"))
        async def work(ctx: Context, number: int) -> None:
            nonlocal counted
            counted += 1
            match number % 4:
                case 0:
                    raise Odd("no", code=f"order_{ctx.job_id.replace('-', '_')}"[:40])
                case 1 if ctx.attempt == 1:
                    raise TransientError("no", code=f"host_{number}_{counted}")

        return app

    series: list[set[str]] = []
    async with Client(server.url, app="cases", namespace=namespace) as client:
        for round_number in range(rounds):
            app = fresh()
            worker = Worker(app, concurrency=8)
            worker.telling = Telling(worker)
            async with app:
                task = asyncio.create_task(worker.serve())
                wanted = [await client.enqueue("work", {"number": n}) for n in range(jobs)]
                unknown = await client.enqueue(f"unknown_{round_number}", {})
                ids = [job.id for job in wanted]
                await wait_until_async(partial(observer.all_over, ids), what="all are over")
                await unknown.cancel()
                await look_at_redis(worker)
                series.append(samples(worker.telling._page.text()))
                worker.stop()
                await task

    first, *others = series
    assert counted >= rounds * jobs
    assert [found ^ first for found in others if found != first] == []
    assert 'streamworker_queue_enqueued_total{lane="normal",task="other"}' in first
    assert observer.redis.hlen(observer.keys.stats) < 40, observer.stats()
    assert not any(worker_word in line for line in first for worker_word in ("order_", "host_", "unknown_"))


async def look_at_redis(worker: Worker) -> None:
    """What the worker tells of Redis is from now, and not from its last look."""
    assert worker.telling is not None
    watcher = worker.telling.watcher(worker)
    try:
        await watcher.look()
    finally:
        await watcher.close()
    assert worker.telling.cluster.snapshot is not None


def samples(text: str) -> set[str]:
    """The names of all samples with their labels, but for those that come with the first observation and are
    few: buckets, kinds of errors of Redis, our own scripts."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    few = ("_bucket", "redis_errors", "redis_call_duration")
    return {line.rpartition(" ")[0] for line in lines if not any(name in line for name in few)}


def passed(moment: float) -> bool:
    return time.monotonic() > moment


# --- networks --------------------------------------------------------------------------------------------


def test_work_goes_on_after_resets_and_silence_again_and_again(kind: str) -> None:
    """B65: connections are reset, new ones meet silence, then all is well: consumption goes on in time."""
    silence = 1.5 * LEASE if SCALE == 1 else 20.0
    with Bench(kind=kind, lease=LEASE, workers=2) as bench:
        for _ in range(2 if SCALE == 1 else 5):
            bench.wait_over([bench.enqueue("quick")])
            until = time.monotonic() + silence
            for worker in bench.fleet.workers:
                bench.cut(worker)
                bench.black_hole(worker)
            waiting = bench.enqueue("quick")
            wait_until(partial(passed, until), timeout=60, what="the silence is over")
            assert waiting not in bench.reader.over
            for worker in bench.fleet.workers:
                bench.restore(worker)
            bench.wait_over([waiting], timeout=REPLY_TIMEOUT + LONGEST_PAUSE + 2)
        run = bench.finish()

    assert {start.attempt for start in run.history.starts} == {1}
