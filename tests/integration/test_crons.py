"""Crons on real servers: one run per tick across a fleet, whoever dies, and what open jobs mean for ticks."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from streamworker import App, ConfigurationError, Context, Status
from streamworker.ops.history import iso
from tests.integration.cli_desk import Desk
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.processes import WorkerProcess
from tests.servers import BenchServer
from tests.waiting import wait_until, wait_until_async

#: Seconds that the fleet is watched: CRON_SECONDS=60 pytest tests/integration/test_crons.py
SECONDS = int(os.environ.get("CRON_SECONDS", "12"))
PROCESSES = 5


@dataclass(frozen=True, slots=True)
class Run:
    """One line that a handler of the fleet has left."""

    what: str
    tick: int
    at: float
    pid: int


@pytest.fixture
def observer(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer
        for key in observer.redis.keys(f"runs:{namespace}:*"):
            observer.redis.unlink(key)


class Fleet:
    """Five worker processes and what their crons have left. A context manager."""

    def __init__(self, observer: Observer, url: str, namespace: str) -> None:
        self.observer = observer
        self.namespace = namespace
        self.workers = [
            WorkerProcess(
                "cron_jobs:app", redis_url=url, namespace=namespace, env={"STREAMWORKER_LEASE": "2"}
            )
            for _ in range(PROCESSES)
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Fleet:
        for worker in self.workers:
            self._stack.enter_context(worker)
        for worker in self.workers:
            worker.wait_for_log("slots, lanes")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def runs(self, task: str) -> list[Run]:
        lines = self.observer.redis.lrange(f"runs:{self.namespace}:{task}", 0, -1)
        words = [line.decode().split(" ") for line in lines]
        return [Run(what, int(tick), float(at), int(pid)) for what, tick, at, pid in words]

    def now(self) -> float:
        """Redis's time, in seconds."""
        seconds, micros = self.observer.redis.time()
        return float(seconds + micros / 1e6)

    def wait_for_tick(self, second: int) -> None:
        """Wait until the fast cron has run for this second or a later one."""
        wait_until(
            lambda: any(run.tick >= second for run in self.runs("each_second")[-3:]),
            timeout=SECONDS + 20,
            what=f"the tick of {second} has run",
        )

    def stop(self) -> None:
        for worker in self.workers:
            if worker.returncode is None:
                worker.terminate()
        for worker in self.workers:
            worker.wait()


