"""Cases of connections: lost replies that run a script twice, blocking reads, cancelled calls, forks."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from streamworker import App, Client, Context, OutcomeUnknown, Status, SyncClient
from streamworker.store import lua, scripts
from streamworker.store.caller import Caller
from streamworker.store.connection import Link
from streamworker.worker import reader
from tests.chaos.scale import SCALE
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.proxy import Proxy
from tests.servers import BenchServer
from tests.waiting import wait_until_async

#: Versions of redis-py that the package takes; the long form tries them all (R16, R17).
REDIS_PY = tuple(os.environ.get("STREAMWORKER_CASES_REDIS_PY", "").split())


def sha(script: str) -> bytes:
    return lua.load(script).sha.encode()


# --- a lost reply ----------------------------------------------------------------------------------------


def executions(observer: Observer, script: str) -> int:
    """How often a script has left something in the log."""
    entries = observer.redis.xrange(observer.keys.events)
    return sum(fields[b"s"].decode() == script for _, fields in entries)


async def test_an_enqueue_whose_reply_is_lost_is_one_job_and_one_answer(
    server: BenchServer, namespace: str, observer: Observer
) -> None:
    """B23: sent again by us and by nobody else: one effect, and the caller gets the first one's answer."""
    with Proxy(server.port) as proxy, SyncClient(proxy.url, app="cases", namespace=namespace) as sync:
        async with Client(proxy.url, app="cases", namespace=namespace) as client:
            await client.enqueue("work", {"n": 0})
            sync.enqueue("work", {"n": 0})
            jobs = []
            for options in ({}, {"key": "k"}, {"delay": "1h"}):
                first = proxy.drop_next_reply(sha("enqueue"))
                jobs.append((await client.enqueue("work", {"n": 1}, **options)).id)
                second = proxy.drop_next_reply(sha("enqueue"))
                later = await asyncio.to_thread(sync.enqueue, "other", {"n": 1}, **options)
                jobs.append(later.id)
                assert first.happened
                assert second.happened

    assert len(set(jobs)) == 6
    assert executions(observer, "enqueue") == 2 + 6
    assert observer.redis.xlen(observer.keys.stream("normal")) == 2 + 4
    assert observer.redis.zcard(observer.keys.schedule) == 2


async def test_when_nobody_can_say_whether_it_was_executed_the_caller_learns_just_that(
    server: BenchServer, namespace: str, observer: Observer
) -> None:
    """B23: the reply is lost and the network stays away: unknown, with the ids, and one execution at most."""
    with Proxy(server.port) as proxy:
        async with Client(proxy.url, app="cases", namespace=namespace) as client:
            await client.enqueue("work", {"n": 0})
            client._source.get().caller.patience = 0.2
            lost = proxy.drop_next_reply(sha("enqueue"))
            proxy.refuse()
            with pytest.raises(OutcomeUnknown) as unknown:
                await client.enqueue("work", {"n": 1})
            assert lost.happened
            proxy.restore()
            (job_id,) = unknown.value.job_ids
            assert (await client.get(job_id)).status is Status.QUEUED
            assert await client.cancel(job_id)

    assert executions(observer, "enqueue") == 2


#: Calls that are made beside the worker's own. `drain` comes with the backlog lane.
STEPS = {
    "promote": scripts.promote(clock="", worker="keeper", retention_ms=scripts.RETENTION_MS, limit=100),
    "session": scripts.session(worker="w1", own=0, liveness_ms=60_000, rows=()),
}


@pytest.mark.parametrize("name", STEPS)
async def test_a_call_of_the_keeper_or_a_session_whose_reply_is_lost_is_sent_again_and_harmless(
    server: BenchServer, namespace: str, observer: Observer, client: Client, name: str
) -> None:
    """B23: what is sent twice finds its work done: nothing is moved twice, and no number goes back."""
    jobs = [await client.enqueue("work", {"n": n}, delay="1ms") for n in range(5)]
    await wait_until_async(lambda: due(observer) == 5, what="they are due")
    with Proxy(server.port) as proxy:
        direct, caller = Caller(server.url, "{nobody:0}"), Caller(proxy.url, observer.keys.tag)
        await direct.run(STEPS[name])  # the server knows the script
        lost = proxy.drop_next_reply(sha(name))
        reply = await caller.run(STEPS[name])
        assert lost.happened
        await direct.close()
        await caller.close()
        observer.redis.delete("{nobody:0}:worker:w1")

    if name == "promote":
        assert reply[0] == 0, "the second call had nothing left to do"
        assert executions(observer, "promote") == 0, "a place is no state"
        assert observer.redis.xlen(observer.keys.stream("normal", "r")) == len(jobs)
        assert observer.stats()["queued:normal"] == len(jobs)
    else:
        assert int(reply) == 2  # each call makes a new number; the first is nobody's


