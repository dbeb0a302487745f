"""The mirror's switch in Redis, and who closes and opens it."""

from __future__ import annotations

import asyncio

import asyncpg

from streamworker.postgres import offsets
from streamworker.postgres.mirror import Mirror
from streamworker.postgres.switch import MARKER, OFF, RESTORING, Switch
from streamworker.settings import Settings
from streamworker.store.caller import Caller
from streamworker.store.keys import Keys
from tests.servers import BenchServer
from tests.waiting import wait_until_async


async def test_a_restore_that_nobody_ended_does_not_keep_producers_out_for_ever(
    dsn: str, sql: asyncpg.Connection, valkey: BenchServer, namespace: str
) -> None:
    """`mirror reconcile` was killed, say."""
    keys = Keys(namespace)
    caller = Caller(valkey.url, keys.tag)
    switch = Switch(caller, keys)
    offset = await offsets.turn_on(sql, await offsets.begin(sql, namespace, 0, "marker"))
    await switch.open("marker")
    assert (await switch.settle(sql, offset)).loss is None
    await switch.close("marker")
    mirror = Mirror(Settings(namespace, valkey.url), dsn, "m")

    running = asyncio.create_task(mirror.run())

    async def is_open() -> bool:
        return await caller.command("HGET", keys.policies, RESTORING) is None

    await wait_until_async(is_open, what="producers are let in again")
    mirror.stop()
    await running
    found = await offsets.read(sql, namespace, 0)
    assert found is not None
    assert found.loss is None
    await caller.close()


async def test_a_mirror_that_is_turned_off_in_the_middle_of_a_restore_keeps_nobody_out(
    valkey: BenchServer, namespace: str
) -> None:
    keys = Keys(namespace)
    caller = Caller(valkey.url, keys.tag)
    switch = Switch(caller, keys)
    await switch.close("marker")

    await switch.off()

    assert await caller.command("HMGET", keys.policies, RESTORING, MARKER) == [None, OFF.encode()]
    await caller.close()
