"""Tasks with run_in="process": what their handlers can do, and what becomes of those that do not end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streamworker import App, Client, Context
from streamworker.core.errors import ConfigurationError
from streamworker.worker import children
from streamworker.worker.children import Child
from streamworker.worker.wire import Head
from tests.apps import apart_jobs
from tests.integration.apart import Bench, alive, bench_of, children_of
from tests.integration.serving import failure, serving
from tests.servers import BenchServer
from tests.waiting import Stopwatch, wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
async def bench(
    valkey: BenchServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    async with bench_of(valkey.url, namespace, tmp_path, monkeypatch) as bench:
        yield bench


# --- what a handler can do -------------------------------------------------------------------------------


async def test_a_plain_function_runs_in_a_child_process(bench: Bench) -> None:
    async with serving(bench.app):
        job = await apart_jobs.where.enqueue()
        found = await job.result(20)

    assert found["pid"] != os.getpid()
    assert found["parent"] == os.getpid()
    assert bench.observer.path(job.id) == ["queued", "claimed", "processing", "succeeded"]


async def test_a_child_begins_where_the_worker_began(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler had changed the directory: a child that came later found no files and no modules."""
    began = str(Path.cwd())
    async with serving(bench.app):
        monkeypatch.chdir(tmp_path)
        found = await (await apart_jobs.where.enqueue()).result(20)

    assert found["folder"] == began


async def test_a_child_runs_one_job_after_another_in_its_own_lifespan(bench: Bench) -> None:
    async with serving(bench.app):
        first = await (await apart_jobs.where_async.enqueue()).result(20)
        jobs = [await apart_jobs.where_async.enqueue() for _ in range(5)]
        found = [await job.result(20) for job in jobs]

    assert first["state"] == f"of {first['pid']}"
    assert {each["pid"] for each in found} <= {first["pid"], *(each["pid"] for each in found)}
    assert len({each["pid"] for each in [first, *found]}) <= 2, "one for each processor at most, here"


async def test_a_child_that_dies_as_soon_as_it_is_ready_is_given_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else its job would wait for ever: nobody hears of it any more."""
    heard = Child._heard

    def heard_late(self: Child, head: Head, body: bytes) -> None:
        if head["is"] == "ready" and "APART_DIES" in os.environ:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            monkeypatch.delenv("APART_DIES")
        heard(self, head, body)

    async with serving(bench.app):
        monkeypatch.setenv("APART_DIES", str(tmp_path))
        monkeypatch.setattr(Child, "_heard", heard_late)
        found = await (await apart_jobs.where.enqueue()).result(20)

    assert found["parent"] == os.getpid()
    assert "APART_DIES" not in os.environ, "a child was ready, and dead"


async def test_no_more_children_are_started_than_allowed(bench: Bench) -> None:
    from streamworker import Worker

    worker = Worker(bench.app, concurrency=8, grace=5, processes_for_tasks=2)
    task = asyncio.create_task(worker.serve())
    jobs = [await apart_jobs.where_async.enqueue(0.1) for _ in range(8)]
    pids = {(await job.result(30))["pid"] for job in jobs}
    worker.stop()
    await task

    assert len(pids) == 2


@pytest.mark.parametrize(
    ("kind", "code"),
    [("persistent", "persistent"), ("unknown", "lookup_error"), ("unserializable", "serialization_error")],
)
async def test_errors_are_classified_where_they_happen(bench: Bench, kind: str, code: str) -> None:
    async with serving(bench.app):
        failed = await failure(await apart_jobs.errs.enqueue(kind), 20)

    assert failed.code == code


async def test_a_snooze_is_not_charged(bench: Bench) -> None:
    async with serving(bench.app):
        job = await apart_jobs.errs.enqueue("snooze")
        assert await job.result(20) == 1

    assert bench.observer.record(job.id).starts == 2


async def test_a_handler_logs_and_enqueues_under_its_correlation_id(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(bench.app):
        job = await apart_jobs.tells.options(correlation_id="request-7").enqueue()
        enqueued = await job.result(20)
        async with Client(
            bench.app.settings.redis_url, app="apart", namespace=bench.app.settings.namespace
        ) as client:
            assert await client.result(enqueued, timeout=20) == "request-7"

    assert "a word from tells" in capfd.readouterr().err


# --- what does not end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["blocks_loop", "blocks_thread", "deaf"])
async def test_a_handler_that_does_not_end_is_killed_at_its_time_limit(bench: Bench, name: str) -> None:
    """R23: a process can be stopped. That is a time-out, no death: no strike."""
    async with serving(bench.app):
        job = await bench.app.tasks[name].enqueue()
        failed = await failure(job, 20)
        (mark,) = bench.journal.starts(job.id)
        await wait_until_async(lambda: not alive(mark.pid), what="its process is gone")
        again = await (await apart_jobs.where.enqueue()).result(20)

    assert failed.code == "timeout"
    assert bench.observer.record(job.id).strikes == 0
    assert again["pid"] != mark.pid


async def test_a_coroutine_that_ends_when_cancelled_leaves_its_process_alive(bench: Bench) -> None:
    async with serving(bench.app):
        job = await apart_jobs.obeys.enqueue()
        failed = await failure(job, 20)
        (mark,) = bench.journal.starts(job.id)
        assert alive(mark.pid)
        assert bench.journal.running() == []

    assert failed.code == "timeout"


async def test_a_running_job_can_be_cancelled(bench: Bench) -> None:
    async with serving(bench.app):
        job = await apart_jobs.holds_on.enqueue()
        (mark,) = await wait_until_async(lambda: bench.journal.starts(job.id), what="it runs")
        await job.cancel()
        failed = await failure(job, 20)
        await wait_until_async(lambda: not alive(mark.pid), what="its thread's process is gone")

    assert failed.code == "cancelled"


async def test_a_handler_that_ends_the_loop_of_its_child_ends_nothing(bench: Bench) -> None:
    """The child died of it, and told the job's end as one that it had not come to."""
    async with serving(bench.app):
        found = [await (await apart_jobs.end_the_loop.enqueue(how)).result(20) for how in ("stop", "exit")]

    assert found[0] == found[1] != os.getpid()


