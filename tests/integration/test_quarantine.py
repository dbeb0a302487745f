"""Jobs with strikes run apart: the next death strikes nobody else, and nobody else waits for them (D22)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streamworker import App, Context, Job, Status
from streamworker.core.job import Claim, Record
from streamworker.ops import tune
from streamworker.store import scripts
from streamworker.store.connection import SyncLink
from streamworker.store.keys import Keys
from tests.apps import apart_jobs
from tests.integration.apart import Bench, alive, bench_of, children_of
from tests.integration.serving import failure, serving
from tests.processes import WorkerProcess
from tests.servers import BenchServer
from tests.waiting import Stopwatch, wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
async def bench(
    valkey: BenchServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    async with bench_of(valkey.url, namespace, tmp_path, monkeypatch) as bench:
        yield bench


def leave_behind(app: App, job_id: str, *, lane: str = "normal") -> Claim:
    """Claim one waiting job as a worker that dies at once."""
    link = SyncLink(app.settings.redis_url)
    tag = Keys(app.settings.namespace).tag
    session = scripts.session(worker="dead", own=0, liveness_ms=1000, rows=[])
    number = int(link.script(session.script, tag, *session.argv))
    call = scripts.claim(
        clock="",
        worker="dead",
        session=number,
        lease_ms=1,
        retention_ms=scripts.RETENTION_MS,
        limit=1,
        shared=1,
        offers="",
        plan=f"{lane} 0 1 0",
    )
    reply = link.script(call.script, tag, *call.argv)
    link.close()
    claim = Claim.parse(*reply[1][:3])
    assert claim.job_id == job_id
    return claim


def suspects(bench: Bench, jobs: list[Job[Any]]) -> bool:
    """All of them have their strike, and one of them runs again."""
    again = len(bench.journal.starts()) > len(jobs)
    return again and all(bench.observer.record(job.id).strikes == 1 for job in jobs)


async def test_a_poison_job_beside_64_healthy_ones_strikes_them_once(bench: Bench) -> None:
    """Issue 3: killed three times, it ends `crash_loop`; the others are charged at most once."""
    arguments = ("--concurrency", "72")  # some are reserved for the other lane
    with bench.start(*arguments) as first:
        first.wait_for_log("slots, lanes")
        healthy = [await apart_jobs.patient.enqueue() for _ in range(64)]
        await wait_until_async(lambda: len(bench.journal.starts()) == 64, what="all of them run")
        poison = await apart_jobs.poison.enqueue()
        await asyncio.to_thread(first.wait)
    with bench.start(*arguments) as second:
        bench.let_go()
        failed = await failure(poison, 60)
        attempts = [await job.result(60) for job in healthy]
        assert second.returncode is None, "only the first death took a worker along"

        assert failed.code == "crash_loop"
        assert set(attempts) <= {1, 2}, "charged at most once"
        assert len(bench.journal.starts(poison.id)) == 3
        starts = [len(bench.journal.starts(job.id)) for job in healthy]
        assert set(starts) == {2}
        assert {bench.observer.record(job.id).strikes for job in healthy} == {0}
        letter = bench.observer.dead_letters()[poison.id]
        assert (letter["code"], letter["strikes"]) == ("crash_loop", "3")
        assert "was killed by SIGKILL" in letter["error"]
        pids = [mark.pid for mark in bench.journal.starts(poison.id)]
        assert second.pid not in pids
        assert len(set(pids)) == 3
        second.terminate()
        assert await asyncio.to_thread(second.wait) == 0


async def test_the_others_keep_flowing_beside_a_struck_job(bench: Bench) -> None:
    """It takes no slot: with a single one, a hundred jobs pass while it runs."""
    async with serving(bench.app, concurrency=1):
        struck = await apart_jobs.struck.enqueue("wait")
        await wait_until_async(lambda: len(bench.journal.starts(struck.id)) == 2, what="it runs again")
        watch = Stopwatch()
        jobs = [await apart_jobs.work.enqueue() for _ in range(100)]
        assert [await job.result(10) for job in jobs] == [1] * 100
        took = watch.fair
        assert await struck.status() is Status.PROCESSING
        bench.let_go()
        pid = await struck.result(10)

    assert pid != os.getpid()
    assert took < 5
    assert bench.observer.record(struck.id).strikes == 0


async def test_struck_jobs_run_one_at_a_time_in_one_child(bench: Bench) -> None:
    async with serving(bench.app, concurrency=8):
        jobs = [await apart_jobs.struck.enqueue() for _ in range(3)]
        pids = {await job.result(30) for job in jobs}

    assert len(pids) == 1
    marks = [mark for mark in bench.journal.marks() if mark.pid in pids]
    assert [mark.what for mark in marks] == ["start", "end"] * 3


async def test_a_child_that_is_killed_while_idle_is_replaced(bench: Bench) -> None:
    """Its death is nobody's: no strike, no charge."""
    async with serving(bench.app, concurrency=2):
        first = await (await apart_jobs.struck.enqueue()).result(20)
        os.kill(first, signal.SIGKILL)
        job = await apart_jobs.struck.enqueue()
        second = await job.result(20)

    assert second != first
    assert bench.observer.record(job.id).attempt == 2, "its own first death, and nothing else"


