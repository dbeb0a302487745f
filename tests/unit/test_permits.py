"""Connections to Postgres: one is kept for each lane, so that no lane waits for another's handlers."""

from __future__ import annotations

import asyncio

import pytest

from streamworker.effects.connections import Permits


async def test_a_lane_that_holds_all_others_leaves_each_lane_its_own() -> None:
    permits = Permits(["priority", "normal"], 4)
    held = [await permits.take("normal") for _ in range(3)]
    waits = asyncio.create_task(permits.take("normal"))

    assert held == [True, False, False], "its own, and the two that are nobody's"
    assert await permits.take("priority")
    assert not waits.done()

    permits.give("normal", own=False)
    assert await waits is False


async def test_what_is_a_lanes_own_goes_to_nobody_else() -> None:
    permits = Permits(["priority", "normal"], 3)
    held = [await permits.take(lane) for lane in ("priority", "normal", "normal")]
    waits = asyncio.create_task(permits.take("normal"))
    await asyncio.sleep(0)

    permits.give("priority", own=True)
    await asyncio.sleep(0)

    assert not waits.done()
    permits.give("normal", own=held[2])
    assert await waits is False


async def test_a_lane_that_is_not_known_takes_what_is_shared() -> None:
    permits = Permits(["normal"], 1)

    assert await permits.take("renamed") is False


async def test_who_is_cancelled_while_it_waits_keeps_nothing() -> None:
    permits = Permits(["normal"], 1)
    held = [await permits.take("normal"), await permits.take("normal")]
    first, second = (asyncio.create_task(permits.take("normal")) for _ in range(2))
    await asyncio.sleep(0)

    first.cancel()
    await asyncio.sleep(0)
    permits.give("normal", own=held[0])

    assert await second is held[0]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_who_is_cancelled_as_its_turn_comes_gives_it_on() -> None:
    permits = Permits(["normal"], 1)
    held = [await permits.take("normal"), await permits.take("normal")]
    first, second = (asyncio.create_task(permits.take("normal")) for _ in range(2))
    await asyncio.sleep(0)

    permits.give("normal", own=held[0])
    first.cancel()

    assert await second is held[0]


async def test_of_those_who_were_cancelled_nothing_is_kept() -> None:
    """Each time limit that ends such a wait would leave something for as long as the process lives."""
    permits = Permits(["normal"], 1)
    for _ in range(2):
        await permits.take("normal")
    waiting = [asyncio.create_task(permits.take("normal")) for _ in range(3)]
    await asyncio.sleep(0)

    for one in waiting[:2]:
        one.cancel()
    await asyncio.gather(*waiting[:2], return_exceptions=True)

    assert len(permits._waiting) == 1
    permits.give("normal", own=True)
    assert await waiting[2] is True
    assert not permits._waiting
