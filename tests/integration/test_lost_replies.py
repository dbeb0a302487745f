"""Replies and requests that are lost on the way: no job is lost with them, and nothing is done twice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from streamworker import App, Context, Retry, Status, TransientError
from streamworker.store import lua
from tests.integration.history import Allowance, Journal, Observer, judge
from tests.integration.serving import serving
from tests.proxy import Proxy, Rule
from tests.servers import BenchServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")

SHORT = Retry.schedule("50ms", "50ms", "50ms", unknown=["50ms", "50ms"])
#: What a worker's and a client's connections carry; `forget` is the worker's good-bye.
SCRIPTS = (
    *("cancel", "elect", "enqueue", "exchange", "forget", "heartbeat"),
    *("promote", "recover", "repair", "session", "settle", "watch"),
)
#: The blocking reads, of the worker and of whoever awaits a result.
READS = (b"XREADGROUP", b"BLPOP")


def of_script(name: str) -> bytes:
    """What marks a request that runs this script."""
    return lua.load(name).sha.encode()


@pytest.fixture(scope="module")
def valkey() -> Iterator[BenchServer]:
    """A server of these tests alone: what others leave, the keeper's scan would have to go over first."""
    server = BenchServer("valkey")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def proxy(valkey: BenchServer) -> Iterator[Proxy]:
    with Proxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def go() -> asyncio.Event:
    """Lets the jobs of `hold` end."""
    return asyncio.Event()


def settles(kind: bytes) -> Callable[[bytes], bool]:
    """Picks an exchange that carries a settle row: S a success, M a start mark."""
    exchange, row = of_script("exchange"), re.compile(rb"\r\n" + kind + rb" \d")
    return lambda request: exchange in request and row.search(request) is not None


def make_app(url: str, namespace: str, lease: str, journal: Journal, go: asyncio.Event) -> App:
    app = App("lost-replies", redis_url=url, namespace=namespace, lease=lease)

    @app.task(retry=SHORT)
    async def work(ctx: Context) -> int:
        journal.start(ctx)
        journal.end(ctx)
        return ctx.attempt

    @app.task(retry=SHORT)
    async def flaky(ctx: Context) -> int:
        journal.start(ctx)
        if ctx.attempt == 1:
            raise TransientError("the first time")
        journal.end(ctx)
        return ctx.attempt

    @app.task(retry=SHORT)
    async def hold(ctx: Context) -> int:
        journal.start(ctx)
        await go.wait()
        journal.end(ctx)
        return ctx.attempt

    return app


@pytest.fixture
async def app(proxy: Proxy, namespace: str, journal: Journal, go: asyncio.Event) -> AsyncIterator[App]:
    """An app behind the proxy, with a lease of half a second."""
    async with make_app(proxy.url, namespace, "500ms", journal, go) as app:
        yield app


@pytest.fixture
async def patient(proxy: Proxy, namespace: str, journal: Journal, go: asyncio.Event) -> AsyncIterator[App]:
    """The same with a lease that outlasts the test: no recovery can put right what the worker does not."""
    async with make_app(proxy.url, namespace, "30s", journal, go) as app:
        yield app


@pytest.fixture
async def producer(
    valkey: BenchServer, namespace: str, journal: Journal, go: asyncio.Event
) -> AsyncIterator[App]:
    """The same tasks past the proxy."""
    async with make_app(valkey.url, namespace, "30s", journal, go) as app:
        yield app


