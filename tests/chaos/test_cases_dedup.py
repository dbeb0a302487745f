"""Cases of idempotency keys: the same request twice, another one under its key, and how long it is held."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from streamworker import (
    App,
    Client,
    Context,
    Disposition,
    IdempotencyConflict,
    Job,
    Options,
    PersistentError,
    Request,
    Retry,
    SyncClient,
    TransientError,
)
from streamworker.core.outcome import Retry as RetryOutcome
from streamworker.core.states import ErrorClass
from tests.integration.history import Observer
from tests.integration.serving import failure, serving
from tests.lua.driver import Shard
from tests.servers import BenchServer
from tests.waiting import wait_until_async

#: ms that a key is held after a success in these cases.
WINDOW = 5_000


async def test_the_same_request_twice_is_one_job_with_its_payload_untouched(
    client: Client, server: BenchServer, namespace: str, observer: Observer
) -> None:
    """B32: one after the other and 50 at once, by coroutines, batches and threads: one job, one id."""
    args = {"n": 1, "text": "as it was"}
    first = await client.enqueue("pay", args, key="k")
    record, entries = observer.redis.get(observer.keys.job(first.id)), waiting(observer)

    again = await client.enqueue("pay", args, key="k")
    at_once = await asyncio.gather(*(client.enqueue("pay", args, key="k") for _ in range(50)))
    batch = await client.enqueue_many([Request("pay", args, Options.of(key="k"))] * 50)
    with SyncClient(server.url, app="cases", namespace=namespace) as sync, ThreadPoolExecutor(10) as threads:
        gate = threading.Barrier(10)

        def enqueue(_: int) -> tuple[str, Disposition]:
            gate.wait(10)
            job = sync.enqueue("pay", args, key="k")
            return job.id, job.disposition

        threaded = list(threads.map(enqueue, range(50)))

    others = [(job.id, job.disposition) for job in (again, *at_once, *batch)] + threaded
    assert first.disposition is Disposition.ACCEPTED
    assert set(others) == {(first.id, Disposition.DUPLICATE)}
    assert observer.redis.get(observer.keys.job(first.id)) == record
    assert waiting(observer) == entries
    assert len(entries) == 1


def waiting(observer: Observer) -> list[bytes]:
    """The envelopes that stand in the stream."""
    return [fields[b"env"] for _, fields in observer.redis.xrange(observer.keys.stream("normal"))]


async def test_of_fifty_first_requests_at_once_one_is_accepted(
    client: Client, server: BenchServer, namespace: str, observer: Observer
) -> None:
    """B32: nobody was there before; over several connections one is accepted and 49 learn its id."""
    others = [Client(server.url, app="cases", namespace=namespace) for _ in range(4)]
    producers = [client, *others]
    jobs = await asyncio.gather(*(producers[n % 5].enqueue("pay", {"n": 1}, key="k") for n in range(50)))
    for each in others:
        await each.close()

    assert Counter(job.disposition for job in jobs) == {Disposition.ACCEPTED: 1, Disposition.DUPLICATE: 49}
    assert len({job.id for job in jobs}) == 1
    assert len(waiting(observer)) == 1


async def test_another_payload_under_the_same_key_is_told_who_won_and_is_never_dropped_silently(
    client: Client, server: BenchServer, namespace: str, observer: Observer
) -> None:
    """B33: 50 at once with two payloads: one wins, the other half gets a conflict that names the winner."""
    other = Client(server.url, app="cases", namespace=namespace)
    answers = await asyncio.gather(
        *((client, other)[n % 2].enqueue("pay", {"n": n // 2 % 2}, key="k") for n in range(50)),
        return_exceptions=True,
    )
    await other.close()

    jobs = [answer for answer in answers if isinstance(answer, Job)]
    conflicts = [answer for answer in answers if isinstance(answer, IdempotencyConflict)]
    (winner,) = {job.id for job in jobs}
    assert Counter(job.disposition for job in jobs)[Disposition.ACCEPTED] == 1
    assert len(jobs) + len(conflicts) == 50
    assert conflicts
    assert {conflict.job_id for conflict in conflicts} == {winner}
    assert len(waiting(observer)) == 1


@pytest.mark.parametrize("ends", ["succeeds", "fails", "is cancelled"])
async def test_a_key_whose_job_is_over_is_free_or_says_what_it_is_held_for(
    app: App, observer: Observer, ends: str
) -> None:
    """B33: a success holds the key for its window; a dead or cancelled job frees it; nothing is swallowed."""

    @app.task(key="order:{order}", retry=Retry.never())
    async def pay(ctx: Context, order: int, amount: int) -> int:
        if ends == "fails":
            raise PersistentError("no")
        return amount

    if ends == "is cancelled":
        first = await pay.enqueue(7, amount=1)
        assert await first.cancel()
    async with serving(app):
        if ends == "succeeds":
            first = await pay.enqueue(7, amount=1)
            assert await first.result(5) == 1
            again = await pay.enqueue(7, amount=1)
            assert (again.id, again.disposition) == (first.id, Disposition.DUPLICATE)
            with pytest.raises(IdempotencyConflict) as conflict:
                await pay.enqueue(7, amount=2)
            assert conflict.value.job_id == first.id
            observer.redis.delete(observer.keys.job(first.id))  # its record expires before the window
            with pytest.raises(IdempotencyConflict):
                await pay.enqueue(7, amount=2)
            return
        if ends == "fails":
            first = await pay.enqueue(7, amount=1)
            await failure(first)
        fresh = await pay.enqueue(7, amount=2)
        assert fresh.disposition is Disposition.ACCEPTED
        assert fresh.id != first.id


def test_a_key_is_held_while_its_job_waits_for_a_retry_longer_than_the_window(shard: Shard) -> None:
    """B34: a window of 5 s and a back-off of 20 s: at 10 s, and at 19 s, the key is still that job's."""
    keyed: dict[str, Any] = {"key_id": "pay::k", "fingerprint": "f", "window_ms": WINDOW}
    claim = shard.take("j", **keyed)
    shard.settle(claim, RetryOutcome(20_000, ErrorClass.TRANSIENT, "timeout", "", "-"))

    for _ in range(2):
        shard.elapse(9_500)
        assert shard.put("other", **keyed) == "DUPLICATE j retry_scheduled"
        assert shard.put("another", **(keyed | {"fingerprint": "g"})) == "CONFLICT j retry_scheduled"
        assert shard.look().ttls["key:pay::k"] == -1
    shard.elapse(1_000)
    shard.promote()
    again = shard.claim_one()

    assert shard.put("other", **keyed) == "DUPLICATE j claimed"
    assert again.job_id == "j"