def test_five_processes_run_each_second_exactly_once_and_never_two_at_once_with_skip(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """B40: whatever the number of workers, one run per tick; with three seconds of work ticks are skipped."""
    with Fleet(observer, valkey.url, namespace) as fleet:
        first = int(fleet.now()) + 2
        fleet.wait_for_tick(first + SECONDS)
        fleet.stop()
        fast, slow = fleet.runs("each_second"), fleet.runs("slow")

    ticks = Counter(run.tick for run in fast)
    assert {second: ticks[second] for second in range(first, first + SECONDS)} == dict.fromkeys(
        range(first, first + SECONDS), 1
    )
    assert max(ticks.values()) == 1
    assert all(run.at >= run.tick for run in fast), "none was early"

    began = [run for run in slow if run.what == "began"]
    order = [run.what for run in slow]
    assert len(began) >= SECONDS // 4
    assert order == ["began", "ended"] * len(began), "never two at once"
    last, job_id = observer.redis.hget(observer.keys.crons, "slow").decode().split(" ")[:2]
    skipped = observer.stats()["cron_skipped:slow"]
    assert skipped + len(began) == int(last) // 1000 - began[0].tick + 1, "each tick ran or was counted"
    assert skipped >= SECONDS // 3
    assert observer.record(job_id).task == "slow"


def test_killing_the_worker_that_runs_the_ticks_loses_none(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """Whoever ran the last tick is there first for the next: that one dies, again and again."""
    with Fleet(observer, valkey.url, namespace) as fleet:
        first = int(fleet.now()) + 2
        for number in range(1, PROCESSES - 1):
            fleet.wait_for_tick(first + number * max(2, SECONDS // PROCESSES))
            leader_of(observer, fleet).kill()
        last = int(fleet.now()) + 3
        fleet.wait_for_tick(last)
        fleet.stop()
        enqueued = Counter(tick for _, tick in moves(observer, "always"))
        ran = {run.tick for run in fleet.runs("always")}

    window = range(first, last)
    assert {tick: enqueued[tick] for tick in window} == dict.fromkeys(window, 1)
    assert set(window) <= ran, "what a dying worker held has run as well"


def moves(observer: Observer, task: str) -> Iterator[tuple[str, int]]:
    """(worker, tick) of each job that a cron has enqueued, oldest first; the tick is in the job's id."""
    for _, fields in observer.redis.xrange(observer.keys.events):
        for line in fields.get(b"e", b"").decode().splitlines():
            job_id, *rest = line.split(" ")
            if fields[b"s"] == b"cron" and rest[:2] == ["+", task]:
                yield fields[b"w"].decode(), int(job_id[:8] + job_id[9:13], 16) // 1000


def leader_of(observer: Observer, fleet: Fleet) -> WorkerProcess:
    """The living worker that ran the last tick."""
    by_id = {
        worker_id: process
        for worker_id, _ in moves(observer, "always")
        for process in fleet.workers
        if str(process.pid) in worker_id.split("-") and process.returncode is None
    }
    leader = next((by_id[one] for one, _ in reversed([*moves(observer, "always")]) if one in by_id), None)
    assert leader is not None, f"none of {[one.pid for one in fleet.workers]} has run a tick"
    return leader


# --- one worker ------------------------------------------------------------------------------------------


@pytest.fixture
def app(valkey: BenchServer, namespace: str) -> App:
    return App("crons", redis_url=valkey.url, namespace=namespace, lease="1s")


def redis_seconds(observer: Observer) -> float:
    seconds, micros = observer.redis.time()
    return float(seconds + micros / 1e6)


async def test_ticks_that_nobody_was_up_for_run_once(app: App, observer: Observer) -> None:
    """The latest of them, if it is not older than a day."""
    ticks: list[datetime] = []

    @app.cron("0 0 * * *")
    async def nightly(ctx: Context) -> None:
        assert ctx.tick is not None
        ticks.append(ctx.tick)

    @app.cron("0 0 1 1 *")
    async def yearly(ctx: Context) -> None:
        ticks.append(datetime.max.replace(tzinfo=UTC))

    now = int(redis_seconds(observer))
    long_ago = f"{(now - 400 * 86400) * 1000} 018f3f2e-0000-7000-8000-000000000000"
    observer.redis.hset(observer.keys.crons, mapping={"nightly": long_ago, "yearly": long_ago})
    async with app:
        for _ in range(2):  # the second start finds nothing missed
            async with serving(app):
                await wait_until_async(lambda: ticks, what="the last midnight is made up for")

    assert ticks == [datetime.fromtimestamp(now - now % 86400, UTC)]
    assert observer.stats().get("enqueued:normal:yearly", 0) == 0


async def test_a_cron_that_is_new_does_not_run_for_the_past(app: App, observer: Observer) -> None:
    """A daily cron that is deployed at noon waits for the next morning."""

    @app.cron("0 0 * * *")
    async def nightly(ctx: Context) -> None: ...

    @app.cron("* * * * * *")
    async def often(ctx: Context) -> None: ...

    async with app, serving(app):
        await wait_until_async(
            lambda: b"often" in observer.redis.hgetall(observer.keys.crons), what="both are noted"
        )
        await wait_until_async(
            lambda: observer.stats().get("enqueued:normal:often", 0) >= 2, what="the other one runs"
        )

    assert observer.stats().get("enqueued:normal:nightly", 0) == 0


async def test_replace_cancels_the_job_of_the_earlier_tick(app: App, observer: Observer) -> None:
    ended: list[str] = []

    @app.cron("* * * * * *", overlap="replace", lane="priority")
    async def sweep(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(ctx.job_id)
            raise

    async with app, serving(app, grace=0.1):
        await wait_until_async(lambda: ended, timeout=20, what="the first was told to end")
        await wait_until_async(
            lambda: observer.record(ended[0]).status is Status.FAILED_TERMINAL, what="it has ended"
        )

    assert observer.record(ended[0]).text("ec") == "persistent superseded"
    assert observer.record(ended[0]).lane == "priority"
    assert observer.redis.xlen(observer.keys.dlq) == 0


async def test_the_handler_knows_its_tick_in_the_time_zone_of_the_cron(app: App, observer: Observer) -> None:
    seen: list[Context] = []

    @app.cron("* * * * * *", tz="Asia/Kolkata", name="reports.sweep", deadline="1m", max_starts=3)
    def sweep(ctx: Context) -> None:
        seen.append(ctx)

    @app.task
    async def plain(ctx: Context) -> bool:
        return ctx.tick is None

    async with app, serving(app):
        await wait_until_async(lambda: seen, what="a tick has run")
        assert await (await plain.enqueue()).result(10)
        by_hand = await app.tasks["reports.sweep"].enqueue()
        await by_hand.result(10)

    tick = seen[0].tick
    assert tick is not None
    assert tick.strftime("%z %f") == "+0530 000000"
    assert 0 <= time.time() - tick.timestamp() < 60
    record = observer.record(seen[0].job_id)
    assert (record.text("ms"), record.number("dl") is None) == ("3", False)
    assert next(ctx for ctx in seen if ctx.job_id == by_hand.id).tick is None


async def test_crons_survive_that_redis_is_away(
    app: App, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop's connection is killed under it, again and again."""
    ran: list[str] = []

    @app.cron("* * * * * *")
    async def sweep(ctx: Context) -> None:
        ran.append(ctx.job_id)

    async with app, serving(app):
        for count in range(1, 4):
            await wait_until_async(lambda: len(ran) >= count, what=f"tick {count} has run")  # noqa: B023
            observer.redis.client_kill_filter(_type="normal", skipme=True)

        assert len(ran) == len(set(ran))


async def test_the_command_line_lists_crons(
    app: App, observer: Observer, valkey: BenchServer, namespace: str
) -> None:
    @app.cron("* * * * * *", lane="priority")
    async def sweep(ctx: Context) -> None: ...

    @app.cron("30 3 * * MON", tz="Europe/Berlin", overlap="queue")
    async def weekly(ctx: Context) -> None: ...

    with Desk(valkey.url, namespace) as desk:
        assert await asyncio.to_thread(desk.json, "cron", "list") == []
        assert "declare one" in (await asyncio.to_thread(desk.call, "cron", "list")).stderr
        async with app, serving(app):
            await wait_until_async(
                lambda: (
                    observer.stats().get("enqueued:normal:sweep", 0)
                    + observer.stats().get("enqueued:priority:sweep", 0)
                ),
                what="a tick has run",
            )
            await wait_until_async(
                lambda: b"weekly" in observer.redis.hgetall(observer.keys.crons), what="both are noted"
            )
        listed = await asyncio.to_thread(desk.json, "cron", "list")
        ten_ago = round(time.time() * 1000) // 60_000 * 60_000 - 600_000
        observer.redis.hset(
            observer.keys.crons, "sweep", f"{ten_ago} {listed[0]['last_job_id']} 0 UTC * * * * * *"
        )
        (overdue, _) = await asyncio.to_thread(desk.json, "cron", "list")
        table = (await asyncio.to_thread(desk.call, "cron", "list")).stdout

    often, seldom = listed
    assert (often["name"], often["spec"], often["tz"], often["overlap"], often["lane"]) == (
        "sweep",
        "* * * * * *",
        "UTC",
        "skip",
        "priority",
    )
    last = observer.record(often["last_job_id"])  # the worker may have stopped before it ran that one
    assert (last.task, last.status) == ("sweep", often["last_job_status"])
    assert often["last_tick"] < often["next_tick"]
    assert often["skipped"] == observer.stats().get("cron_skipped:sweep", 0)
    assert (seldom["name"], seldom["last_tick"], seldom["last_job_id"], seldom["last_job_status"]) == (
        "weekly",
        None,
        None,
        None,
    )
    assert seldom["next_tick"].endswith(("T01:30:00.000Z", "T02:30:00.000Z"))
    assert "30 3 * * MON" in table
    assert (often["overdue_since"], seldom["overdue_since"]) == (None, None)
    assert overdue["overdue_since"] == iso(ten_ago + 1000), "no worker has asked for it"
    assert f"overdue since {overdue['overdue_since']}" in table
    assert seldom["next_tick"] in table


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"spec": "nonsense"}, "no cron expression"),
        ({"tz": "Mars/Olympus"}, "no time zone"),
        ({"overlap": "sometimes"}, "overlap is one of skip, queue, replace"),
        ({"lane": "nowhere"}, "nowhere"),
        ({"key": "sweep"}, "has no field"),
    ],
)
def test_a_cron_that_cannot_run_is_refused_at_once(app: App, options: dict[str, str], said: str) -> None:
    async def sweep(ctx: Context) -> None: ...

    chosen = {"spec": "* * * * *"} | options

    with pytest.raises(ValueError, match=said):
        app.cron(chosen.pop("spec"), **chosen)(sweep)

    assert app.crons == {}
    assert app.tasks == {}


def test_the_handler_of_a_cron_takes_its_context(app: App) -> None:
    async def sweep(ctx: Context, shop: str) -> None: ...

    with pytest.raises(ConfigurationError, match="nobody gives shop"):
        app.cron("* * * * *")(sweep)  # type: ignore[arg-type]  # mypy says so as well