async def run_a_bit_of_everything(
    app: App,
    producer: App,
    observer: Observer,
    go: asyncio.Event,
    arm: Callable[[], Rule],
    *,
    until_lost: bool = True,
) -> tuple[Rule, list[str]]:
    """Run jobs of all kinds while one message is lost; the rule, and all jobs but the cancelled one.

    The worker stops once it is lost, unless it takes the stop to lose it.
    """
    work, hold = app.tasks["work"], producer.tasks["hold"]
    orphan = await producer.tasks["work"].enqueue()
    assert await asyncio.to_thread(observer.claim_as_ghost, "normal") == orphan.id
    async with serving(app, grace=10):
        await (await work.enqueue()).result(5)  # all scripts are known by now
        held = [await hold.enqueue() for _ in range(3)]
        await wait_until_async(
            lambda: observer.statuses(job.id for job in held) == {"processing": 3}, what="some jobs run"
        )

        rule = await asyncio.to_thread(arm)
        jobs = [await work.enqueue() for _ in range(3)]
        jobs += [await producer.tasks["work"].enqueue() for _ in range(3)]
        jobs.append(await work.options(delay="50ms").enqueue())
        jobs.append(await producer.tasks["flaky"].enqueue())
        doomed = await work.options(delay="1h").enqueue()
        assert await doomed.cancel()
        assert await doomed.status() is Status.FAILED_TERMINAL
        for job in jobs:
            await job.result(10)
        # Until the orphan waits for its turn, and the heartbeats have gone round.
        await wait_until_async(lambda: observer.record(orphan.id).strikes == 1, what="it is recovered")
        leases = [observer.record(job.id).lease_until for job in held]
        await wait_until_async(
            lambda: all(
                observer.record(job.id).lease_until > lease for job, lease in zip(held, leases, strict=True)
            ),
            what="the leases are renewed",
        )
        if until_lost:
            await wait_until_async(lambda: rule.happened, what="the message is lost")
        go.set()
        last = [*held, orphan]
        await asyncio.gather(*(job.result(15) for job in last))
    everything = [edge.job_id for edge in observer.transitions() if edge.from_status is None]
    return rule, [job_id for job_id in everything if job_id != doomed.id]


def assert_all_once(observer: Observer, journal: Journal, jobs: list[str]) -> None:
    """Nothing is left; each job succeeded, and started once, or twice where its first attempt failed."""
    assert observer.leftovers() == []
    assert observer.statuses(jobs) == {"succeeded": len(jobs)}
    accepted = [edge.job_id for edge in observer.transitions() if edge.from_status is None]
    assert (
        judge(
            accepted=accepted,
            transitions=observer.transitions(),
            marks=journal.marks(),
            allowance=Allowance(starts=2),
        )
        == []
    )


@pytest.mark.parametrize("what", [*SCRIPTS, *READS], ids=str)
async def test_no_lost_reply_loses_or_repeats_anything(
    app: App,
    producer: App,
    proxy: Proxy,
    observer: Observer,
    journal: Journal,
    go: asyncio.Event,
    what: str | bytes,
) -> None:
    """D1, D5, R16, issue: the server carried it out, and the sender cannot know."""
    match = what if isinstance(what, bytes) else of_script(what)

    def arm() -> Rule:
        rule = proxy.drop_next_reply(match)
        if what == "session":  # sent only when a connection is made anew
            proxy.cut_all()
        return rule

    rule, jobs = await run_a_bit_of_everything(app, producer, observer, go, arm, until_lost=what != "forget")

    assert rule.happened
    assert_all_once(observer, journal, jobs)


@pytest.mark.parametrize("what", ["enqueue", "exchange", "heartbeat", "settle"])
async def test_no_lost_request_loses_or_repeats_anything(
    app: App,
    producer: App,
    proxy: Proxy,
    observer: Observer,
    journal: Journal,
    go: asyncio.Event,
    what: str,
) -> None:
    """D5: nothing was carried out, and the sender cannot know: outcomes are held until acknowledged."""
    rule, jobs = await run_a_bit_of_everything(
        app, producer, observer, go, lambda: proxy.drop_next_request(of_script(what))
    )

    assert rule.happened
    assert_all_once(observer, journal, jobs)


async def test_a_claim_whose_reply_was_lost_runs_once_and_soon(
    patient: App, producer: App, proxy: Proxy, observer: Observer, journal: Journal
) -> None:
    """D5: offered back under the next session, it is the same claim again: uncharged, one start, no lease."""
    async with serving(patient):
        await (await producer.tasks["work"].enqueue()).result(5)
        for number in range(1, 6):
            rule = await asyncio.to_thread(proxy.drop_next_reply, of_script("exchange"))
            job = await producer.tasks["work"].enqueue()

            assert await job.result(10) == 1, number
            assert rule.happened
            record = observer.record(job.id)
            assert (record.attempt, record.starts, record.strikes) == (1, 1, 0)

    assert observer.leftovers() == []
    assert len(journal.starts()) == 6


