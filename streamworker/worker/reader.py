"""The blocking read: sleeps in Redis while there is nothing to claim, and wakes the pump with what arrived.

It has a connection of its own (R24), reads one entry a stream, and only from lanes with a free slot. It is
never cancelled while it blocks: a cancelled read strands what it was given (R18).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from streamworker.core.errors import StreamworkerError
from streamworker.settings import Settings
from streamworker.store.caller import backoff
from streamworker.store.connection import Link, ReplyError
from streamworker.store.keys import GROUP, Keys
from streamworker.worker.pump import Pump
from streamworker.worker.session import Entry

log = logging.getLogger("streamworker.worker")

#: Milliseconds that one read blocks: at most 2 s, and 3 s less than the connection's timeout (R17).
BLOCK_MS = 1000
#: Seconds before the next read after an error: a missing group answers at once, and would spin (R9).
ERROR_PAUSE = 0.1


class Reader:
    """Blocks on the lanes' streams whenever the pump has found nothing to claim."""

    def __init__(self, settings: Settings, pump: Pump) -> None:
        self._keys = Keys(settings.namespace)
        self._pump = pump
        self._link = Link(settings.redis_url, timeout=BLOCK_MS / 1000 + 3)
        self._wanted = asyncio.Event()
        self._stopping = False
        self._client_id: int | None = None
        self.last_read = 0.0  # loop time of the last answered read; for readiness
        self._streams: dict[bytes, tuple[str, str]] = {}
        pump.on_dry = self._wanted.set

    async def run(self) -> None:
        """Read until `stop`."""
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping:
            await self._wanted.wait()
            self._wanted.clear()
            lanes = self._pump.eligible_lanes() if self._pump.hungry else []
            if not lanes or self._stopping:
                continue
            try:
                if not self._link.connected:
                    await self._link.connect()
                    self._client_id = int(await self._link.call("CLIENT", "ID"))
                reply = await self._read(lanes)
                failures = 0
                self.last_read = loop.time()
            except StreamworkerError as error:
                if str(error).startswith("UNBLOCKED"):
                    continue
                failures += 1
                if not isinstance(error, ReplyError):
                    log.warning("the blocking read failed: %s", error)
                self._link.abort()
                await asyncio.sleep(max(ERROR_PAUSE, backoff(failures)))
                self._pump.reader_failed()
                self._pump.offer([])  # claim looks at the lanes, and makes a missing group again
                continue
            if reply:
                self._pump.offer(self._entries(reply))
            else:
                self._wanted.set()

    async def _read(self, lanes: list[str]) -> Any:
        self._streams = {
            self._keys.stream(lane, kind).encode(): (lane, kind) for lane in lanes for kind in ("r", "a")
        }
        streams = list(self._streams)
        return await self._link.call(
            "XREADGROUP",
            "GROUP",
            GROUP,
            self._pump.session.worker,
            "COUNT",
            1,
            "BLOCK",
            BLOCK_MS,
            "STREAMS",
            *streams,
            *[">"] * len(streams),
        )

    def _entries(self, reply: Any) -> list[Entry]:
        return [(*self._streams[stream], entry[0].decode()) for stream, entries in reply for entry in entries]

    async def stop(self) -> None:
        """Let a blocking read end now, without cancelling it."""
        self._stopping = True
        self._wanted.set()
        pump_link = self._pump.session.link
        if self._link.in_flight and self._client_id and pump_link.connected:
            try:
                await pump_link.call("CLIENT", "UNBLOCK", self._client_id, "TIMEOUT")
            except StreamworkerError as error:
                log.debug("the blocking read ends by itself: %s", error)

    def close(self) -> None:
        self._link.abort()
