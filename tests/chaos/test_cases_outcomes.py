"""Cases of outcomes on their way: the answer or the request is lost, and the call is sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamworker import App, Context, PersistentError, Retry, Snooze, TransientError
from streamworker.store import lua
from tests.chaos.conftest import LEASE
from tests.integration.history import Journal, Observer, judge
from tests.integration.serving import serving
from tests.proxy import Proxy
from tests.servers import BenchServer
from tests.waiting import wait_until_async

#: Until another worker does a dead keeper's work (D6), and what a busy machine may take.
SUCCESSION, MARGIN = LEASE / 3, 1.0
EXCHANGE, RECOVER = (lua.load(name).sha.encode() for name in ("exchange", "recover"))


# --- outcomes on their way -------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("ends", ["retry", "success", "failure", "snooze"])
async def test_an_outcome_whose_answer_is_lost_is_recorded_once(
    server: BenchServer, namespace: str, observer: Observer, tmp_path: Path, ends: str, lost: str
) -> None:
    """B04: a retry is one step, sent again until it is answered: one future execution, never two."""
    journal = Journal(tmp_path / "journal")
    with Proxy(server.port) as proxy:
        async with App("lost", redis_url=proxy.url, namespace=namespace, lease=LEASE) as app:

            @app.task(retry=Retry.schedule("50ms", "50ms"))
            async def work(ctx: Context) -> Any:
                first = not journal.starts(ctx.job_id)
                journal.start(ctx)
                if first:
                    key = ctx.job_id.encode()
                    drop = proxy.drop_next_reply if lost == "reply" else proxy.drop_next_request
                    rules.append(drop(lambda request: EXCHANGE in request and key in request))
                    match ends:
                        case "retry":
                            raise TransientError("once more")
                        case "failure":
                            raise PersistentError("no")
                        case "snooze":
                            journal.end(ctx)
                            return Snooze("50ms")
                journal.end(ctx)
                return None

            rules: list[Any] = []
            async with serving(app):
                job = await work.enqueue()
                await wait_until_async(lambda: observer.all_over([job.id]), what="it is over")
                await wait_until_async(lambda: rules[0].happened, what="it was lost")

    again = ends in ("retry", "snooze")
    assert len(journal.starts(job.id)) == (2 if again else 1)
    assert observer.record(job.id).attempt == (2 if ends == "retry" else 1)
    waits = [str(edge.to_status) for edge in observer.transitions(job.id)]
    assert waits.count("retry_scheduled") == (ends == "retry")
    assert len(observer.dead_letters()) == (ends == "failure")
    assert observer.leftovers() == []
    assert judge(accepted=[job.id], transitions=observer.transitions(), marks=journal.marks()) == []
