"""What clients and operators find in Postgres once Redis has forgotten a job."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pytest

from streamworker import Client, JobFailed, JobMissing, JobNotFound, SyncClient
from streamworker.core.ids import JobIds
from streamworker.core.retry import recompute_delay_ms
from streamworker.ops import inspect
from streamworker.ops.dlq import views
from streamworker.settings import Settings
from streamworker.store.queue import Queue
from tests.postgres.stage import NAMESPACE, PATIENCE, Stage
from tests.waiting import wait_until_async

pytestmark = pytest.mark.timeout(PATIENCE * 2)


def milliseconds(moment: str) -> int:
    return round(datetime.datetime.fromisoformat(moment).timestamp() * 1000)


async def forgotten(stage: Stage) -> tuple[str, str, str]:
    """One job of each kind, over, mirrored, and expired in Redis."""
    stage.mirror().wait_for_log("mirroring")
    stage.worker()
    good, _, flaky, bad = await stage.enqueue(4)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="they are over and mirrored")
    command = stage.queue.caller.command
    for job_id in (good, flaky, bad):
        await command("DEL", stage.keys.job(job_id), stage.keys.body(job_id))
    return good, flaky, bad


async def test_results_outlive_redis(stage: Stage) -> None:
    good, flaky, bad = await forgotten(stage)

    async with Client(stage.server.url, app=NAMESPACE, postgres_dsn=stage.postgres.dsn) as client:
        assert await client.result(good) == {"number": 0}
        assert await client.result(flaky) == 2
        with pytest.raises(JobFailed, match="no way for 3") as failed:
            await client.result(bad)
        view = await client.get(flaky)

    assert (failed.value.code, failed.value.error_class) == ("no_way", "persistent")
    assert (view.task, view.status, view.attempt) == ("flaky", "succeeded", 2)


async def test_they_do_so_for_programs_without_a_loop_and_inside_one(stage: Stage) -> None:
    good, _, _ = await forgotten(stage)

    with SyncClient(stage.server.url, app=NAMESPACE, postgres_dsn=stage.postgres.dsn) as client:
        assert client.result(good) == {"number": 0}  # blocks a loop that runs, as its callers know
        assert (await asyncio.to_thread(client.get, good)).status == "succeeded"


async def test_expired_is_not_never_existed_and_not_lost(stage: Stage) -> None:
    stage.mirror().wait_for_log("mirroring")
    (lost,) = await stage.enqueue(1)

    async def read() -> bool:
        return await stage.unread() == 0

    await wait_until_async(read, timeout=PATIENCE, what="it is mirrored")
    await stage.queue.caller.command("DEL", stage.keys.job(lost))
    never = JobIds(lambda: 1_000_000_000_000).new()

    async with Client(stage.server.url, app=NAMESPACE, postgres_dsn=stage.postgres.dsn) as client:
        with pytest.raises(JobNotFound, match="never enqueued") as unknown:
            await client.result(never)
        with pytest.raises(JobMissing) as missing:
            await client.result(lost)
    async with Client(stage.server.url, app=NAMESPACE) as client:
        with pytest.raises(JobNotFound, match="expired, or"):
            await client.result(lost)

    assert not isinstance(unknown.value, JobMissing)
    assert missing.value.status == "queued"


async def shown(stage: Stage, job_id: str) -> dict[str, Any]:
    queue = Queue(Settings(NAMESPACE, stage.server.url, postgres_dsn=stage.postgres.dsn))
    try:
        return await inspect.show(queue, job_id)
    finally:
        await queue.close()


async def test_every_due_time_can_be_computed_again_from_the_history(stage: Stage) -> None:
    _, flaky, _ = await forgotten(stage)

    history = (await shown(stage, flaky))["history"]

    waits = [move for move in history if "due_at" in move]
    assert [move["to"] for move in waits] == ["retry_scheduled"]
    (wait,) = waits
    delay = recompute_delay_ms(wait["policy"], flaky, 1)
    assert milliseconds(wait["due_at"]) - milliseconds(wait["at"]) == delay
    assert (wait["error_code"], wait["error"]) == ("transient", "TransientError: the first time of 2")


async def test_a_history_is_whole_while_a_part_of_it_is_still_in_the_log(stage: Stage) -> None:
    mirror = stage.mirror()
    mirror.wait_for_log("mirroring")
    (job_id,) = await stage.enqueue(1)

    async def read() -> bool:
        return await stage.unread() == 0

    await wait_until_async(read, timeout=PATIENCE, what="the enqueue is mirrored")
    mirror.kill()
    await stage.queue.cancel(job_id, actor="ann@ops")

    found = await shown(stage, job_id)

    assert [move["to"] for move in found["history"]] == ["queued", "failed_terminal"]
    assert found["history_complete"]
    assert found["history"][-1]["worker"] == "ann@ops"


async def test_jobs_show_finds_what_redis_forgot(stage: Stage) -> None:
    good, _, bad = await forgotten(stage)

    succeeded, dead = await shown(stage, good), await shown(stage, bad)

    assert (succeeded["status"], succeeded["result"]) == ("succeeded", {"number": 0})
    assert (dead["status"], dead["error_code"], dead["error"]) == (
        "failed_terminal",
        "no_way",
        "PersistentError: no way for 3",
    )
    assert [move["to"] for move in dead["history"]] == ["queued", "claimed", "processing", "failed_terminal"]
    assert dead["history_complete"]


async def test_dlq_show_has_the_moves_that_the_mirror_has_taken_from_the_log(stage: Stage) -> None:
    _, _, bad = await forgotten(stage)

    queue = Queue(Settings(NAMESPACE, stage.server.url, postgres_dsn=stage.postgres.dsn))
    try:
        found = await views.show(queue, bad)
    finally:
        await queue.close()

    assert [move["to"] for move in found["history"]] == ["queued", "claimed", "processing", "failed_terminal"]
    assert found["history_complete"]