async def test_an_entry_that_was_delivered_into_the_void_runs_soon(
    patient: App, producer: App, proxy: Proxy, observer: Observer, journal: Journal
) -> None:
    """R18: after a reader's error the worker looks for its own pending entries; nobody waits for a lease."""
    async with serving(patient):
        for number in range(1, 4):
            rule = await asyncio.to_thread(proxy.drop_next_reply, b"XREADGROUP")
            # The read that may be under way knows nothing of the rule.
            while not rule.happened:
                job = await producer.tasks["work"].enqueue()
                assert await job.result(10) == 1, number

    assert observer.leftovers() == []
    assert {mark.attempt for mark in journal.starts()} == {1}


@pytest.mark.parametrize("task", ["work", "hold"])
async def test_an_outcome_whose_request_was_lost_is_sent_again(
    patient: App,
    producer: App,
    proxy: Proxy,
    observer: Observer,
    journal: Journal,
    go: asyncio.Event,
    task: str,
) -> None:
    """D5: an outcome is held until its settle is acknowledged, and its claim is not offered meanwhile.

    Redis never saw the first one. A short job is still `claimed` by then, and to an offer it would look like
    one whose claim was never heard of.
    """
    async with serving(patient):
        await (await producer.tasks["work"].enqueue()).result(5)
        if task == "work":
            go.set()
        rule = await asyncio.to_thread(proxy.drop_next_request, settles(b"S"))
        jobs = [await producer.tasks[task].enqueue() for _ in range(5)]
        if task == "hold":
            await wait_until_async(
                lambda: observer.statuses(job.id for job in jobs) == {"processing": 5}, what="they run"
            )
            go.set()

        assert await asyncio.gather(*(job.result(10) for job in jobs)) == [1] * 5
        assert rule.happened

    assert len(journal.starts()) == 6
    assert_all_once(observer, journal, [job.id for job in jobs])


async def test_a_claim_that_runs_is_not_offered_back(
    patient: App, producer: App, proxy: Proxy, observer: Observer, journal: Journal, go: asyncio.Event
) -> None:
    """D5: only what is pending for us and does not run: a job that has just begun is still `claimed` as well.

    Both jobs come with one claim; one ends at once, and the reply to its settle is lost while the other runs.
    """
    async with serving(patient):
        await (await producer.tasks["work"].enqueue()).result(5)
        rule = await asyncio.to_thread(proxy.drop_next_reply, settles(b"S"))
        running, brief = await producer.enqueue_many(
            [producer.tasks["hold"].call(), producer.tasks["work"].call()]
        )
        assert await brief.result(10) == 1
        await wait_until_async(lambda: rule.happened, what="the reply is lost")
        await wait_until_async(
            lambda: observer.record(running.id).status is Status.PROCESSING, what="its start is marked"
        )
        go.set()
        assert await running.result(10) == 1

    assert len(journal.starts(running.id)) == 1
    assert_all_once(observer, journal, [running.id, brief.id])


async def test_a_start_mark_whose_request_was_lost_is_sent_again(
    patient: App, producer: App, proxy: Proxy, observer: Observer, journal: Journal, go: asyncio.Event
) -> None:
    """D20: without it a job that runs for hours would never be seen to, and its death would cost nothing."""
    async with serving(patient):
        await (await producer.tasks["work"].enqueue()).result(5)
        rule = await asyncio.to_thread(proxy.drop_next_request, settles(b"M"))
        job = await producer.tasks["hold"].enqueue()

        await wait_until_async(
            lambda: observer.record(job.id).status is Status.PROCESSING, what="its start is marked"
        )
        assert rule.happened
        go.set()
        await job.result(5)

    assert_all_once(observer, journal, [job.id])


