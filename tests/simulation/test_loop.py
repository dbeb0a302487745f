"""The virtual event loop: time that jumps, hosts that freeze and die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.loop import Host, Stuck, VirtualLoop, inside


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


async def ticking(loop: VirtualLoop, seen: list[float]) -> None:
    """Write down the time once a second; the list says too that it ended in good order."""
    try:
        while True:
            await asyncio.sleep(1)
            seen.append(loop.time())
    finally:
        seen.append(-1)


def begin(loop: VirtualLoop, host: Host, seen: list[float]) -> None:
    inside(host).run(loop.create_task, ticking(loop, seen))


def test_time_passes_only_in_the_loop(loop: VirtualLoop) -> None:
    began = time.monotonic()

    loop.run_until_complete(asyncio.sleep(3600))

    assert loop.time() == pytest.approx(3600)
    assert time.monotonic() - began < 60


def test_a_loop_in_which_nobody_can_be_woken_says_so(loop: VirtualLoop) -> None:
    async def wait_for_ever() -> None:
        await loop.create_future()

    task = loop.create_task(wait_for_ever())

    with pytest.raises(Stuck):
        loop.run_until_complete(task)

    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))


def test_a_frozen_host_does_nothing_and_catches_up_when_it_goes_on(loop: VirtualLoop) -> None:
    frozen, other = Host("frozen"), Host("other")
    seen: list[float] = []
    others: list[float] = []
    begin(loop, frozen, seen)
    begin(loop, other, others)
    loop.call_at(2.5, frozen.freeze)
    loop.call_at(7.2, frozen.thaw)

    loop.run_until_complete(asyncio.sleep(8.5))

    assert seen == pytest.approx([1, 2, 7.2, 8.2])
    assert others == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8])
    frozen.end()
    other.end()


def test_a_killed_host_never_runs_again_not_even_what_must_run_at_the_end(loop: VirtualLoop) -> None:
    told: list[str] = []
    host = Host("victim", died=lambda dead: told.append(dead.name))
    seen: list[float] = []
    begin(loop, host, seen)
    loop.call_at(2.5, host.kill)

    loop.run_until_complete(asyncio.sleep(10))

    assert seen == pytest.approx([1, 2])
    assert told == ["victim"]
    host.end()
    assert seen[-1] == -1


def test_children_die_with_their_host_but_do_not_freeze_with_it(loop: VirtualLoop) -> None:
    host = Host("parent")
    child = Host("child")
    host.children.append(child)
    seen: list[float] = []
    begin(loop, child, seen)
    loop.call_at(1.5, host.freeze)
    loop.call_at(3.5, host.kill)

    loop.run_until_complete(asyncio.sleep(10))

    assert seen == pytest.approx([1, 2, 3])
    host.end()


@pytest.mark.parametrize("cancel", [True, False])
def test_what_is_cancelled_while_its_host_is_frozen_does_not_run(loop: VirtualLoop, cancel: bool) -> None:
    host = Host("frozen")
    ran: list[str] = []
    run: Callable[[str], None] = ran.append
    handle = inside(host).run(loop.call_later, 1.0, run, "late")
    host.freeze()
    if cancel:
        loop.call_at(2.0, handle.cancel)
    loop.call_at(3.0, host.thaw)

    loop.run_until_complete(asyncio.sleep(4))

    assert ran == ([] if cancel else ["late"])
