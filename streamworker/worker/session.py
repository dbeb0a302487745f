"""The pump's connection and session, and what Redis delivered to us without our hearing of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamworker.core.errors import ConnectionLost
from streamworker.settings import Settings
from streamworker.store import scripts
from streamworker.store.connection import Link, Opens, ReplyError
from streamworker.store.keys import GROUP, STREAM_SUFFIX, Keys

#: Entries that one look at our own pending list asks for.
PENDING_PAGE = 500

#: Lane, kind of stream, entry id.
Entry = tuple[str, str, str]


class Session:
    """A connection with a number that rises whenever a claim may have been lost (D5)."""

    def __init__(
        self,
        settings: Settings,
        worker: str,
        lanes: Iterable[str],
        facts: Mapping[str, str],
        *,
        opens: Opens = Link,
    ) -> None:
        self.link = opens(settings.redis_url)
        self.keys = Keys(settings.namespace)
        self.worker = worker
        self.number = 0
        self._lanes = tuple(lanes)
        self._facts = facts
        self._liveness_ms = settings.liveness_ms

    async def renew(self) -> None:
        """Connect anew under the next number: calls sent before find nothing when they execute late.

        Raises ConnectionLost, ServerUnsuitable or ReplyError.
        """
        try:
            await self.link.connect()
        except ConnectionLost:
            # The server takes no new one, as with maxclients full: on ours calls keep their order too.
            if not self.link.connected:
                raise
        facts = [word for fact in self._facts.items() for word in fact]
        call = scripts.session(worker=self.worker, own=self.number, liveness_ms=self._liveness_ms, rows=facts)
        self.number = int(await self.link.script(call.script, self.keys.tag, *call.argv))

    async def pending(self) -> list[Entry]:
        """Entries that are pending for us."""
        found: list[Entry] = []
        for lane in self._lanes:
            for kind in STREAM_SUFFIX:
                found.extend((lane, kind, entry) for entry in await self._pending(lane, kind))
        return found

    async def _pending(self, lane: str, kind: str) -> list[str]:
        found: list[str] = []
        start = "-"
        while True:
            try:
                page = await self.link.call(
                    "XPENDING", self.keys.stream(lane, kind), GROUP, start, "+", PENDING_PAGE, self.worker
                )
            except ReplyError as error:
                if "NOGROUP" in str(error):  # nothing was ever delivered from it (R9)
                    return found
                raise
            found.extend(row[0].decode() for row in page)
            if len(page) < PENDING_PAGE:
                return found
            start = f"({found[-1]}"

    async def forget(self) -> None:
        """A clean good-bye: the worker's key, and its consumers where nothing is pending (R6)."""
        call = scripts.forget(worker=self.worker, leave=1, rows=self._lanes)
        await self.link.script(call.script, self.keys.tag, *call.argv)
