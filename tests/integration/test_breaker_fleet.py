"""A dependency that falls ill under a fleet. `BREAKER_JOBS=2000 BREAKER_SECONDS=10` makes the long form."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from streamworker import Client, Request
from streamworker.ops import breakers
from streamworker.store.keys import Keys
from tests.processes import WorkerProcess
from tests.servers import BenchServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")

#: Jobs that use the dependency, and for how many seconds it is ill.
JOBS = int(os.environ.get("BREAKER_JOBS", "300"))
SECONDS = float(os.environ.get("BREAKER_SECONDS", "2"))
#: Seconds over which those that waited come in.
RAMP = 4.0 * max(1.0, SECONDS / 5)
#: Jobs a second that use nothing.
MAILS = 100
#: Seconds by which a busy machine may be late with them.
LATE = 0.3
SLOTS = 8
#: Calls that open the breaker, and jobs that may try at a time; see tests/apps/breaker_jobs.py.
LEAST, PROBES, OPEN_FOR = 10, 2, 0.5


class Fleet:
    """Worker processes, their journal, and the illness of what they call."""

    def __init__(self, server: BenchServer, namespace: str, folder: Path, processes: int) -> None:
        self.client = Client(server.url, app="breaker_jobs", namespace=namespace)
        self.keys = Keys(namespace)
        self.processes = processes
        self._folder = folder
        folder.mkdir()
        (folder / "journal").touch()
        self._stack = ExitStack()
        for _ in range(processes):
            self._stack.enter_context(
                WorkerProcess(
                    "breaker_jobs:app",
                    *("--concurrency", str(SLOTS)),
                    redis_url=server.url,
                    namespace=namespace,
                    env={"BREAKER_FOLDER": str(folder), "BREAKER_RAMP": str(RAMP), "STREAMWORKER_LEASE": "3"},
                )
            )

    def fall_ill(self) -> float:
        (self._folder / "ill").touch()
        return time.monotonic()

    def recover(self) -> float:
        (self._folder / "ill").unlink()
        return time.monotonic()

    def times(self, what: str) -> list[float]:
        """When each was written down, in seconds."""
        lines = (line.split(" ") for line in (self._folder / "journal").read_text().splitlines())
        return sorted(int(at) / 1e9 for at, _, word in lines if word == what)

    async def state(self) -> str:
        found = await breakers.breakers(self.client._source.get())
        return str(found[0]["state"]) if found else "-"

    async def dead(self) -> list[str]:
        return [field for field in await self._stats() if field.startswith("dead:")]

    async def set_aside(self) -> bool:
        """Whether all who want it wait for it, or for their next attempt, but for those who try."""
        stats = await self._stats()
        waiting = sum(count for field, count in stats.items() if field.startswith(("parked:", "scheduled:")))
        return waiting >= JOBS - PROBES

    async def done(self) -> bool:
        """All have called, and nobody waits at a gate or for a time."""
        stats = await self._stats()
        left = [count for field, count in stats.items() if field.startswith(("parked:", "scheduled:"))]
        return not any(left) and len(self.times("call")) >= JOBS

    async def _stats(self) -> dict[str, int]:
        flat = await self.client._source.get().caller.command("HGETALL", self.keys.stats)
        return {field.decode(): int(value) for field, value in zip(flat[::2], flat[1::2], strict=True)}

    def close(self) -> None:
        self._stack.close()


@asynccontextmanager
async def fleet_of(server: BenchServer, namespace: str, folder: Path, processes: int) -> AsyncIterator[Fleet]:
    fleet = Fleet(server, namespace, folder, processes)
    try:
        async with fleet.client:
            yield fleet
    finally:
        fleet.close()


def within(times: list[float], begin: float, end: float) -> int:
    return sum(begin <= at < end for at in times)


async def _mails(client: Client, until: asyncio.Event) -> list[float]:
    """So many a second, evenly, until it is over; when each was sent."""
    began, sent = time.monotonic(), list[float]()
    while not until.is_set():
        due = int((time.monotonic() - began) * MAILS) - len(sent)
        await client.enqueue_many(Request("mail", {"number": number}) for number in range(due))
        sent += [time.monotonic()] * due
        await asyncio.sleep(0.02)
    return sent


async def _outage(fleet: Fleet) -> tuple[float, float, float]:
    """The carrier is ill under jobs that all want it.

    When the first of them called, when the crowd of them was set aside, and when the carrier was well again.
    """
    fleet.fall_ill()
    await fleet.client.enqueue_many(Request("ship", {"number": number}) for number in range(JOBS))
    await wait_until_async(lambda: fleet.times("call"), timeout=30, what="the first of them calls")
    await wait_until_async(fleet.set_aside, timeout=30, what="the crowd is set aside")
    settled = time.monotonic()
    await asyncio.sleep(SECONDS)  # the outage itself
    return fleet.times("call")[0], settled, fleet.recover()


def bound(processes: int, seconds: float) -> int:
    """Calls in an outage of so many seconds: what it takes to know, what was under way, and the trials."""
    trials, pause, at = 0, OPEN_FOR, OPEN_FOR
    while at < seconds:
        trials, pause = trials + PROBES, min(8 * OPEN_FOR, pause * 2)
        at += pause
    return LEAST + 2 * processes * SLOTS + trials


@pytest.mark.parametrize("processes", [2, 4])
async def test_an_outage_is_left_alone_and_what_waited_comes_back_by_a_ramp(
    valkey: BenchServer, namespace: str, tmp_path: Path, processes: int
) -> None:
    async with fleet_of(valkey, namespace, tmp_path / "fleet", processes) as fleet:
        over = asyncio.Event()
        mails = asyncio.create_task(_mails(fleet.client, over))
        await wait_until_async(lambda: len(fleet.times("mail")) > MAILS // 2, timeout=30, what="mails run")
        began, settled, ended = await _outage(fleet)
        opened = time.monotonic()

        await wait_until_async(fleet.done, timeout=60 + 10 * SECONDS, what="all of them have run")
        over.set()
        sent = await mails
        await wait_until_async(
            lambda: len(fleet.times("mail")) == len(sent), timeout=30, what="all mails are sent"
        )
        calls, mailed = fleet.times("call"), fleet.times("mail")

        # Left alone: whatever the number of workers, only trials after what was under way.
        assert LEAST <= within(calls, began, ended) <= bound(processes, ended - began)
        assert within(calls, settled, ended) <= bound(0, ended - began) - LEAST, "workers do not matter"
        # The others run on: as many as come; a busy machine may be late with the last of them.
        assert within(mailed, settled, ended) >= 0.9 * within(sent, settled, ended) - LATE * MAILS
        # No storm: the waiting come in by the ramp. A worker that was held up may catch up, but is not ahead.
        came = [at for at in calls if at >= opened]
        # All wait: who called during the outage failed, and calls again.
        for number, at in enumerate(came, 1):
            most = 1.1 * JOBS * (at - came[0]) / RAMP + 2 * PROBES
            assert number <= most, f"call {number} came {at - came[0]:.3f} s after the first, of {JOBS}"
        assert await fleet.state() == "closed"
        assert await fleet.dead() == [], "a job waits as long as it must"
