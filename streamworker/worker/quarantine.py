"""What has strikes runs apart, one job at a time, so that the next death strikes nobody else (D22).

Apart is a child process, which leaves the worker's slots to the others. Where no child process can have the
app, one worker at a time runs such a job with nothing beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection

from streamworker.core.errors import StreamworkerError
from streamworker.store.depths import Command
from streamworker.store.keys import GROUP, Keys
from streamworker.worker.children import Children, NotReady
from streamworker.worker.keeper import Keeper
from streamworker.worker.pump import Pump

log = logging.getLogger("streamworker.worker")

#: Seconds between two looks for jobs in quarantine, and while one runs alone.
LOOK_EVERY = 0.5
ALONE_AFTER = 0.02


class Quarantine:
    """One worker's share in the quarantine of its lanes."""

    def __init__(
        self, pump: Pump, keeper: Keeper, children: Children, lanes: Collection[str], keys: Keys
    ) -> None:
        self._pump = pump
        self._keys = keys
        self._keeper = keeper
        self._children = children
        self._lanes = lanes  # those that this worker serves: it leaves the struck of others alone
        self._said = False

    async def run(self) -> None:
        """Take what waits, for ever; an error is told and does not end it."""
        pause = LOOK_EVERY
        while True:
            await asyncio.sleep(pause)
            pause = LOOK_EVERY
            try:
                waiting = await with_struck(self._keeper.caller.command, self._keys, self._lanes)
                if self._children.unloadable is None:
                    await self._apart(deque(waiting))
                elif self._pump.struck.isolating or waiting:  # whoever has none leaves the role to others
                    if await self._keeper.elected("quarantine"):
                        self._alone(waiting)
                    if self._pump.struck.isolating:  # the next one need not wait long
                        pause = ALONE_AFTER
            except NotReady as error:
                log.warning("jobs with strikes wait: %s", error)
            except StreamworkerError as error:  # none can have the app, maybe: from now on alone
                log.debug("quarantine: %s", error)
            except Exception:
                log.exception("quarantine")

    async def _apart(self, waiting: deque[str]) -> None:
        """Lane after lane, one job each, while any has one."""
        while waiting:
            await self._children.ready()  # before the claim, so that no job waits with a lease
            lane = waiting.popleft()
            if await self._pump.run_apart(lane):
                waiting.append(lane)

    def _alone(self, waiting: list[str]) -> None:
        if self._pump.struck.isolating or not waiting:
            return
        if not self._said:
            self._said = True
            log.warning(
                "no child process can have this app (%s): jobs with strikes run here, each alone while the "
                "other slots stay empty",
                self._children.unloadable,
            )
        self._pump.isolate(waiting[0])


async def with_struck(command: Command, keys: Keys, lanes: Collection[str]) -> list[str]:
    """Those of the lanes that have a job in quarantine that nobody has taken yet, and are not paused."""
    waiting = []
    for lane in lanes:
        stream = keys.stream(lane, "q")
        if length := await command("XLEN", stream):
            try:
                pending = (await command("XPENDING", stream, GROUP))[0]
            except StreamworkerError:  # no group yet: nobody has taken anything
                pending = 0
            if length > pending:  # never from the group's lag, which may be unknown (R14)
                waiting.append(lane)
    if not waiting:
        return []
    from streamworker.ops.tune import read_pauses  # here, since few workers ever need it

    pauses = read_pauses((await command("GET", keys.pauses) or b"").decode())
    paused = {one.scope for one in pauses if one.state == "paused"}
    return [lane for lane in waiting if f"lane:{lane}" not in paused]
