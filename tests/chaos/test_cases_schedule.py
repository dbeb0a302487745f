"""Cases of time: long delays, data that expires too early, wrong clocks, a restart in between, ticks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from streamworker import App, Context, Retry, TransientError
from streamworker.core.outcome import Retry as RetryOutcome
from streamworker.core.outcome import Success
from streamworker.core.states import ErrorClass
from streamworker.store.keys import STREAM_SUFFIX
from streamworker.worker.keeper import PROMOTE_EVERY
from tests.chaos.conftest import LEASE, OwnServer
from tests.chaos.scale import SCALE
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.lua.driver import RETENTION, Shard
from tests.processes import WorkerProcess
from tests.servers import BenchServer
from tests.waiting import wait_until, wait_until_async

#: Seconds that a busy machine may be late, beyond what the keeper takes between two looks. The faults that
#: these cases look for make it a lease, a minute or an hour.
MARGIN = 0.9


def now_ms(observer: Observer) -> int:
    """Redis's time."""
    seconds, micros = observer.redis.time()
    return int(seconds * 1000 + micros // 1000)


def lateness(observer: Observer, job_id: str) -> float:
    """Seconds from the moment that the job was due until its claim, by Redis's time."""
    due = int(observer.record(job_id).text("du") or "")
    claimed = next(edge.at_ms for edge in observer.transitions(job_id) if edge.to_status == "claimed")
    return (claimed - due) / 1000


# --- delays ----------------------------------------------------------------------------------------------


async def test_a_delay_of_many_leases_waits_in_no_worker_and_runs_once(app: App, observer: Observer) -> None:
    """B10: until it is due the job is in the schedule and in no pending list, whoever serves its lane."""
    ran: list[float] = []

    @app.task
    async def later(ctx: Context) -> None:
        ran.append(time.time())

    async with serving(app), serving(app), serving(app), serving(app):
        job = await later.options(delay=3 * LEASE).enqueue()
        due = int(observer.record(job.id).text("du") or "")

        def is_due() -> bool:
            if now_ms(observer) >= due:
                return True
            assert observer.redis.zscore(observer.keys.schedule, job.id) == due
            assert [observer.pending("normal", kind) for kind in STREAM_SUFFIX] == [0, 0, 0]
            assert ran == []
            return False

        await wait_until_async(is_due, what="it is due")
        await job.result(5)
        # Whoever would have had it as well would run it within a lease.
        swept = await wait_until_async(observer.sweeps, what="sweeps go on")
        await wait_until_async(
            lambda: (observer.sweeps() or 0) > (swept or 0) + 1000 * LEASE, what="a lease more"
        )

    assert len(ran) == 1
    assert 0 <= lateness(observer, job.id) <= PROMOTE_EVERY + MARGIN
    assert observer.leftovers() == []


def test_nothing_of_a_job_expires_before_it_is_over(shard: Shard) -> None:
    """B46: scheduled far beyond the time that finished records are kept, and in a backlog of that length."""
    keyed: dict[str, Any] = {"key_id": "add::k", "fingerprint": "f", "window_ms": 5_000}
    shard.put("scheduled", delay_ms=2 * RETENTION, **keyed)
    shard.put("queued")

    def lives() -> None:
        names = [shard.keys.key("add::k"), shard.keys.body("scheduled")]
        names += [shard.keys.job(name) for name in ("scheduled", "queued")]
        assert [shard.redis("PTTL", name) for name in names if shard.redis("EXISTS", name)] == [-1] * len(
            names
        )

    lives()
    shard.elapse(2 * RETENTION - 1)
    shard.promote()
    lives()
    claim = shard.claim_one()
    assert claim.job_id == "queued"
    shard.settle(claim, RetryOutcome(3 * RETENTION, ErrorClass.TRANSIENT, "timeout", "x" * 100, "-"))
    assert shard.redis("PTTL", shard.keys.job("queued")) == -1
    assert shard.redis("PTTL", shard.keys.body("queued")) == -1
    shard.elapse(1)
    shard.promote()
    (claim,) = shard.claim()
    assert claim.envelope == b"env of scheduled"
    assert shard.settle(claim, Success(b"r" * 100)) == "OK"

    assert 0 < shard.redis("PTTL", shard.keys.job("scheduled")) <= RETENTION
    assert 0 < shard.redis("PTTL", shard.keys.body("scheduled")) <= RETENTION
    shard.elapse(3 * RETENTION)
    shard.promote()
    assert [one.job_id for one in shard.claim()] == ["queued"]


async def test_clocks_of_producers_and_workers_make_nobody_early_or_late(
    server: BenchServer, namespace: str, app: App, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B55: the producer's clock is 90 s ahead, the worker's 90 s behind: only Redis's decides."""

    @app.task(retry=Retry.fixed(2, "200ms"))
    async def later(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise TransientError("once more, after a delay that is computed in Redis as well")

    true_time, true_ns = time.time, time.time_ns

    def skew(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: true_time() + seconds)
        monkeypatch.setattr(time, "time_ns", lambda: true_ns() + round(seconds * 1e9))

    skew(90)
    jobs = await app.enqueue_many(later.options(delay="500ms").call() for _ in range(20 * SCALE))
    skew(-90)
    async with serving(app, concurrency=16):
        await wait_until_async(
            lambda: observer.all_over([job.id for job in jobs]), timeout=30, what="all ran"
        )
    monkeypatch.undo()

    assert observer.statuses(job.id for job in jobs) == {"succeeded": len(jobs)}
    late: list[float] = []
    for job in jobs:
        edges = observer.transitions(job.id)
        enqueued, *claims = [edges[0].at_ms, *(edge.at_ms for edge in edges if edge.to_status == "claimed")]
        failed = next(edge.at_ms for edge in edges if edge.to_status == "retry_scheduled")
        late += [(claims[0] - enqueued - 500) / 1000, (claims[1] - failed - 180) / 1000]
    assert min(late) >= 0  # 180 ms is the shortest that jitter makes of 200
    assert sorted(late)[int(len(late) * 0.99)] <= PROMOTE_EVERY + 0.1 + MARGIN


async def test_a_delayed_job_survives_a_restart_of_redis_and_runs_when_it_is_due(
    own_server: OwnServer,
) -> None:
    """B59: nothing waits in a worker's memory: it runs as soon as Redis (AOF) is back and it is due."""
    server = own_server(appendonly=True, config={"appendfsync": "always"})
    ran: list[float] = []
    async with App("delayed", redis_url=server.url, lease=LEASE) as app:

        @app.task
        async def later(ctx: Context) -> None:
            ran.append(time.time())

        async with serving(app):
            soon = await later.options(delay="600ms").enqueue()
            after = await later.options(delay="1500ms").enqueue()
            server.kill()
            await asyncio.to_thread(server.restart)
            back = time.time()
            with Observer(server.url, "delayed") as observer:
                ids = [soon.id, after.id]
                await wait_until_async(lambda: observer.all_over(ids), timeout=15, what="both have run")
                dues = [int(observer.record(each).text("du") or "") / 1000 for each in ids]
                assert observer.leftovers() == []

    assert len(ran) == 2
    for due, at in zip(dues, sorted(ran), strict=True):
        assert due <= at <= max(due, back) + PROMOTE_EVERY + 1 + MARGIN  # 1 s: the longest pause to connect


# --- ticks -----------------------------------------------------------------------------------------------


def test_workers_with_wrong_clocks_run_each_tick_once(
    server: BenchServer, namespace: str, observer: Observer
) -> None:
    """B40: five processes, up to 300 ms and one 90 s off, a cron each second whose job takes no time."""
    seconds = 3 * SCALE
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                WorkerProcess(
                    "skewed_cron_jobs:app",
                    redis_url=server.url,
                    namespace=namespace,
                    env={"STREAMWORKER_LEASE": "2", "CASE_SKEW": str(skew)},
                )
            )
            for skew in (-0.3, -0.15, 0.0, 0.3, 90.0)
        ]
        for worker in workers:
            worker.wait_for_log("slots, lanes")
        runs = f"runs:{namespace}:each_second"
        first = now_ms(observer) // 1000 + 2

        def ticks() -> list[int]:
            return [int(line.split(b" ")[1]) for line in observer.redis.lrange(runs, 0, -1)]

        wait_until(
            lambda: max(ticks(), default=0) > first + seconds, timeout=seconds + 20, what="the last tick"
        )
        for worker in workers:
            worker.terminate()
        for worker in workers:
            assert worker.wait() == 0
        counted = Counter(ticks())
        observer.redis.delete(*observer.redis.keys(f"runs:{namespace}:*"))

    assert max(counted.values()) == 1
    assert set(range(first, first + seconds)) <= set(counted)
    keys = list(observer.redis.scan_iter(match=f"{observer.keys.tag}:cron:each_second:*"))
    assert len(keys) >= seconds
    # No end of a job removes the key of its tick, which stays for longer than clocks differ.
    assert min(observer.redis.pttl(key) for key in keys) > 10_000
