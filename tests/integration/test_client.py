"""The producer's side against a real server: dispositions, lost replies, many at once, results."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from streamworker import (
    App,
    Client,
    ConnectionLost,
    Context,
    Disposition,
    EnqueueRejected,
    IdempotencyConflict,
    JobFailed,
    JobNotFound,
    Options,
    OutcomeUnknown,
    PersistentError,
    Request,
    ResultTimeout,
    Status,
    SyncClient,
)
from streamworker.core.ids import new_job_id
from streamworker.embedded import EmbeddedServer
from streamworker.store import awaiter, lua
from tests.integration.history import Observer
from tests.integration.serving import failure, serving
from tests.proxy import Proxy
from tests.servers import BenchServer, ServerFactory
from tests.waiting import Stopwatch, wait_until_async

REPOSITORY = Path(__file__).parents[2]
ENQUEUE = lua.load("enqueue").sha.encode()


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    """An app on the shared Valkey with one task, `double`."""
    async with App("client-tests", redis_url=valkey.url, namespace=namespace, lease="1s") as app:

        @app.task
        async def double(ctx: Context, n: int) -> int:
            return 2 * n

        yield app


@pytest.fixture
async def client(valkey: BenchServer, namespace: str) -> AsyncIterator[Client]:
    async with Client(valkey.url, app="client-tests", namespace=namespace) as client:
        yield client


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    """Looks on, and takes away what the test left queued: some of these tests run no worker."""
    with Observer(valkey.url, namespace) as observer:
        yield observer
        for key in observer.redis.keys(f"{observer.keys.tag}*"):
            observer.redis.unlink(key)


def script_calls(observer: Observer) -> int:
    stats: dict[str, dict[str, int]] = observer.redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def readers(observer: Observer) -> list[str]:
    """The connections that block for results."""
    return [each["id"] for each in observer.redis.client_list() if each["cmd"] == "blpop"]


# --- keys ------------------------------------------------------------------------------------------------


async def test_fifty_concurrent_enqueues_of_one_key_make_one_job(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """D11 (B32): one ACCEPTED, 49 DUPLICATE, all with the same job's id, over several connections."""
    clients = [Client(valkey.url, app="client-tests", namespace=namespace) for _ in range(5)]

    jobs = await asyncio.gather(
        *(clients[i % 5].enqueue("double", {"n": 1}, key="the-key") for i in range(50))
    )
    for each in clients:
        await each.close()

    assert Counter(job.disposition for job in jobs) == {Disposition.ACCEPTED: 1, Disposition.DUPLICATE: 49}
    assert len({job.id for job in jobs}) == 1
    assert observer.redis.xlen(observer.keys.stream("normal")) == 1


async def test_other_arguments_under_one_key_conflict_with_the_winner(
    client: Client, observer: Observer
) -> None:
    """D11 (B33): exactly one payload wins, the other gets IdempotencyConflict with the winner's id."""
    answers = await asyncio.gather(
        *(client.enqueue("double", {"n": i % 2}, key="contested") for i in range(50)), return_exceptions=True
    )

    won = [answer for answer in answers if not isinstance(answer, BaseException)]
    lost = [answer for answer in answers if isinstance(answer, IdempotencyConflict)]
    assert (len(won), len(lost)) == (25, 25)
    (winner,) = {job.id for job in won}
    assert {conflict.job_id for conflict in lost} == {winner}
    assert observer.redis.xlen(observer.keys.stream("normal")) == 1

    many = await client.enqueue_many([Request("double", {"n": 5}, Options.of(key="contested"))])
    assert [(job.id, job.disposition) for job in many] == [(winner, Disposition.CONFLICT)]


