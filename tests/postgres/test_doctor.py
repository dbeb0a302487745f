"""What the doctor says of a mirror."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streamworker.ops.mirror_checks import BEHIND_MS, mirror
from streamworker.settings import Settings
from streamworker.store.queue import Queue
from tests.servers import BenchServer


@pytest.fixture
async def queue(valkey: BenchServer, namespace: str) -> AsyncIterator[Queue]:
    made = Queue(Settings(namespace, valkey.url))
    yield made
    await made.close()


async def said(queue: Queue, **policies: object) -> tuple[str, str]:
    for name, value in policies.items():
        await queue.caller.command("HSET", queue.keys.policies, name, str(value))
    (finding,) = await mirror(queue)
    return str(finding.severity), finding.found


async def log(queue: Queue, *, age_ms: int) -> None:
    seconds, _ = await queue.caller.command("TIME")
    at_ms = int(seconds) * 1000 - age_ms
    await queue.caller.command("XADD", queue.keys.events, "*", "n", 1, "t", at_ms, "s", "x", "w", "-")


async def test_without_a_mirror_there_is_nothing_to_say(queue: Queue) -> None:
    assert await mirror(queue) == []
    await queue.caller.command("HSET", queue.keys.policies, "mirror", "off")
    assert await mirror(queue) == []


async def test_a_mirror_that_keeps_up_is_well(queue: Queue) -> None:
    await log(queue, age_ms=10)

    assert await said(queue, mirror="m1", mirror_bound=1000) == ("ok", "1 entries to be read, 0 bytes")


async def test_a_mirror_that_is_behind_is_a_warning(queue: Queue) -> None:
    await log(queue, age_ms=BEHIND_MS + 5000)

    severity, found = await said(queue, mirror="m1")

    assert (severity, "behind" in found) == ("warning", True)


async def test_a_log_that_is_half_full_is_a_problem(queue: Queue) -> None:
    await queue.caller.command("HSET", queue.keys.stats, "log_bytes", 500)

    severity, found = await said(queue, mirror="m1", mirror_bound=1000)

    assert (severity, "at 1000 enqueues are refused" in found) == ("problem", True)


async def test_a_redis_that_is_not_restored_is_a_problem(queue: Queue) -> None:
    severity, found = await said(queue, mirror="m1", restoring=1)

    assert (severity, "lost data" in found) == ("problem", True)