async def test_a_death_in_quarantine_strikes_only_itself(bench: Bench) -> None:
    async with serving(bench.app, concurrency=4):
        waiting = [await apart_jobs.struck.enqueue("wait") for _ in range(2)]
        await wait_until_async(lambda: suspects(bench, waiting), what="one of them runs in quarantine")
        (victim,) = [mark for job in waiting for mark in bench.journal.starts(job.id)[1:]]
        os.kill(victim.pid, signal.SIGKILL)
        bench.let_go()
        assert all([await job.result(20) for job in waiting])

    attempts = {job.id: bench.observer.record(job.id).attempt for job in waiting}
    assert attempts.pop(victim.job_id) == 3
    assert set(attempts.values()) == {2}


async def test_what_waits_in_quarantine_has_no_lease(bench: Bench) -> None:
    async with serving(bench.app, concurrency=4):
        jobs = [await apart_jobs.struck.enqueue("wait") for _ in range(3)]
        await wait_until_async(lambda: suspects(bench, jobs), what="one of them runs in quarantine")

        def records() -> list[Record]:
            found = [bench.observer.record(job.id) for job in jobs]
            return found if all(one.entry is not None and one.entry[0] == "q" for one in found) else []

        waiting = await wait_until_async(records, what="the others stand there as well")
        bench.let_go()
        for job in jobs:
            await job.result(20)

    assert sorted(record.fence > 0 for record in waiting) == [False, False, True]


async def test_a_stop_hands_the_struck_job_back_with_its_strike(bench: Bench) -> None:
    async with serving(bench.app, concurrency=2, grace=0.2):
        job = await apart_jobs.struck.enqueue("wait")
        await wait_until_async(lambda: len(bench.journal.starts()) == 2, what="it runs in quarantine")
        pid = bench.journal.starts()[-1].pid

    record = bench.observer.record(job.id)
    assert (record.strikes, record.attempt) == (1, 1)
    assert record.entry is not None
    assert record.entry[0] == "q"
    assert not alive(pid)
    assert pid not in children_of(os.getpid())


async def test_a_job_of_a_dead_worker_runs_in_the_child(bench: Bench) -> None:
    job = await apart_jobs.work.enqueue()
    leave_behind(bench.app, job.id)
    async with serving(bench.app):
        assert await job.result(20) == 1

    (mark,) = bench.journal.starts(job.id)
    assert mark.pid != os.getpid()