def due(observer: Observer) -> int:
    seconds, micros = observer.redis.time()
    return int(observer.redis.zcount(observer.keys.schedule, 0, seconds * 1000 + micros // 1000))


async def test_no_lost_reply_of_a_worker_runs_a_job_twice(
    server: BenchServer, namespace: str, observer: Observer
) -> None:
    """B23: the reply to a claim, and the one to what settles it, are lost in turn: each job runs once."""
    runs: list[int] = []
    with Proxy(server.port) as proxy:
        async with App("cases", redis_url=proxy.url, namespace=namespace, lease="30s") as app:

            @app.task
            async def work(ctx: Context, n: int) -> int:
                runs.append(n)
                return n

            async with Client(server.url, app="cases", namespace=namespace) as direct, serving(app):
                for n in range(6):
                    rule = proxy.drop_next_reply(sha("exchange"))
                    job = await direct.enqueue("work", {"n": n})
                    assert await job.result(10) == n
                    assert rule.happened

    assert runs == list(range(6))
    assert observer.leftovers() == []


# --- blocking reads --------------------------------------------------------------------------------------


def test_no_read_blocks_as_long_as_its_connection_waits_for_a_reply(app: App) -> None:
    """B24: the longest block is 2 s, and 3 s shorter than the time-out of its connection (R17)."""

    class Idle:
        on_dry: Callable[[], None]

    link = reader.Reader(app.settings, Idle()).link  # type: ignore[arg-type]

    assert reader.BLOCK_MS <= 2_000
    assert link.timeout >= reader.BLOCK_MS / 1000 + 3


async def test_an_idle_worker_and_a_patient_producer_keep_their_connections(
    app: App, client: Client, observer: Observer
) -> None:
    """B24: longer than any time-out of theirs, nobody connects anew and nothing is logged as lost."""
    released = asyncio.Event()

    @app.task
    async def held(ctx: Context) -> str:
        await released.wait()
        return "done"

    longest = 4.5 if SCALE == 1 else 60  # the reader's time-out is 4 s; that of others, who do not block, 5
    async with serving(app):
        job = await client.enqueue("held", {})
        waiting = asyncio.ensure_future(job.result(120))
        await wait_until_async(
            lambda: {"xreadgroup", "blpop"} <= {one["cmd"] for one in observer.redis.client_list()},
            what="both block",
        )
        await wait_until_async(observer.sweeps, what="its keeper and its heartbeat have connected")
        made = observer.redis.info("stats")["total_connections_received"]
        until = now(observer) + longest
        await wait_until_async(lambda: now(observer) > until, timeout=longest + 30, what="it has been idle")
        assert observer.redis.info("stats")["total_connections_received"] == made
        released.set()
        assert await waiting == "done"


def now(observer: Observer) -> float:
    seconds, micros = observer.redis.time()
    return float(seconds + micros / 1e6)


async def test_a_server_that_closes_idle_connections_only_costs_new_ones(
    app: App, client: Client, observer: Observer
) -> None:
    """B24: whoever closes idle connections, a time-out of the server or a firewall: the next call works."""

    @app.task
    async def work(ctx: Context) -> str:
        return "done"

    async with serving(app):
        for _ in range(3):
            job = await client.enqueue("work", {})
            assert await job.result(10) == "done"
            observer.redis.client_kill_filter(_type="normal", skipme=True)
    assert observer.leftovers() == []


@pytest.mark.skipif(not REDIS_PY, reason="STREAMWORKER_CASES_REDIS_PY names no versions: the long form does")
@pytest.mark.parametrize("version", REDIS_PY)
def test_each_version_of_redis_py_that_is_taken_works(
    version: str, server: BenchServer, tmp_path: Path
) -> None:
    """B24, B25: idle for longer than its own time-out, with calls cancelled: 5.3, 6.4, 7.4 and 8.1."""
    folder = tmp_path / "redis-py"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--target",
            folder,
            f"redis=={version}",
        ],
        check=True,
    )
    chosen = "-k=idle_worker or cancelled_calls or cancelled_enqueues"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, chosen],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(folder), "STREAMWORKER_CASES_REDIS_PY": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:]


