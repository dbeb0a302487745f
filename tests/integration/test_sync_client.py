"""The synchronous client: many threads, forks, lost replies, and results awaited without a loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

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
from streamworker.store import lua
from streamworker.store.sync_links import LINKS, LinkPool, SyncCaller
from tests.integration.history import Observer
from tests.integration.serving import ThreadWorker
from tests.proxy import Proxy
from tests.servers import BenchServer, ServerFactory
from tests.waiting import Stopwatch, wait_until, wait_until_async

REPOSITORY = Path(__file__).parents[2]
ENQUEUE = lua.load("enqueue").sha.encode()
THREADS, EACH = 32, 500


@pytest.fixture
def client(valkey: BenchServer, namespace: str) -> Iterator[SyncClient]:
    with SyncClient(valkey.url, app="sync-tests", namespace=namespace) as client:
        yield client


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    """Looks on, and takes away what the test left queued: most of these tests run no worker."""
    with Observer(valkey.url, namespace) as observer:
        yield observer
        if keys := observer.redis.keys(f"{observer.keys.tag}*"):
            observer.redis.unlink(*keys)


def blocked(observer: Observer) -> int:
    """How many connections wait in a blocking read."""
    clients: list[dict[str, str]] = observer.redis.client_list()
    return sum(one["cmd"] == "blpop" for one in clients)


def queued(observer: Observer) -> int:
    return int(observer.redis.xlen(observer.keys.stream("normal")))


# --- threads ---------------------------------------------------------------------------------------------


def test_thirty_two_threads_share_a_client_and_every_job_is_there_once(
    client: SyncClient, observer: Observer
) -> None:
    def produce(thread: int) -> list[str]:
        return [client.enqueue("double", {"n": thread * EACH + n}).id for n in range(EACH)]

    with ThreadPoolExecutor(THREADS) as threads:
        ids = [job_id for each in threads.map(produce, range(THREADS)) for job_id in each]

    entries = observer.redis.xrange(observer.keys.stream("normal"))
    assert len(set(ids)) == THREADS * EACH
    assert Counter(fields[b"id"].decode() for _, fields in entries) == Counter(ids)


def test_the_connections_of_many_threads_are_bounded(own_valkey: ServerFactory) -> None:
    """R24: more threads than connections wait their turn, none is refused."""
    server = own_valkey()
    with SyncClient(server.url, app="bounded") as client, Observer(server.url, "bounded") as observer:
        before = observer.redis.info("stats")["total_connections_received"]

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda n: client.enqueue("double", {"n": n}), range(2000)))

        made = observer.redis.info("stats")["total_connections_received"] - before
        assert 1 <= made <= LINKS
        assert queued(observer) == 2000


def test_fifty_threads_with_one_key_make_one_job(client: SyncClient, observer: Observer) -> None:
    """D11 (B32): one ACCEPTED, the others DUPLICATE with its id."""
    with ThreadPoolExecutor(50) as threads:
        jobs = list(threads.map(lambda _: client.enqueue("double", {"n": 1}, key="k"), range(50)))

    assert Counter(job.disposition for job in jobs) == {Disposition.ACCEPTED: 1, Disposition.DUPLICATE: 49}
    assert len({job.id for job in jobs}) == 1
    with pytest.raises(IdempotencyConflict) as conflict:
        client.enqueue("double", {"n": 2}, key="k")
    assert conflict.value.job_id == jobs[0].id


def test_many_are_enqueued_in_order_and_a_conflict_is_a_disposition(
    client: SyncClient, observer: Observer
) -> None:
    jobs = client.enqueue_many(
        [Request("double", {"n": n}, Options.of(key="k" if n in (3, 7) else None)) for n in range(1200)]
    )

    entries = observer.redis.xrange(observer.keys.stream("normal"))
    assert jobs[7].disposition is Disposition.CONFLICT
    assert jobs[7].id == jobs[3].id
    assert [fields[b"id"].decode() for _, fields in entries] == [
        job.id for n, job in enumerate(jobs) if n != 7
    ]
    assert client.enqueue_many([]) == []


# --- results ---------------------------------------------------------------------------------------------


@pytest.fixture
def shop(valkey: BenchServer, namespace: str, no_leaks: None) -> App:
    app = App("sync-tests", redis_url=valkey.url, namespace=namespace, lease="1s")

    @app.task
    async def double(ctx: Context, n: int) -> int:
        return 2 * n

    @app.task
    async def broken(ctx: Context) -> None:
        raise PersistentError("no", code="no")

    return app


def test_results_are_awaited_from_many_threads(client: SyncClient, shop: App) -> None:
    """R24: who waits for a result does not hold a connection that others enqueue with."""

    def ask(n: int) -> Any:
        return client.enqueue("double", {"n": n}).result(timeout=10)

    with ThreadWorker(shop), ThreadPoolExecutor(THREADS) as threads:
        assert list(threads.map(ask, range(200))) == [2 * n for n in range(200)]
        done = client.enqueue("double", {"n": 21})
        assert client.result(done.id, timeout="10s") == 42
        assert (done.status(), done.cancel()) == (Status.SUCCEEDED, False)
        assert (client.get(done.id).task, client.get(done.id).status) == ("double", Status.SUCCEEDED)
        bad = client.enqueue("broken")
        with pytest.raises(JobFailed) as failed:
            bad.result(timeout=10)
        assert failed.value.code == "no"


def test_a_result_that_does_not_come_times_out_and_the_job_goes_on(
    client: SyncClient, observer: Observer
) -> None:
    job = client.enqueue("nobody_runs_it")
    watch = Stopwatch()

    with pytest.raises(ResultTimeout) as late:
        job.result(timeout="200ms")

    assert watch.seconds >= 0.2
    assert watch.fair < 2
    assert late.value.status is Status.QUEUED
    assert client.cancel(job.id)
    with pytest.raises(JobFailed, match="cancelled"):
        job.result(timeout=5)
    unknown = "018f3f2e-0000-7000-8000-000000000000"
    for ask in (client.get, client.cancel, client.result):
        with pytest.raises(JobNotFound):
            ask(unknown)


def test_more_threads_than_connections_wait_and_others_still_enqueue(
    client: SyncClient, observer: Observer
) -> None:
    jobs = [client.enqueue("nobody_runs_it") for _ in range(LINKS + 4)]
    outcomes: list[str] = []

    def wait(job_id: str) -> None:
        try:
            client.result(job_id, timeout=20)
        except JobFailed as failed:
            outcomes.append(failed.code)

    waiting = [threading.Thread(target=wait, args=(job.id,)) for job in jobs]
    for thread in waiting:
        thread.start()
    wait_until(lambda: blocked(observer) == len(jobs), what="every thread waits in a read of its own")

    assert client.enqueue("double", {"n": 1}).disposition is Disposition.ACCEPTED

    for job in jobs:
        assert job.cancel()
    for thread in waiting:
        thread.join(20)
    assert outcomes == ["cancelled"] * len(jobs)


# --- lost replies and outages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "disposition"),
    [({}, "ACCEPTED"), ({"key": "k"}, "ACCEPTED"), ({"delay": "1h"}, "SCHEDULED")],
)
def test_a_lost_reply_is_asked_for_again_under_the_same_id(
    valkey: BenchServer, namespace: str, observer: Observer, options: dict[str, Any], disposition: str
) -> None:
    """R16: a lost reply is no failure, and no second job."""
    with Proxy(valkey.port) as proxy, SyncClient(proxy.url, app="s", namespace=namespace) as client:
        client.enqueue("double", {"n": 0})  # connected, and the script is known
        lost = proxy.drop_next_reply(ENQUEUE)

        job = client.enqueue("double", {"n": 1}, **options)

        assert lost.happened
        assert job.disposition == disposition
    assert [edge.to_status for edge in observer.transitions(job.id)] == [Status.QUEUED]
    assert observer.stats()["enqueued:normal:double"] == 2


def test_a_reply_lost_for_good_is_said_with_the_ids(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    with Proxy(valkey.port) as proxy, SyncClient(proxy.url, app="s", namespace=namespace) as client:
        client.enqueue("double", {"n": 0})
        client._queue.caller.patience = 0.3
        lost = proxy.drop_next_reply(ENQUEUE)
        proxy.refuse()

        with pytest.raises(OutcomeUnknown) as unknown:
            client.enqueue("double", {"n": 1})

        assert lost.happened
        proxy.restore()
        (job_id,) = unknown.value.job_ids
        assert client.get(job_id).status is Status.QUEUED  # executed, in this case


@pytest.mark.parametrize("blocking", [True, False])
def test_a_loss_of_redis_after_a_lost_reply_is_no_refusal(
    valkey: BenchServer, namespace: str, observer: Observer, blocking: bool
) -> None:
    """The job may have been accepted and be among those that come back: sent again, it would be two."""
    marker = (observer.keys.policies, "mirror")

    def lose(send: Callable[[], object], proxy: Proxy) -> tuple[str, ...]:
        """The ids of what is sent while a reply is lost, and then Redis."""
        lost, held = proxy.drop_next_reply(ENQUEUE), proxy.hold_next_request(ENQUEUE)
        with ThreadPoolExecutor(1) as thread:
            sending = thread.submit(send)
            held.wait()
            assert lost.happened
            observer.redis.hset(*marker, "m2")
            held.release()
            with pytest.raises(OutcomeUnknown) as unknown:
                sending.result(timeout=10)
        return unknown.value.job_ids

    async def enqueue_there(client: Client, proxy: Proxy) -> tuple[str, ...]:
        await client.enqueue("double", {"n": 0})
        client._source.get().caller.patience = 0.5
        loop = asyncio.get_running_loop()
        proxy.cut_all()
        await wait_until_async(lambda: not client._source.get().caller.link.connected, what="it is cut")

        def send() -> object:
            return asyncio.run_coroutine_threadsafe(client.enqueue("double", {"n": 1}), loop).result()

        return await asyncio.to_thread(lose, send, proxy)

    async def run(proxy: Proxy) -> tuple[str, ...]:
        async with Client(proxy.url, app="s", namespace=namespace) as client:
            return await enqueue_there(client, proxy)

    observer.redis.hset(*marker, "m1")
    with Proxy(valkey.port) as proxy:
        if blocking:
            with SyncClient(proxy.url, app="s", namespace=namespace) as client:
                client.enqueue("double", {"n": 0})  # by now it knows the marker
                client._queue.caller.patience = 0.5
                ids = lose(lambda: client.enqueue("double", {"n": 1}), proxy)
        else:
            ids = asyncio.run(run(proxy))

    assert [observer.record(each).status for each in ids] == [Status.QUEUED]


def test_what_never_left_is_a_lost_connection(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    with Proxy(valkey.port) as proxy, SyncClient(proxy.url, app="s", namespace=namespace) as client:
        proxy.refuse()
        client._queue.caller.patience = 0.3

        with pytest.raises(ConnectionLost) as lost:
            client.enqueue("double", {"n": 1})

        assert not isinstance(lost.value, OutcomeUnknown)
        proxy.restore()
        assert client.enqueue("double", {"n": 1}).disposition is Disposition.ACCEPTED
    assert queued(observer) == 1


def test_connections_that_died_while_idle_cost_one_attempt(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """A restart of Redis kills all idle connections at once: they are not tried one after the other."""
    with Proxy(valkey.port) as proxy, SyncClient(proxy.url, app="s", namespace=namespace) as client:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda n: client.enqueue("double", {"n": n}), range(500)))
        assert proxy.open_connections > 2
        before = proxy.accepted_connections
        proxy.cut_all()

        client.enqueue("double", {"n": 500})

        assert proxy.accepted_connections == before + 1
    assert queued(observer) == 501


def test_a_call_that_was_broken_off_leaves_no_reply_to_the_next_one(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """A time limit of the web server may raise in the middle of a call, from a signal handler."""
    import signal

    class Late(BaseException):
        pass

    def raise_late(*_: object) -> None:
        raise Late

    with Proxy(valkey.port) as proxy, SyncClient(proxy.url, app="s", namespace=namespace) as client:
        first = client.enqueue("double", {"n": 1})
        proxy.delay(0.3)
        before = signal.signal(signal.SIGALRM, raise_late)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Late):
                client.get(first.id)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        proxy.restore()

        second = client.enqueue("double", {"n": 2})

        assert second.disposition is Disposition.ACCEPTED
        assert client.get(second.id).id == second.id


def test_out_of_memory_is_a_rejection(own_valkey: ServerFactory) -> None:
    """R31: refused whole."""
    server = own_valkey()
    with SyncClient(server.url, app="full") as client, Observer(server.url, "full") as observer:
        client.enqueue("double", {"n": 0})
        observer.redis.config_set("maxmemory", 1)

        with pytest.raises(EnqueueRejected, match="memory"):
            client.enqueue("double", {"n": 1}, key="k")

        observer.redis.config_set("maxmemory", 0)
        assert client.enqueue("double", {"n": 1}, key="k").disposition is Disposition.ACCEPTED


# --- processes -------------------------------------------------------------------------------------------

_PREFORK = """
import os, sys, threading
from streamworker import SyncClient

