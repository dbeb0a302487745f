"""A primary that sentinels watch: failovers, wanted and not, under producers and workers."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from streamworker import App, ConnectionLost, Context, ServerUnsuitable, SyncClient
from streamworker.embedded import EmbeddedServer
from streamworker.ops.checks import Severity, ok
from streamworker.ops.sentinel_checks import check
from streamworker.store.connection import Link, SyncLink
from tests.integration.cli_desk import Desk
from tests.integration.serving import serving
from tests.sentinels import SERVICE, Watched
from tests.waiting import wait_until_async

#: Seconds for what takes two or three where the machine has time.
PATIENCE = 60


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with Watched("valkey", tmp_path_factory.mktemp("sentinels")) as made:
        yield made


async def test_a_link_leads_to_the_primary_and_its_database(watched: Watched) -> None:
    for database in (0, 3):
        link, sync = Link(watched.url(database=database)), SyncLink(watched.url(database=database))
        await link.connect()
        assert (await link.call("ROLE"))[0] == sync.call("ROLE")[0] == b"master"
        for one in (await link.call("CLIENT", "INFO"), sync.call("CLIENT", "INFO")):
            assert f" db={database} ".encode() in one
        await link.close()
        sync.close()


async def test_a_user_who_may_not_ask_for_the_role_is_let_in(watched: Watched) -> None:
    primary = watched.client(watched.primary())
    primary.execute_command("ACL", "SETUSER", "lean", "on", ">lean", "~*", "&*", "+@all", "-role")
    url = watched.url().replace("//:pri%2Fm%40ry@", "//lean:lean@")
    link, sync = Link(url), SyncLink(url)
    await link.connect()
    assert await link.call("ACL", "WHOAMI") == sync.call("ACL", "WHOAMI") == b"lean"
    await link.close()
    sync.close()


async def test_doctor_asks_them_all(watched: Watched) -> None:
    (found,) = await check(watched.url())
    port = watched.primary().port
    assert found == ok("sentinels", f"3 name 127.0.0.1:{port}, and would agree on another")
    hosts = watched.url().replace(f"127.0.0.1:{watched.sentinels[1].port}", "127.0.0.1:1")
    (found,) = await check(hosts)
    assert found.severity is Severity.WARNING
    assert "1 of 3 do not answer: no connection to redis://:***@127.0.0.1:1" in found.found
    watched.sentinels[0].tell("SET", SERVICE, "quorum", "4")
    (found,) = await check(watched.url())
    watched.sentinels[0].tell("SET", SERVICE, "quorum", "2")
    assert (found.severity, found.found[:8]) == (Severity.PROBLEM, "NOQUORUM")
    assert await check("redis://127.0.0.1:1/0") == []


def test_the_command_shows_it_and_a_wrong_name_is_one_line(watched: Watched) -> None:
    with Desk(watched.servers[0].url, "doctor") as desk:
        desk.url = watched.url()
        rows = desk.json("doctor")["checks"]
        assert [row["severity"] for row in rows if row["check"] == "sentinels"] == ["ok"]
        desk.url = watched.url(service="order")
        assert "the sentinels know no service 'order'" in desk.refused("lanes")


async def test_what_is_wrong_is_said_without_passwords(watched: Watched) -> None:
    wrong = {
        watched.url(service="order"): (ServerUnsuitable, "know no service 'order'"),
        watched.url(password="other"): (ServerUnsuitable, "refused the password"),
        watched.url(password=""): (ServerUnsuitable, "refused the password"),
        watched.url().replace("pri%2Fm%40ry", "other"): (ServerUnsuitable, "refused the password"),
        "redis+sentinel://127.0.0.1:1/orders": (ConnectionLost, "no primary is known of"),
    }
    for url, (kind, words) in wrong.items():
        with pytest.raises(kind, match=words) as raised:
            await Link(url).connect()
        with pytest.raises(kind, match=words) as raised_here:
            SyncLink(url).call("PING")
        for said in (str(raised.value), str(raised_here.value)):
            assert "sent" not in said.replace("sentinel", "")
            assert "pri" not in said.replace("primary", "")


async def test_failovers_lose_no_job_and_run_none_twice(watched: Watched) -> None:
    """One since the primary was killed, then one that is asked for; everybody finds the new primary.

    The second is coordinated, as Valkey 9 can: the old primary stops before the new one begins. Any other may
    lose what was accepted in between (docs/explanation/promises.md).
    """
    go, ran = asyncio.Event(), Counter[str]()
    sent: list[str] = []
    async with App("sentinel", redis_url=watched.url(), lease="30s") as app:

        @app.task(key="work:{number}")
        async def work(ctx: Context, number: int) -> int:
            ran[ctx.job_id] += 1
            return number

        @app.task
        async def hold(ctx: Context) -> int:
            ran[ctx.job_id] += 1
            await go.wait()
            return ctx.attempt

        async def produce() -> None:
            while True:
                sent.append((await work.enqueue(len(sent))).id)
                await asyncio.sleep(0.002)

        async def grown(producer: asyncio.Task[None]) -> None:
            goal = len(sent) + 50
            await wait_until_async(
                lambda: len(sent) > goal or producer.done(), timeout=PATIENCE, what="jobs go on"
            )

        async def left(old: EmbeddedServer) -> None:
            await wait_until_async(
                lambda: all(int(one.state()["port"]) != old.port for one in watched.sentinels),
                timeout=PATIENCE,  # on a machine that stood still they wait for 30 s by themselves
                what="the sentinels name the new primary",
            )

        def caught_up(primary: EmbeddedServer) -> bool:
            return watched.caught_up(primary)

        app.queue().caller.patience = PATIENCE  # replicas that have to read all anew take their time
        with SyncClient(watched.url(), app="sentinel") as sync:
            async with serving(app), serving(app):
                held = await hold.enqueue()
                for killed in (True, False):
                    old = watched.primary()
                    if killed:  # what the replica had not read yet would be lost: see promises.md
                        await wait_until_async(partial(caught_up, old), what="the replicas are in step")
                        old.kill()
                        producer = asyncio.create_task(produce())
                    else:
                        producer = asyncio.create_task(produce())
                        await grown(producer)
                        watched.sentinels[0].redis.execute_command(
                            "SENTINEL", "FAILOVER", SERVICE, "COORDINATED"
                        )
                    await left(old)
                    await grown(producer)
                    assert (await asyncio.to_thread(sync.enqueue, "work", {"number": -len(sent)})).id
                    producer.cancel()
                    await asyncio.wait([producer])
                    assert producer.cancelled()
                go.set()
                assert await held.result(PATIENCE) == 1
                for job_id in sent:
                    await app.handle(job_id).result(PATIENCE)
    assert [ran[job_id] for job_id in sent] == [1] * len(sent)
    assert ran[held.id] == 1


async def test_sentinels_that_do_not_answer_keep_nobody_for_long(watched: Watched) -> None:
    """Two of three hang: the first is left alone after a second, and asked last from then on.

    The last of these: a sentinel that stood still does nothing for half a minute (its TILT mode)."""
    url = watched.url(database=1)
    hung = [one.process for one in watched.sentinels[:2]]
    for process in hung:
        process.send_signal(signal.SIGSTOP)
    try:
        first, second = Link(url, timeout=5), SyncLink(url)
        await first.connect()
        assert second.call("ROLE")[0] == b"master"
        await first.close()
        second.close()
    finally:
        for process in hung:
            process.send_signal(signal.SIGCONT)
