"""Jobs of a task whose gates have changed: the newer declaration holds for them as well (D17)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from streamworker import App, Client, Concurrency, Context
from tests.integration.history import Observer
from tests.integration.serving import failure, serving
from tests.servers import BenchServer

pytestmark = pytest.mark.usefixtures("no_leaks")


class Version:
    """One version of the app's code."""

    def __init__(self, url: str, namespace: str, **options: Any) -> None:
        self.app = App("versions", redis_url=url, namespace=namespace, lease="1s")
        self.most = self._running = 0

        @self.app.task(**options)
        async def work(ctx: Context, user_id: int = 0) -> None:
            self._running += 1
            self.most = max(self.most, self._running)
            await asyncio.sleep(0.02)  # a job's work: it holds its gate for a moment
            self._running -= 1

        self.work = work

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with self.app, serving(self.app):
            yield


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


async def test_a_limit_that_is_new_holds_for_jobs_that_wait_already(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    old = Version(valkey.url, namespace)
    new = Version(valkey.url, namespace, limits=[Concurrency("task", 1)])
    async with old.app, old.serving():
        pass
    async with new.app:
        jobs = await new.app.enqueue_many(old.work.call() for _ in range(6))
        async with new.serving():
            await asyncio.gather(*(job.result(10) for job in jobs))

    assert new.most == 1
    records = [observer.record(job.id) for job in jobs]
    assert {record.attempt for record in records} == {1}, "to be handed back is not charged"
    assert {record.text("ga") for record in records} == {"2 concurrency:task:work|1"}
    assert observer.leftovers() == []


async def test_an_older_version_runs_jobs_as_the_newer_one_gated_them(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """In a rolling deploy both are up: a job must not go to and fro."""
    old = Version(valkey.url, namespace)
    new = Version(valkey.url, namespace, limits=[Concurrency("task", 1)])
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(old.serving())
        await stack.enter_async_context(new.serving())
        async with Client(valkey.url, app="versions", namespace=namespace) as client:
            jobs = [await client.enqueue("work") for _ in range(20)]
            await asyncio.gather(*(job.result(20) for job in jobs))

    assert max(observer.record(job.id).starts for job in jobs) == 1
    assert observer.leftovers() == []


async def test_a_job_that_cannot_be_gated_is_a_dead_letter(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    old = Version(valkey.url, namespace)
    new = Version(valkey.url, namespace, entity="user:{user_id}")
    async with new.app:
        (job,) = await new.app.enqueue_many([old.work.call()])
        async with new.serving():
            end = await failure(job)

    assert (end.code, end.error_class) == ("bad_arguments", "persistent")
    assert "user_id" in end.error
    assert observer.leftovers() == []
