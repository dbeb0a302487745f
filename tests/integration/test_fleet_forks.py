"""Forks and second event loops: connections are refused or made anew, and the parent's go on (R27)."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamworker import App, Client, Context, Worker
from streamworker.core.errors import ConfigurationError, ConnectionLost
from streamworker.settings import read
from streamworker.store.caller import Caller
from streamworker.store.connection import Link, SyncLink, WrongLoop
from streamworker.store.keys import Keys
from streamworker.store.queue import QueueSource
from tests.servers import BenchServer

#: Seconds that a forked child may take.
PATIENCE = 20


@pytest.fixture(autouse=True)
def quiet_forks() -> Iterator[None]:
    """Python 3.12 warns of any fork beside threads, and forks are what is tested here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield


def in_fork(work: Callable[[], str]) -> str:
    """What `work` returns in a forked child; an exception in it fails the test with the child's traceback."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE)  # a child that hangs must not hold the test
        try:
            said = work()
        except BaseException:
            said = "child failed: " + traceback.format_exc()
        os.write(theirs, said.encode()[:60_000])
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    assert not said.startswith("child failed"), said
    return said


def in_new_loop(main: Callable[[], Any]) -> Any:
    """Run a coroutine function in a forked child, which still believes to be in its parent's loop."""
    asyncio._set_running_loop(None)
    loop = asyncio.new_event_loop()
    return loop.run_until_complete(main())


async def test_a_link_of_the_parent_is_refused_in_a_child_and_works_on_here(server: BenchServer) -> None:
    link = Link(server.url)
    await link.connect()
    pending = link.send("BLPOP", "{fork}:nothing", 1)  # under way while we fork

    def child() -> str:
        try:
            link.send("PING")
        except ConnectionLost as error:
            link.abort()  # what a clean-up would do; the parent must not hear of it
            return f"{error} / {link.connected}"
        return "was sent"

    assert in_fork(child) == (
        "this connection belongs to the parent process (R27): connect anew after a fork / False"
    )
    assert await pending is None
    assert await link.call("ECHO", "still here") == b"still here"
    await link.close()


async def test_a_link_can_be_connected_anew_in_a_child(server: BenchServer) -> None:
    link = Link(server.url)
    await link.connect()
    ours = await link.call("CLIENT", "ID")

    def child() -> str:
        async def main() -> str:
            await link.connect()
            theirs = str(await link.call("CLIENT", "ID"))
            await link.close()
            return theirs

        return str(in_new_loop(main))

    assert int(in_fork(child)) != ours
    assert await link.call("CLIENT", "ID") == ours
    await link.close()


async def test_a_caller_comes_back_by_itself_in_a_child(server: BenchServer) -> None:
    caller = Caller(server.url, "{fork:0}")
    await caller.command("PING")

    def child() -> str:
        async def main() -> str:
            said = (await caller.command("ECHO", "from the child")).decode()
            await caller.close()
            return str(said)

        return str(in_new_loop(main))

    assert in_fork(child) == "from the child"
    assert await caller.command("ECHO", "from the parent") == b"from the parent"
    await caller.close()


def test_a_sync_link_never_shares_its_socket_with_a_child(server: BenchServer) -> None:
    link = SyncLink(server.url)
    ours = link.call("CLIENT", "ID")

    def child() -> str:
        theirs = link.call("CLIENT", "ID")
        link.close()
        return str(theirs)

    assert int(in_fork(child)) != ours
    assert link.call("CLIENT", "ID") == ours
    link.close()


def test_a_link_is_refused_in_another_loop(server: BenchServer) -> None:
    async def connected() -> Link:
        link = Link(server.url)
        await link.connect()
        return link

    first = asyncio.new_event_loop()
    link = first.run_until_complete(connected())

    async def use() -> None:
        await link.call("PING")

    with pytest.raises(WrongLoop, match=r"belongs to another event loop \(R27\)"):
        asyncio.run(use())

    assert first.run_until_complete(link.call("PING")) == b"PONG"
    first.run_until_complete(link.close())
    first.close()


def test_a_queue_source_has_a_queue_for_each_loop_and_process(valkey: BenchServer, namespace: str) -> None:
    source = QueueSource(read("x", redis_url=valkey.url, namespace=namespace))

    async def ask() -> int:
        queue = source.get()
        assert source.get() is queue
        await queue.caller.command("PING")
        number = id(queue)
        await source.close()
        return number

    async def keep() -> str:
        queue = source.get()
        await queue.caller.command("PING")

        def child() -> str:
            # Even for the parent's own loop object a child gets another queue.
            return "another" if source.get() is not queue else "the same"

        with pytest.MonkeyPatch.context() as patch:
            loop = asyncio.get_running_loop()
            patch.setattr(asyncio, "get_running_loop", lambda: loop)  # as if the fork ran on in it
            answer = in_fork(child)
        await source.close()
        return answer

    asyncio.run(ask())
    asyncio.run(ask())
    assert asyncio.run(keep()) == "another"


def test_a_client_works_before_and_after_a_fork(valkey: BenchServer, namespace: str, no_leaks: None) -> None:
    client = Client(valkey.url, app=namespace)

    async def enqueue(task: str) -> str:
        job = await client.enqueue(task, {})
        return job.id

    async def main() -> tuple[str, str, str]:
        before = await enqueue("before")
        inside = in_fork(lambda: str(in_new_loop(lambda: enqueue("inside"))))
        after = await enqueue("after")
        views = [(await client.get(job_id)).task for job_id in (before, inside, after)]
        await client.close()
        return views[0], views[1], views[2]

    assert asyncio.run(main()) == ("before", "inside", "after")


def test_a_worker_made_before_a_fork_gets_a_name_of_its_own(
    valkey: BenchServer, namespace: str, no_leaks: None
) -> None:
    app = App(namespace, redis_url=valkey.url, lease="2s")

    @app.task
    async def add(ctx: Context, a: int) -> int:
        return a + 1

    worker = Worker(app)
    name = worker.id

    async def once() -> str:
        serving = asyncio.create_task(worker.serve())
        async with app:
            job = await add.enqueue(1)
            result = await job.result(10)
            facts = await app.queue().caller.command("EXISTS", Keys(namespace).worker(worker.id))
            worker.stop()
            await serving
        return f"{worker.id} {result} {facts}"

    theirs, *rest = in_fork(lambda: asyncio.run(once())).split()
    assert rest == ["2", "1"]
    assert theirs != name
    assert asyncio.run(once()) == f"{name} 2 1"


async def test_a_worker_serves_once(valkey: BenchServer, namespace: str) -> None:
    app = App(namespace, redis_url=valkey.url)
    async with app:
        worker = Worker(app)
        worker.stop()
        await worker.serve()

        with pytest.raises(ConfigurationError, match="has served already: make another Worker"):
            await worker.serve()
