"""A keeper's look at the lanes: how much pressure each is under, for producers' rules to ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from streamworker.core.lane import Lane
from streamworker.store import scripts
from streamworker.store.caller import Caller
from streamworker.store.connection import Argument
from streamworker.store.depths import now_ms, oldest_ms
from streamworker.store.keys import Keys

#: Seconds between two looks.
LOOK_EVERY = 1.0
#: The counters of those that wait: in a stream, at a gate, behind the turnstile.
WAITING = ("queued", "parked", "turned")


class PressureGauge:
    """Measures the lanes that declare marks or a target; costs nothing where none does."""

    def __init__(self, lanes: Mapping[str, Lane], keys: Keys, caller: Caller) -> None:
        self._lanes = {name: lane for name, lane in lanes.items() if lane.pressure or lane.target is not None}
        self._keys = keys
        self._caller = caller
        self._next = 0.0

    async def look(self) -> None:
        """Measure and tell, once a second at most."""
        now = asyncio.get_running_loop().time()
        if not self._lanes or now < self._next:
            return
        self._next = now + LOOK_EVERY
        command = self._caller.command
        at = await now_ms(command)
        fields = [f"{where}:{name}" for name in self._lanes for where in WAITING]
        counts = [int(count or 0) for count in await command("HMGET", self._keys.stats, *fields)]
        size = len(WAITING)
        rows: list[Argument] = []
        for place, (name, lane) in enumerate(self._lanes.items()):
            depth = sum(counts[place * size : (place + 1) * size])
            # Only a lane with a target needs the age, which takes a few commands more.
            age = None if lane.target is None else await oldest_ms(command, self._keys, name, at)
            rows += (name, lane.pressure_at(depth, age or 0))
        await self._caller.run(scripts.pressure(rows=rows))
