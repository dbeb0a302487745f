"""What can be read back of a job: why it waited in another lane, and which entity it was about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from streamworker import App, Context, Lane, PersistentError, Route
from tests.integration.cli_desk import Desk
from tests.integration.history import Observer
from tests.integration.serving import failure, serving
from tests.servers import BenchServer

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    async with App(
        "traces",
        redis_url=valkey.url,
        namespace=namespace,
        lanes={"priority": Lane(accept=["pay"]), "normal": Lane(), "bulk": Lane()},
        routes=[Route("bulk", tenant="acme", name="acme")],
    ) as app:
        yield app


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


async def test_the_event_of_a_new_job_says_why_it_waits_in_another_lane(app: App, observer: Observer) -> None:
    """Issue 5: a task that `priority` does not accept goes to its default lane, and its event says why."""

    @app.task
    async def mail(ctx: Context) -> None: ...

    jobs = await app.enqueue_many(
        [
            mail.call(),
            mail.options(lane="priority").call(),
            mail.options(tenant="acme").call(),
            mail.options(lane="normal").call(),
            mail.call(),
        ]
    )
    told = [observer.transitions(job.id)[0].facts for job in jobs]

    assert [(facts["lane"], facts.get("route")) for facts in told] == [
        ("normal", None),
        ("normal", "accept:priority"),
        ("bulk", "acme"),
        ("normal", None),
        ("normal", None),
    ]
    async with serving(app):
        await asyncio.gather(*(job.result(10) for job in jobs))


async def test_a_dead_letter_says_which_entity_its_job_was_about(
    app: App, observer: Observer, valkey: BenchServer, namespace: str
) -> None:
    @app.task(entity="order:{order_id}", key="{order_id}")
    async def ship(ctx: Context, order_id: int) -> None:
        raise PersistentError("no such order")

    @app.task
    async def mail(ctx: Context) -> None:
        raise PersistentError("no such address")

    async with serving(app):
        await failure(await ship.enqueue(7))
        await failure(await mail.enqueue())
    with Desk(valkey.url, namespace) as desk:
        listed = await asyncio.to_thread(desk.json, "dlq", "list")

    assert {item["task"]: item["entity"] for item in listed["items"]} == {"ship": "order:7", "mail": None}