async def test_a_claim_that_was_heard_of_too_late_does_not_start(
    valkey: BenchServer, proxy: Proxy, namespace: str, journal: Journal, go: asyncio.Event, observer: Observer
) -> None:
    """D6: a reply that took longer than the lease: by then the job may be somebody else's.

    The replies of the one worker that serves the lane are late; another one, which serves another lane,
    recovers the job meanwhile.
    """
    slow = make_app(proxy.url, namespace, "500ms", journal, go)
    other = make_app(valkey.url, namespace, "500ms", journal, go)
    async with slow, other, serving(slow, lanes=["normal"]), serving(other, lanes=["priority"]):
        await (await other.tasks["work"].enqueue()).result(5)
        await wait_until_async(observer.sweeps, what="sweeps take the dead")
        claim = proxy.hold_next_request(of_script("exchange"))
        job = await other.tasks["work"].enqueue()
        await wait_until_async(lambda: claim.happened, what="it is on its way to claim")
        await asyncio.to_thread(
            proxy.delay, 1.0
        )  # earlier, and it might lose its connection before it claims
        claim.release()
        await wait_until_async(lambda: observer.record(job.id).strikes >= 1, what="it is recovered")
        await asyncio.to_thread(proxy.restore)

        assert await job.result(10) == 1
        (start,) = journal.starts(job.id)

    claims = [edge.fence for edge in observer.transitions(job.id) if edge.to_status is Status.CLAIMED]
    assert len(claims) > 1
    assert start.fence == claims[-1]
    assert observer.leftovers() == []


async def test_a_session_that_redis_forgot_is_followed_by_a_higher_one(app: App, observer: Observer) -> None:
    """D5: the number never falls, or a late call of the first session would be as good as one of this."""

    def session() -> int:
        return int(observer.redis.hget(observer.keys.worker(worker.id), "session") or 0)

    async with serving(app) as worker:
        for _ in range(2):
            before = session()
            observer.redis.delete(observer.keys.worker(worker.id))
            # The next heartbeat finds it gone.
            assert await wait_until_async(session, what="a new session") > before


async def test_a_claim_that_finds_no_session_is_followed_by_one_at_once(
    patient: App, producer: App, observer: Observer, journal: Journal
) -> None:
    """D5: the next heartbeat may be ten seconds away, and until then every claim would be refused."""
    async with serving(patient) as worker:
        await (await producer.tasks["work"].enqueue()).result(5)
        observer.redis.delete(observer.keys.worker(worker.id))
        job = await producer.tasks["work"].enqueue()
        assert await job.result(5) == 1

    assert_all_once(observer, journal, [job.id])


async def test_replies_lost_again_and_again_under_load(
    patient: App, producer: App, proxy: Proxy, observer: Observer, journal: Journal
) -> None:
    """D5: exchanges that settle and claim at once, and the blocking read, each lost many times over."""
    async with serving(patient, concurrency=8):
        jobs = await producer.enqueue_many(producer.tasks["work"].call() for _ in range(400))
        for number in range(12):
            match = of_script("exchange") if number % 4 else READS[0]
            rule = await asyncio.to_thread(proxy.drop_next_reply, match)
            jobs += await producer.enqueue_many(producer.tasks["work"].call() for _ in range(10))
            await asyncio.to_thread(rule.wait)
        ids = [job.id for job in jobs]
        await wait_until_async(lambda: observer.all_over(ids), timeout=20, what="all are over")

    assert_all_once(observer, journal, ids)
    assert len(journal.starts()) == 520


async def test_a_call_that_is_carried_out_late_claims_nothing(
    patient: App, producer: App, proxy: Proxy, observer: Observer, journal: Journal, go: asyncio.Event
) -> None:
    """D5: a late execution finds another session: what it claimed, nobody would run for a whole lease."""
    async with serving(patient, concurrency=2, lanes=["normal"], grace=10):
        await (await producer.tasks["work"].enqueue()).result(5)
        late = await asyncio.to_thread(proxy.hold_next_request, of_script("exchange"))
        held = [await producer.tasks["hold"].enqueue() for _ in range(2)]
        # The connection is given up after 5 s; the next session claims them.
        await wait_until_async(
            lambda: observer.statuses(job.id for job in held) == {"processing": 2},
            timeout=15,
            what="they run all the same",
        )
        waiting = await producer.tasks["work"].enqueue()
        assert late.happened
        connections = proxy.open_connections
        late.release()
        await wait_until_async(
            lambda: proxy.open_connections < connections, what="the late call is carried out, and over"
        )
        assert observer.record(waiting.id).status is Status.QUEUED
        go.set()
        assert await waiting.result(5) == 1

    assert_all_once(observer, journal, [*(job.id for job in held), waiting.id])
