"""Slots and retries that operators set reach workers that run, within a second, and go again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from streamworker import App, Context, Lane, Retry, TransientError
from streamworker.core.retry import recompute_delay_ms
from streamworker.core.states import Reason
from streamworker.ops import retries, slots
from streamworker.ops.explain import explain
from tests.apps import apart_jobs
from tests.integration.apart import Bench, bench_of
from tests.integration.history import Observer
from tests.integration.serving import failure, serving
from tests.servers import BenchServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")

SLOTS = 4
#: Seconds within which what is set holds, and what the machine may be late by.
SOON, SLACK = 1.0, 0.5
BRIEF = Retry.schedule("1h", "1h", jitter=0, unknown=["1h"])


class Crowd:
    """Jobs that come again and again, and how many of each lane run at a time."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.running: Counter[str] = Counter()
        self._most: Counter[str] = Counter()
        self._stop = asyncio.Event()

        @app.task
        async def stay(ctx: Context) -> None:
            self.running[ctx.lane] += 1
            self._most[ctx.lane] = max(self._most[ctx.lane], self.running[ctx.lane])
            await asyncio.sleep(0.01)
            self.running[ctx.lane] -= 1

        self._stay = stay

    async def feed(self, *lanes: str) -> None:
        """Keep so many jobs in the lanes that no slot is without one."""
        while not self._stop.is_set():
            for lane in lanes:
                jobs = [self._stay.options(lane=lane).call() for _ in range(60)]
                await asyncio.gather(*(job.result(30) for job in await self._app.enqueue_many(jobs)))

    def stop(self) -> None:
        self._stop.set()

    async def most(self, lane: str) -> int:
        """How many of a lane ran at once, over a while."""
        self._most.clear()
        await asyncio.sleep(0.05)
        return self._most[lane]


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    lanes = {"priority": Lane(0, 1), "normal": Lane(0, 1)}
    async with App("steered", redis_url=valkey.url, namespace=namespace, lanes=lanes) as app:
        yield app


async def reach(observer: Observer, job_id: str, *states: str) -> str:
    """Wait until the job is in one of these states, and return it."""
    await wait_until_async(lambda: observer.path(job_id)[-1] in states, what=f"it is {states}")
    return observer.path(job_id)[-1]


async def soon_most(crowd: Crowd, lane: str, count: int) -> None:
    """Wait until so many of a lane run at once, in all workers."""
    began = time.monotonic()
    while (most := await crowd.most(lane)) != count:
        assert time.monotonic() - began < SOON + SLACK, f"{most} of {lane} run at once, not {count}"


async def test_slots_are_shared_otherwise_by_two_workers_that_run(app: App) -> None:
    crowd = Crowd(app)
    async with serving(app, concurrency=SLOTS), serving(app, concurrency=SLOTS):
        feeding = asyncio.create_task(crowd.feed("normal"))
        await wait_until_async(lambda: crowd.running["normal"] == 2 * SLOTS, what="all slots are taken")

        await slots.set_slots(app.queue(), "priority", reserved=3, actor="ana@host", reason="orders are late")
        await soon_most(crowd, "normal", 2)
        await slots.set_slots(app.queue(), "priority", reserved=1, actor="ana@host", duration="1s")
        await soon_most(crowd, "normal", 6)
        await soon_most(crowd, "normal", 2)
        await slots.reset_slots(app.queue(), "priority", actor="ana@host")
        await soon_most(crowd, "normal", 2 * SLOTS)

        crowd.stop()
        await feeding


async def test_a_worker_that_starts_later_shares_them_so_from_its_first_claim(app: App) -> None:
    crowd = Crowd(app)
    await slots.set_slots(app.queue(), "priority", reserved=3, actor="ana@host")
    async with serving(app, concurrency=SLOTS):
        feeding = asyncio.create_task(crowd.feed("normal"))
        await wait_until_async(lambda: crowd.running["normal"], what="it runs a job")

        assert await crowd.most("normal") == 1

        crowd.stop()
        await feeding


