"""Workers that die: their jobs are recovered in time, charged no more than they must be, and end once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from streamworker import App, Client, Context, Job, JobFailed, Status
from streamworker.core.states import HELD
from streamworker.store.keys import GROUP
from streamworker.worker.keeper import SCAN_COUNT, Keeper
from tests.integration.history import Allowance, Journal, Mark, Observer, judge
from tests.processes import WorkerProcess
from tests.servers import BenchServer
from tests.waiting import Stopwatch, wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")

#: How often a worker is killed under load.
KILLS = int(os.environ.get("STREAMWORKER_KILLS", "5"))
#: Seconds.
LEASE = 2.0
#: Between two sweeps (D6).
SWEEP = LEASE / 6
#: Until another worker does a dead keeper's work: its election runs out, at most a third of a lease (D6).
SUCCESSION = LEASE / 3
#: The keeper looks each 100 ms whether a sweep is due, and the machine is busy with the load.
MARGIN = 0.1 + 0.5

Start = Callable[..., WorkerProcess]


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def start(valkey: BenchServer, namespace: str, tmp_path: Path, journal: Journal) -> Start:
    """Makes worker processes of the app `faults_jobs`; enter them."""

    def make(*arguments: str, lease: float = LEASE) -> WorkerProcess:
        env = {
            "FAULTS_JOURNAL": str(journal.path),
            "FAULTS_GO": str(tmp_path / "go"),
            "STREAMWORKER_LEASE": str(lease),
        }
        return WorkerProcess(
            "faults_jobs:app", *arguments, redis_url=valkey.url, namespace=namespace, env=env
        )

    return make


@pytest.fixture
async def client(valkey: BenchServer, namespace: str) -> AsyncIterator[Client]:
    async with Client(valkey.url, app="faults", namespace=namespace) as client:
        yield client


class Fleet:
    """Workers that are replaced when they die, as a supervisor would."""

    def __init__(self, start: Start, count: int, *arguments: str) -> None:
        self._start = start
        self._arguments = arguments
        self._stack = ExitStack()
        self.alive = [self._one() for _ in range(count)]
        self.deaths = 0
        self._watch: asyncio.Task[None] | None = None

    def _one(self) -> WorkerProcess:
        return self._stack.enter_context(self._start(*self._arguments))

    async def __aenter__(self) -> Fleet:
        for worker in self.alive:
            await asyncio.to_thread(worker.wait_for_log, "slots, lanes")
        self._watch = asyncio.create_task(self._replace())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
        with self._stack:
            for worker in self.alive:
                await asyncio.to_thread(worker.wait_for_log, "slots, lanes")
                worker.terminate()
            for worker in self.alive:
                assert await asyncio.to_thread(worker.wait) == 0, worker.log_tail()

    async def _replace(self) -> None:
        while True:
            await wait_until_async(self._replaced, timeout=3600, what="a worker dies")

    def _replaced(self) -> bool:
        dead = [worker for worker in self.alive if worker.returncode is not None]
        for worker in dead:
            self.deaths += 1
            self.alive[self.alive.index(worker)] = self._one()
        return bool(dead)

    def keeper(self, observer: Observer) -> WorkerProcess | None:
        """The worker that sweeps now, if one is elected and alive."""
        name = (observer.redis.get(observer.keys.elect("keeper")) or b"").decode()
        return next((worker for worker in self.alive if f"-{worker.pid}-" in name), None)


def held_by(observer: Observer, worker: WorkerProcess) -> list[str]:
    """Jobs that a worker held when it died."""
    held = []
    for key in observer.redis.scan_iter(match=observer.keys.job("*"), count=1000):
        record = observer.record(key.decode().rpartition(":")[2])
        if record.status in HELD and f"-{worker.pid}-" in (record.worker or ""):
            held.append(record.job_id)
    return held


def running_in(journal: Journal, worker: WorkerProcess) -> list[Mark]:
    return [mark for mark in journal.running() if mark.pid == worker.pid]


async def test_killed_workers_lose_nothing_and_their_jobs_are_recovered_in_time(
    start: Start, client: Client, observer: Observer, journal: Journal
) -> None:
    """D6, issue: SIGKILL under load; all jobs end, recovered within a lease and a sweep.

    Every other time the victim is the keeper itself: then its successor has to be elected first, and if that
    makes the last sweep older than half a lease, it holds for one lease more.
    """
    accepted: list[Job[Any]] = []
    lags: list[tuple[float, float]] = []
    in_flight = 0
    feeding = True

    async def feed() -> None:
        tasks = ["work", "work_in_thread", "flaky", "work"]
        while feeding:
            name = tasks[len(accepted) % len(tasks)]
            args = {} if name == "flaky" else {"seconds": 0.4}
            accepted.append(await client.enqueue(name, args))
            await asyncio.sleep(0.05)  # the load: more than the slots can hold

    async with Fleet(start, 2, "--concurrency", "4") as fleet:
        feeder = asyncio.create_task(feed())
        await wait_until_async(observer.sweeps, what="sweeps take the dead")
        for number in range(KILLS):
            wants_keeper = number % 2 == 1

            def victim(wants_keeper: bool = wants_keeper) -> WorkerProcess | None:
                keeper = fleet.keeper(observer)
                living = [worker for worker in fleet.alive if worker.returncode is None]
                # A third death of a job that happens to run in each of them would end it.
                ready = [
                    worker
                    for worker in living
                    if running_in(journal, worker)
                    and all(observer.record(job_id).strikes < 2 for job_id in held_by(observer, worker))
                ]
                return next(
                    (each for each in ready if keeper is not None and (each is keeper) == wants_keeper), None
                )

            worker = await wait_until_async(victim, what="there is somebody to kill")
            assert worker is not None
            worker.kill()
            killed, watch = time.time(), Stopwatch()
            held = held_by(observer, worker)
            in_flight += len(held)
            bound = LEASE + SWEEP + MARGIN + (SUCCESSION + LEASE if wants_keeper else 0)

            def recovered(held: list[str] = held, killed: float = killed) -> list[float] | None:
                """When each of the victim's jobs was recovered, once all are."""
                moments = {
                    edge.job_id: edge.at_ms / 1000
                    for edge in observer.transitions()
                    if edge.reason == "recovered" and edge.at_ms / 1000 > killed
                }
                return [moments[job_id] for job_id in held] if held and moments.keys() >= set(held) else None

            if held:
                moments = await wait_until_async(recovered, timeout=3 * LEASE + 5, what="all are recovered")
                lags.append((max(moments or []) - killed, bound + watch.seconds - watch.fair))
        feeding = False
        await feeder
        ids = [job.id for job in accepted]
        await wait_until_async(lambda: observer.all_over(ids), timeout=90, what="all jobs are over")
        await wait_until_async(lambda: fleet.deaths == KILLS, what="every victim is replaced")

    print("recovered after, at most (seconds):", lags)
    assert [(lag, bound) for lag, bound in lags if lag > bound] == []
    assert lags, "no worker held a job when it was killed: the load is too light to show anything"
    assert observer.leftovers() == []
    # A victim may have claimed a job of two deaths between our look and its own.
    looped = [job for job in accepted if observer.record(job.id).status != Status.SUCCEEDED]
    for job in looped:
        with pytest.raises(JobFailed, match="crash_loop"):
            await job.result(1)
    assert len(looped) <= KILLS // 3
    assert (
        judge(
            accepted=ids,
            transitions=observer.transitions(),
            marks=journal.marks(),
            allowance=Allowance(starts=4, repeated=in_flight),
        )
        == []
    )


