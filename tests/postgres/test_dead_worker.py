"""A worker is killed: the row of its job follows what recovery decides, and a cancel of such a job works."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from streamworker import Client
from tests.postgres.stage import NAMESPACE, PATIENCE, Stage
from tests.waiting import wait_until_async


async def test_the_row_of_a_dead_workers_job_ends_and_a_cancel_of_it_works(
    stage: Stage, tmp_path: Path
) -> None:
    """B72: one attempt, and its worker is killed: the row says so soon, and does not run for ever."""

    def worker() -> Any:
        return stage.process(
            "run",
            "case_jobs:app",
            STREAMWORKER_LEASE="1",
            CHAOS_JOURNAL=str(tmp_path / "journal"),
            CHAOS_GO=str(tmp_path / "go"),
        )

    async def row(job_id: str) -> tuple[str, str | None]:
        async with stage.sql() as sql:
            query = "SELECT status, error_code FROM streamworker.jobs WHERE id = $1::uuid"
            found = await sql.fetchrow(query, job_id)
        return (found["status"], found["error_code"]) if found else ("", None)

    async def rows_are(*expected: tuple[str, str | None]) -> bool:
        return [await row(job.id) for job in jobs] == list(expected)

    stage.mirror_that_is_on()
    first = worker()
    async with Client(stage.server.url, app=NAMESPACE) as client:
        jobs = [await client.enqueue(task, {}) for task in ("hold_once", "hold")]
        running = ("processing", None)
        await wait_until_async(
            lambda: rows_are(running, running), timeout=PATIENCE, what="both rows say processing"
        )
        await asyncio.to_thread(first.kill)
        assert await jobs[1].cancel()
        worker()

        await wait_until_async(
            lambda: rows_are(("failed_terminal", "worker_lost"), ("failed_terminal", "cancelled")),
            timeout=PATIENCE,
            what="both rows have ended",
        )
        assert not await jobs[0].cancel(), "it is over"