client = SyncClient(sys.argv[1], app="sync-tests", namespace=sys.argv[2])  # at import time, as Django has it
CHILDREN, EACH = 4, 100

def use(start):
    jobs = [client.enqueue("double", {"n": start + n}) for n in range(EACH)]
    assert all(client.get(job.id).id == job.id for job in jobs[::10]), "replies are mixed up"

def waiter():
    try:
        job.result(timeout=60)
    except Exception as error:
        assert "cancelled" in str(error), error

use(0)
job = client.enqueue("nobody_runs_it")
waiting = threading.Thread(target=waiter)   # another thread is in the middle of a read while we fork
waiting.start()
children = []
for number in range(CHILDREN):
    child = os.fork()
    if not child:
        try:
            use(1000 * (number + 1))
            client.close()
            os._exit(0)
        except BaseException as error:
            print("child:", repr(error), file=sys.stderr)
            os._exit(1)
    children.append(child)
use(9000)
for child in children:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
use(10000)
assert job.cancel()
waiting.join()
print("ok")
"""


def test_a_client_made_before_the_fork_serves_parent_and_children(
    valkey: BenchServer, namespace: str, observer: Observer
) -> None:
    """R27: pre-fork servers (gunicorn, uWSGI) load the app, use it, and fork."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _PREFORK, valkey.url, namespace],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)
    assert queued(observer) == 700


