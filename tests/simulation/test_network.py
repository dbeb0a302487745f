"""The simulated network: what each fate of a call means for Redis and for the caller."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, cast

import pytest

from streamworker.core.errors import ConnectionLost
from streamworker.store.connection import Argument, Link
from tests.simulation.loop import VirtualLoop
from tests.simulation.network import Fate, Network
from tests.simulation.redis import RealRedis


class Counter:
    """Stands for Redis: counts what it is asked to do, and when."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def named(self, arguments: tuple[Argument, ...]) -> None:
        return None

    def execute(self, now: float, arguments: tuple[Argument, ...]) -> int:
        self.at.append(now)
        return len(self.at)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def network_of(loop: VirtualLoop, redis: Counter, fate: Fate) -> Network:
    def ignore(*_: object) -> None:
        return

    return Network(
        loop,
        cast(RealRedis, redis),
        random.Random(1),
        fate=lambda _: fate,
        note=ignore,
        struck=ignore,
        executed=ignore,
    )


@pytest.mark.parametrize(
    ("fate", "heard", "executed"),
    [
        (Fate.ANSWERED, True, 1),
        (Fate.SLOW, True, 1),
        (Fate.UNSENT, False, 0),
        (Fate.UNHEARD, False, 1),
        (Fate.LATE, False, 1),
        (Fate.TWICE, True, 2),
    ],
)
def test_a_call_meets_its_fate(loop: VirtualLoop, fate: Fate, heard: bool, executed: int) -> None:
    redis = Counter()
    link = network_of(loop, redis, fate).opens("redis://simulated")

    async def ask() -> Any:
        await link.connect()
        try:
            return await link.call("INCR", "x")
        except ConnectionLost:
            return None

    answer = loop.run_until_complete(ask())
    lost_at = loop.time()
    loop.run_until_complete(asyncio.sleep(1000))

    assert (answer == 1) is heard
    assert len(redis.at) == executed
    assert fate is not Fate.LATE or redis.at[0] > lost_at
    assert link.connected is heard


def test_answers_come_in_the_order_of_the_calls(loop: VirtualLoop) -> None:
    redis = Counter()
    link = network_of(loop, redis, Fate.SLOW).opens("redis://simulated", timeout=100)

    async def ask() -> list[Any]:
        await link.connect()
        return [await reply for reply in [link.send("INCR", n) for n in range(20)]]

    assert loop.run_until_complete(ask()) == list(range(1, 21))
    assert redis.at == sorted(redis.at)


def test_during_an_outage_nobody_connects_and_nothing_that_was_sent_arrives(loop: VirtualLoop) -> None:
    redis = Counter()
    network = network_of(loop, redis, Fate.ANSWERED)
    link = network.opens("redis://simulated")

    async def lose() -> None:
        await link.connect()
        reply = link.send("INCR", "x")
        network.cut_off(None, 5.0)
        with pytest.raises(ConnectionLost):
            await reply
        with pytest.raises(ConnectionLost, match="refused"):
            await link.connect()
        await asyncio.sleep(5.0)
        await _ask_again(link)

    loop.run_until_complete(lose())

    assert len(redis.at) == 1


async def _ask_again(link: Link) -> None:
    await link.connect()
    await link.call("INCR", "x")
