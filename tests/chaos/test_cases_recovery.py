"""Cases of recovery itself: sweepers that die, consumers that never come back, sweeps without end."""

from __future__ import annotations

import asyncio
import time

from streamworker import App, Context
from streamworker.store import lua
from streamworker.store.keys import GROUP
from streamworker.worker.keeper import Keeper
from tests.chaos.bench import Bench
from tests.chaos.conftest import LEASE, SWEEP
from tests.chaos.scale import SCALE
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.waiting import wait_until, wait_until_async

#: Until another worker does a dead keeper's work (D6), and what a busy machine may take.
SUCCESSION, MARGIN = LEASE / 3, 1.0
EXCHANGE, RECOVER = (lua.load(name).sha.encode() for name in ("exchange", "recover"))


def recovered_at(bench: Bench, job_id: str) -> float:
    """When the job was taken from a dead worker, in seconds since the epoch."""
    return next(edge.at_ms / 1000 for edge in bench.log(job_id) if edge.reason == "recovered")


def is_recovered(bench: Bench, job_id: str) -> bool:
    return any(edge.reason == "recovered" for edge in bench.log(job_id))


# --- recovery itself -------------------------------------------------------------------------------------


def test_a_keeper_that_dies_in_the_middle_of_a_sweep_stops_no_recovery(kind: str) -> None:
    """B05: its role has a TTL, always: another worker sweeps, and recovers what the dead one held."""
    with Bench(kind=kind, lease=LEASE, workers=2, concurrency=2, respawn=False) as bench:
        bench.wait_sweeping()
        jobs = [bench.enqueue("hold") for _ in range(4)]
        workers = {job: bench.wait_running(job) for job in jobs}
        keeper = wait_until(bench.keeper, what="somebody keeps")
        assert keeper is not None
        held = [job for job, worker in workers.items() if worker is keeper]
        assert held
        sweep = keeper.place.proxy.hold_next_request(RECOVER)
        sweep.wait()
        bench.kill(keeper)
        killed = time.time()
        left = bench.redis.pttl(bench.keys.elect("keeper"))
        assert left != -1, "a role without an end"  # -2: it has ended already
        assert left <= 3_000
        wait_until(
            lambda: all(is_recovered(bench, job) for job in held), timeout=10, what="the other one takes over"
        )
        # The judge of the run knows D6's bound, and when the machine stood still.
        assert max(recovered_at(bench, job) for job in held) - killed < 10 * LEASE
        wait_until(lambda: sweep_age(bench) < 2 * SWEEP, what="sweeps are regular again")
        bench.release()
        bench.finish()


def sweep_age(bench: Bench) -> float:
    seconds, micros = bench.redis.time()
    return float(seconds + micros / 1e6 - int(bench.redis.hget(bench.keys.sweep, "at")) / 1000)


def test_jobs_of_a_worker_that_never_comes_back_run_on_one_with_another_name(kind: str) -> None:
    """B06: five jobs of a dead consumer, no new ones: all run elsewhere; its name goes when nothing pends."""
    with Bench(kind=kind, lease=LEASE, workers=1, concurrency=8, respawn=False) as bench:
        jobs = [bench.enqueue("hold") for _ in range(5)]
        (gone,) = {bench.wait_running(job) for job in jobs}
        stream = bench.keys.stream("normal")
        bench.kill(gone)
        assert consumers(bench, stream)[gone.name] == 5

        heir = bench.add_worker()
        bench.release()
        bench.wait_over(jobs)
        wait_until(
            lambda: gone.name not in consumers(bench, stream), timeout=10, what="its name is forgotten"
        )
        run = bench.finish()

    assert {start.worker for job in jobs for start in run.starts(job)} == {gone.name, heir.name}
    assert {run.path(job)[-1] for job in jobs} == {"succeeded"}


def consumers(bench: Bench, stream: str) -> dict[str, int]:
    """How many entries are pending for each name."""
    return {one["name"].decode(): one["pending"] for one in bench.redis.xinfo_consumers(stream, GROUP)}


async def test_sweeping_all_the_time_takes_nothing_from_the_living(app: App, observer: Observer) -> None:
    """B12: tiny jobs while four keepers sweep without a pause: each starts once, and none is swept."""
    starts = 0

    @app.task
    async def tiny(ctx: Context) -> None:
        nonlocal starts
        starts += 1

    async def sweep_on(keeper: Keeper) -> None:
        while not over.is_set():
            for stream in "ar":
                await keeper.sweep("normal", stream)
            await keeper.repair()

    over = asyncio.Event()
    keepers = [Keeper(app, f"w{number}") for number in range(4)]
    async with serving(app, concurrency=16):
        await wait_until_async(observer.sweeps, what="sweeps take the dead")
        sweeping = [asyncio.create_task(sweep_on(keeper)) for keeper in keepers]
        jobs = await app.enqueue_many(tiny.call() for _ in range(300 * SCALE))
        ids = [job.id for job in jobs]
        await wait_until_async(lambda: observer.all_over(ids), timeout=60, what="all are over")
        over.set()
        await asyncio.gather(*sweeping)
    for keeper in keepers:
        await keeper.close()

    assert starts == len(ids)
    assert observer.statuses(ids) == {"succeeded": len(ids)}
    assert sum(keeper.recovered for keeper in keepers) == 0
    assert observer.leftovers() == []
