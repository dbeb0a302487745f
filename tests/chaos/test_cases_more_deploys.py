"""More faults of deploys, beyond the list of cases: what a job was made by is not declared any more."""

from __future__ import annotations

from streamworker import App, Context, Lane
from streamworker.ops import doctor
from tests.chaos.conftest import LEASE
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.servers import BenchServer
from tests.waiting import wait_until_async


def shop(server: BenchServer, namespace: str, *lanes: str) -> App:
    """A release of an app, with these lanes beside those that each has."""
    more = {name: Lane() for name in ("normal", *lanes)}
    app = App("cases", redis_url=server.url, namespace=namespace, lease=LEASE, lanes=more)

    @app.task
    async def work(ctx: Context) -> int:
        return ctx.attempt

    return app


async def test_the_job_of_a_dead_worker_is_recovered_in_a_lane_that_the_next_release_has_not(
    server: BenchServer, namespace: str, observer: Observer
) -> None:
    """sidekiq#5719: in progress for ever, with its key and all that it held: nobody swept the lane."""
    async with shop(server, namespace, "bulk") as before:
        job = await before.tasks["work"].options(lane="bulk", key="once").enqueue()
        assert observer.claim_as_ghost("bulk") == job.id

    async with shop(server, namespace) as after, serving(after):
        await wait_until_async(
            lambda: observer.record(job.id).status == "retry_scheduled", timeout=15, what="it is recovered"
        )
        (said,) = [one for one in await doctor.examine(after.queue()) if one.check == "lanes"]
        assert "no app has the lane bulk any more, with 1 job in it" in said.found

    async with shop(server, namespace, "bulk") as again, serving(again):
        await wait_until_async(
            lambda: observer.record(job.id).status == "succeeded", what="it runs once its lane is back"
        )
    assert observer.leftovers(lanes=("normal", "bulk")) == []
