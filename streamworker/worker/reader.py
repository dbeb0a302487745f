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
from streamworker.store.caller import backoff, passes
from streamworker.store.connection import Link, Opens, ReplyError
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

    def __init__(self, settings: Settings, pump: Pump, *, opens: Opens = Link) -> None:
        self._keys = Keys(settings.namespace)
        self._pump = pump
        self._link = opens(settings.redis_url, timeout=BLOCK_MS / 1000 + 3)
        self._wanted = asyncio.Event()
        self._stopping = False
        self._client_id: int | None = None
        #: Lanes that the read under way looks at; None: there is none.
        self._watched: frozenset[str] | None = None
        self._released = False
        #: Set when `run` has ended: no read is under way any more.
        self.ended = asyncio.Event()
        self._streams: dict[bytes, tuple[str, str]] = {}
        pump.on_dry = self.want

    def want(self) -> None:
        """Read now; a read under way that leaves out a lane with a free slot is released and begun anew."""
        self._wanted.set()
        if self._watched is not None and not self._watched.issuperset(self._pump.eligible_lanes()):
            self._release()

    async def run(self) -> None:
        """Read until `stop`."""
        try:
            await self._run()
        finally:
            self.ended.set()

    async def _run(self) -> None:
        failures = 0
        while not self._stopping:
            await self._wanted.wait()
            self._wanted.clear()
            lanes = self._pump.eligible_lanes() if self._pump.hungry else []
            if not lanes or self._stopping:
                continue
            try:
                if not await self._connected():
                    return
                self._watched, self._released = frozenset(lanes), False
                reply = await self._read(lanes)
                failures = 0
            except StreamworkerError as error:
                failures += 1
                if not isinstance(error, ReplyError):
                    log.warning("the blocking read failed: %s", error)
                self._link.abort()
                self._watched = None
                await asyncio.sleep(max(ERROR_PAUSE, backoff(failures)))
                self._pump.reader_failed()
                continue
            self._watched = None
            if reply:
                self._pump.offer(self._entries(reply))
            else:
                self._wanted.set()

    async def _connected(self) -> bool:
        """Connect if need be; False if the worker was stopped meanwhile."""
        if not self._link.connected:
            await self._link.connect()
            try:
                self._client_id = int(await self._link.call("CLIENT", "ID"))
            except ReplyError as error:
                if passes(error):
                    raise
                self._client_id = None  # this user may not: reads are not released, and end by themselves
        return not self._stopping

    def _release(self) -> None:
        """End the blocking read, which is never cancelled (R18)."""
        link = self._pump.session.link
        if self._watched is None or self._released or not self._client_id or not link.connected:
            return
        self._released = True
        link.send("CLIENT", "UNBLOCK", self._client_id, "TIMEOUT").add_done_callback(self._unblocked)

    def _unblocked(self, reply: asyncio.Future[Any]) -> None:
        if reply.exception() is None and reply.result() == 0 and self._watched is not None:
            # It came before the read began to block: once more.
            self._released = False
            asyncio.get_running_loop().call_later(0.002, self._release)

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

    @property
    def link(self) -> Link:
        """Its connection."""
        return self._link

    def stop(self) -> None:
        """Let a blocking read end now."""
        self._stopping = True
        self._wanted.set()
        self._release()

    def close(self) -> None:
        self._link.abort()
