"""An outcome that Redis refuses again and again: the job is left to recovery, and recovery is not free."""

from __future__ import annotations

from collections import Counter

import pytest

from streamworker import App, Context, Retry
from streamworker.core.job import Claim
from streamworker.core.outcome import Outcome, Success
from streamworker.store import settle_rows
from streamworker.store.connection import Argument
from tests.integration.serving import failure, serving
from tests.servers import BenchServer

pytestmark = pytest.mark.usefixtures("no_leaks")

#: Seconds; a strike takes one of them and a sweep.
LEASE = 1.0
SHORT = Retry.schedule("50ms", unknown=["50ms", "50ms"])
#: Starts of a job that ends at its third strike.
STARTS = 3


async def test_a_job_whose_outcome_is_refused_does_not_run_for_ever(
    valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(namespace, redis_url=valkey.url, lease=LEASE)
    runs: Counter[str] = Counter()

    @app.task(retry=SHORT)
    async def poison(ctx: Context) -> None:
        runs["poison"] += 1

    row_of = settle_rows.outcome_row

    def broken_row(claim: Claim, outcome: Outcome, ago: int | None) -> tuple[Argument, ...]:
        row = row_of(claim, outcome, ago)
        return ("S cannot be read", *row[1:]) if isinstance(outcome, Success) else row

    monkeypatch.setattr(settle_rows, "outcome_row", broken_row)
    async with app, serving(app):
        job = await poison.enqueue()
        failed = await failure(job, 60)

    assert failed.code == "crash_loop"
    assert runs["poison"] == STARTS
