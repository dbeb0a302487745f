"""How many calls a worker makes for its jobs."""

from __future__ import annotations

from typing import Any

import pytest

from streamworker import App, Context
from streamworker.store import scripts
from tests.integration.serving import serving
from tests.servers import BenchServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")

JOBS = 40


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[scripts.Call]:
    """Every exchange that is sent from now on."""
    sent: list[scripts.Call] = []
    exchange = scripts.exchange

    def noted(**arguments: Any) -> scripts.Call:
        call = exchange(**arguments)
        sent.append(call)
        return call

    monkeypatch.setattr(scripts, "exchange", noted)
    return sent


async def test_with_one_slot_a_call_settles_one_job_and_claims_the_next(
    valkey: BenchServer, namespace: str, exchanges: list[scripts.Call]
) -> None:
    ran: list[int] = []
    async with App("calls", redis_url=valkey.url, namespace=namespace) as app:

        @app.task
        async def note(ctx: Context, number: int) -> None:
            ran.append(len(exchanges))

        await app.enqueue_many([note.call(number) for number in range(JOBS)])
        async with serving(app, concurrency=1):
            await wait_until_async(lambda: len(ran) == JOBS, what="all jobs ran")

    assert ran[-1] - ran[0] < JOBS + 5, "one for each job"
