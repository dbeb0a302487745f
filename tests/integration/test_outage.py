"""Redis freezes, restarts, forgets its scripts, runs out of memory: healthy jobs go on and end once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from streamworker import App, Context, EnqueueRejected, Job, OutcomeUnknown, Retry
from streamworker.embedded import EmbeddedServer
from streamworker.store.keys import GROUP
from tests.integration.history import Allowance, Journal, Observer, judge
from tests.integration.serving import serving
from tests.proxy import Proxy
from tests.servers import ServerFactory
from tests.waiting import Stopwatch, wait_until_async

#: Seconds.
LEASE = 1.0
SHORT = Retry.schedule("50ms", "50ms", "50ms", unknown=["50ms", "50ms"])


class Shop:
    """An app whose handlers keep a journal, with two workers, and an observer of its namespace."""

    def __init__(self, path: Path, url: str, observed: str) -> None:
        self.journal = Journal(path)
        self.go = asyncio.Event()
        self.app = App("outage", redis_url=url, lease=LEASE)
        self.producer = App("outage", redis_url=url, lease=LEASE)
        self.observer = Observer(observed, "outage")
        self.accepted: list[str] = []
        self.unknown: list[str] = []

        async def hold(ctx: Context) -> None:
            self.journal.start(ctx)
            await self.go.wait()
            self.journal.end(ctx)

        async def work(ctx: Context) -> None:
            self.journal.start(ctx)
            await asyncio.sleep(0.005)  # a job's work
            self.journal.end(ctx)

        for app in (self.app, self.producer):
            app.task(retry=SHORT)(hold)
            app.task(retry=SHORT)(work)

    async def enqueue(self, task: str) -> Job[Any] | None:
        """Enqueue one job and keep account of it; None when nobody knows whether it is there."""
        try:
            job = await self.producer.enqueue(task, {})
        except OutcomeUnknown as unknown:
            self.unknown += unknown.job_ids
            return None
        except (ConnectionError, EnqueueRejected):
            return None
        self.accepted.append(job.id)
        return job

    @contextlib.asynccontextmanager
    async def fed(self) -> AsyncIterator[None]:
        """A steady load while the block runs."""
        enough = asyncio.Event()

        async def feed() -> None:
            while not enough.is_set():
                await asyncio.gather(*(self.enqueue("work") for _ in range(5)))
                await asyncio.sleep(0.02)  # the load: up to 250 jobs a second

        feeding = asyncio.create_task(feed())
        try:
            yield
        finally:
            enough.set()
            await feeding

    async def takes(self, count: int) -> None:
        """Return when so many jobs more have been accepted and begun."""
        accepted, begun = len(self.accepted) + count, len(self.journal.starts()) + count
        for there, what in (
            (lambda: len(self.accepted) > accepted, f"{count} more are accepted"),
            (lambda: len(self.journal.starts()) > begun, f"{count} more begin"),
        ):
            await wait_until_async(there, timeout=30, what=what)

    async def all_over(self, *, timeout: float = 30) -> None:
        # A job whose reply was lost for good may be there all the same.
        there = [each for each in self.unknown if self.observer.redis.exists(self.observer.keys.job(each))]
        ids = [*self.accepted, *there]
        await wait_until_async(lambda: self.observer.all_over(ids), timeout=timeout, what="all jobs are over")

    def judged(self) -> list[str]:
        """All that is wrong at the end of a run in which each job starts once and succeeds."""
        found = self.observer.leftovers()
        states = self.observer.statuses(self.accepted)
        if set(states) != {"succeeded"}:
            found.append(f"not all succeeded: {states}")
        return found + judge(
            accepted=self.accepted,
            maybe=self.unknown,
            transitions=self.observer.transitions(),
            marks=self.journal.marks(),
            allowance=Allowance(starts=1),
        )

    def charged(self) -> list[str]:
        """Jobs that were charged or struck although they are healthy."""
        records = [self.observer.record(job_id) for job_id in self.accepted]
        return [str(record) for record in records if record.attempt > 1 or record.strikes]

    async def sweeps_again(self) -> None:
        """Return when sweeps take the dead again and have made two passes since."""

        first = await wait_until_async(self.observer.sweeps, timeout=15, what="the hold is over")
        after = (first or 0) + 2 * 1000 * LEASE / 6
        await wait_until_async(
            lambda: (self.observer.sweeps() or 0) > after, timeout=15, what="two passes went by"
        )


@contextlib.asynccontextmanager
async def shop_on(server: EmbeddedServer, path: Path, *, url: str | None = None) -> Any:
    """A shop with two workers on a server of its own."""
    shop = Shop(path, url or server.url, server.url)
    async with AsyncExitStack() as stack:
        stack.callback(shop.observer.__exit__)
        for app in (shop.producer, shop.app):
            await stack.enter_async_context(app)
        for _ in range(2):
            await stack.enter_async_context(serving(shop.app, concurrency=40, grace=5))
        yield shop


async def freeze(server: EmbeddedServer, seconds: float) -> None:
    server.pause()
    await asyncio.sleep(seconds)  # the outage
    server.resume()


async def crash_and_restart(server: EmbeddedServer, seconds: float) -> None:
    server.kill()
    await asyncio.sleep(seconds)  # the outage
    await asyncio.to_thread(server.restart)


@pytest.mark.parametrize(
    ("outage", "seconds"),
    [
        pytest.param(freeze, 2.5 * LEASE, id="frozen-for-2.5-leases"),
        pytest.param(freeze, 6.0, id="frozen-until-connections-are-given-up"),
        pytest.param(crash_and_restart, 2.5 * LEASE, id="down-for-2.5-leases"),
    ],
)
async def test_fifty_healthy_jobs_survive_an_outage_longer_than_the_lease(
    own_valkey: ServerFactory,
    tmp_path: Path,
    outage: Callable[[EmbeddedServer, float], Awaitable[None]],
    seconds: float,
) -> None:
    """D6, issue: none is charged, none runs twice: after an outage nothing is recovered for one lease."""
    server = own_valkey(appendonly=True)
    async with shop_on(server, tmp_path / "journal") as shop:
        for _ in range(50):
            await shop.enqueue("hold")
        await wait_until_async(lambda: len(shop.journal.starts()) == 50, what="all fifty run")
        await wait_until_async(
            lambda: shop.observer.statuses(shop.accepted) == {"processing": 50},
            what="their starts are marked",
        )
        await shop.sweeps_again()

        await outage(server, seconds)

        await shop.sweeps_again()
        assert shop.observer.statuses(shop.accepted) == {"processing": 50}
        shop.go.set()
        await shop.all_over()

        assert shop.charged() == []
        assert shop.judged() == []


async def test_redis_killed_and_restarted_under_load_loses_nothing(
    own_valkey: ServerFactory, tmp_path: Path
) -> None:
    """R40, D5, issue: with AOF nothing that was accepted is lost, and no job starts twice."""
    server = own_valkey(appendonly=True)
    async with shop_on(server, tmp_path / "journal") as shop:
        for _ in range(3):
            async with shop.fed():
                await shop.takes(50)
                server.kill()
                await asyncio.to_thread(server.restart)
                await shop.takes(20)
        await shop.all_over()

        assert shop.charged() == []
        assert shop.judged() == []


async def test_scripts_flushed_every_50_ms_are_loaded_again(
    own_valkey: ServerFactory, tmp_path: Path
) -> None:
    """R29, issue: NOSCRIPT at any time is no failure of any call."""
    server = own_valkey()
    async with shop_on(server, tmp_path / "journal") as shop:
        async with shop.fed():
            taken, flushes = asyncio.create_task(shop.takes(200)), 0
            while flushes < 20 or not taken.done():
                shop.observer.redis.script_flush()
                flushes += 1
                await asyncio.sleep(0.05)  # the interval that is asked for
            await taken
        await shop.all_over()

        assert shop.unknown == []
        assert shop.charged() == []
        assert shop.judged() == []


async def test_connections_cut_again_and_again_lose_nothing(
    own_valkey: ServerFactory, tmp_path: Path
) -> None:
    """D5, B65: every connection of workers and producers is reset ten times under load."""
    server = own_valkey()
    with Proxy(server.port) as proxy:
        async with shop_on(server, tmp_path / "journal", url=proxy.url) as shop:
            async with shop.fed():
                for _ in range(10):
                    await shop.takes(10)
                    await asyncio.to_thread(proxy.cut_all)
                await shop.takes(10)
            await shop.all_over()

            assert shop.charged() == []
            assert shop.judged() == []


async def test_work_goes_on_after_a_silent_network(own_valkey: ServerFactory, tmp_path: Path) -> None:
    """B65, R17: dead connections are given up, and what runs is neither lost nor repeated."""
    server = own_valkey()
    with Proxy(server.port) as proxy:
        async with shop_on(server, tmp_path / "journal", url=proxy.url) as shop:
            for _ in range(20):
                await shop.enqueue("hold")
            await wait_until_async(lambda: len(shop.journal.starts()) == 20, what="all run")
            await shop.sweeps_again()
            await asyncio.to_thread(proxy.black_hole)
            await asyncio.sleep(2.5 * LEASE)  # the outage
            # Everybody is behind the hole, so nobody swept, and nobody was recovered.
            await asyncio.to_thread(proxy.restore)
            watch = Stopwatch()
            await asyncio.gather(*(shop.enqueue("work") for _ in range(20)))
            shop.go.set()
            await shop.all_over()

            assert watch.fair < 5 + 2  # the connection's timeout, and a back-off
            assert shop.charged() == []
            assert shop.judged() == []


async def test_what_runs_is_recorded_although_redis_is_full(
    own_valkey: ServerFactory, tmp_path: Path
) -> None:
    """R31: enqueue is refused under OOM; heartbeats, settles and claims of what is there go on."""
    server = own_valkey()
    async with shop_on(server, tmp_path / "journal") as shop:
        for _ in range(10):
            await shop.enqueue("hold")
        await wait_until_async(lambda: len(shop.journal.starts()) == 10, what="all run")
        shop.observer.redis.config_set("maxmemory", 1)
        with pytest.raises(EnqueueRejected, match="memory"):
            await shop.producer.enqueue("work", {})
        leases = [shop.observer.record(job_id).lease_until for job_id in shop.accepted]
        await wait_until_async(
            lambda: all(
                shop.observer.record(job_id).lease_until > lease
                for job_id, lease in zip(shop.accepted, leases, strict=True)
            ),
            what="the leases are renewed",
        )
        shop.go.set()
        await shop.all_over()
        shop.observer.redis.config_set("maxmemory", 0)
        assert await shop.enqueue("work") is not None
        await shop.all_over()

        assert shop.charged() == []
        assert shop.judged() == []


async def test_a_lost_group_is_made_again_and_what_runs_is_left_alone(
    own_valkey: ServerFactory, tmp_path: Path
) -> None:
    """R8, R9, D2: a new group delivers everything again: the records say what is held, and by whom."""
    server = own_valkey()
    async with shop_on(server, tmp_path / "journal") as shop:
        for _ in range(10):
            await shop.enqueue("hold")
        await wait_until_async(lambda: len(shop.journal.starts()) == 10, what="all run")
        for lane in ("normal", "priority"):
            shop.observer.redis.xgroup_destroy(shop.observer.keys.stream(lane), GROUP)
        for _ in range(20):
            await shop.enqueue("work")
        await wait_until_async(
            lambda: shop.observer.statuses(shop.accepted[10:]) == {"succeeded": 20}, what="new jobs run"
        )
        await shop.sweeps_again()
        shop.go.set()
        await shop.all_over()

        assert shop.charged() == []
        assert shop.judged() == []


async def test_workers_and_producers_wait_for_a_redis_that_is_down(
    own_valkey: ServerFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R42: dropped connections, capped back-off, for ever; an enqueue is patient for 10 s."""
    caplog.set_level(logging.DEBUG, "streamworker.worker")
    server = own_valkey(appendonly=True)
    async with shop_on(server, tmp_path / "journal") as shop:
        await shop.enqueue("work")
        await shop.all_over()
        server.kill()
        late = asyncio.create_task(shop.enqueue("work"))
        await wait_until_async(
            lambda: caplog.text.count("no session with Redis yet") >= 4, what="they have tried in vain"
        )
        assert not late.done()
        await asyncio.to_thread(server.restart)

        assert await late is not None
        await shop.all_over()
        await wait_until_async(
            lambda: caplog.text.count("a session with Redis again, after") >= 2, what="both are back"
        )
        told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
        assert sum("no session with Redis yet" in each for each in told) == 2, "once for each worker"
        assert sum("a session with Redis again, after" in each for each in told) == 2
        assert not any(each.count("no connection to") > 1 for each in told)
        assert shop.judged() == []
