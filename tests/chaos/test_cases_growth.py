"""Cases of size: many pending entries, what finished jobs leave behind, thousands of jobs in one go."""

from __future__ import annotations

import asyncio
import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from streamworker import App, Context, PersistentError, Retry, TransientError
from streamworker.core.job import Claim
from streamworker.core.outcome import Success
from streamworker.ops import dlq
from streamworker.store import lua, scripts, settle_rows
from streamworker.worker import heartbeat, keeper, log_bound
from streamworker.worker.keeper import Keeper
from tests.chaos.conftest import LEASE, SWEEP, OwnServer
from tests.chaos.scale import SCALE
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.lua.driver import Shard, job
from tests.waiting import wait_until_async

#: Milliseconds that one call may keep everybody else waiting.
SHORT_MS, LONG_MS = (5.0, 10.0) if SCALE > 1 else (10.0, 20.0)  # other tests run beside the short form
#: Bytes of a node of a stream (R3), and what the allocator adds.
NODE_BYTES = 4096 + 1536


class Slowlog:
    """How long a server worked on each call of one script, by its own account."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        redis.config_set("slowlog-log-slower-than", 100)
        redis.config_set("slowlog-max-len", 20_000)
        redis.slowlog_reset()

    def calls(self, script: str) -> list[float]:
        """Milliseconds of each call that took more than a tenth of one, shortest first."""
        sha = lua.load(script).sha.encode()
        found = [row for row in self._redis.slowlog_get(20_000) if sha in row["command"]]
        return sorted(row["duration"] / 1000 for row in found)

    def median(self, script: str) -> float:
        """The median of them: the longest is the machine's, when it has other things to do as well."""
        times = self.calls(script)
        return times[len(times) // 2] if times else 0.0


def hold_claims(shard: Shard, workers: int, each: int) -> dict[str, list[Claim]]:
    """So many claims in the hands of so many workers."""
    shard.watchful = False  # the invariants look at every job after every call
    held: dict[str, list[Claim]] = {}
    for number in range(workers):
        worker = f"w{number}"
        shard.session(worker)
        held[worker] = []
        for first in range(0, each, 100):
            shard.enqueue(*(job(f"{worker}-{first + n}") for n in range(100)))
            shard.fences.clear()  # or each claim is compared with all before it
            held[worker] += shard.claim(worker, limit=100)
    return held


# --- pending entries -------------------------------------------------------------------------------------


def test_with_many_pending_each_sweep_and_each_heartbeat_is_short(shard: Shard, observer: Observer) -> None:
    """B08: what 20 workers hold is swept and renewed in bounded calls, none of which takes 5 ms."""
    held = hold_claims(shard, 20, 500 * SCALE)
    shard.redis("HSET", shard.keys.sweep, "at", shard.now, "hold", 0)  # sweeps take the dead
    settings = SimpleNamespace(lease_ms=30_000, liveness_ms=60_000)
    slow = Slowlog(observer.redis)
    asked = []

    for _ in range(50):
        shard.recover("normal", count=keeper.SWEEP_COUNT)
    for worker, claims in held.items():
        running = {claim.job_id: SimpleNamespace(claim=claim) for claim in claims}
        pump: Any = SimpleNamespace(
            holdings=SimpleNamespace(by_job=running), session=SimpleNamespace(worker=worker)
        )
        for renewed, call in heartbeat.calls(settings, pump):  # type: ignore[arg-type]
            asked.append(len(renewed))
            assert shard.send(call)[0] == b"OK"

    assert sum(asked) == 20 * 500 * SCALE
    assert max(asked) <= 100
    assert slow.median("recover") < SHORT_MS
    assert slow.calls("heartbeat"), "the slowlog tells nothing"
    assert slow.median("heartbeat") < SHORT_MS


async def test_of_many_workers_one_sweeps(app: App, observer: Observer) -> None:
    """B08: the fleet makes one pass an interval, however many workers it has."""
    keepers = [Keeper(app, f"w{number}") for number in range(5)]
    tasks = [asyncio.create_task(each.run()) for each in keepers]
    began = (await wait_until_async(lambda: last_sweep(observer), what="somebody sweeps")) or 0
    before = passes(observer)
    await wait_until_async(
        lambda: last_sweep(observer) >= began + 10 * SWEEP * 1000, what="ten intervals have gone by"
    )

    took = (last_sweep(observer) - began) / 1000
    assert passes(observer) - before <= took / SWEEP + 2
    for each in keepers:
        each.stop()
    await asyncio.gather(*tasks)
    for each in keepers:
        await each.close()


async def test_a_fleet_at_rest_asks_seldom_who_keeps(own_server: OwnServer) -> None:
    """B08: each worker asked ten times a second, one that had kept a fast rate before a hundred times."""
    async with App("rest", redis_url=own_server().url, lease="12s") as app:
        asked = {"first": 0, "second": 0}
        keepers = {name: Keeper(app, name) for name in asked}
        for name, each in keepers.items():

            def told(script: str, seconds: float, name: str = name) -> None:
                asked[name] += script == "elect"

            each.timed(told)
        first = asyncio.create_task(keepers["first"].run())
        await wait_until_async(lambda: asked["first"], what="the first keeps")
        keepers["second"]._opens_in = 0.01
        began, second = time.monotonic(), asyncio.create_task(keepers["second"].run())
        await wait_until_async(lambda: asked["first"] > 12, what="the first goes on")
        await wait_until_async(lambda: asked["second"] > 2, what="the second asks as well")
        assert asked["second"] <= (time.monotonic() - began) / keeper.ASK_EVERY + 1
        for each in keepers.values():
            each.stop()
        await asyncio.gather(first, second)
        for each in keepers.values():
            await each.close()


def last_sweep(observer: Observer) -> int:
    return int(observer.redis.hget(observer.keys.sweep, "at") or 0)


def passes(observer: Observer) -> int:
    """Each pass asks for one page of the records."""
    return int(observer.redis.info("commandstats").get("cmdstat_scan", {}).get("calls", 0))


# --- what is left behind ---------------------------------------------------------------------------------


class Growth(Observer):
    """An observer that knows what the server's memory is used for."""

    def all_gone(self, job_ids: list[str]) -> bool:
        """Whether their records have expired, and Redis has removed all that did."""
        return set(self.statuses(job_ids)) == {"missing"} and self.redis.dbsize() < 20

    def memory(self) -> int:
        """Bytes in use. The log, which has a bound of its own, is emptied first, and buffers do not count."""
        self.redis.delete(self.keys.events)
        memory = self.redis.info("memory")
        return int(memory["used_memory"]) - int(memory["mem_clients_normal"])


async def test_finished_jobs_leave_no_entry_and_no_payload(
    own_server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B16: streams and pending lists are empty at idle, and the memory is back once records expire."""
    monkeypatch.setattr(scripts, "RETENTION_MS", 300)
    server = own_server()
    quick = Retry.schedule("10ms")

    async with App("growth", redis_url=server.url, lease=LEASE) as app:

        @app.task(retry=quick)
        async def work(ctx: Context, number: int, payload: str) -> str:
            if number % 4 == 0 and ctx.attempt == 1:
                raise TransientError("x" * 500)
            return payload

        async def run(count: int) -> None:
            jobs = await app.enqueue_many(
                work.options(delay="10ms" if number % 5 == 0 else None).call(number, "p" * 300)
                for number in range(count)
            )
            ids = [each.id for each in jobs]
            await wait_until_async(lambda: observer.all_gone(ids), timeout=60, what="their records expire")

        with Growth(server.url, "growth") as observer:
            async with serving(app, concurrency=64):
                await run(1_000 * SCALE)  # what the server keeps in reserve is there from now on
                before = observer.memory()
                await run(1_000 * SCALE)
                await wait_until_async(
                    lambda: observer.memory() < 1.1 * before, what="the memory is back within a tenth"
                )
            assert observer.leftovers() == []
            assert observer.redis.keys(observer.keys.body("*")) == []


async def test_the_log_keeps_its_bound_however_fast_it_grows(
    app: App, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B16: between two looks more entries came than Redis trims in one call."""
    bound = 500_000
    monkeypatch.setattr(log_bound, "EVENTS_BYTES", bound)
    pipeline = observer.redis.pipeline(transaction=False)
    for number in range(25_000):
        pipeline.xadd(observer.keys.events, {"n": number, "e": "x" * 50})
    pipeline.execute()
    assert observer.redis.memory_usage(observer.keys.events) > 3 * bound

    one = Keeper(app, "w1")
    await one.tick()
    await one.close()

    assert 0.7 * bound < observer.redis.memory_usage(observer.keys.events) <= bound


def test_a_straggler_pins_one_node_until_it_ends(shard: Shard) -> None:
    """B17: of 100 jobs 99 end: the rest keeps a node of the stream each, as the docs say, and no more."""
    (claims,) = hold_claims(shard, 1, 2_000 * SCALE).values()
    stream = shard.keys.stream("normal")
    stragglers, others = claims[::100], [claim for n, claim in enumerate(claims) if n % 100]

    def end(ended: list[Claim]) -> None:
        for first in range(0, len(ended), 100):
            rows = [settle_rows.outcome_row(each, Success(), 5) for each in ended[first : first + 100]]
            assert set(shard.settle_rows(*rows)) == {"OK"}

    full = shard.redis("MEMORY", "USAGE", stream, "SAMPLES", 0)
    end(others)
    pinned = shard.redis("MEMORY", "USAGE", stream, "SAMPLES", 0)
    assert pinned <= len(stragglers) * NODE_BYTES + 2_048
    end(stragglers)

    assert shard.redis("XLEN", stream) == 0
    assert shard.redis("MEMORY", "USAGE", stream, "SAMPLES", 0) < 2_048 < full


# --- thousands at once -----------------------------------------------------------------------------------


async def test_a_mountain_of_due_jobs_is_moved_in_short_steps(app: App, observer: Observer) -> None:
    """B56: jobs that are due at one instant: no call takes 10 ms, and all of them run."""
    count = 5_000 * SCALE
    keeper_of_all = Keeper(app, "w1")

    @app.task
    async def late(ctx: Context) -> None: ...

    await app.enqueue_many(late.options(delay="100ms").call() for _ in range(count))
    slow = Slowlog(observer.redis)
    await wait_until_async(
        lambda: int(observer.redis.zcount(observer.keys.schedule, 0, now_ms(observer))) == count,
        what="all of them are due",
    )
    while observer.redis.zcard(observer.keys.schedule):
        await keeper_of_all.promote()
    await keeper_of_all.close()

    assert observer.redis.xlen(observer.keys.stream("normal", "r")) == count
    assert slow.median("promote") < LONG_MS
    assert observer.stats()["queued:normal"] == count


def now_ms(observer: Observer) -> int:
    seconds, micros = observer.redis.time()
    return int(seconds * 1000 + micros // 1000)


async def test_due_jobs_do_not_keep_sweeps_waiting(
    app: App, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B56: while a mountain of due jobs is moved, the dead are still looked for in time (D6)."""
    monkeypatch.setattr(
        keeper, "PROMOTE_COUNT", 1
    )  # so that it takes longer than the time between two sweeps

    @app.task
    async def late(ctx: Context) -> None: ...

    await app.enqueue_many(late.options(delay="1ms").call() for _ in range(5_000))
    one = Keeper(app, "w1")
    task = asyncio.create_task(one.run())
    first = await wait_until_async(lambda: last_sweep(observer), what="the first sweep")
    await wait_until_async(
        lambda: last_sweep(observer) > first or not observer.redis.zcard(observer.keys.schedule),
        what="the next sweep, or the end of the mountain",
    )

    assert observer.redis.zcard(observer.keys.schedule) > 0, "nothing waited any more"
    one.stop()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await one.close()


async def test_twenty_thousand_are_enqueued_moved_expired_replayed_and_discarded_in_parts(
    app: App, observer: Observer
) -> None:
    """B81: more ids than Lua can unpack, in every command that takes many, and each at once."""
    count = 8_500 if SCALE == 1 else 20_000  # 8,000 is what `unpack` refuses (R33)

    @app.task(retry=Retry.never())
    async def work(ctx: Context) -> None:
        raise PersistentError("no")

    keep = Keeper(app, "w1")
    late = work.options(delay="1ms", deadline="2ms")
    await app.enqueue_many(late.call() for _ in range(count))
    while observer.redis.zcard(observer.keys.schedule) or observer.redis.zcard(observer.keys.deadlines):
        await keep.promote()
    await keep.close()
    assert observer.redis.xlen(observer.keys.dlq) == count
    everything = dlq.Filters(task="work")

    replayed = await dlq.replay(app.queue(), everything, actor="me", pace=dlq.Pace(rate=1_000_000))
    assert (replayed.eligible, replayed.moved) == (count, count)
    assert observer.stats()["queued:normal"] == count

    found = observer.redis.scan_iter(observer.keys.job("*"), 5_000)
    ids = [key.decode().rpartition(":")[2] for key in itertools.islice(found, count // 10)]
    cancelled = await asyncio.gather(*(app.queue().cancel(each, actor="me") for each in ids))
    assert cancelled == ["OK"] * len(ids)
    assert observer.stats()["queued:normal"] == count - len(ids)


async def test_large_dead_letters_are_replayed_and_discarded_in_short_calls(
    app: App, observer: Observer
) -> None:
    """B56, B81: payload is bounded as well as ids: no call moves more than half a megabyte and one letter."""

    @app.task
    async def work(ctx: Context, payload: str) -> None: ...

    count, large = 12, "x" * 200_000
    await app.enqueue_many(work.options(deadline="1ms").call(large) for _ in range(count))
    keep = Keeper(app, "w1")
    while observer.redis.zcard(observer.keys.deadlines):
        await keep.promote()
    await keep.close()

    replayed = await dlq.replay(app.queue(), dlq.Filters(task="work"), actor="me")
    assert (replayed.eligible, replayed.moved) == (count, count)
    calls = [fields for _, fields in observer.redis.xrange(observer.keys.events) if fields[b"s"] == b"replay"]
    assert [len(fields[b"e"].splitlines()) for fields in calls] == [2] * (count // 2)
    assert observer.redis.xlen(observer.keys.dlq) == 0
