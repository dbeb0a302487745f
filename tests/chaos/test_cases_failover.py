"""Neighbours of the case of silence: a server that still answers, and is the wrong one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamworker import (
    App,
    ConnectionLost,
    Context,
    EnqueueRejected,
    Retry,
    ServerUnsuitable,
    SyncClient,
    Worker,
)
from streamworker.store.connection import Argument, Link, ReplyError
from streamworker.store.server import check_server
from tests.chaos.conftest import LEASE, OwnServer
from tests.integration.history import Journal, Observer, judge
from tests.integration.serving import serving
from tests.proxy import Proxy
from tests.servers import BenchServer
from tests.waiting import wait_until_async


@pytest.mark.parametrize("after", ["read-only", "gone", "cut off"])
async def test_after_a_failover_everybody_asks_for_the_address_again(
    own_server: OwnServer, after: str
) -> None:
    """B65, R42: the old primary refuses writes, as a replica or for want of one: nobody stays with it.

    The name leads to the new primary from then on, which a proxy plays here. What runs keeps its lease there:
    the heartbeat moves too, and so do keeper and producers.
    """
    old, new = own_server(), own_server()
    go, starts = asyncio.Event(), []
    with (
        Proxy(old.port) as name,
        Observer(old.url, "failover") as before,
        Observer(new.url, "failover") as now,
    ):
        now.redis.replicaof("127.0.0.1", str(old.port))
        async with App("failover", redis_url=name.url, lease=LEASE) as app:

            @app.task
            async def hold(ctx: Context) -> int:
                starts.append(ctx.job_id)
                await go.wait()
                return ctx.attempt

            @app.task
            async def quick(ctx: Context) -> int:
                return ctx.attempt

            with SyncClient(name.url, app="failover") as sync:
                async with serving(app), serving(app):
                    running = await hold.enqueue()
                    await wait_until_async(before.sweeps, what="sweeps take the dead")
                    await wait_until_async(
                        lambda: before.record(running.id).status == "processing", what="its start is marked"
                    )
                    await asyncio.to_thread(sync.enqueue, "quick", {})
                    await wait_until_async(
                        lambda: (
                            now.redis.info("replication").get("master_link_status") == "up"
                            and now.redis.get(now.keys.job(running.id)) is not None
                        ),
                        what="the replica has caught up",
                    )
                    now.redis.replicaof("NO", "ONE")
                    name._upstream_port = new.port
                    if after == "read-only":
                        before.redis.replicaof("127.0.0.1", str(new.port))
                    elif after == "cut off":  # it says NOREPLICAS, and nobody tells it what has happened
                        before.redis.config_set("min-replicas-to-write", 1)
                        await wait_until_async(
                            lambda: before.redis.info("replication")["connected_slaves"] == 0,
                            what="the old primary is alone",
                        )
                    else:
                        old.kill()
                    later = await quick.options(delay="200ms").enqueue()
                    assert (await later.result(15)) == 1
                    assert (await asyncio.to_thread(sync.enqueue, "quick", {})).id
                    swept = await wait_until_async(now.sweeps, timeout=15, what="sweeps go on")
                    await wait_until_async(
                        lambda: (now.sweeps() or 0) > (swept or 0) + 2_000 * LEASE, what="two leases more"
                    )
                    go.set()
                    assert await running.result(5) == 1
                assert now.leftovers() == []

    assert starts == [running.id]


async def test_a_primary_that_may_not_write_for_want_of_replicas_is_waited_for(
    own_server: OwnServer, tmp_path: Path
) -> None:
    """B65, R41, R42: NOREPLICAS is no refusal of an outcome: nothing is dropped, and it is sent again."""
    server = own_server()
    journal, go = Journal(tmp_path / "journal"), asyncio.Event()
    # A lease that outlasts the outage: nobody is to take over what is only waiting to be told.
    async with App("replicas", redis_url=server.url, lease="30s") as app:

        @app.task(retry=Retry.schedule("50ms", unknown=["50ms"]))
        async def hold(ctx: Context, number: int) -> int:
            journal.start(ctx)
            await go.wait()
            journal.end(ctx)
            return number

        with Observer(server.url, "replicas") as observer:
            async with serving(app, concurrency=8), serving(app, concurrency=8):
                jobs = [await hold.enqueue(number) for number in range(8)]
                await wait_until_async(
                    lambda: observer.statuses(job.id for job in jobs) == {"processing": 8}, what="all run"
                )
                app.queue().caller.patience = 0.3
                observer.redis.config_set("min-replicas-to-write", 1)
                with pytest.raises(EnqueueRejected, match="NOREPLICAS"):
                    await hold.enqueue(9)
                go.set()
                await wait_until_async(lambda: len(journal.marks()) == 16, what="their handlers have ended")
                until = redis_now(observer) + 2  # enough to try a few times
                await wait_until_async(lambda: redis_now(observer) > until, what="two seconds went by")
                assert observer.statuses(job.id for job in jobs) == {"processing": 8}
                observer.redis.config_set("min-replicas-to-write", 0)
                assert [await job.result(15) for job in jobs] == list(range(8))
            assert observer.leftovers() == []
            edges = observer.transitions()

    assert judge(accepted=[job.id for job in jobs], transitions=edges, marks=journal.marks()) == []
    assert len(journal.starts()) == 8


def redis_now(observer: Observer) -> float:
    seconds, micros = observer.redis.time()
    return float(seconds + micros / 1e6)


@pytest.mark.parametrize("word", ["LOADING", "MASTERDOWN", "BUSY", "CLUSTERDOWN"])
async def test_a_server_that_is_not_ready_yet_is_no_server_without_lua(word: str) -> None:
    """B65, R42: a worker that starts while Redis still loads its data hears just that."""

    class Loading(Link):
        async def call(self, *arguments: Argument) -> Any:
            raise ReplyError(f"{word} Redis is not ready")

    with pytest.raises(ConnectionLost, match=word):
        await check_server(Loading("redis://127.0.0.1:1/0"))


@pytest.mark.parametrize("word", ["MOVED 7365 10.0.0.2:6379", "ASK 7365 10.0.0.2:6379"])
async def test_a_node_of_a_cluster_is_named_as_such(
    valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """taskiq-redis#92 and others: what users saw was the redirection, in the words of the server."""
    send = Link.send

    def redirect(link: Link, *arguments: Argument) -> asyncio.Future[Any]:
        if arguments[0] not in ("HMGET", "EVALSHA"):
            return send(link, *arguments)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_exception(ReplyError(word))
        return answer

    monkeypatch.setattr(Link, "send", redirect)
    async with App("cases", redis_url=valkey.url, namespace=namespace) as app:

        @app.task
        async def work(ctx: Context) -> None: ...

        with pytest.raises(ServerUnsuitable, match="Redis Cluster"):
            await Worker(app).serve()
        with pytest.raises(ServerUnsuitable, match="Redis Cluster"):
            await work.enqueue()
