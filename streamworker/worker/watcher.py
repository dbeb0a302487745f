"""The look at Redis for metrics: one of the fleet is elected to take it, so that Redis is asked once."""

from __future__ import annotations

import asyncio
import logging

from streamworker.core.errors import StreamworkerError
from streamworker.ops import snapshot
from streamworker.outbox.depth import Gauge
from streamworker.settings import Settings
from streamworker.store import scripts
from streamworker.store.caller import Caller
from streamworker.store.keys import Keys
from streamworker.telemetry.cluster import ClusterNumbers

log = logging.getLogger("streamworker.worker")

#: Seconds between two looks.
LOOK_EVERY = 5.0
#: Seconds after which another one may take over, and after which a look that was not renewed is not shown.
TERM = 15.0
ROLE = "collector"


class Watcher:
    """Looks at a namespace each few seconds, as long as it is the one who does.

    `always`: it looks whoever else does, and takes the role, so that no worker does the same.
    """

    def __init__(
        self, settings: Settings, name: str, numbers: ClusterNumbers, *, always: bool = False
    ) -> None:
        self._name = name
        self._numbers = numbers
        self._always = always
        self._keys = Keys(settings.namespace)
        self._caller = Caller(settings.redis_url, self._keys.tag, patience=LOOK_EVERY)
        self._outbox = (
            None if settings.postgres_dsn is None else Gauge(settings.postgres_dsn, settings.namespace)
        )
        self._looked_at = float("-inf")

    async def run(self) -> None:
        """Look until cancelled. Survives any error."""
        failures = 0
        while True:
            try:
                await self.look()
                failures = 0
            except StreamworkerError as error:
                failures += 1
                if failures == 1:
                    log.warning("no look at Redis for metrics: %s", error)
            except Exception:
                log.exception("no look at Redis for metrics")
            if asyncio.get_running_loop().time() - self._looked_at > TERM:
                self._numbers.snapshot = None
            await asyncio.sleep(LOOK_EVERY)

    async def look(self) -> None:
        """Look once, if it is ours to do. Who lost the role says nothing any more: two would contradict."""
        if await self._elected():
            self._numbers.snapshot = await snapshot.take(self._caller, self._keys)
            self._looked_at = asyncio.get_running_loop().time()
            if self._outbox is not None:
                self._numbers.outbox = await self._outbox.look()
        else:
            self._numbers.snapshot = None
            self._let_go()

    def _let_go(self) -> None:
        if self._outbox is not None:
            self._outbox.close()

    async def _elected(self) -> bool:
        ttl_ms = round(TERM * 1000)
        if self._always:
            await self._caller.command("SET", self._keys.elect(ROLE), self._name, "PX", ttl_ms)
            return True
        call = scripts.elect(role=ROLE, worker=self._name, ttl_ms=ttl_ms)
        return bool(await self._caller.run(call))

    async def close(self) -> None:
        """Close its connections."""
        self._let_go()
        await self._caller.close()
