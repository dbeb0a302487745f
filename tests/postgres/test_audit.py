"""What operators did is read back from the log and, once the mirror has taken it, from Postgres."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamworker.ops import audit, overload, tune
from streamworker.store.depths import now_ms
from streamworker.store.queue import Queue
from tests.postgres.stage import PATIENCE, Stage
from tests.waiting import wait_until_async

ANN = "ann@ops"


@pytest.mark.timeout(PATIENCE * 2)
async def test_the_audit_is_the_same_before_and_after_it_was_mirrored(stage: Stage) -> None:
    queue = stage.queue
    stage.mirror_that_is_on()
    await tune.pause(queue, "task:early", actor=ANN)
    since = await now_ms(queue.caller.command) + 1
    with_postgres = Queue(replace(queue.settings, postgres_dsn=stage.postgres.dsn))

    async def passed() -> bool:
        return await now_ms(queue.caller.command) >= since

    await wait_until_async(passed, timeout=PATIENCE, what="a moment is over")
    await tune.pause(queue, "task:bad", actor=ANN, reason="not | now")
    await overload.set_throttle(queue, "tenant:acme", "5/s", actor=ANN, reason="noise")
    await tune.resume(queue, "task:bad", actor=ANN)
    expected = [(ANN, "pause", "task:bad"), (ANN, "throttle", "tenant:acme"), (ANN, "resume", "task:bad")]

    async def mirrored() -> bool:
        return await stage.unread() == 0

    try:
        found = await audit.actions(with_postgres, since)
        assert [(one.actor, one.action, one.subject) for one in found] == expected

        await wait_until_async(mirrored, timeout=PATIENCE, what="all is mirrored")
        assert await audit.actions(queue, since) == [], "the log has nothing of it any more"
        assert await audit.actions(with_postgres, since) == found
        assert "not | now" in audit.plain(found[0])["detail"]
    finally:
        await with_postgres.close()
