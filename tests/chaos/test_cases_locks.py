"""Cases of locks that handlers take: their holder dies, or comes back when another one has them."""

from __future__ import annotations

import time

from streamworker.worker.reader import BLOCK_MS
from tests.chaos.bench import Bench
from tests.chaos.conftest import LEASE
from tests.waiting import wait_until

#: Seconds that a lock lives without a renewal.
TTL = 1.0
#: Seconds that a worker's read blocks, and a little.
READ = BLOCK_MS / 1000 + 0.2
#: What a busy machine may take; less than the lease, whose end would free the lock as well.
MARGIN = 6.0


def holder(bench: Bench) -> tuple[str, int]:
    """Whose the lock is, and its token; ('', 0): nobody's."""
    value = bench.redis.get(bench.keys.lock("order:7"))
    if value is None:
        return "", 0
    by, token = value.decode().split(" ")
    return by.partition(":")[0], int(token)


def test_a_lock_whose_holder_was_killed_is_free_after_its_time(kind: str) -> None:
    """B36: the next one gets it when its time is over, with a larger token, in its first attempt."""
    with Bench(kind=kind, lease=8 * LEASE, workers=2, app="case_jobs:app") as bench:
        first = bench.enqueue("locked", {"order": 7, "ttl": TTL})
        victim = bench.wait_running(first)
        token = holder(bench)[1]
        bench.kill(victim)
        killed = time.time()
        # Before Redis hears of the death, what comes would still go to the dead one, and wait for its lease.
        wait_until(lambda: victim.place.proxy.open_connections == 0, what="its connections are gone")
        second = bench.enqueue("locked", {"order": 7, "ttl": TTL})
        wait_until(lambda: holder(bench)[0] == second, what="the second one has the lock")
        taken = time.time()
        assert holder(bench)[1] > token
        bench.release()
        bench.wait_over([first, second])
        bench.wait_up()
        run = bench.finish()

    assert taken - killed < TTL + MARGIN
    assert [start.attempt for start in run.starts(second)] == [1]
    assert {run.path(job)[-1] for job in (first, second)} == {"succeeded"}


def test_a_holder_that_comes_back_too_late_frees_nobody_elses_lock(kind: str) -> None:
    """B37: a frozen holder finds another one in its place; the third still has to wait for that one."""
    with Bench(kind=kind, lease=10 * LEASE, workers=2, app="case_jobs:app") as bench:
        first = bench.enqueue("locked", {"order": 7, "ttl": TTL})
        victim = bench.wait_running(first)
        token = holder(bench)[1]
        bench.freeze(victim)
        frozen = time.monotonic()
        wait_until(lambda: holder(bench) == ("", 0), what="the lock has run out")
        # As long as a read of the frozen one is blocked, what comes may go to it, and wait for its lease.
        wait_until(lambda: time.monotonic() - frozen > READ, what="its blocked read has ended")
        second = bench.enqueue("locked", {"order": 7, "ttl": 30.0})
        bench.wait_running(second)
        bench.thaw(victim)
        wait_until(
            lambda: any(edge.facts.get("code") == "lock_lost" for edge in bench.log(first)),
            what="the first one is told that it has lost the lock",
        )
        third = bench.enqueue("locked", {"order": 7, "ttl": TTL})
        wait_until(lambda: bench.record(third).status == "processing", what="the third one wants the lock")
        assert holder(bench)[0] == second
        assert holder(bench)[1] > token
        assert {mark.job_id for _, mark in bench.running()} - {first} == {second}
        bench.release()
        bench.wait_over([first, second, third])
        run = bench.finish()

    assert [start.attempt for start in run.starts(second)] == [1]
    assert {run.path(job)[-1] for job in (first, second, third)} == {"succeeded"}
