"""More faults of a server that answers and refuses, beyond the list of cases, as real servers make them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from streamworker import App, Context, Retry
from streamworker.embedded import EmbeddedServer
from tests.integration.serving import serving
from tests.servers import ServerFactory

#: Seconds that a claim lives, that a fault lasts, and that a handler runs.
LEASE, FAULT, RUN = 0.5, 0.7, 0.9


def _busy(server: EmbeddedServer) -> None:
    """Somebody else's script does not end, until an operator ends it."""
    with redis.Redis.from_url(server.url) as client:
        client.config_set("busy-reply-threshold", 10)
        script = threading.Thread(target=_for_ever, args=(server.url,))
        script.start()
        time.sleep(FAULT)
        client.script_kill()
        script.join()


def _for_ever(url: str) -> None:
    with redis.Redis.from_url(url) as client, suppress(redis.RedisError):
        client.eval("while true do end", 0)


def _disk_full(server: EmbeddedServer) -> None:
    """It cannot save, and takes no writes until it can."""
    with redis.Redis.from_url(server.url) as client:
        in_the_way = Path(client.config_get("dir")["dir"], "in-the-way")
        in_the_way.mkdir()
        client.config_set("dbfilename", in_the_way.name)
        client.config_set("save", "3600 1")
        client.bgsave()
        while client.info("persistence")["rdb_last_bgsave_status"] == "ok":
            time.sleep(0.01)
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.set("any", 1)
        time.sleep(FAULT)
        client.config_set("save", "")
        in_the_way.rmdir()


@pytest.mark.parametrize("fault", [_busy, _disk_full])
async def test_a_server_that_refuses_for_longer_than_a_lease_costs_no_job_an_attempt(
    own_valkey: ServerFactory, fault: Callable[[EmbeddedServer], None]
) -> None:
    """bull#540, rq#1996: jobs were lost, or their workers ended, while Redis was busy or could not save."""
    server = own_valkey(config={"enable-protected-configs": "yes"})
    async with App("cases", redis_url=server.url, lease=LEASE) as app:

        @app.task(retry=Retry.never())
        async def work(ctx: Context) -> int:
            await asyncio.sleep(RUN)
            return ctx.attempt

        async with serving(app), serving(app):
            jobs = await app.enqueue_many(work.call() for _ in range(4))
            await asyncio.to_thread(fault, server)
            assert [await job.result(10) for job in jobs] == [1] * 4
        records = [await app.queue().record(job.id) for job in jobs]

    assert {(record.starts, record.strikes) for record in records} == {(1, 0)}
