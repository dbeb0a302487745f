"""What logs, metrics and `jobs show` say of a job that is looked at before it ends (D14)."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import asyncpg
import pytest

from streamworker import App, Context, PersistentError, Worker
from streamworker.ops import inspect
from streamworker.telemetry import transitions
from streamworker.worker.telling import Telling
from tests.integration.serving import failure, serving

pytestmark = pytest.mark.usefixtures("no_leaks")


class TooLittle(PersistentError):
    code = "too_little"


def paying(app: App, *, commits: bool) -> Any:
    """A task that fails for good: in its transaction, or after it."""

    @app.task(name="pay")
    async def pay(ctx: Context, payment: str) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO invoices (payment_id) VALUES ($1)", payment)
            if not commits:
                raise TooLittle("in the block")
        raise TooLittle("after the block")

    return pay


def lines_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == logger]
    return [line for text in found for line in text.split("\n")]


def told_of(caplog: pytest.LogCaptureFixture, job_id: str) -> list[str]:
    return [line for line in lines_of(caplog, "streamworker.worker") if line.startswith(f"job {job_id}")]


async def test_the_log_tells_the_end_once(
    app: App, shop: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    pay = paying(app, commits=False)
    caplog.set_level(logging.INFO, "streamworker.worker")

    async with serving(app):
        job = await pay.enqueue("p1")
        await failure(job)

    told = told_of(caplog, job.id)
    of_job = f"job {job.id} of task pay:"
    later = "; it ends once it is known whether its effect was committed"
    assert told == [
        f"{of_job} attempt 1 failed (persistent, too_little){later}",
        f"{of_job} failed at attempt 1 (persistent, too_little)",
    ]


async def test_the_log_tells_that_a_committed_effect_won(
    app: App, shop: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    pay = paying(app, commits=True)
    caplog.set_level(logging.INFO, "streamworker.worker")

    async with serving(app):
        job = await pay.enqueue("p1")
        await job.result(10)

    told = told_of(caplog, job.id)
    assert told[1:] == [f"job {job.id} of task pay: its effect was committed, so it has succeeded"]


@pytest.mark.parametrize("commits", [False, True])
async def test_transitions_and_metrics_are_those_of_the_event_log(
    app: App, shop: asyncpg.Connection, caplog: pytest.LogCaptureFixture, commits: bool
) -> None:
    pay = paying(app, commits=commits)
    caplog.set_level(logging.INFO, transitions.LOGGER)

    worker = Worker(app, concurrency=4)
    worker.telling = telling = Telling(worker)
    serves = asyncio.create_task(worker.serve())
    try:
        job = await pay.enqueue("p1")
        await (job.result(10) if commits else failure(job))
    finally:
        worker.stop()
        await serves
    report = await inspect.report(app.queue(), job.id)

    told = [json.loads(line) for line in lines_of(caplog, transitions.LOGGER)]
    assert {line["task"] for line in told} == {"pay"}
    ends = (
        [("claimed", "processing", "started", None), ("processing", "succeeded", "effect_committed", None)]
        if commits
        else [("claimed", "failed_terminal", "error", "too_little")]
    )
    assert [
        (line["previous_status"], line["next_status"], line["reason"], line["error_code"]) for line in told
    ] == [
        ("queued", "claimed", "claimed", None),
        ("claimed", "processing", "started", None),
        ("processing", "retry_scheduled", "burial", "too_little"),
        ("retry_scheduled", "claimed", "burial", None),
        *ends,
    ]
    moves = report.history.moves
    (began,) = [move for move in moves if move.reason == "claimed"]
    (again,) = [move for move in moves if move.to_status == "claimed" and move.reason == "burial"]
    assert report.started_at is not None
    assert began.at_ms - 5 <= report.started_at <= again.at_ms, "the handler's start, not that of the look"

    cell = telling.metrics.cells["normal"]["pay"]
    assert sum(cell.succeeded) == (1 if commits else 0)
    assert sum(cell.failed) == sum(cell.task.failures.values()) == (0 if commits else 1)
    assert cell.task.failures.get("too_little", 0) == (0 if commits else 1)
    assert sum(cell.attempt.counts) == 1, "a look is no attempt"