async def test_a_killed_process_is_a_death_of_its_job_alone(bench: Bench) -> None:
    async with serving(bench.app):
        beside = await apart_jobs.holds_on.enqueue()
        job = await apart_jobs.struck.enqueue()
        pid = await job.result(20)
        bench.let_go()
        assert await beside.result(20) == 1

    died = [move for move in bench.observer.transitions(job.id) if move.reason == "died"]
    assert [str(move.to_status) for move in died] == ["retry_scheduled"]
    assert bench.observer.record(job.id).attempt == 2
    assert bench.observer.record(job.id).strikes == 0
    assert pid != os.getpid()


async def test_a_job_waits_while_no_child_comes_up(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lifespan of a child may fail for a while; that charges nobody and gives nothing up."""
    async with serving(bench.app):
        monkeypatch.setenv("APART_UP", str(tmp_path / "up"))
        job = await apart_jobs.where.enqueue()
        await wait_until_async(lambda: "the database is away" in caplog.text, timeout=20, what="it fails")
        (tmp_path / "up").touch()
        await job.result(20)

    record = bench.observer.record(job.id)
    assert (record.attempt, record.starts, record.strikes) == (1, 1, 0)


async def test_a_job_waits_while_there_are_too_many_open_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was charged an attempt; where it was one with strikes, the worker ended."""
    failures = 0
    pair = socket.socketpair

    def fail_twice() -> tuple[socket.socket, socket.socket]:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise OSError(24, "Too many open files")
        return pair()

    async with serving(bench.app):
        monkeypatch.setattr(socket, "socketpair", fail_twice)
        job = await apart_jobs.where.enqueue()
        await job.result(20)

    record = bench.observer.record(job.id)
    assert (failures, record.attempt, record.starts) == (3, 1, 1)


async def test_a_child_comes_up_whatever_its_worker_has_for_a_path_and_for_stderr(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Path in sys.path, which imports skip, and a closed stderr, as daemons have it, were the end of it."""
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere"), "/nowhere/\udcff"])
    monkeypatch.setattr(children, "_PROGRAM", f"import sys; sys.stderr = None\n{children._PROGRAM}")
    async with serving(bench.app):
        found = await (await apart_jobs.where.enqueue()).result(20)

    assert found["pid"] != os.getpid()


async def test_tasks_run_in_the_worker_when_no_child_lives(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A lifespan that can be entered only once must not hold jobs for ever."""
    monkeypatch.setattr("streamworker.worker.children.FAILURES", 2)
    async with serving(bench.app):
        monkeypatch.setenv("APART_UP", str(tmp_path / "never"))
        found = await (await apart_jobs.where.enqueue()).result(20)

    assert found["pid"] == os.getpid()
    assert "2 in a row failed, the last one: ConnectionError: the database is away" in caplog.text


# --- the end of the worker -------------------------------------------------------------------------------


async def test_a_stop_hands_back_what_runs_and_leaves_no_process(bench: Bench) -> None:
    async with serving(bench.app, grace=0.2):
        job = await apart_jobs.holds_on.enqueue()
        await wait_until_async(lambda: bench.journal.starts(job.id), what="it runs")

    record = bench.observer.record(job.id)
    assert (record.status, record.attempt, record.strikes) == ("queued", 0, 0)
    assert children_of(os.getpid()).isdisjoint({mark.pid for mark in bench.journal.starts()})


async def test_a_stop_while_a_child_comes_up_leaves_no_process(bench: Bench) -> None:
    before = children_of(os.getpid())
    async with serving(bench.app, grace=0.1):
        job = await apart_jobs.where.enqueue()
        (pid,) = await wait_until_async(lambda: children_of(os.getpid()) - before, what="a child is spawned")

    assert not alive(pid)
    assert bench.observer.record(job.id).status in ("queued", "succeeded")


async def test_an_idle_worker_with_children_stops_at_once(bench: Bench) -> None:
    async with serving(bench.app) as worker:
        pid = (await (await apart_jobs.where.enqueue()).result(20))["pid"]
        assert pid in children_of(os.getpid())
        watch = Stopwatch()
        worker.stop()
    took = watch.fair

    assert took < 1.0
    assert not alive(int(str(pid)))


async def test_the_children_of_a_killed_worker_die_with_it(bench: Bench) -> None:
    with bench.start("--concurrency", "2") as worker:
        job = await apart_jobs.holds_on.enqueue()
        (mark,) = await wait_until_async(lambda: bench.journal.starts(job.id), what="it runs")
        assert mark.pid in children_of(worker.pid)
        worker.kill()
        await wait_until_async(lambda: not alive(mark.pid), timeout=5, what="the child is gone")


async def test_signals_for_the_group_are_the_workers_to_decide(bench: Bench) -> None:
    """Ctrl-C in a terminal reaches the children as well: they go on until the worker tells them."""
    with bench.start("--concurrency", "2") as worker:
        job = await apart_jobs.holds_on.enqueue()
        await wait_until_async(lambda: bench.journal.starts(job.id), what="it runs")
        os.killpg(worker.pid, signal.SIGINT)
        worker.wait_for_log("stopping")
        bench.let_go()
        assert await job.result(20) == 1
        assert await asyncio.to_thread(worker.wait) == 0


# --- where the app is ------------------------------------------------------------------------------------


async def test_an_app_that_no_child_can_have_runs_its_tasks_in_the_worker(
    valkey: BenchServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with App("inside", redis_url=valkey.url, namespace=namespace) as app:

        @app.task(run_in="process")
        def here(ctx: Context) -> int:
            return os.getpid()

        async with serving(app):
            assert [await (await here.enqueue()).result(10) for _ in range(3)] == [os.getpid()] * 3

    said = [each.getMessage() for each in caplog.records if "no child process can have" in each.getMessage()]
    assert len(said) == 1
    assert "not at the top of a module" in said[0]


SCRIPT = """
import os
from streamworker import App, Context, Worker

app = App("script")

@app.task(run_in="process")
def where(ctx: Context) -> int:
    return os.getpid()

{guard}
    Worker(app, concurrency=2).run()
"""


@pytest.mark.parametrize("guard", ['if __name__ == "__main__":', "if True:"])
async def test_a_script_is_loaded_as_a_child_of_multiprocessing_loads_it(
    valkey: BenchServer, namespace: str, tmp_path: Path, guard: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard=guard))
    env = {**os.environ, "STREAMWORKER_REDIS_URL": valkey.url, "STREAMWORKER_NAMESPACE": namespace}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, str(script)], env=env, stderr=output)  # noqa: ASYNC220
    try:
        async with Client(valkey.url, app="script", namespace=namespace) as client:
            pid = await (await client.enqueue("where", {})).result(30)
    finally:
        process.terminate()
        code = await asyncio.to_thread(process.wait, 20)

    assert code == 0
    guarded = "__name__" in guard
    assert (pid != process.pid) == guarded
    assert ('under `if __name__ == "__main__":`' in log.read_text()) != guarded


async def test_other_places_are_refused(bench: Bench) -> None:
    app = App("x")

    with pytest.raises(ConfigurationError, match='run_in= is "thread" or "process"'):

        @app.task(run_in="nowhere")  # type: ignore[call-overload]
        def handler(ctx: Context) -> None: ...
