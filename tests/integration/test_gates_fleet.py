"""Gates across processes, and across their deaths. `GATES_SCALE=5` makes the long form of `make soak`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streamworker import App, Client, Request
from streamworker.core.states import Status
from streamworker.ops import tune
from streamworker.store.events import decode
from streamworker.store.keys import Keys
from tests.processes import WorkerProcess
from tests.servers import BenchServer, async_client
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")

SCALE = int(os.environ.get("GATES_SCALE", "1"))
PROCESSES = 4
#: Seconds in which waiters move; more in a short run, beside whatever else the machine does.
BOUND = 1.0 if SCALE > 1 else 3.0
#: Share of a rate's allowance that is used; among other tests the workers get less time than they need.
USED = 0.95 if SCALE > 1 else 0.75


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the handlers' own history."""

    at: int  # ns
    pid: int
    parent: int  # the worker, where the handler runs in a child of it
    what: str
    job_id: str
    attempt: int
    more: tuple[str, ...]


class Fleet:
    """Four worker processes and their journal."""

    def __init__(self, url: str, namespace: str, journal: Path) -> None:
        self.url, self.namespace = url, namespace
        self._journal = journal
        self._stack = ExitStack()
        self.workers: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        worker = self._stack.enter_context(
            WorkerProcess(
                "gates_jobs:app",
                "--concurrency",
                "8",
                redis_url=self.url,
                namespace=self.namespace,
                env={"GATES_JOURNAL": str(self._journal), "STREAMWORKER_LEASE": "1"},
            )
        )
        self.workers.append(worker)
        return worker

    def notes(self) -> list[Note]:
        found = []
        for line in self._journal.read_text().splitlines():
            at, pid, parent, what, job_id, attempt, *more = line.split(" ")
            found.append(Note(int(at), int(pid), int(parent), what, job_id, int(attempt), tuple(more)))
        return sorted(found, key=lambda one: one.at)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def fleet(valkey: BenchServer, namespace: str, tmp_path: Path) -> Iterator[Fleet]:
    journal = tmp_path / "journal"
    journal.touch()
    fleet = Fleet(valkey.url, namespace, journal)
    for _ in range(PROCESSES):
        fleet.start()
    for worker in fleet.workers:
        worker.wait_for_log("slots, lanes")
    yield fleet
    fleet.close()


async def over(redis: Any, keys: Keys) -> bool:
    """Whether no job is open: nothing waits and nothing runs."""
    stats = await redis.hgetall(keys.stats)
    places = (b"queued:", b"turned:", b"parked:", b"scheduled:", b"in_flight:")
    return not any(int(value) for name, value in stats.items() if name.startswith(places))


async def claims(redis: Any, keys: Keys) -> list[int]:
    """When each claim was made, in ms by Redis's clock."""
    return [
        move.at_ms
        for _, fields in await redis.xrange(keys.events)
        for move in decode(fields)
        if move.to_status is Status.CLAIMED
    ]


async def test_a_rate_holds_in_every_window_and_is_used(fleet: Fleet) -> None:
    seconds, rate, burst = 4 * SCALE, 300, 300
    keys = Keys(fleet.namespace)
    async with Client(fleet.url, app=fleet.namespace) as client, async_client(fleet.url) as redis:
        await client.enqueue_many(Request("limited", {}) for _ in range(burst + rate * seconds))
        await wait_until_async(lambda: over(redis, keys), timeout=seconds * 3 + 30, what="all are done")
        times = sorted(await claims(redis, keys))

    # Starts i..j are at most burst + rate * (t_j - t_i): so is each start against the worst one before it.
    worst = float("-inf")
    for number, at in enumerate(times):
        worst = max(worst, rate * at / 1000 - number)
        assert number + 1 - rate * at / 1000 + worst <= burst, f"start {number} came too early"
    in_time = sum(at - times[0] <= seconds * 1000 for at in times)
    assert in_time >= USED * (burst + rate * seconds)


async def test_a_limit_holds_under_kills_and_is_full_again_after_them(fleet: Fleet) -> None:
    limit, jobs = 5, 300 * SCALE
    keys = Keys(fleet.namespace)
    deaths: list[tuple[int, int]] = []
    async with Client(fleet.url, app=fleet.namespace) as client, async_client(fleet.url) as redis:
        await client.enqueue_many(Request("shared", {"seconds": 0.2}) for _ in range(jobs))
        for _ in range(3 * SCALE):
            await wait_until_async(lambda: holder(fleet), timeout=20, what="somebody holds the gate")
            victim = holder(fleet) or fleet.workers[0]
            victim.kill()
            deaths.append((fleet.notes()[-1].at + 1, victim.pid))
            fleet.workers.remove(victim)
            fleet.start().wait_for_log("slots, lanes")
        await wait_until_async(lambda: over(redis, keys), timeout=jobs + 60, what="all are done")

    live: dict[str, set[int]] = {}
    most_after = 0
    history = [(note.at, note.what, note.job_id, {note.pid, note.parent}) for note in fleet.notes()]
    history += [(at, "death", "", {pid}) for at, pid in deaths]
    for at, what, job_id, pids in sorted(history, key=lambda one: one[0]):
        if what == "begin":
            live[job_id] = pids
        elif what == "end":
            live.pop(job_id, None)
        else:  # a struck job ran in a child of the dead, which ends with it
            live = {one: its for one, its in live.items() if not its & pids}
        assert len(live) <= limit
        if at > deaths[-1][0]:
            most_after = max(most_after, len(live))
    assert most_after == limit, "the places of the dead are free again"
    ended = {note.job_id for note in fleet.notes() if note.what == "end"}
    assert len(ended) == jobs


