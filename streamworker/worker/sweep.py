"""Looks after what runs, 20 times a second: time limits, start marks, the lag of the loop, and the status."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamworker.telemetry.status import Status
from streamworker.worker import stall
from streamworker.worker.running import Running
from streamworker.worker.wedge import Wedge

if TYPE_CHECKING:
    from streamworker.worker.parts import Parts

log = logging.getLogger("streamworker.worker")

#: Seconds between two looks at time limits and start marks: marks are out within 100 ms (D20).
SWEEP_EVERY = 0.05


class Sweep:
    """The looks of one worker."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._wedge = Wedge(parts.worker.id, parts.worker.concurrency)
        #: Ended since the last look, after a second or more.
        self.long: list[Running] = []

    async def run(self) -> None:
        """Until it is cancelled."""
        parts, loop = self._parts, asyncio.get_running_loop()
        held: list[Running] = []
        while True:
            before = time.monotonic()
            await asyncio.sleep(SWEEP_EVERY)
            now = time.monotonic()
            lag = max(0.0, now - before - SWEEP_EVERY)
            earlier, held = [*held, *self.long], list(parts.pump.holdings.by_job.values())
            self.long.clear()
            if lag >= stall.STALL:
                log.warning(
                    "worker %s: the event loop stood still for %.1f s; %s",
                    parts.worker.id,
                    lag,
                    stall.describe(stall.suspects([*earlier, *held], before + SWEEP_EVERY)),
                )
            if self._wedge.look(held, parts.pump.holdings.busy_slots, now):
                parts.worker.give_up()
            if parts.telling is not None:
                parts.telling.tell(self._status(now, lag, held))
            parts.runner.sweep(held, loop.time(), parts.pump.mark)

    def _status(self, now: float, lag: float, held: Iterable[Running]) -> Status:
        parts = self._parts
        links = (parts.pump.session.link, parts.reader.link, parts.keeper.link, parts.heartbeat.link)
        errors: dict[str, int] = {}
        for link in links:
            for kind, count in list(link.errors.items()):
                errors[kind] = errors.get(kind, 0) + count
        return Status(
            at=now,
            lag=lag,
            session=parts.pump.ready,
            heard=max(link.last_reply for link in links),
            claiming=not parts.worker.stopping,
            busy=dict(parts.pump.holdings.busy),
            wedged=self._wedge.wedged,
            longest=_longest(held, now),
            errors=errors,
            recovered=parts.keeper.recovered,
            promoted=parts.keeper.promoted,
            breakers=parts.keeper.breakers.states,
        )


def _longest(held: Iterable[Running], now: float) -> dict[str, float]:
    """For how long the oldest handler of each lane has run."""
    found: dict[str, float] = {}
    for running in held:
        if running.started is not None and running.outcome is None:
            lane, age = running.claim.lane, now - running.started
            if age > found.get(lane, 0.0):
                found[lane] = age
    return found
