"""What becomes of the jobs when Redis loses data that the mirror had read (D19).

`STREAMWORKER_MIRROR_LOST` says how many jobs are open, and how many over, when everything goes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from streamworker import Client
from streamworker.core.errors import EnqueueRejected
from streamworker.core.ids import JobIds
from streamworker.core.states import Disposition
from streamworker.request import Options, Request, new_job
from streamworker.store import scripts
from streamworker.store.sync_queue import SyncQueue
from streamworker.worker import log_bound
from tests.apps import mirror_jobs
from tests.postgres.stage import NAMESPACE, PATIENCE, Stage
from tests.processes import PYTHONPATH
from tests.waiting import wait_until_async

LOST = int(os.environ.get("STREAMWORKER_MIRROR_LOST", "100"))
pytestmark = pytest.mark.timeout(PATIENCE * 3)


def keyed(number: int) -> Request:
    return Request("good", {"number": number}, Options(key=f"key-{number}"))


async def command(stage: Stage, *arguments: str) -> tuple[int, Any]:
    """Run `streamworker mirror …` and return its exit code and its JSON."""
    line = [sys.executable, "-m", "streamworker", "mirror", *arguments, "--app", NAMESPACE, "--json"]
    done = await asyncio.to_thread(
        subprocess.run,
        line,
        env={
            **os.environ,
            "PYTHONPATH": PYTHONPATH,
            "STREAMWORKER_REDIS_URL": stage.server.url,
            "STREAMWORKER_POSTGRES_DSN": stage.postgres.dsn,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


async def flush(stage: Stage) -> None:
    await stage.queue.caller.command("FLUSHALL")


async def mirrored(stage: Stage) -> None:
    async def read() -> bool:
        return await stage.unread() == 0

    await wait_until_async(read, timeout=PATIENCE, what="the log is mirrored")


async def test_after_a_flush_open_jobs_run_once_each_and_finished_ones_not_again(
    stage: Stage, tmp_path: Path
) -> None:
    """B68: the mirror notices by itself; a producer that sends its keys again gets the same jobs."""
    starts = tmp_path / "starts"
    stage.mirror_that_is_on()
    worker = stage.worker(MIRROR_STARTS=str(starts))
    async with Client(stage.server.url, app=NAMESPACE) as client:
        over = await client.enqueue_many([keyed(number) for number in range(LOST)])
        await wait_until_async(stage.settled, timeout=PATIENCE, what="the first are over and mirrored")
        worker.terminate()
        worker.wait()
        still = await client.enqueue_many([keyed(number) for number in range(LOST, 2 * LOST)])
        delayed = await client.enqueue("good", {"number": -1}, delay=2)
        await mirrored(stage)

        await flush(stage)
        again = await client.enqueue_many([keyed(number) for number in range(2 * LOST)])
        assert [each.id for each in again] == [each.id for each in (*over, *still)]
        assert {each.disposition for each in again} == {Disposition.DUPLICATE}

        stage.worker(MIRROR_STARTS=str(starts))
        await wait_until_async(stage.settled, timeout=PATIENCE, what="all are over and mirrored")

    ran = Counter(starts.read_text().split())
    assert ran == dict.fromkeys([each.id for each in (*over, *still, delayed)], 1)
    assert await stage.statuses() == {"succeeded": 2 * LOST + 1}
    async with stage.sql() as sql:
        reasons = await sql.fetch(
            "SELECT reason, count(*) AS many FROM streamworker.job_transitions GROUP BY 1"
        )
        assert {row["reason"]: row["many"] for row in reasons}["restored"] == LOST + 1
        assert await sql.fetchval("SELECT count(*) FROM streamworker.mirror_conflicts") == 0
        assert await sql.fetchval("SELECT loss FROM streamworker.mirror_offsets") is None
    code, verified = await command(stage, "verify")
    assert (code, verified["differences"]) == (0, [])


async def test_what_a_handler_was_doing_begins_anew_uncharged(stage: Stage) -> None:
    mirror = stage.mirror_that_is_on()
    ids = await stage.enqueue(4)
    await stage.queue.run(scripts.session(worker="w", own=0, liveness_ms=60_000, rows=["host", "h"]))
    await stage.queue.run(
        scripts.claim(
            clock="",
            worker="w",
            session=1,
            lease_ms=60_000,
            retention_ms=60_000,
            limit=4,
            shared=4,
            offers="",
            plan="normal 0 500 0",
        )
    )
    assert await stage.queue.cancel(ids[3], actor="ann@ops") == "FLAGGED"
    await mirrored(stage)
    await flush(stage)
    mirror.wait_for_log("3 jobs restored", timeout=PATIENCE)

    records = [await stage.queue.record(each) for each in ids]

    assert [(each.status, each.attempt, each.starts) for each in records[:3]] == [("queued", 0, 1)] * 3
    assert (records[3].status, records[3].text("ec")) == ("failed_terminal", "persistent cancelled")


async def test_jobs_that_are_older_than_the_mirror_are_restored_as_well(stage: Stage) -> None:
    ids = await stage.enqueue(5)
    call = mirror_jobs.good.options(delay="1h", key="later", tenant="acme").call(9)
    (delayed,) = await stage.queue.enqueuer.place([call.job])
    await stage.queue.caller.command("XTRIM", stage.keys.events, "MAXLEN", 0)  # as a keeper might have

    mirror = stage.mirror()
    mirror.wait_for_log("took in 6 jobs", timeout=PATIENCE)
    assert (await command(stage, "verify"))[1]["without_payload"] == 0
    await flush(stage)
    mirror.wait_for_log("6 jobs restored", timeout=PATIENCE)

    records = [await stage.queue.record(each) for each in (*ids, delayed.job_id)]
    assert [record.status for record in records] == ["queued"] * 6
    assert records[-1].entry is None, "the delayed one waits on"
    assert (records[-1].text("tn"), records[-1].text("ky")) == ("acme", "good::later")
    stage.worker()

    async def over() -> bool:
        return all([await stage.over(job_id) for job_id in ids])

    await wait_until_async(over, timeout=PATIENCE, what="the others are over")


async def test_reconcile_says_first_and_does_then(stage: Stage) -> None:
    mirror = stage.mirror_that_is_on()
    ids = await stage.enqueue(8)
    await mirrored(stage)
    mirror.terminate()
    mirror.wait()
    await flush(stage)

    code, before = await command(stage, "verify")
    assert (code, len(before["differences"])) == (1, 8)
    _, planned = await command(stage, "reconcile", "--dry-run")
    assert sorted(planned["restored"]) == sorted(ids)
    assert await stage.queue.caller.command("KEYS", "*job:*") == []

    _, done = await command(stage, "reconcile")
    assert sorted(done["restored"]) == sorted(ids)
    _, again = await command(stage, "reconcile")
    assert again["restored"] == []

    stage.mirror()
    stage.worker()
    await wait_until_async(stage.settled, timeout=PATIENCE, what="they are over and mirrored")
    assert (await command(stage, "verify"))[0] == 0


async def test_a_job_that_ended_and_expired_before_the_mirror_read_it_is_not_restored(stage: Stage) -> None:
    """Absence alone proves nothing: its end is still in the log."""
    mirror = stage.mirror_that_is_on()
    ids = await stage.enqueue(2)
    await mirrored(stage)
    mirror.terminate()
    mirror.wait()
    worker = stage.worker()
    await wait_until_async(stage.idle, timeout=PATIENCE, what="they are over")
    worker.terminate()
    worker.wait()
    for job_id in ids:
        await stage.queue.caller.command("DEL", stage.keys.job(job_id), stage.keys.body(job_id))

    _, planned = await command(stage, "reconcile", "--dry-run")
    _, done = await command(stage, "reconcile")

    assert (planned["restored"], done["restored"], done["ended"]) == ([], [], [])
    assert await stage.statuses() == {"succeeded": 2}


async def test_producers_are_refused_until_redis_is_restored(stage: Stage) -> None:
    mirror = stage.mirror_that_is_on()
    queue = stage.queue
    queue.caller.patience = 0.5
    await stage.enqueue(4)
    mirror.wait_for_log("mirroring")
    blocking = SyncQueue(queue.settings, patience=0.5)
    await stage.enqueue(3)  # by now it knows the marker, and so does the other
    await asyncio.to_thread(blocking.place, [new_job("good", {"number": 0}, Options())])
    await mirrored(stage)
    mirror.kill()

    await flush(stage)
    job = new_job("good", {"number": 1}, Options())

    with pytest.raises(EnqueueRejected, match="being restored"):
        await queue.enqueuer.add(job)
    with pytest.raises(EnqueueRejected, match="being restored"):
        await asyncio.to_thread(blocking.place, [job])
    blocking.close()
    assert await queue.caller.command("KEYS", "*job:*") == []
    stage.mirror().wait_for_log("8 jobs restored", timeout=PATIENCE)
    placed = await wait_until_async(lambda: accepted(queue, job), what="enqueue is open again")
    assert placed.job_id == job.job_id


async def accepted(queue: Any, job: Any) -> Any:
    try:
        return await queue.enqueuer.add(job)
    except EnqueueRejected:
        return None


async def test_a_job_that_postgres_has_finished_is_ended_in_a_redis_that_went_back(stage: Stage) -> None:
    """As after a failover to a replica that was behind: the record is older than what was mirrored."""
    mirror = stage.mirror_that_is_on()
    (job_id, *_) = await stage.enqueue(1)
    await mirrored(stage)
    command = stage.queue.caller.command
    names = await command("KEYS", "*")
    old = {name: await command("DUMP", name) for name in names}
    worker = stage.worker()
    await wait_until_async(stage.settled, timeout=PATIENCE, what="it is over and mirrored")
    worker.terminate()
    worker.wait()

    await flush(stage)
    for name, data in old.items():
        await command("RESTORE", name, 0, data)
    assert (await stage.queue.record(job_id)).status == "queued"
    await stage.enqueue(1)  # its entry has a number that the mirror has seen
    mirror.wait_for_log("1 ended as Postgres knows", timeout=PATIENCE)

    assert (await stage.queue.record(job_id)).status == "succeeded"


async def test_ids_that_run_backwards_cost_no_unread_event(stage: Stage) -> None:
    """After a failover the log may go on with smaller ids than those that were mirrored."""
    stage.mirror()
    await stage.enqueue(8)
    await mirrored(stage)
    ids = JobIds(lambda: 1_000_000_000_000)
    earlier = [ids.new() for _ in range(20)]

    command, keys = stage.queue.caller.command, stage.keys
    await command("DEL", keys.events)
    for number, job_id in enumerate(earlier, 100):
        await command(
            "XADD", keys.events, f"{1000 + number}-0", "n", 100_000 + number, "t", 1_000_000_000_000 + number,
            "s", "enqueue", "w", "-", "e", f"{job_id} + good normal",
        )  # fmt: skip
    await mirrored(stage)

    async with stage.sql() as sql:
        found = await sql.fetch("SELECT id::text FROM streamworker.jobs WHERE id = ANY($1::uuid[])", earlier)
    assert {row["id"] for row in found} == set(earlier)


async def test_a_keeper_trims_the_log_only_while_no_mirror_is_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_bound, "EVENTS_BYTES", 1000)
    for _ in range(300):
        await stage.enqueue(1)
    command, keys = stage.queue.caller.command, stage.keys
    log = log_bound.LogBound(keys, stage.queue.caller)

    await command("HSET", keys.policies, "mirror", "m1")
    await log.trim()
    kept = await stage.unread()
    await command("HSET", keys.policies, "mirror", "off")
    await log.trim()

    assert kept == 300
    assert await stage.unread() < 300


async def test_at_the_bound_of_the_log_enqueue_is_refused_and_nothing_is_dropped(stage: Stage) -> None:
    """B70: what waits for Postgres is bounded, lives in Redis and in no worker, and is all written later."""
    mirror = stage.mirror_that_is_on()
    mirror.wait_for_log("mirroring")
    await stage.enqueue(40)
    await mirrored(stage)
    await asyncio.to_thread(stage.postgres.kill)
    await stage.queue.caller.command("HSET", stage.keys.policies, "mirror_bound", 20_000)

    accepted_ids: list[str] = []
    async with Client(stage.server.url, app=NAMESPACE) as client:
        while True:
            jobs = await client.enqueue_many([Request("good", {"number": n}, Options()) for n in range(20)])
            accepted_ids += [each.id for each in jobs if each.disposition is Disposition.ACCEPTED]
            if jobs[-1].disposition is Disposition.REJECTED:
                break
            assert len(accepted_ids) < 2000
        with pytest.raises(EnqueueRejected, match="log has reached its bound") as refused:
            await client.enqueue("good", {"number": 1})
    assert refused.value.retry_after == 1
    stage.worker()
    await wait_until_async(stage.idle, timeout=PATIENCE, what="what was accepted is over")

    await asyncio.to_thread(stage.postgres.restart)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="everything is mirrored")
    assert await stage.differences() == []
    assert (await stage.statuses())["succeeded"] >= len(accepted_ids)
    assert (await stage.enqueue(4)) != []


def test_the_app_of_these_tests_has_the_task_that_producers_name() -> None:
    assert "good" in mirror_jobs.app.tasks