async def test_a_key_is_kept_after_success_and_free_after_failure(app: App, observer: Observer) -> None:
    """D11: success holds the key for its window, dead jobs free it."""

    @app.task(key="order:{order}")
    async def pay(ctx: Context, order: int) -> str:
        if order == 13:
            raise PersistentError("unlucky")
        return ctx.key

    async with serving(app):
        paid = await pay.enqueue(7)
        assert await paid.result(5) == "order:7"
        again = await pay.enqueue(7)
        assert (again.id, again.disposition) == (paid.id, Disposition.DUPLICATE)
        assert await again.result(5) == "order:7"

        unlucky = await pay.enqueue(13)
        await failure(unlucky)
        fresh = await pay.enqueue(13)
        assert fresh.disposition is Disposition.ACCEPTED
        assert fresh.id != unlucky.id
        await failure(fresh)

    assert observer.leftovers() == []


# --- many at once ----------------------------------------------------------------------------------------


async def test_enqueues_of_one_loop_turn_travel_in_one_call(app: App, observer: Observer) -> None:
    """HOTPATH 9: concurrent calls of one loop tick travel together."""
    double = app.tasks["double"]
    await double.enqueue(0)
    before = script_calls(observer)

    jobs = await asyncio.gather(*(double.enqueue(n) for n in range(200)))

    assert script_calls(observer) - before == 1
    assert len({job.id for job in jobs}) == 200


async def test_twenty_thousand_in_one_go_keep_their_order(own_valkey: ServerFactory) -> None:
    """R32, R33 (B81): chunks of at most 500, a handle for each call, in order."""
    server = own_valkey()
    async with App("many", redis_url=server.url) as app:

        @app.task
        async def double(ctx: Context, n: int) -> int:
            return 2 * n

        jobs = await app.enqueue_many(double.call(n) for n in range(20_000))

        with Observer(server.url, "many") as observer:
            entries = observer.redis.xrange(observer.keys.stream("normal"))
            assert [fields[b"id"].decode() for _, fields in entries] == [job.id for job in jobs]
            assert {job.disposition for job in jobs} == {Disposition.ACCEPTED}
            # 40 chunks, and the session's first one twice: the script was not known yet.
            assert 40 <= script_calls(observer) <= 45


async def test_a_cancelled_enqueue_takes_no_other_along(app: App) -> None:
    """HOTPATH 9: calls that travel together do not share a fate; R19: the reply is read and dropped."""
    double = app.tasks["double"]
    doomed, other = asyncio.ensure_future(double.enqueue(1)), asyncio.ensure_future(double.enqueue(2))
    await asyncio.sleep(0)

    doomed.cancel()

    assert (await other).disposition is Disposition.ACCEPTED
    assert (await double.enqueue(3)).disposition is Disposition.ACCEPTED


