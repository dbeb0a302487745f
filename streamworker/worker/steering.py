"""What operators set of slots and retries reaches a running worker: by one look at Redis, twice a second.

A look is one command, whatever the worker does meanwhile; no job costs anything more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from streamworker.core import slots
from streamworker.core.errors import StreamworkerError
from streamworker.core.lane import Lane
from streamworker.core.overrides import RetryOverrides
from streamworker.store.caller import Caller
from streamworker.store.keys import Keys

log = logging.getLogger("streamworker.worker")

#: Seconds between two looks: what is set holds within a second.
LOOK_EVERY = 0.5


class Steering:
    """Tells of what has changed since the last look."""

    def __init__(
        self,
        lanes: Mapping[str, Lane],
        keys: Keys,
        caller: Caller,
        *,
        on_slots: Callable[[Mapping[str, Lane]], None],
        on_retries: Callable[[RetryOverrides, str], None],
    ) -> None:
        """`lanes` as they are declared. `on_slots` gets them as they are to be, `on_retries` what is set,
        and the text of it."""
        self._lanes = lanes
        self._keys = keys
        self._caller = caller
        self._on_slots = on_slots
        self._on_retries = on_retries
        self._slots = self._retries = ""
        self._failing = False

    async def run(self) -> None:
        """Look until it is cancelled. Survives any error."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Once. When Redis cannot be asked, what is known holds on."""
        try:
            found = await self._caller.command("HMGET", self._keys.policies, "slots", "retries")
            self._take_up(*((text or b"").decode("utf-8", "replace") for text in found))
            self._failing = False
        except StreamworkerError as error:
            if not self._failing:
                log.warning("what operators have set cannot be read: %s", error)
            self._failing = True
        except Exception:
            log.exception("steering")

    def _take_up(self, slots_text: str, retries_text: str) -> None:
        if slots_text != self._slots:
            self._slots = slots_text
            lanes = slots.in_force(self._lanes, slots.read_slots(slots_text, report=_unreadable))
            self._on_slots(lanes)
            shown = ", ".join(f"{name} {lane.reserved}/{lane.weight}" for name, lane in lanes.items())
            log.info("slots as operators have set them, reserved/weight: %s", shown)
        if retries_text != self._retries:
            self._retries = retries_text
            retries = RetryOverrides.read(retries_text, report=_unreadable)
            self._on_retries(retries, retries_text)
            shown = ", ".join(f"{task} {one.word}" for task, one in retries.by_task.items())
            log.info("retries as operators have set them: %s", shown or "as declared")


def _unreadable(problem: str) -> None:
    log.warning("what an operator has set cannot be read: %s", problem)
