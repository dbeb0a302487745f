"""More faults of the server, beyond the list of cases: rights that a user has not, commands that are gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import redis

from streamworker import App, Context, Retry
from streamworker.embedded import EmbeddedServer
from streamworker.store import lua
from streamworker.store.connection import Argument, Link, ReplyError, Told
from streamworker.store.keys import Keys
from streamworker.worker import log_bound
from streamworker.worker.parts import Parts
from tests.chaos.conftest import LEASE
from tests.integration.serving import serving
from tests.servers import BenchServer, ServerFactory
from tests.unit.documentation import REPOSITORY
from tests.waiting import wait_until_async

#: The user that the page on deployment makes.
DOCUMENTED = next(
    line.partition(" on ")[2].partition(" ~{shop* ")[2]
    for line in (REPOSITORY / "docs/how-to/deploy-and-shut-down.md").read_text().splitlines()
    if line.startswith("ACL SETUSER shop")
)
#: What hosts and careful operators leave of Redis.
RIGHTS = {
    "documented": DOCUMENTED,
    "nothing dangerous": "+@all -@dangerous",
    "no client, no introspection": "+@all -client -memory -xinfo -info -config -command -scan",
}


@asynccontextmanager
async def limited(own_valkey: ServerFactory, rights: str) -> AsyncIterator[tuple[App, EmbeddedServer]]:
    """An app whose user has these rights."""
    server = own_valkey(config={"user": f"worker on >pw ~{{shop* {rights}"})
    url = server.url.replace("redis://", "redis://worker:pw@")
    async with App("shop", redis_url=url, lease=LEASE) as app:
        yield app, server


@pytest.mark.parametrize("rights", RIGHTS.values(), ids=RIGHTS)
async def test_a_user_with_few_rights_works_and_asks_for_the_others_only_now_and_then(
    own_valkey: ServerFactory, rights: str
) -> None:
    """Without CLIENT no result came; without CLIENT UNBLOCK each wait asked for it 500 times a second."""
    async with limited(own_valkey, rights) as (app, server):

        @app.task
        async def add(ctx: Context, a: int, b: int) -> int:
            return a + b

        async def wait(delay: float) -> float:
            """Seconds from the end of a job until its result is there, for one that is waited for later."""
            job = await add.options(delay=0.4).enqueue(1, 2)
            await asyncio.sleep(delay)  # the wait of another one is under way
            assert await job.result(5) == 3
            return time.time() - ((await app.queue().record(job.id)).finished_at or 0) / 1000

        with redis.Redis.from_url(server.url) as client:
            began = time.monotonic()
            async with serving(app):
                late = await asyncio.gather(wait(0.0), wait(0.1), wait(0.2))
                await asyncio.sleep(2 * LEASE)  # housekeeping comes once in a lease
            seconds = time.monotonic() - began
            refused = client.info("errorstats").get("errorstat_NOPERM", {"count": 0})["count"]
            rejected = {
                name: stats["rejected_calls"]
                for name, stats in client.info("commandstats").items()
                if name != "cmdstat_client|setinfo"  # twice for each connection, by redis-py
            }

    assert max(late) < 1.0
    if rights == DOCUMENTED:
        assert refused == 0
    else:  # on a busy machine there is more time for housekeeping
        assert max(rejected.values()) < 20 * seconds, rejected


async def test_steps_that_are_refused_keep_no_other_from_being_done(
    own_valkey: ServerFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With XINFO or MEMORY refused the log was never trimmed, and letters never removed."""
    monkeypatch.setattr(log_bound, "EVENTS_BYTES", 20_000)
    caplog.set_level(logging.WARNING)
    keys = Keys("shop")
    async with limited(own_valkey, RIGHTS["no client, no introspection"]) as (app, server):
        with redis.Redis.from_url(server.url) as client:
            for number in range(2_000):
                client.xadd(keys.events, {"n": number, "e": "x" * 50})

            async with serving(app):
                await wait_until_async(lambda: client.xlen(keys.events) < 1_000, what="the log is trimmed")
                await asyncio.sleep(1.2 * LEASE)  # the refused steps come round again

    said = [record.message for record in caplog.records if "is left out" in record.message]
    assert len(said) == len(set(said)) >= 2


@pytest.mark.parametrize(
    "refusal",
    [
        "ERR max daily request limit exceeded",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "ERR ACL failure in script: User w has no permissions to run the 'xadd' command, on @user_script:1.",
        "ERR Error running script, on @user_script:1: Script killed by user with SCRIPT KILL.",
        "MISCONF Errors writing to the AOF file: No space left on device script: 5f, on @user_script:1.",
    ],
    ids=["too many", "rights", "rights of a script", "killed", "no disk in a script"],
)
async def test_an_outcome_that_the_server_will_not_hear_now_is_told_later(
    valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """asynq#1051: the third refusal in a row had the claim given up, and the job that was done run again."""
    refusing, refused, runs = False, 0, 0
    post, exchange = Link.post, lua.load("exchange").sha

    def fickle(link: Link, told: Told, *arguments: Argument) -> None:
        nonlocal refused
        if refusing and refused < 4 and exchange in arguments:
            refused += 1
            asyncio.get_running_loop().call_soon(told, ReplyError(refusal))
        else:
            post(link, told, *arguments)

    monkeypatch.setattr(Link, "post", fickle)
    async with App("cases", redis_url=valkey.url, namespace=namespace, lease=LEASE) as app:

        @app.task(retry=Retry.schedule("50ms", unknown=["50ms", "50ms"]))
        async def work(ctx: Context) -> int:
            nonlocal refusing, runs
            runs += 1
            refusing = True
            return ctx.attempt

        async with serving(app):
            job = await work.enqueue()
            assert await job.result(10) == 1

    assert (refused, runs) == (4, 1)


@pytest.mark.parametrize("whose", ["heartbeat", "reader"])
async def test_a_worker_that_the_server_takes_no_new_connection_of_goes_on_with_those_it_has(
    own_valkey: ServerFactory, made: list[Parts], whose: str
) -> None:
    """With `maxclients` full for longer than a lease a worker's own keeper took its running job from it.

    And when the blocking read was lost, the worker let go of the connection that it had for all else.
    """
    server = own_valkey()
    async with App("cases", redis_url=server.url, lease=0.6) as app:

        @app.task(retry=Retry.never())
        async def work(ctx: Context) -> int:
            heartbeat, reader = made[0].heartbeat.link, made[0].reader.link
            await wait_until_async(lambda: heartbeat.last_reply and reader.in_flight, what="both are there")
            ends = {
                "heartbeat": heartbeat._connection._sock.getsockname(),
                "reader": cast(Any, reader._transport).get_extra_info("sockname"),
            }
            host, port = ends[whose]
            with redis.Redis.from_url(server.url) as client:
                client.config_set("maxclients", len(client.client_list()) - 3)  # full, whoever lets go of one
                client.client_kill(f"{host}:{port}")
            await asyncio.sleep(1.4)
            return ctx.attempt

        @app.task(retry=Retry.never())
        async def next_one(ctx: Context) -> int:
            return ctx.attempt

        async with serving(app):
            job = await work.enqueue()
            assert await job.result(10) == 1
            assert await (await next_one.enqueue()).result(10) == 1
        record = await app.queue().record(job.id)

    assert (record.starts, record.strikes) == (1, 0)
