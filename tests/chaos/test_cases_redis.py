"""Cases of the server: streams and groups that vanish, eviction, no memory, commands that crash it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from streamworker import (
    App,
    Context,
    EnqueueRejected,
    Job,
    Retry,
    ServerUnsuitable,
    TransientError,
    Worker,
)
from streamworker.core.outcome import Success
from streamworker.core.states import TERMINAL
from streamworker.store.keys import GROUP
from streamworker.worker.keeper import Keeper
from tests.chaos.conftest import LEASE, OwnServer
from tests.integration.history import Journal, Observer, judge
from tests.integration.serving import serving
from tests.lua.driver import Shard, job
from tests.waiting import wait_until_async

QUICK = Retry.schedule("50ms", "50ms", unknown=["50ms", "50ms"])


# --- streams and groups that vanish ----------------------------------------------------------------------


def delete_streams(observer: Observer) -> None:
    observer.redis.delete(
        *(observer.keys.stream(lane, kind) for lane in ("normal", "priority") for kind in "ar")
    )


def destroy_groups(observer: Observer) -> None:
    for lane in ("normal", "priority"):
        for kind in "ar":
            if observer.redis.exists(observer.keys.stream(lane, kind)):
                observer.redis.xgroup_destroy(observer.keys.stream(lane, kind), GROUP)


def rename_streams(observer: Observer) -> None:
    for lane in ("normal", "priority"):
        for kind in "ar":
            stream = observer.keys.stream(lane, kind)
            if observer.redis.exists(stream):
                observer.redis.rename(stream, f"{stream}:away")
                observer.redis.expire(f"{stream}:away", 60)


def remove_all(observer: Observer) -> None:
    """As FLUSHALL does, for this namespace."""
    observer.redis.delete(*observer.redis.keys(f"{observer.keys.tag}:*"), observer.keys.meta)


def replace_streams(observer: Observer) -> None:
    """Something else stands there for a while: nothing can be read, and no group be made."""
    for lane in ("normal", "priority"):
        for kind in "ar":
            observer.redis.set(observer.keys.stream(lane, kind), "no stream", px=900)


@pytest.mark.parametrize(
    "damage", [delete_streams, destroy_groups, rename_streams, remove_all, replace_streams]
)
async def test_a_stream_that_vanishes_under_a_worker_makes_no_hot_loop(
    app: App, observer: Observer, damage: Callable[[Observer], None], caplog: pytest.LogCaptureFixture
) -> None:
    """B19: a few attempts a second, where others made 600, and work goes on as soon as it can."""

    @app.task
    async def work(ctx: Context) -> str:
        return "done"

    def attempts() -> tuple[int, int]:
        """Connections made, and reads, of claims and of the blocking reader."""
        made = int(observer.redis.info("stats")["total_connections_received"])
        return made, int(observer.redis.info("commandstats")["cmdstat_xreadgroup"]["calls"])

    async with serving(app):
        assert await (await work.enqueue()).result(5) == "done"
        caplog.clear()
        connections, reads = attempts()
        damage(observer)
        began = now(observer)
        await wait_until_async(lambda: now(observer) > began + 1, what="it has had time to loop")
        now_connections, now_reads = attempts()
        seconds = now(observer) - began  # more than one on a busy machine
        job = await work.enqueue()
        assert await job.result(10) == "done"

    assert now_connections - connections < 10 * seconds
    assert now_reads - reads < 15 * seconds
    assert len(caplog.records) < 20


def now(observer: Observer) -> float:
    seconds, micros = observer.redis.time()
    return float(seconds + micros / 1e6)


# --- eviction --------------------------------------------------------------------------------------------

POLICIES = (
    *("allkeys-lru", "allkeys-lfu", "allkeys-random"),
    *("volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"),
)


async def test_no_worker_starts_on_a_server_that_may_evict(own_server: OwnServer) -> None:
    """B20: whatever is evicted, all keys or those with a TTL, a worker refuses and says what to set."""
    server = own_server()
    with Observer(server.url, "evicting") as observer:
        for policy in POLICIES:
            observer.redis.config_set("maxmemory-policy", policy)
            async with App("evicting", redis_url=server.url, lease=LEASE) as app:
                with pytest.raises(ServerUnsuitable, match=policy) as refused:
                    await Worker(app).serve()
                assert "noeviction" in refused.value.remedy
        assert observer.redis.keys("*") == []
        observer.redis.config_set("maxmemory-policy", "noeviction")
        async with App("evicting", redis_url=server.url, lease=LEASE) as app, serving(app):
            pass


async def test_a_policy_that_changes_while_workers_run_is_critical(
    own_server: OwnServer, caplog: pytest.LogCaptureFixture
) -> None:
    """B20: somebody sets another policy afterwards: said once at each change, by the worker that keeps."""
    server = own_server()

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]

    with Observer(server.url, "evicting") as observer:
        async with App("evicting", redis_url=server.url, lease=LEASE) as app, serving(app):
            keeper = Keeper(app, "another")
            for policy in ("allkeys-lru", "volatile-ttl"):
                observer.redis.config_set("maxmemory-policy", policy)
                told = partial(lambda policy: [line for line in said() if policy in line], policy)
                await wait_until_async(told, what="it is said")
            for _ in range(2):
                await keeper._watch_eviction()
            await keeper.close()
            observer.redis.config_set("maxmemory-policy", "noeviction")

    assert len(said()) == 2 + 1, "by another keeper once as well"
    assert all("noeviction" in line for line in said())


async def test_a_server_that_hides_its_policy_is_served_with_a_critical_word(
    own_server: OwnServer, caplog: pytest.LogCaptureFixture
) -> None:
    """B20: hosted servers refuse CONFIG and sometimes INFO: nobody can know, and that is said."""
    server = own_server(config={"user": "worker on nopass ~* &* +@all -config -info"})
    url = server.url.replace("redis://", "redis://worker:x@")

    async with App("hidden", redis_url=url, lease=LEASE) as app, serving(app):

        @app.task
        async def work(ctx: Context) -> str:
            return "done"

        assert await (await work.enqueue()).result(5) == "done"

    told = [record for record in caplog.records if "maxmemory-policy" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.CRITICAL]


# --- no memory -------------------------------------------------------------------------------------------


async def test_a_full_server_refuses_new_jobs_and_finishes_the_old_ones(
    own_server: OwnServer, tmp_path: Any
) -> None:
    """B21: an enqueue is refused whole; what runs, fails, is due or cancelled goes on, new workers too."""
    server = own_server()
    journal, go = Journal(tmp_path / "journal"), asyncio.Event()
    accepted: list[str] = []

    async with App("full", redis_url=server.url, lease=LEASE) as app:

        @app.task(retry=QUICK)
        async def hold(ctx: Context) -> str:
            journal.start(ctx)
            await go.wait()
            journal.end(ctx)
            return "x" * 10_000  # more than is free

        @app.task(retry=QUICK)
        async def flaky(ctx: Context) -> str:
            journal.start(ctx)
            await go.wait()
            if ctx.attempt == 1:
                raise TransientError("x" * 10_000)
            journal.end(ctx)
            return "at last"

        @app.task(retry=QUICK)
        async def late(ctx: Context) -> None:
            journal.start(ctx)
            journal.end(ctx)

        with Observer(server.url, "full") as observer:
            async with serving(app, concurrency=4, lanes=["normal"]):
                running: list[Job[Any]] = [await hold.enqueue(), await flaky.enqueue()]
                due: list[Job[Any]] = [
                    await late.options(delay="300ms", key=f"k{n}").enqueue() for n in range(5)
                ]
                doomed = await late.options(delay="1h").enqueue()
                accepted += [each.id for each in (*running, *due, doomed)]
                await wait_until_async(lambda: len(journal.starts()) == 2, what="both run")
                before = set(observer.redis.keys("*:job:*"))
                observer.redis.config_set("maxmemory", 1)
                for what in (
                    late.options(),
                    late.options(delay="1h"),
                    late.options(key="new"),
                    late.options(deadline="1h"),
                ):
                    with pytest.raises(EnqueueRejected, match="memory"):
                        await what.enqueue()
                assert (await late.options(key="k1", delay="300ms").enqueue()).id == due[1].id
                assert set(observer.redis.keys("*:job:*")) == before
                waiting = [asyncio.create_task(each.result(15)) for each in (*running, *due)]
                assert await doomed.cancel()
                go.set()
                results = await asyncio.gather(*waiting)
            # The worker and its keeper are gone; the next one starts while there is still no memory.
            async with App("full", redis_url=server.url, lease=LEASE) as other:
                other.task(retry=QUICK)(late.handler)

                @other.task
                async def new(ctx: Context) -> None: ...  # its declaration has to be written

                observer.redis.config_set("maxmemory", 0)
                last = await late.options(delay="300ms").enqueue()
                observer.redis.config_set("maxmemory", 1)
                async with serving(other):
                    await last.result(10)
            accepted.append(last.id)
            observer.redis.config_set("maxmemory", 0)
            found = observer.leftovers()
            marks, edges = journal.marks(), observer.transitions()

    assert results == ["x" * 10_000, "at last", *[None] * 5]
    assert found == []
    assert judge(accepted=accepted, transitions=edges, marks=marks) == []


# --- commands --------------------------------------------------------------------------------------------


async def test_newer_stream_commands_are_not_needed_and_not_used(app: App, observer: Observer) -> None:
    """B79: XACKDEL with several ids crashed Redis 8.2.0 to 8.2.2: entries go by XDEL and XACK everywhere."""

    @app.task(retry=QUICK)
    async def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise TransientError("once more")

    observer.redis.config_resetstat()
    async with serving(app, concurrency=16):
        jobs = await app.enqueue_many(work.call() for _ in range(200))
        await asyncio.gather(*(job.result(20) for job in jobs))
    used = {name.removeprefix("cmdstat_") for name in observer.redis.info("commandstats")}

    assert {"xack", "xdel", "xreadgroup"} <= used
    assert used.isdisjoint({"xackdel", "xdelex", "xnack", "xcfgset", "digest", "delex"})
    assert observer.leftovers() == []


# --- entries that somebody deleted -----------------------------------------------------------------------


def trim(observer: Observer, stream: str) -> None:
    observer.redis.xtrim(stream, maxlen=0, approximate=False)


def delete_each(observer: Observer, stream: str) -> None:
    observer.redis.xdel(stream, *(entry for entry, _ in observer.redis.xrange(stream)))


def remove_stream(observer: Observer, stream: str) -> None:
    observer.redis.delete(stream)


@pytest.mark.parametrize("damage", [trim, delete_each, remove_stream])
async def test_entries_that_an_operator_deleted_crash_nobody_and_no_job_is_lost_without_a_word(
    app: App, observer: Observer, damage: Callable[[Observer, str], None]
) -> None:
    """B80: what runs ends as it would, what waits ends as a dead letter that says why, and is counted."""
    go = asyncio.Event()

    @app.task(retry=QUICK)
    async def hold(ctx: Context) -> str:
        await go.wait()
        if ctx.attempt == 1:
            raise TransientError("its envelope is in the entry that is gone")
        return "done"

    async with serving(app, concurrency=3, lanes=["normal"]):
        running = [await hold.enqueue() for _ in range(2)]
        await wait_until_async(
            lambda: observer.statuses(each.id for each in running) == {"processing": 2}, what="they run"
        )
        ghost = await hold.options(lane="priority").enqueue()
        observer.redis.xgroup_create(observer.keys.stream("priority"), GROUP, id="0", mkstream=True)
        delivered = await asyncio.to_thread(observer.claim_as_ghost, "priority")
        assert delivered == ghost.id
        waiting = [await hold.options(lane="priority").enqueue() for _ in range(3)]
        for lane in ("normal", "priority"):
            damage(observer, observer.keys.stream(lane))
        go.set()
        jobs = [*running, ghost, *waiting]
        await wait_until_async(
            lambda: observer.all_over([each.id for each in jobs]), timeout=20, what="all are over"
        )
        assert [await each.result(5) for each in running] == ["done"] * 2
        after = await hold.options(lane="normal").enqueue()
        assert await after.result(5) == "done"

    letters = observer.dead_letters()
    assert {letters[each.id]["code"] for each in (ghost, *waiting)} == {"entry_deleted"}
    assert sum(n for name, n in observer.stats().items() if name.startswith("dead:")) == 4
    assert observer.leftovers() == []


def test_history_and_sweeps_take_entries_that_have_no_fields(shard: Shard) -> None:
    """B80: one pending entry is deleted, one trimmed: neither history nor a sweep stumbles over it."""
    shard.pass_hold()
    claim = shard.take("claimed")
    shard.put("read")
    (offer,) = shard.deliver("w1")
    shard.delete_entry("read")
    shard.delete_entry("claimed")
    shard.session("w1")

    assert shard.claim("w1", offers=[offer, shard.offer_of(claim)]) == []
    shard.elapse(60_000)
    assert shard.found_dead() == []
    mended, found = shard.repair("read", "claimed")

    assert (mended, [one.job_id for one in found]) == (1, ["claimed"])
    shard.tampered.clear()
    shard.check("read", status="failed_terminal", dead="entry_deleted")
    assert shard.settle(claim, Success(b"1")) == "OK"
    assert shard.record("claimed").status in TERMINAL
    shard.enqueue(job("next"))
    assert shard.claim_one("w1").job_id == "next"
