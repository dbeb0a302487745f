"""Folding: what nobody registered is counted as one, and no sum changes, whatever happens meanwhile."""

from __future__ import annotations

from streamworker.core.outcome import Fail, Success
from streamworker.core.states import ErrorClass
from streamworker.store import scripts
from streamworker.worker import folding
from tests.lua.driver import Shard, job
from tests.lua.invariants import depths_by_task


def fold(shard: Shard, *tasks: str) -> int:
    """Fold all counters but those of these tasks and of the code `timeout`."""
    seen = shard.look()
    depths = [name.decode() for name in seen.hashes.get("depths", {})]
    found = folding.rows(seen.stats(), depths, tasks, lambda code: code if code == "timeout" else "other")
    folded = shard.link.script(
        scripts.fold(rows=()).script, shard.keys.tag, *(word for row in found for word in row)
    )
    return int(folded)


def test_counters_of_made_up_tasks_become_one_and_stay_right(shard: Shard) -> None:
    for number in range(5):
        shard.enqueue(job(f"j{number}", task=f"made_up_{number}"))
    shard.enqueue(job("j5", task="add", delay_ms=1000), job("j6", task="made_up_9", delay_ms=1000))
    claims = shard.claim("w1", limit=2)

    folded = fold(shard, "add")

    assert folded > 0
    assert fold(shard, "add") == 0
    stats = shard.stats()
    assert stats["enqueued:normal:other"] == 6
    assert stats["enqueued:normal:add"] == 1
    by_place = {
        name: count
        for name, count in depths_by_task(shard.look()).items()
        if name.endswith((":other", ":add"))
    }
    assert by_place == {
        "queued:normal:other": 3,
        "in_flight:normal:other": 2,
        "scheduled:normal:other": 1,
        "scheduled:normal:add": 1,
    }

    shard.watchful = False  # names and counters differ from now on, their sums do not
    for claim in claims:
        shard.settle(claim, Success())
    fold(shard, "add")
    left = depths_by_task(shard.look())
    assert (left.get("in_flight:normal:other", 0), left["queued:normal:other"]) == (0, 3)


def test_codes_that_handlers_make_up_become_one(shard: Shard) -> None:
    shard.watchful = False
    for number in range(3):
        shard.put(f"j{number}")
        (claim,) = shard.claim("w1")
        code = "timeout" if number == 0 else f"order_{number}"
        shard.settle(claim, Fail(ErrorClass.PERSISTENT, code, "no"))

    fold(shard, "add")

    stats = shard.stats()
    codes = {name: count for name, count in stats.items() if name.startswith("dead_of:")}
    assert codes == {"dead_of:add:timeout": 1, "dead_of:add:other": 2}
    assert stats["dead:normal:add"] == 3