async def test_a_handler_that_kills_its_process_ends_as_a_crash_loop(
    start: Start, client: Client, observer: Observer, journal: Journal
) -> None:
    """DESIGN 3, R13 (B15), D22: at most 3 starts, then `crash_loop`; one death is forgiven.

    Only a first death takes a worker along: the next ones are those of its quarantine child.
    """
    async with Fleet(start, 2, "--concurrency", "4") as fleet:
        poison = await client.enqueue("crash", {})
        once = await client.enqueue("crash_once", {})
        others = [await client.enqueue("work", {"seconds": 0.01}) for _ in range(20)]
        assert [await job.result(30) for job in others] == [1] * 20
        # Charged only if it stood in the slot beside the other's first death, and so died in the child.
        assert await once.result(40) in (1, 2)
        with pytest.raises(JobFailed) as failed:
            await poison.result(60)
        assert fleet.deaths in (1, 2)

    assert failed.value.code == "crash_loop"
    assert len(journal.starts(poison.id)) == 3
    assert observer.record(once.id).strikes == 0  # cleared by a handler that ran to its end
    letter = observer.dead_letters()[poison.id]
    assert (letter["code"], letter["strikes"]) == ("crash_loop", "3")
    first, *later = (mark.pid for mark in journal.starts(poison.id))
    assert first not in later
    assert len(set(later)) == 2, "each death is that of another process"
    assert observer.leftovers() == []
    assert (
        judge(
            accepted=[job.id for job in (poison, once, *others)],
            transitions=observer.transitions(),
            marks=journal.marks(),
            allowance=Allowance(starts=3, repeated=3 + 4 * 4),
        )
        == []
    )