# --- cancelled calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["asyncio", "anyio"])
async def test_cancelled_calls_never_leave_their_reply_to_another(
    server: BenchServer, namespace: str, observer: Observer, how: str
) -> None:
    """B25: a thousand calls cancelled at random moments on one shared connection: no wrong reply after."""
    tag, rng = observer.keys.tag, random.Random(25)
    for n in range(50):
        observer.redis.set(f"{tag}:probe:{n}", f"value {n}", ex=60)
    made = observer.redis.info("stats")["total_connections_received"]
    link = Link(server.url)
    await link.connect()

    async def get(n: int) -> Any:
        return await link.call("GET", f"{tag}:probe:{n % 50}")

    async def cancelled_one(n: int) -> None:
        if how == "anyio":
            with anyio.move_on_after(rng.random() * 0.0004):
                assert await get(n) == f"value {n % 50}".encode()
            return
        call = asyncio.ensure_future(get(n))
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    for first in range(0, 1_000, 50):
        await asyncio.gather(*(cancelled_one(first + n) for n in range(50)))

    assert [await get(n) for n in range(50)] == [f"value {n}".encode() for n in range(50)]
    assert link.in_flight == 0
    assert observer.redis.info("stats")["total_connections_received"] == made + 1
    await link.close()


async def test_cancelled_enqueues_and_waits_leave_a_client_that_answers_rightly(
    client: Client, observer: Observer
) -> None:
    """B25: the same through the client: enqueues, look-ups and waits that are given up."""
    known = [await client.enqueue("work", {"n": n}) for n in range(50)]
    made = observer.redis.info("stats")["total_connections_received"]
    rng = random.Random(26)

    async def give_up(n: int) -> None:
        with anyio.move_on_after(rng.random() * 0.002):
            match n % 3:
                case 0:
                    await client.enqueue("work", {"n": -n}, key=f"k{n}")
                case 1:
                    await client.get(known[n % 50].id)
                case 2:
                    await known[n % 50].result(5)

    for first in range(0, 600, 60):
        await asyncio.gather(*(give_up(first + n) for n in range(60)))
    views = await asyncio.gather(*(client.get(job.id) for job in known))

    assert [view.id for view in views] == [job.id for job in known]
    # One connection that blocks for all who wait, and is given up with the last of them.
    assert observer.redis.info("stats")["total_connections_received"] - made <= 15
    again = await asyncio.gather(*(client.enqueue("work", {"n": -n}, key=f"k{n}") for n in range(0, 600, 3)))
    assert len({job.id for job in again}) == 200


# --- forks -----------------------------------------------------------------------------------------------

_FORK = """
import asyncio, os, sys
from streamworker import Client, SyncClient

client = Client(sys.argv[1], app="cases", namespace=sys.argv[2])
sync = SyncClient(sys.argv[1], app="cases", namespace=sys.argv[2])

async def use(side):
    def one(n):
        return {"side": side, "n": n}
    jobs = await asyncio.gather(*(client.enqueue("work", one(n), key=f"{side}-{n}") for n in range(300)))
    views = await asyncio.gather(*(client.get(job.id) for job in jobs))
    assert [view.id for view in views] == [job.id for job in jobs], "wrong replies"
    again = [sync.enqueue("work", one(n), key=f"{side}-{n}").id for n in range(300)]
    assert again == [job.id for job in jobs], "wrong replies"

asyncio.run(use("before"))
child = os.fork()
try:
    asyncio.run(use("child" if child == 0 else "parent"))
except BaseException as error:
    print(child, repr(error), file=sys.stderr)
    os._exit(1)
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_both_sides_of_a_fork_use_a_client_that_was_used_before(
    server: BenchServer, namespace: str, observer: Observer
) -> None:
    """B75: 300 enqueues and 300 look-ups on each side at once, by both clients: no wrong reply."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK, server.url, namespace],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert observer.redis.xlen(observer.keys.stream("normal")) == 900
