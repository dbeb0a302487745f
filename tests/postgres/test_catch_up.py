"""A Redis that went back, of jobs that are open in Postgres: what they come to is recorded all the same."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from streamworker.core.ids import new_job_id
from streamworker.core.job import Record
from streamworker.postgres import offsets
from streamworker.postgres.batch import Batch
from streamworker.postgres.mirror import Mirror
from streamworker.postgres.reconcile import Reconciled
from streamworker.postgres.switch import Switch
from streamworker.postgres.verify import Verifier
from streamworker.postgres.writer import Writer
from streamworker.settings import Settings
from streamworker.store import scripts
from streamworker.store.caller import Caller
from streamworker.store.keys import Keys
from tests.postgres.journal import NOON, Journal, claimed, retried
from tests.servers import BenchServer


@pytest.mark.parametrize("over", [False, True])
async def test_a_job_that_went_back_is_recorded_to_its_end(
    dsn: str, sql: asyncpg.Connection, valkey: BenchServer, namespace: str, over: bool
) -> None:
    """As after a failover: its first attempt and retry are in Postgres, and Redis has it as never begun."""
    keys = Keys(namespace)
    caller = Caller(valkey.url, keys.tag)
    await Switch(caller, keys).open("marker")
    job = scripts.NewJob(new_job_id(now_ms=NOON, random=bytes(8)), "mail", "normal", b"{}")
    await caller.run(scripts.enqueue(clock="", marker="marker", rows=job.row()))
    offset = await offsets.turn_on(sql, await offsets.begin(sql, namespace, 0, "marker"))
    batch, journal = Batch(), Journal()
    for entry in (journal.enqueued(job.job_id), journal.entry(claimed(job.job_id)),
                  journal.entry(retried(job.job_id))):  # fmt: skip
        batch.add(*entry)
    await Writer(sql, "m").write(batch, offset)
    cancel = scripts.cancel(clock="", actor="ann@ops", retention_ms=60_000, rows=(job.job_id, "-"))
    if over:
        await caller.run(cancel)

    async def reconciled(**how: Any) -> Reconciled:
        return await Mirror(Settings(namespace, valkey.url), dsn, "m").reconcile(**how)

    assert (await reconciled(dry_run=True)).caught_up == [job.job_id]
    assert (await reconciled()).caught_up == [job.job_id]
    assert (await reconciled()).caught_up == []
    if not over:
        await caller.run(cancel)
    assert (await reconciled()).caught_up == []

    assert (await Verifier(sql, caller, keys).run()).differences == []
    (row,) = await sql.fetch("SELECT status, error_code FROM streamworker.jobs")
    assert tuple(row) == ("failed_terminal", "cancelled")
    await caller.close()


async def test_a_job_that_was_to_end_is_only_looked_at(
    dsn: str, sql: asyncpg.Connection, valkey: BenchServer, namespace: str
) -> None:
    """It had failed for good and may have had its effect (D14): its handler ran again after a loss."""
    keys = Keys(namespace)
    caller = Caller(valkey.url, keys.tag)
    await Switch(caller, keys).open("marker")
    offset = await offsets.turn_on(sql, await offsets.begin(sql, namespace, 0, "marker"))
    job, batch, journal = new_job_id(now_ms=NOON, random=bytes(8)), Batch(), Journal()
    ends = "retry_scheduled 1 1 0 4 0 0 0 burial class=persistent code=broken fence=7 started=-3"
    for entry in (journal.enqueued(job, p1=b"{}"), journal.entry(claimed(job)),
                  journal.entry(f"{job} claimed {ends}", x1=b"E: so")):  # fmt: skip
        batch.add(*entry)
    await Writer(sql, "m").write(batch, offset)

    done = await Mirror(Settings(namespace, valkey.url), dsn, "m").reconcile()

    assert done.restored == [job]
    record = Record.parse(job, await caller.command("GET", keys.job(job)))
    assert (record.status, record.text("bu")) == ("retry_scheduled", "error persistent broken")
    assert await caller.command("HGET", keys.body(job), "error") == b"E: so"
    await caller.close()


@pytest.mark.parametrize("task", ["mail", "other"])
async def test_a_cancelled_job_is_looked_at_if_its_task_has_committed_effects(
    dsn: str, sql: asyncpg.Connection, valkey: BenchServer, namespace: str, task: str
) -> None:
    """Redis had lost which tasks have any, and the job ended as cancelled with its effect committed."""
    keys = Keys(namespace)
    caller = Caller(valkey.url, keys.tag)
    await Switch(caller, keys).open("marker")
    offset = await offsets.turn_on(sql, await offsets.begin(sql, namespace, 0, "marker"))
    await sql.execute(
        "INSERT INTO streamworker.processed_operations (namespace, operation_type, idempotency_key, status, "
        "fence) VALUES ($1, $2, 'k', 'succeeded', 7)", namespace, task,
    )  # fmt: skip
    job, batch, journal = new_job_id(now_ms=NOON, random=bytes(8)), Batch(), Journal()
    for entry in (journal.enqueued(job, p1=b"{}"), journal.entry(claimed(job)),
                  journal.entry(script="cancel", audit=f"{job} 0 cancel_requested")):  # fmt: skip
        batch.add(*entry)
    await Writer(sql, "m").write(batch, offset)

    done = await Mirror(Settings(namespace, valkey.url), dsn, "m").reconcile()

    record = Record.parse(job, await caller.command("GET", keys.job(job)))
    if task == "mail":
        assert (done.restored, record.text("bu")) == ([job], "cancelled persistent cancelled")
    else:
        assert (done.cancelled, record.text("ec")) == ([job], "persistent cancelled")
    await caller.close()
