"""A cron whose schedule has changed, and one whose lane is under pressure, as a worker sees them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from streamworker import App, ConfigurationError, Context, Lane, Route
from streamworker.ops.crons import crons
from streamworker.store import pressures
from streamworker.worker.crons import Crons
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.servers import BenchServer, ServerFactory
from tests.waiting import wait_until_async

MINUTE = 60_000
#: Has no tick in the days around today, unless that is the 29th of February; and one in each minute.
SELDOM, MINUTELY = "0 0 29 2 *", "* * * * *"
JOB = "018f3f2e-0000-7000-8000-000000000000"


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


def app_of(server: BenchServer, namespace: str, spec: str, **options: Any) -> App:
    """An app with one cron."""
    app = App("crons", redis_url=server.url, namespace=namespace, **options)

    @app.cron(spec, overlap="queue")
    async def sweep(ctx: Context) -> None: ...

    return app


@asynccontextmanager
async def turning(app: App) -> AsyncIterator[Crons]:
    crons = Crons(app, "w")
    try:
        yield crons
    finally:
        await crons.close()


def now_ms(observer: Observer) -> int:
    seconds, micros = observer.redis.time()
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.parametrize(
    ("before", "after", "made_up"),
    [
        (f"0 UTC {SELDOM}", MINUTELY, False),  # it has run when it was to run, until it was changed
        (f"0 Mars/Olympus {MINUTELY}", MINUTELY, False),  # nobody can tell
        (f"0 Europe/Berlin {MINUTELY}", MINUTELY, True),  # it was missed by the old schedule as well
        (f"0 UTC {MINUTELY}", "*  * * * *", True),  # the same
        ("", MINUTELY, True),  # as it was kept before schedules were
    ],
)
async def test_a_schedule_that_changed_has_missed_nothing(
    valkey: BenchServer,
    namespace: str,
    observer: Observer,
    caplog: pytest.LogCaptureFixture,
    before: str,
    after: str,
    made_up: bool,
) -> None:
    """A daily cron that ran at 3 and is moved to 9 by a deploy at noon does not run twice that day."""
    caplog.set_level(logging.INFO, "streamworker")
    now = now_ms(observer)
    observer.redis.hset(observer.keys.crons, "sweep", f"{now - 60 * MINUTE} {JOB} {before}".rstrip())
    app = app_of(valkey, namespace, after)
    (cron,) = app.crons.values()

    for _ in range(2):  # the second worker finds what the first one noted
        async with turning(app) as crons:
            await crons._begin(cron)

    assert caplog.text.count("it runs now") == (2 if made_up else 0)


@pytest.mark.parametrize(("days", "said"), [(9, True), (0, False)])
async def test_a_tick_that_is_too_old_to_be_made_up_for_is_told(
    valkey: BenchServer,
    namespace: str,
    observer: Observer,
    caplog: pytest.LogCaptureFixture,
    days: int,
    said: bool,
) -> None:
    """Workers that were down over a weekend leave out a weekly cron: somebody must be able to see it."""
    now = datetime.fromtimestamp(now_ms(observer) / 1000, UTC)
    weekday = (now - timedelta(days=3)).strftime("%a").upper()  # 3 days ago, at midnight
    app = app_of(valkey, namespace, f"0 0 * * {weekday}")
    (cron,) = app.crons.values()
    last = now_ms(observer) - days * 24 * 60 * MINUTE
    observer.redis.hset(observer.keys.crons, "sweep", f"{last} {JOB} 0 {cron.schedule.text}")

    async with turning(app) as crons:
        assert (await crons._begin(cron)).tick > now_ms(observer)

    assert ("that is not made up for" in caplog.text) is said


async def test_ticks_go_by_the_pressure_of_their_lane_as_other_jobs_do(
    valkey: BenchServer, namespace: str, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pressures, "FRESH", 0.0)  # asked for each time
    app = app_of(
        valkey,
        namespace,
        MINUTELY,
        lanes={"normal": Lane(pressure=(3, 5)), "bulk": Lane()},
        routes=[Route("backlog", pressure="over"), Route("bulk", pressure="high")],
    )
    (cron,) = app.crons.values()
    tick = now_ms(observer) // MINUTE * MINUTE
    observer.redis.hset(observer.keys.crons, "sweep", f"{tick - 9 * MINUTE} -")
    found = {}

    async with turning(app) as crons:
        for ago, level in ((2, "ok"), (1, "high"), (0, "over")):
            observer.redis.hset(observer.keys.policies, "pressure:normal", level)
            at = tick - ago * MINUTE
            assert (await crons._ask(cron, at)).verdict == "OK"
            record = observer.record(cron.job_id(at, namespace=namespace))
            found[level] = (record.lane, record.text("bl"), record.entry and record.entry[0])

    assert found == {
        "ok": ("normal", None, "a"),
        "high": ("bulk", None, "a"),
        "over": ("normal", "rule", "b"),
    }


async def test_one_function_may_have_several_schedules_each_with_its_name(
    valkey: BenchServer, namespace: str, no_leaks: None
) -> None:
    """Without names, an AttributeError of Python's ended the import."""
    async with App("crons", redis_url=valkey.url, namespace=namespace) as app:

        @app.cron("0 9 * * *", name="morning")
        @app.cron("0 18 * * *", name="evening")
        async def remind(ctx: Context) -> str:
            return ctx.task

        async with serving(app):
            ran = [await (await app.tasks[name].enqueue()).result(10) for name in ("morning", "evening")]

        with pytest.raises(ConfigurationError, match=r"remind is registered twice .* name="):
            app.cron("0 9 * * *")(app.cron("0 18 * * *")(remind))
        with pytest.raises(ConfigurationError, match="has no name of its own"):
            app.cron("0 9 * * *")(partial(remind))

    assert ran == ["morning", "evening"]
    assert remind.name == "morning"


async def test_a_flush_stops_no_cron_and_no_worker_has_to_be_restarted(own_valkey: ServerFactory) -> None:
    """Schedules are the workers', and not in Redis alone: without a mirror too, the next tick runs."""
    server, ran = own_valkey(), list[Context]()
    async with App("crons", redis_url=server.url, lease="1s") as app:

        @app.cron("* * * * * *")
        async def sweep(ctx: Context) -> None:
            ran.append(ctx)

        async with serving(app):
            await wait_until_async(lambda: ran, what="a tick has run")
            await app.queue().caller.command("FLUSHALL")
            many = len(ran)
            await wait_until_async(lambda: len(ran) > many, what="the next one runs")
            (listed,) = await wait_until_async(lambda: crons(app.queue()), what="it is published again")

    ticks = [ctx.tick for ctx in ran]
    assert len(set(ticks)) == len(ticks)
    assert (listed["name"], listed["spec"]) == ("sweep", "* * * * * *")