async def test_waiters_move_within_a_second_when_a_limit_is_raised_or_a_pause_lifted(fleet: Fleet) -> None:
    keys = Keys(fleet.namespace)
    async with (
        App("gates", redis_url=fleet.url, namespace=fleet.namespace) as app,
        Client(fleet.url, app=fleet.namespace) as client,
        async_client(fleet.url) as redis,
    ):
        queue = app.queue()
        await client.enqueue_many(Request("shared", {"seconds": 2 * BOUND}) for _ in range(8))
        await wait_until_async(lambda: begun(fleet, 5), timeout=20, what="five run")
        await tune.set_limit(queue, "concurrency:task:shared", "8", actor="test")
        await wait_until_async(lambda: begun(fleet, 8), timeout=20, what="the others run")

        await tune.pause(queue, "task:ordered", actor="test")
        await client.enqueue("ordered", {"thing": 1, "number": 1})
        gate = "pause:task:ordered"
        await wait_until_async(lambda: redis.hget(keys.waiting, gate), timeout=20, what="one is parked")
        await tune.resume(queue, "task:ordered", actor="test", over=0)
        await wait_until_async(lambda: over(redis, keys), timeout=60, what="all are done")
        changed = await changes(redis, keys)
        times = sorted(await claims(redis, keys))

    raised, lifted = ([at for at in times if at >= changed[verb]] for verb in ("limit", "resume"))
    assert raised[2] - changed["limit"] <= BOUND * 1000, "by Redis's clock"
    assert lifted[0] - changed["resume"] <= BOUND * 1000


async def changes(redis: Any, keys: Keys) -> dict[str, int]:
    """When operators changed something, by what they did, in ms by Redis's clock."""
    return {
        line.split(" ")[2]: int(fields[b"t"])
        for _, fields in await redis.xrange(keys.events)
        for line in fields.get(b"a", b"").decode().splitlines()
    }


def begun(fleet: Fleet, count: int) -> bool:
    return sum(note.what == "begin" for note in fleet.notes()) >= count


def holder(fleet: Fleet) -> WorkerProcess | None:
    """A worker that runs a handler now."""
    open_: dict[str, int] = {}
    for note in fleet.notes():
        if note.what == "begin":
            open_[note.job_id] = note.pid
        else:
            open_.pop(note.job_id, None)
    return next((worker for worker in fleet.workers if worker.pid in open_.values()), None)


async def test_an_entity_is_one_at_a_time_in_order_across_processes(fleet: Fleet) -> None:
    entities, each = 10 * SCALE, 20
    keys = Keys(fleet.namespace)
    async with Client(fleet.url, app=fleet.namespace) as client, async_client(fleet.url) as redis:
        await client.enqueue_many(
            Request("ordered", {"thing": number % entities, "number": number})
            for number in range(entities * each)
        )
        await wait_until_async(lambda: over(redis, keys), timeout=60 + 10 * SCALE, what="all are done")

    running: Counter[str] = Counter()
    order: dict[str, list[int]] = {}
    for note in fleet.notes():
        thing, number = note.more
        running[thing] += 1 if note.what == "begin" else -1
        assert running[thing] <= 1, f"two jobs of thing {thing} at a time"
        if note.what == "begin":
            order.setdefault(thing, []).append(int(number))
            assert note.attempt == 1, "nobody is charged for waiting"
    assert sum(map(len, order.values())) == entities * each
    assert all(numbers == sorted(numbers) for numbers in order.values())


async def test_a_crash_changes_the_order_of_no_entity(fleet: Fleet) -> None:
    entities, each = 10 * SCALE, 10
    keys = Keys(fleet.namespace)
    async with Client(fleet.url, app=fleet.namespace) as client, async_client(fleet.url) as redis:
        await client.enqueue_many(
            Request("ordered", {"thing": number % entities, "number": number, "seconds": 0.02})
            for number in range(entities * each)
        )
        await wait_until_async(lambda: holder(fleet), timeout=20, what="somebody runs one")
        victim = holder(fleet) or fleet.workers[0]
        victim.kill()
        await wait_until_async(lambda: over(redis, keys), timeout=60 + 10 * SCALE, what="all are done")

    order: dict[str, list[int]] = {}
    died = Counter[str]()
    for note in fleet.notes():
        thing, number = note.more
        if note.what == "begin":
            order.setdefault(thing, []).append(int(number))
        died[note.job_id] += 1 if note.what == "begin" else -1
    assert any(died.values()), "nobody died with a job, so nothing was shown"
    assert all(numbers == sorted(numbers) for numbers in order.values()), order
    assert all(len(set(numbers)) == each for numbers in order.values())