# --- a web server ----------------------------------------------------------------------------------------


def test_the_pages_wsgi_application_enqueues(
    valkey: BenchServer, namespace: str, observer: Observer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snippet of the how-to page behind the standard library's server, as a browser sees it."""
    import importlib
    import re
    from urllib.request import Request as HttpRequest
    from urllib.request import urlopen
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: object) -> None:
            return None

    page = (REPOSITORY / "docs" / "how-to" / "django-and-flask.md").read_text()
    (body,) = re.findall(r"^```python\n(# web\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "web.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STREAMWORKER_REDIS_URL", valkey.url)
    monkeypatch.setenv("STREAMWORKER_NAMESPACE", namespace)
    web = importlib.import_module("web")
    monkeypatch.delitem(sys.modules, "web")
    with make_server("127.0.0.1", 0, web.application, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/shipments/7"
            answers = []
            for _ in range(2):
                with urlopen(HttpRequest(url, method="POST"), timeout=10) as answer:
                    answers.append((answer.status, answer.read().decode()))
        finally:
            server.shutdown()
            thread.join()
            with contextlib.suppress(AttributeError):
                web.client.close()

    (status, job_id), again = answers
    assert status == 202
    assert again == (202, job_id), "the key makes a second click the same job"
    assert observer.record(job_id.strip()).task == "update_shipment"


def test_a_thread_waits_for_a_connection_as_long_as_its_patience() -> None:
    """While Redis does not answer, those before it hold all of them for as long as they are patient."""
    caller = SyncCaller("redis://127.0.0.1:1", "{t:0}", patience=0.1)
    turns = caller._of_process()[0]._turns
    assert turns is not None
    for _ in range(LINKS):
        assert turns.take(0)

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(caller.command, "PING")
        try:
            with pytest.raises(ConnectionLost, match="in use"):
                waiting.result(timeout=3)
        finally:
            for _ in range(LINKS):
                turns.give()


async def test_a_call_in_an_event_loop_is_warned_of_once_for_each_place(
    valkey: BenchServer, namespace: str
) -> None:
    """It holds up all that runs there, and works: so an error is what nobody wants, and silence neither."""
    with SyncClient(valkey.url, app="sync-tests", namespace=namespace) as client:
        job = await asyncio.to_thread(client.enqueue, "double", {"n": 1}, delay="1h")
        calls: dict[str, Callable[[], object]] = {
            "SyncClient.enqueue": lambda: client.enqueue("double", {"n": 1}, delay="1h"),
            "SyncClient.enqueue_many": lambda: client.enqueue_many([]),
            "SyncClient.get": lambda: client.get(job.id),
            "SyncClient.result": lambda: client.result(job.id, timeout=0),
            "SyncClient.cancel": lambda: client.cancel(job.id),
            "SyncJob.status": job.status,
            "SyncJob.result": lambda: job.result(timeout=0),
            "SyncJob.cancel": job.cancel,
        }
        for method, call in calls.items():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")  # as Python shows them
                for _ in range(3):
                    with contextlib.suppress(ResultTimeout, JobFailed):
                        call()
            (said,) = caught
            assert (said.category, said.filename) == (RuntimeWarning, __file__)
            assert str(said.message).startswith(f"{method} blocks the event loop")

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await asyncio.to_thread(client.get, job.id)


def test_a_connection_that_comes_back_after_the_close_is_closed(valkey: BenchServer) -> None:
    pool = LinkPool(valkey.url, limit=1, idle=1)
    with pool.link() as link:
        pool.close()
        assert link.call("ECHO", "here") == b"here"
    assert pool._idle == []
    assert link._connection is None
