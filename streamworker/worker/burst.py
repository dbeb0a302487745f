"""Ends a worker once its lanes have nothing left to do: `streamworker run --burst`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from streamworker.core.errors import StreamworkerError
from streamworker.core.text import counted
from streamworker.store.caller import Caller
from streamworker.store.depths import now_ms
from streamworker.store.keys import Keys

log = logging.getLogger("streamworker.worker")

#: Seconds between two looks.
LOOK_EVERY = 0.25
#: Seconds between two lines that tell what is waited for.
TELL_EVERY = 30.0
#: Counters of jobs that wait in the lane, for their turn, at a gate or in the backlog, and of those that run.
_LEFT = ("queued", "turned", "parked", "backlog", "in_flight")


class Burst:
    """Looks until nothing waits or runs in these lanes, whoever runs it, and nothing is due; then ends it.

    What is due later stays for another worker: delayed jobs and retries.
    """

    def __init__(self, lanes: Iterable[str], keys: Keys, caller: Caller, end: Callable[[], None]) -> None:
        self._fields = [f"{counter}:{lane}" for lane in lanes for counter in _LEFT]
        self._keys = keys
        self._caller = caller
        self._end = end

    async def run(self) -> None:
        """Look until the lanes are idle. While Redis cannot be asked, they are not."""
        loop = asyncio.get_running_loop()
        told = loop.time()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                left = await self._left()
            except StreamworkerError:  # whoever else asks tells of it
                continue
            if not left:
                log.info("nothing is left to do: the burst is over")
                self._end()
                return
            if loop.time() - told >= TELL_EVERY:
                told = loop.time()
                log.info("in a burst: %s left", counted(left, "job"))

    async def _left(self) -> int:
        """Jobs that wait, run or are due.

        The schedule is asked between two looks at the counters, which so miss no job on its way from one to
        the other.
        """
        if left := await self._counted():
            return left
        now = await now_ms(self._caller.command)
        if due := int(await self._caller.command("ZCOUNT", self._keys.schedule, "-inf", now)):
            return due
        return await self._counted()

    async def _counted(self) -> int:
        counts = await self._caller.command("HMGET", self._keys.stats, *self._fields)
        return sum(max(0, int(count or 0)) for count in counts)
