"""A worker's look at the breakers: for its metrics, and for its log when one turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from streamworker.core.breaker import BreakerState, read_standings
from streamworker.store.caller import Caller
from streamworker.store.keys import Keys

log = logging.getLogger("streamworker.worker")

#: Seconds between two looks.
LOOK_EVERY = 1.0


class BreakerWatch:
    """Costs nothing where no dependency has a breaker."""

    def __init__(self, gates: Mapping[str, str], keys: Keys, caller: Caller) -> None:
        """`gates`: the breaker's gate of each dependency that has one."""
        self._gates = gates
        self._keys = keys
        self._caller = caller
        self._next = 0.0
        #: What each breaker was when it was last looked at.
        self.states: Mapping[str, str] = dict.fromkeys(gates, BreakerState.CLOSED)

    async def look(self, *, say: bool) -> None:
        """Once a second at most. `say`: into the log what has turned."""
        now = asyncio.get_running_loop().time()
        if not self._gates or now < self._next:
            return
        self._next = now + LOOK_EVERY
        found = read_standings((await self._caller.command("GET", self._keys.breakers) or b"").decode())
        states = dict.fromkeys(self._gates, BreakerState.CLOSED)
        for dependency, gate in self._gates.items():
            standing = found.get(gate)
            if standing is not None:
                states[dependency] = standing.state
            if say and states[dependency] != self.states[dependency]:
                why = "" if standing is None else f": {standing.reason}"
                by = "" if standing is None or standing.by is None else f" by {standing.by}"
                log.warning("the breaker of %s is %s%s%s", dependency, states[dependency], by, why)
        self.states = states