async def test_fewer_slots_end_nothing_that_runs(app: App, observer: Observer) -> None:
    go = asyncio.Event()

    @app.task
    async def long(ctx: Context) -> int:
        await go.wait()
        return ctx.attempt

    async with serving(app, concurrency=SLOTS):
        jobs = [await long.enqueue() for _ in range(SLOTS)]
        await wait_until_async(
            lambda: all(observer.path(job.id)[-1] == "processing" for job in jobs), what="all slots are taken"
        )
        await slots.set_slots(app.queue(), "priority", reserved=3, actor="ana@host")
        urgent = await long.options(lane="priority").enqueue()
        go.set()

        assert [await job.result(10) for job in [*jobs, urgent]] == [1] * (SLOTS + 1)


async def test_retries_are_calmed_within_a_second_and_the_log_says_by_what(
    app: App, observer: Observer
) -> None:
    @app.task(retry=BRIEF)
    async def send(ctx: Context) -> None:
        raise TransientError("busy", code="carrier_busy")

    queue = app.queue()
    async with serving(app), serving(app):
        await retries.set_retries(queue, "send", multiply=3, jitter=0.3, actor="ana@host", reason="calm")
        await _until(send, observer, lambda move: ";m=3.0" in move.facts.get("policy", ""))
        job = await send.enqueue()
        await reach(observer, job.id, "retry_scheduled")
        (move,) = [each for each in observer.transitions(job.id) if "policy" in each.facts]

        assert move.facts["policy"].startswith("transient:3600000;j=0.3;m=3.0;f=")
        due = move.at_ms + recompute_delay_ms(move.facts["policy"], job.id, 1)
        assert due == int(move.facts["due"]), "the due time can be had from the log alone"
        said = await explain(queue, job.id, sample=0)
        assert {"back-off times 3; jitter 0.3"} == {
            rule.value for rule in said.policy if rule.what == "retries"
        }

        await retries.reset_retries(queue, "send", actor="ana@host")
        await _until(send, observer, lambda move: move.facts.get("policy", ";m=").find(";m=") < 0)


async def _until(task: object, observer: Observer, holds: Callable[..., bool]) -> None:
    """Let jobs fail, until two in a row do so as is meant: both workers have heard of it."""
    began = time.monotonic()
    row = 0
    while row < 6:
        job = await task.enqueue()  # type: ignore[attr-defined]
        await reach(observer, job.id, "retry_scheduled")
        (move,) = [each for each in observer.transitions(job.id) if "policy" in each.facts]
        row = row + 1 if holds(move) else 0
        assert row or time.monotonic() - began < SOON + SLACK, "it does not hold within a second"


async def test_a_stopped_code_is_a_dead_letter_at_once(app: App, observer: Observer) -> None:
    @app.task(retry=BRIEF)
    async def send(ctx: Context, code: str) -> None:
        raise TransientError("no", code=code)

    async with serving(app):
        await retries.set_retries(app.queue(), "*", stop=["card_gone"], actor="ana@host")
        began = time.monotonic()
        while True:
            job = await send.enqueue("card_gone")
            if await reach(observer, job.id, "retry_scheduled", "failed_terminal") == "failed_terminal":
                break
            assert time.monotonic() - began < SOON + SLACK
        other = await send.enqueue("card_slow")
        await reach(observer, other.id, "retry_scheduled")

        error = await failure(job)

    assert (error.code, error.error_class) == ("card_gone", "persistent")
    assert observer.transitions(job.id)[-1].reason == Reason.RETRIES_STOPPED


async def test_jobs_in_child_processes_obey_too(
    valkey: BenchServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        bench_of(valkey.url, namespace, tmp_path, monkeypatch) as bench,
        serving(bench.app),
    ):
        assert await _class_in_a_child(bench) == "unknown", "and a child is up"
        await retries.set_retries(bench.app.queue(), "*", stop=["lookup_error"], actor="ana@host")
        began = time.monotonic()
        while await _class_in_a_child(bench) != "persistent":
            assert time.monotonic() - began < SOON + SLACK


async def _class_in_a_child(bench: Bench) -> str:
    """The class of the error with which a job ends that runs in a child."""
    return (await failure(await apart_jobs.errs.enqueue("unknown"), 20)).error_class