async def test_a_frozen_worker_that_comes_back_records_nothing_any_more(
    start: Start, client: Client, observer: Observer, journal: Journal, tmp_path: Path
) -> None:
    """D1, R59: a zombie's late outcome is refused by its stale fence; the new holder's counts."""
    with start("--concurrency", "2", lease=1) as zombie, start("--concurrency", "2", lease=1) as heir:
        zombie.wait_for_log("slots, lanes")
        heir.wait_for_log("slots, lanes")
        await wait_until_async(observer.sweeps, what="sweeps take the dead")
        job = await client.enqueue("hold", {})
        (first,) = await wait_until_async(journal.starts, what="it runs")
        if first.pid == heir.pid:
            zombie, heir = heir, zombie
        await wait_until_async(
            lambda: observer.record(job.id).status is Status.PROCESSING, what="its start is marked"
        )
        zombie.pause()
        await wait_until_async(lambda: len(journal.starts()) == 2, timeout=15, what="the heir runs it")
        (tmp_path / "go").touch()
        assert await job.result(10) == 2  # processing: the attempt was charged
        zombie.resume()
        # The late handler ends by itself or is cancelled as lost, whichever comes first; either way it has
        # had its chance once the worker that ran it has ended. Both can still do their work.
        more = [await client.enqueue("work", {}) for _ in range(20)]
        assert [await each.result(10) for each in more] == [1] * 20
        for worker in (zombie, heir):
            worker.terminate()
            assert worker.wait() == 0

    assert [mark.pid == zombie.pid for mark in journal.starts(job.id)] == [True, False]
    assert f"-{heir.pid}-" in str(observer.record(job.id).worker)
    assert observer.path(job.id) == [
        *("queued", "claimed", "processing", "retry_scheduled"),
        *("claimed", "processing", "succeeded"),
    ]
    assert (
        judge(
            accepted=[job.id, *(each.id for each in more)],
            transitions=observer.transitions(),
            marks=journal.marks(),
            allowance=Allowance(starts=2, repeated=1),
        )
        == []
    )


async def test_of_a_killed_worker_nothing_stays(
    start: Start, client: Client, observer: Observer, journal: Journal
) -> None:
    """R6, R7 (B06, B77): its key expires by TTL, its consumers go once nothing is pending for them."""
    with start("--concurrency", "2", lease=0.5) as dead, start("--concurrency", "2", lease=0.5) as other:
        for worker in (dead, other):
            worker.wait_for_log("slots, lanes")
        jobs = [await client.enqueue("work", {"seconds": 0.2}) for _ in range(8)]
        await wait_until_async(lambda: running_in(journal, dead), what="it runs something")
        dead.kill()
        await wait_until_async(
            lambda: observer.all_over([job.id for job in jobs]), timeout=20, what="all end"
        )

        def traces() -> list[str]:
            names = [key.decode() for key in observer.redis.keys(f"{observer.keys.tag}:*")]
            left = [name for name in names if f"-{dead.pid}-" in name]
            for stream in (name for name in names if ":lane:" in name):
                if observer.redis.xinfo_groups(stream):
                    consumers = observer.redis.xinfo_consumers(stream, GROUP)
                    left += [each["name"] for each in consumers if f"-{dead.pid}-".encode() in each["name"]]
            return left

        await wait_until_async(lambda: not traces(), timeout=8, what="no key and no consumer is left of it")
        other.terminate()
        assert other.wait() == 0
    assert observer.leftovers() == []


async def test_jobs_of_a_dead_worker_run_on_one_that_came_later(
    start: Start, client: Client, observer: Observer, journal: Journal
) -> None:
    """B06: the only worker dies; a new one, with another name, takes its jobs after a lease, and hold."""
    with start("--concurrency", "3", "--lanes", "normal", lease=0.5) as first:
        jobs = [await client.enqueue("crash_once", {})]
        jobs += [await client.enqueue("work", {"seconds": 0.01}) for _ in range(4)]
        await asyncio.to_thread(first.wait)
    with start("--concurrency", "3", lease=0.5) as second:
        await wait_until_async(
            lambda: observer.all_over([job.id for job in jobs]), timeout=20, what="all end"
        )
        second.terminate()
        assert second.wait() == 0

    assert observer.statuses(job.id for job in jobs) == {"succeeded": 5}
    assert observer.leftovers() == []


async def test_jobs_that_are_nowhere_are_found_among_many_records(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """D8: a step of the slow scan looks at one page, and the next one goes on behind it."""
    async with App("nowhere", redis_url=valkey.url, namespace=namespace) as app:

        @app.task
        async def work(ctx: Context) -> None: ...

        jobs = await app.enqueue_many(work.call() for _ in range(5 * SCAN_COUNT))
        for job in jobs[::SCAN_COUNT]:
            kind, entry = observer.record(job.id).entry or ("", "")
            assert observer.redis.xdel(observer.keys.stream("normal", kind), entry) == 1
        keeper = Keeper(app, "w1")
        for _ in range(pages(observer)):
            await keeper.repair()
        await keeper.close()

        lost = [observer.record(job.id).status for job in jobs[::SCAN_COUNT]]
        assert lost == [Status.FAILED_TERMINAL] * 5


def pages(observer: Observer) -> int:
    """Steps in which a scan has certainly been through all keys."""
    return 2 * (int(observer.redis.dbsize()) // SCAN_COUNT + 1)
