"""What becomes of the ticks of crons when Redis loses data that the mirror had read (D19)."""

from __future__ import annotations

import pytest

from streamworker import App, Context
from streamworker.core.cron import Cron
from streamworker.core.errors import EnqueueRejected
from streamworker.core.states import Status
from streamworker.worker.crons import Crons
from tests.apps import mirror_jobs
from tests.integration.serving import serving
from tests.postgres.stage import NAMESPACE, PATIENCE, Stage
from tests.waiting import wait_until_async

pytestmark = pytest.mark.timeout(PATIENCE * 3)
MINUTE = 60_000


class Minutely:
    """An app with one cron, and its workers as far as they run crons."""

    def __init__(self, stage: Stage) -> None:
        self.ran: list[str] = []
        self.app = App("crons", redis_url=stage.server.url, namespace=NAMESPACE)

        @self.app.cron("* * * * *")
        async def sweep(ctx: Context) -> None:
            self.ran.append(ctx.job_id)

        self.cron: Cron = self.app.crons["sweep"]

    def worker(self, name: str) -> Crons:
        return Crons(self.app, name)


async def tick_of(stage: Stage) -> int:
    """The last tick that has come."""
    seconds, _ = await stage.queue.caller.command("TIME")
    return int(seconds) // 60 * MINUTE


async def mirrored(stage: Stage) -> None:
    async def read() -> bool:
        return await stage.unread() == 0

    await wait_until_async(read, timeout=PATIENCE, what="the log is mirrored")


async def test_a_tick_that_ran_before_a_loss_runs_for_nobody_again(stage: Stage) -> None:
    """Some workers have not heard of it yet, others begin only then and would find it missed."""
    minutely, command = Minutely(stage), stage.queue.caller.command
    mirror = stage.mirror_that_is_on()
    await stage.queue.enqueuer.place([mirror_jobs.good.options(delay="1h").call(1).job])  # for what is logged
    slow, new = minutely.worker("slow"), minutely.worker("new")
    await slow._ask(minutely.cron, None)
    tick = await tick_of(stage)
    await command("HSET", stage.keys.crons, "sweep", f"{tick - 2 * MINUTE} -")
    async with minutely.app, serving(minutely.app):
        await wait_until_async(lambda: minutely.ran, timeout=PATIENCE, what="it is made up for")
    assert await stage.over(minutely.ran[-1])
    last = int((await command("HGET", stage.keys.crons, "sweep")).split(b" ")[0])
    await mirrored(stage)
    mirror.kill()

    await command("FLUSHALL")
    with pytest.raises(EnqueueRejected, match="being restored"):
        await slow._ask(minutely.cron, last)
    assert await command("KEYS", "*job:*") == []
    stage.mirror().wait_for_log("1 jobs restored", timeout=PATIENCE)

    assert (await wait_until_async(lambda: answer(slow, minutely.cron, last), what="open")) == "ALREADY"
    begun = await new._begin(minutely.cron)
    assert begun.tick > last, "it is not taken for missed"
    for worker in (slow, new):
        await worker.close()


async def answer(worker: Crons, cron: Cron, tick: int) -> str | None:
    """What is said of the tick, once somebody says something."""
    try:
        return (await worker._ask(cron, tick)).verdict
    except EnqueueRejected:
        return None


async def test_a_job_that_comes_back_keeps_the_next_tick_from_running_beside_it(stage: Stage) -> None:
    """`overlap="skip"`: two at once are what it rules out."""
    minutely, command = Minutely(stage), stage.queue.caller.command
    mirror = stage.mirror_that_is_on()
    worker = minutely.worker("w")
    tick = await tick_of(stage)
    await command("HSET", stage.keys.crons, "sweep", f"{tick - 2 * MINUTE} -")
    assert (await worker._ask(minutely.cron, tick - MINUTE)).verdict == "OK"
    job_id = minutely.cron.job_id(tick - MINUTE, namespace=NAMESPACE)
    await mirrored(stage)

    await command("FLUSHALL")
    mirror.wait_for_log("1 jobs restored", timeout=PATIENCE)
    verdict = await wait_until_async(lambda: answer(worker, minutely.cron, tick), what="open")

    assert verdict == "SKIPPED"
    assert (await stage.queue.record(job_id)).status is Status.QUEUED
    await worker.close()