async def test_without_a_child_the_struck_run_alone(
    valkey: BenchServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Decision 0004 goes on where no other process can import the app; that is said once.

    What arrives meanwhile waits: the blocking read that had begun before takes it, and has to give it back.
    """
    beside: list[int] = []
    running: list[bool] = []
    arrived: list[Job[Any]] = []
    async with App("inside", redis_url=valkey.url, namespace=namespace, lease="500ms") as app:

        @app.task
        async def work(ctx: Context, suspect: bool = False) -> int:
            beside.append(len(running) if suspect else sum(running))
            running.append(suspect)
            if suspect:
                arrived.append(await work.enqueue())
            await asyncio.sleep(0.1)
            running.remove(suspect)
            return os.getpid()

        struck = [await work.enqueue(suspect=True) for _ in range(2)]
        for job in struck:
            leave_behind(app, job.id)
        async with serving(app, concurrency=4):
            assert [await job.result(20) for job in struck] == [os.getpid()] * 2
            assert [await job.result(5) for job in arrived] == [os.getpid()] * 2

    assert beside == [0] * 4
    said = [each.getMessage() for each in caplog.records if "jobs with strikes run here" in each.getMessage()]
    assert len(said) == 1


async def test_who_runs_the_struck_of_its_lanes_alone_leaves_others_theirs(
    valkey: BenchServer, namespace: str
) -> None:
    """One worker at a time may. It went on being the one when it had none left, and no other had its turn."""
    async with App("inside", redis_url=valkey.url, namespace=namespace, lease="500ms") as app:

        @app.task
        async def work(ctx: Context) -> str:
            return ctx.lane

        jobs = {lane: await work.options(lane=lane).enqueue() for lane in ("priority", "normal")}
        for lane, job in jobs.items():
            leave_behind(app, job.id, lane=lane)
        async with serving(app, lanes=["priority"]):
            assert await jobs["priority"].result(20) == "priority"
            async with serving(app, lanes=["normal"]):
                assert await jobs["normal"].result(20) == "normal"


async def test_the_struck_of_a_paused_lane_hold_up_no_other_job(valkey: BenchServer, namespace: str) -> None:
    """Again and again nothing was claimed until all that ran had ended, for a job that could not be had."""
    go = asyncio.Event()
    async with App("inside", redis_url=valkey.url, namespace=namespace, lease="500ms") as app:

        @app.task
        async def work(ctx: Context, wait: bool = False) -> str:
            if wait:
                await go.wait()
            return ctx.lane

        paused = await work.options(lane="priority").enqueue()
        leave_behind(app, paused.id, lane="priority")
        async with serving(app, concurrency=4):
            patient = await work.enqueue(wait=True)
            await tune.pause(app.queue(), "lane:priority", actor="test")
            await wait_until_async(lambda: struck(app, paused), what="it has its strike")
            for _ in range(20):
                assert await (await work.enqueue()).result(2) == "normal"
                await asyncio.sleep(0.1)
            go.set()
            assert await patient.result(5) == "normal"
            await tune.resume(app.queue(), "lane:priority", actor="test", over=0)
            assert await paused.result(10) == "priority"


async def struck(app: App, job: Job[Any]) -> bool:
    return (await app.queue().record(job.id)).strikes == 1


async def test_a_suspect_whose_children_do_not_live_runs_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not put beside others for want of a child; it goes back and waits until nothing else runs."""
    monkeypatch.setattr("streamworker.worker.children.FAILURES", 2)
    job = await apart_jobs.work.enqueue()
    leave_behind(bench.app, job.id)
    async with serving(bench.app, concurrency=4):
        monkeypatch.setenv("APART_DIES", str(tmp_path))
        beside = await apart_jobs.patient.enqueue()
        await wait_until_async(lambda: "in a row failed" in caplog.text, timeout=30, what="no child lives")
        assert bench.journal.starts(job.id) == []
        bench.let_go()
        await beside.result(20)
        assert await job.result(20) == 1

    (mark,) = bench.journal.starts(job.id)
    assert mark.pid == os.getpid()


async def test_a_worker_process_names_its_app_to_the_child(bench: Bench) -> None:
    """The app that `run` loads by module:app is found by the child under the same name."""
    worker: WorkerProcess
    with bench.start("--concurrency", "2") as worker:
        pid = await (await apart_jobs.struck.enqueue()).result(30)
        assert pid in children_of(worker.pid)
        worker.terminate()
        assert await asyncio.to_thread(worker.wait) == 0
        assert not alive(pid)