@pytest.mark.parametrize("state", ["scheduled", "queued", "retry_scheduled"])
def test_whoever_takes_a_job_away_frees_its_key_in_the_same_step(shard: Shard, state: str) -> None:
    """B34: a job that is cancelled before it ran holds its key not a moment longer."""
    keyed: dict[str, Any] = {"key_id": "pay::k", "fingerprint": "f", "window_ms": WINDOW}
    assert shard.put("j", delay_ms=60_000 if state == "scheduled" else 0, **keyed) != "DUPLICATE"
    if state == "retry_scheduled":
        shard.settle(shard.claim_one(), RetryOutcome(20_000, ErrorClass.TRANSIENT, "timeout", "", "-"))

    assert shard.cancel("j") == "OK"

    assert shard.look().ttls.get("key:pay::k") is None
    assert shard.put("next", **(keyed | {"fingerprint": "g"})) == "ACCEPTED"


async def test_a_key_outlives_its_window_while_the_job_runs_and_is_retried(
    app: App, observer: Observer
) -> None:
    """B34: with a real worker: the window of 200 ms begins with the success, not with the enqueue."""
    begun, go = asyncio.Event(), asyncio.Event()
    quick = Retry.schedule("100ms", unknown=[])

    @app.task(key="order:{order}", retry=quick, window="200ms")
    async def pay(ctx: Context, order: int) -> None:
        if ctx.attempt == 1:
            raise TransientError("once more")
        begun.set()
        await go.wait()

    async with serving(app):
        first = await pay.enqueue(7)
        await begun.wait()
        enqueued = observer.record(first.id).number("at") or 0
        await wait_until_async(
            lambda: now_ms(observer) > enqueued + 400, what="the window would be over if it had begun"
        )
        again = await pay.enqueue(7)
        assert (again.id, again.disposition) == (first.id, Disposition.DUPLICATE)
        go.set()
        await first.result(5)
        key = observer.keys.key("pay::order:7")
        await wait_until_async(lambda: not observer.redis.exists(key), what="the window is over")
        assert (await pay.enqueue(7)).disposition is Disposition.ACCEPTED


def now_ms(observer: Observer) -> int:
    seconds, micros = observer.redis.time()
    return int(seconds * 1000 + micros // 1000)
