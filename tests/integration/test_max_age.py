"""A job that has waited too long for its first start does not run (`Lane(max_age=)`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from streamworker import App, Context, Lane, Retry, Status, TransientError
from tests.integration.history import Observer
from tests.integration.serving import failure, serving
from tests.servers import BenchServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    lanes = {"normal": Lane(), "news": Lane(max_age="150ms")}
    async with App("ages", redis_url=valkey.url, namespace=namespace, lease="1s", lanes=lanes) as app:
        yield app


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


async def grow_old(observer: Observer, job_id: str, age_ms: int) -> None:
    """Return when the job was enqueued so long ago, by Redis's clock."""

    def old() -> bool:
        seconds, micros = observer.redis.time()
        enqueued = observer.record(job_id).number("at") or 0
        return seconds * 1000 + micros // 1000 - enqueued > age_ms

    await wait_until_async(old, what="it is old")


async def test_a_job_that_waited_too_long_ends_as_expired_and_never_runs(
    app: App, observer: Observer
) -> None:
    ran: list[str] = []

    @app.task
    async def tell(ctx: Context) -> None:
        ran.append(ctx.lane)

    jobs = [await tell.options(lane=lane).enqueue() for lane in app.lanes]
    await grow_old(observer, jobs[-1].id, 150)
    async with serving(app):
        await jobs[0].result(10)
        end = await failure(jobs[1])
        fresh = await tell.options(lane="news").enqueue()
        await fresh.result(10)

    assert (end.code, end.error_class) == ("expired", "persistent")
    assert "news" in end.error
    assert ran == ["normal", "news"]
    assert observer.dead_letters().keys() == {jobs[1].id}
    assert observer.leftovers(lanes=app.lanes) == []


async def test_a_delay_is_no_waiting(app: App, observer: Observer) -> None:
    @app.task(lane="news")
    async def tell(ctx: Context) -> str:
        return "told"

    async with serving(app):
        job = await tell.options(delay="400ms").enqueue()

        assert await job.result(10) == "told"


async def test_a_job_that_has_started_is_not_too_old_for_its_retries(app: App, observer: Observer) -> None:
    """`max_age` is for the first start; `deadline` is for the whole job."""

    @app.task(lane="news", retry=Retry.schedule("300ms"))
    async def tell(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise TransientError("no answer")
        return ctx.attempt

    async with serving(app):
        job = await tell.enqueue()

        assert await job.result(10) == 2


async def test_a_setting_of_today_judges_the_jobs_that_wait(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    def app(max_age: str | None) -> App:
        made = App("ages", redis_url=valkey.url, namespace=namespace, lanes={"news": Lane(max_age=max_age)})

        @made.task
        async def tell(ctx: Context) -> None: ...

        return made

    async with app(None) as before, app("1ms") as after:
        job = await before.tasks["tell"].enqueue()
        await grow_old(observer, job.id, 5)
        async with serving(after):
            await wait_until_async(
                lambda: observer.record(job.id).status is Status.FAILED_TERMINAL, what="it is over"
            )