async def test_what_was_added_before_the_close_is_answered(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """DESIGN 12: `async with app` closes connections, and strands no enqueue under way."""
    async with Client(valkey.url, app="client-tests", namespace=namespace) as client:
        under_way = asyncio.ensure_future(client.enqueue("double", {"n": 1}))
        await asyncio.sleep(0)

    assert (await under_way).disposition is Disposition.ACCEPTED
    assert observer.redis.xlen(observer.keys.stream("normal")) == 1


async def test_a_result_that_is_there_comes_whatever_the_timeout(app: App) -> None:
    async with serving(app):
        job = await app.tasks["double"].enqueue(21)
        assert await job.result(10) == 42

        assert await job.result(0) == 42


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_timeout_holds_while_redis_is_away(namespace: str, blocking: bool) -> None:
    """A web request that waits for 0.1 s is not kept for the ten that a call is tried again."""
    job_id, url = new_job_id(now_ms=1_767_225_600_000, random=bytes(8)), "redis://127.0.0.1:1"
    plain, took = SyncClient(url, app="client-tests", namespace=namespace), Stopwatch()
    async with Client(url, app="client-tests", namespace=namespace) as client:
        waiting = (
            asyncio.to_thread(plain.result, job_id, timeout=0.1)
            if blocking
            else client.result(job_id, timeout=0.1)
        )
        with pytest.raises(ConnectionLost):
            await waiting

    assert took.seconds < 3


async def test_who_waits_for_a_result_is_told_of_the_close(valkey: BenchServer, namespace: str) -> None:
    """Nobody would wake it any more, and without a timeout it waited for ever."""
    async with Client(valkey.url, app="client-tests", namespace=namespace) as client:
        job = await client.enqueue("double", {"n": 1})
        waiting = asyncio.ensure_future(job.result())
        awaiter = client._source.get()._awaiter
        await wait_until_async(lambda: job.id in awaiter._blocked_on, what="the result is waited for")

    async with asyncio.timeout(2):
        with pytest.raises(ConnectionLost, match="closed"):
            await waiting


async def test_a_waiter_that_goes_leaves_no_other_unheard(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them ends the read that does not know the keys of the others, for all of them."""
    double, queue = app.tasks["double"], app.queue()
    jobs = [await double.enqueue(n) for n in range(3)]
    command, sent, go = queue.caller.command, asyncio.Event(), asyncio.Event()

    async def held(*arguments: Any) -> Any:
        if arguments[0] == "CLIENT":
            sent.set()
            await go.wait()
        return await command(*arguments)

    waiter, waiting = queue._awaiter, [asyncio.ensure_future(jobs[0].result())]
    await wait_until_async(lambda: jobs[0].id in waiter._blocked_on, what="the first is waited for")
    monkeypatch.setattr(queue.caller, "command", held)
    waiting.append(asyncio.ensure_future(jobs[1].result()))
    await sent.wait()
    waiting.append(asyncio.ensure_future(jobs[2].result()))
    await wait_until_async(lambda: jobs[2].id in waiter._wanted, what="the third waits")
    waiting[1].cancel()
    await asyncio.sleep(0)
    go.set()

    await wait_until_async(lambda: jobs[2].id in waiter._blocked_on, timeout=1, what="the third is heard")
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert waiter._wanted == {}, "nobody is waited for any more"


async def test_a_wake_up_that_never_comes_costs_one_look_more(
    app: App, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives for a minute, in which who waits may be frozen or cut off."""
    monkeypatch.setattr(awaiter, "BLOCK", 0.05)
    job = await app.tasks["double"].enqueue(2)
    waiting = asyncio.ensure_future(job.result(20))
    reads = await wait_until_async(lambda: app.queue()._awaiter._reads, what="it is waited for")
    await wait_until_async(lambda: app.queue()._awaiter._reads > reads, what="it was waited for in vain")
    record = observer.redis.get(observer.keys.job(job.id))
    observer.redis.set(observer.keys.job(job.id), record.replace(b"\nwa=1", b""))  # nobody is to be woken

    async with serving(app):
        assert await waiting == 4


# --- lost replies and outages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "disposition"),
    [({}, "ACCEPTED"), ({"key": "k"}, "ACCEPTED"), ({"delay": "1h"}, "SCHEDULED")],
)
async def test_a_lost_reply_is_asked_for_again_under_the_same_id(
    valkey: BenchServer, namespace: str, observer: Observer, options: dict[str, Any], disposition: str
) -> None:
    """DESIGN 6, enqueue: a job id seen again gets the same disposition; R16: a lost reply is no failure."""
    with Proxy(valkey.port) as proxy:
        async with Client(proxy.url, app="client-tests", namespace=namespace) as client:
            await client.enqueue("double", {"n": 0})  # connected, and the script is known
            lost = proxy.drop_next_reply(ENQUEUE)

            job = await client.enqueue("double", {"n": 1}, **options)

            assert lost.happened
            assert job.disposition == disposition
    assert [edge.to_status for edge in observer.transitions(job.id)] == [Status.QUEUED]
    assert sum(observer.stats()[name] for name in ("enqueued:normal:double",)) == 2


async def test_a_reply_lost_for_good_is_said_with_the_job_id(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """R16: unknown is not failed: the id is there to look the job up."""
    with Proxy(valkey.port) as proxy:
        async with Client(proxy.url, app="client-tests", namespace=namespace) as client:
            await client.enqueue("double", {"n": 0})
            client._source.get().caller.patience = 0.3
            lost = proxy.drop_next_reply(ENQUEUE)
            proxy.refuse()

            with pytest.raises(OutcomeUnknown) as unknown:
                await client.enqueue("double", {"n": 1})

            assert lost.happened
            (job_id,) = unknown.value.job_ids
            proxy.restore()
            assert (await client.get(job_id)).status is Status.QUEUED  # executed, in this case


async def test_a_first_reply_lost_for_good_is_no_lost_connection(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """R16: the call that made the connection was carried out too; only its reply was lost."""
    with Proxy(valkey.port) as proxy:
        async with Client(proxy.url, app="client-tests", namespace=namespace) as client:
            await client._source.get().know(["double"])
            proxy.cut_all()
            await wait_until_async(
                lambda: not client._source.get().caller.link.connected, what="the client sees it"
            )
            client._source.get().caller.patience = 0.3
            lost = [proxy.drop_next_reply(ENQUEUE) for _ in range(20)]

            with pytest.raises(OutcomeUnknown) as unknown:
                await client.enqueue("double", {"n": 1})

            assert lost[0].happened
            assert not lost[-1].happened
            (job_id,) = unknown.value.job_ids
            assert (await client.get(job_id)).status is Status.QUEUED


async def test_what_never_left_is_a_lost_connection(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """STYLE, Errors: a class of its own where a caller would act differently: nothing was enqueued."""
    with Proxy(valkey.port) as proxy:
        proxy.refuse()
        async with Client(proxy.url, app="client-tests", namespace=namespace) as client:
            client._source.get().caller.patience = 0.3

            with pytest.raises(ConnectionLost) as lost:
                await client.enqueue("double", {"n": 1})

            assert not isinstance(lost.value, OutcomeUnknown)
            assert "\n" not in str(lost.value)
            proxy.restore()
            assert (await client.enqueue("double", {"n": 1})).disposition is Disposition.ACCEPTED
    assert observer.redis.xlen(observer.keys.stream("normal")) == 1


async def test_out_of_memory_is_a_rejection_and_leaves_nothing(
    own_valkey: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """R31: the growing write comes first, so that OOM refuses the whole call."""
    server = own_valkey()
    requests = [Request("double", {"n": n}, Options.of(key=f"k{n}", deadline="1h")) for n in range(3)]
    async with Client(server.url, app="full") as client:
        await client.enqueue("double", {"n": 0})
        with Observer(server.url, "full") as observer:
            before = {key: observer.redis.dump(key) for key in observer.redis.keys("*")}
            observer.redis.config_set("maxmemory", 1)

            with pytest.raises(EnqueueRejected, match="memory"):
                await client.enqueue("double", {"n": 1}, key="k", deadline="1h")
            with pytest.raises(EnqueueRejected, match="memory"):
                await client.enqueue("double", {"n": 1}, delay="1h")
            with pytest.raises(EnqueueRejected, match="memory"):
                await client.enqueue_many(requests)

            assert {key: observer.redis.dump(key) for key in observer.redis.keys("*")} == before
            observer.redis.config_set("maxmemory", 0)
        jobs = await client.enqueue_many(requests)
        assert {job.disposition for job in jobs} == {Disposition.ACCEPTED}
    gc.collect()
    assert caplog.text == ""  # no "exception was never retrieved" for each job of the batch


@contextmanager
def room_for_the_first_call(server: EmbeddedServer) -> Iterator[list[Request]]:
    """A list that travels in two calls, and a server whose memory takes the first of them."""
    small = [Request("double", {"n": n}) for n in range(500)]
    large = [Request("double", {"n": "x" * 200_000}) for _ in range(4)]
    with redis.Redis.from_url(server.url) as admin:
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] + 600_000)
        yield [*small, *large]
        admin.config_set("maxmemory", 0)


async def test_of_a_list_that_was_refused_in_part_the_rest_is_told_and_stands(
    own_valkey: ServerFactory,
) -> None:
    """asynq#1069: it was an exception, and nobody knew which jobs were there."""
    server = own_valkey()
    async with Client(server.url, app="full") as client:
        await client.enqueue("double", {"n": 0})
        with room_for_the_first_call(server) as requests:
            jobs = await client.enqueue_many(requests)
        with room_for_the_first_call(server) as requests:
            in_turn = await asyncio.to_thread(SyncClient(server.url, app="full").enqueue_many, requests)
        again = await client.enqueue_many(requests[500:], wait="5s")

    assert [job.disposition for job in jobs[:500]] == [Disposition.ACCEPTED] * 500
    assert [job.disposition for job in jobs[500:]] == [Disposition.REJECTED] * 4
    assert [str(job.disposition) for job in again] == ["ACCEPTED"] * 4
    assert [job.disposition for job in in_turn] == [job.disposition for job in jobs]


# --- processes and loops ---------------------------------------------------------------------------------

_FORK = """
import asyncio, os, sys
from streamworker import Client

client = Client(sys.argv[1], app="client-tests", namespace=sys.argv[2])
inside = sys.argv[3] == "inside-a-loop"

async def use(n):
    jobs = await asyncio.gather(*(client.enqueue("double", {"n": n + i}) for i in range(300)))
    assert len({job.id for job in jobs}) == 300

def fork():
    child = os.fork()
    if child:
        return child
    try:
        asyncio.run(use(1000))  # asyncio lets no child go on in its parent's loop
        os._exit(0)
    except BaseException as error:
        print("child:", repr(error), file=sys.stderr)
        os._exit(1)

async def main():
    await use(0)
    child = fork() if inside else None
    await use(2000)
    if not inside:
        return
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    await use(3000)

asyncio.run(main())
if not inside:
    assert os.waitstatus_to_exitcode(os.waitpid(fork(), 0)[1]) == 0
    asyncio.run(use(3000))
"""


@pytest.mark.parametrize("where", ["inside-a-loop", "between-two-loops"])
async def test_a_forked_child_gets_a_connection_of_its_own(
    valkey: BenchServer, namespace: str, observer: Observer, where: str
) -> None:
    """R27 (B75): both sides go on after a fork, with no reply in the wrong hands."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _FORK, valkey.url, namespace, where],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert observer.redis.xlen(observer.keys.stream("normal")) == 1200


def test_one_client_serves_one_loop_after_another(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """R27: a connection belongs to one loop; the next loop gets its own."""
    client = Client(valkey.url, app="client-tests", namespace=namespace)

    async def use() -> Disposition:
        async with client:
            return (await client.enqueue("double", {"n": 1})).disposition

    assert [asyncio.run(use()) for _ in range(3)] == [Disposition.ACCEPTED] * 3


# --- results ---------------------------------------------------------------------------------------------


async def test_a_hundred_waiters_share_one_blocking_connection(app: App, observer: Observer) -> None:
    """R24: one connection for the blocking reads of a client, however many wait."""
    release = asyncio.Event()

    @app.task
    async def held(ctx: Context, n: int) -> int:
        await release.wait()
        return n

    async with serving(app, concurrency=32):
        jobs = await app.enqueue_many(held.call(n) for n in range(100))
        waiting = [asyncio.ensure_future(job.result(20)) for job in jobs]
        await wait_until_async(
            lambda: all(int(observer.record(job.id).text("wa") or 0) for job in jobs), what="all wait"
        )
        await wait_until_async(lambda: len(readers(observer)) == 1, what="one connection blocks for all")
        assert len(observer.redis.client_list()) < 12
        release.set()

        assert await asyncio.gather(*waiting) == list(range(100))


async def test_a_result_arrives_as_soon_as_it_is_there(app: App, observer: Observer) -> None:
    """DESIGN 5, done:<id>: a waiter is woken, it does not poll, also one that came while others waited."""
    gates = {name: asyncio.Event() for name in ("first", "second")}

    @app.task
    async def held(ctx: Context, name: str) -> float:
        await gates[name].wait()
        return time.monotonic()

    watch = Stopwatch()
    async with serving(app):
        first = await held.enqueue("first")
        waits_first = asyncio.ensure_future(first.result(20))
        await wait_until_async(lambda: observer.record(first.id).text("wa") == "1", what="the first waits")
        second = await held.enqueue("second")
        also = [asyncio.ensure_future(second.result(20)) for _ in range(3)]
        await wait_until_async(lambda: observer.record(second.id).text("wa") == "3", what="three more wait")
        gates["second"].set()
        ended = await asyncio.gather(*also)
        assert time.monotonic() - ended[0] - watch.waited < 0.5
        assert len(set(ended)) == 1
        assert not waits_first.done()
        gates["first"].set()
        ended_first = await waits_first
        assert time.monotonic() - ended_first - watch.waited < 0.5


async def test_waiting_survives_a_lost_connection(
    valkey: BenchServer, namespace: str, app: App, observer: Observer
) -> None:
    """R16: a lost wake-up costs one look more, never the result."""
    release = asyncio.Event()

    @app.task
    async def held(ctx: Context) -> str:
        await release.wait()
        return "there"

    with Proxy(valkey.port) as proxy:
        async with serving(app), Client(proxy.url, app="client-tests", namespace=namespace) as client:
            job = await client.enqueue("held", {})
            waiting = asyncio.ensure_future(job.result(20))
            before = await wait_until_async(lambda: readers(observer), what="it waits")
            lost = proxy.drop_next_reply(b"BLPOP")
            proxy.cut_all()
            await wait_until_async(lambda: set(readers(observer)) - set(before), what="it waits again")
            release.set()  # the wake-up is taken from Redis, and its reply is lost

            assert await waiting == "there"
            assert lost.happened


async def test_a_result_can_be_had_in_every_case(app: App, client: Client, observer: Observer) -> None:
    """DESIGN 12: result raises what a caller can act on: failed, not ended in time, not known."""
    release = asyncio.Event()

    @app.task
    async def held(ctx: Context) -> None:
        await release.wait()

    @app.task
    async def broken(ctx: Context) -> None:
        raise PersistentError("no", code="no")

    async with serving(app):
        done = await client.enqueue("double", {"n": 21})
        assert await client.result(done.id, timeout=5) == 42
        assert await client.result(done.id) == 42  # it is over: no wait

        bad = await client.enqueue("broken", {})
        with pytest.raises(JobFailed) as failed:
            await client.result(bad.id, timeout=5)
        assert (failed.value.job_id, failed.value.code) == (bad.id, "no")

        slow = await client.enqueue("held", {})
        with pytest.raises(ResultTimeout) as late:
            await client.result(slow.id, timeout="200ms")
        assert late.value.status in (Status.CLAIMED, Status.PROCESSING)
        assert isinstance(late.value, TimeoutError)
        release.set()
        assert await client.result(slow.id, timeout=5) is None

    unknown = "018f3f2e-0000-7000-8000-000000000000"
    for question in (client.result(unknown), client.get(unknown), client.cancel(unknown)):
        with pytest.raises(JobNotFound):
            await question


async def test_a_delayed_job_is_scheduled_and_never_early(app: App, observer: Observer) -> None:
    """B55: by Redis's clock, not by the producer's."""

    @app.task
    async def when(ctx: Context) -> float:
        return time.time()

    watch = Stopwatch()
    async with serving(app):
        job = await when.options(delay="300ms").enqueue()
        assert job.disposition is Disposition.SCHEDULED
        ran = await job.result(5)

    enqueued = observer.record(job.id).number("at") or 0
    assert 0.3 <= ran - enqueued / 1000 < 1.0 + watch.waited


async def test_a_view_says_what_the_record_says(app: App, client: Client, observer: Observer) -> None:
    """DESIGN 12: `get(id)` has `.status`, and what one needs to understand it."""
    async with serving(app):
        job = await client.enqueue("double", {"n": 1}, tenant="acme", lane="priority")
        await job.result(5)

    view = await client.get(job.id)
    assert (view.task, view.lane, view.tenant, view.status) == (
        "double",
        "priority",
        "acme",
        Status.SUCCEEDED,
    )
    assert view.attempt == 1
    assert view.error_code is None
    assert view.enqueued_at is not None
    assert view.finished_at is not None
    assert view.enqueued_at <= view.finished_at
