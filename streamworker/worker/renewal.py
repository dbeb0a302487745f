"""Keeps a session with Redis: after a failure a new one, for as long as it takes (D5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from streamworker.core import durations
from streamworker.core.errors import StreamworkerError
from streamworker.store.caller import backoff
from streamworker.worker.session import Entry, Session

log = logging.getLogger("streamworker.worker")

#: Seconds between two words on a Redis that stays away; the attempts between them are told at DEBUG.
SAY_EVERY = 10.0


async def _nothing_to_say() -> None: ...


class Renewal:
    """Renews the session, one attempt at a time; `renewed` is told what is pending for us by then."""

    def __init__(self, session: Session, renewed: Callable[[list[Entry]], None]) -> None:
        self._session = session
        self._renewed = renewed
        #: Awaited with each later session: Redis may have lost its data. Raises StreamworkerError.
        self.announce: Callable[[], Awaitable[None]] = _nothing_to_say
        #: There is a session, and no call has failed under it.
        self.ready = False
        self._failures = 0
        self._syncing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """The first session. Raises ConnectionLost, ServerUnsuitable or ReplyError."""
        await self._session.renew()
        self.ready = True

    def begin(self) -> None:
        """The session is over: on with a new connection, a new session, and a look at what is ours."""
        self.ready = False
        if self._syncing is None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync())

    def works(self) -> None:
        """A call was answered: the next failure waits for nothing."""
        self._failures = 0

    async def _sync(self) -> None:
        loop = asyncio.get_running_loop()
        since, said = loop.time(), float("-inf")
        while True:
            self._failures += 1
            if self._failures > 1:
                await asyncio.sleep(backoff(self._failures))
            try:
                await self._session.renew()
                await self.announce()
                pending = await self._session.pending()
                break
            except StreamworkerError as error:
                again = loop.time() - said < SAY_EVERY
                log.log(logging.DEBUG if again else logging.WARNING, "no session with Redis yet: %s", error)
                said = said if again else loop.time()
            except Exception:  # whatever it is: without a session nothing runs any more
                log.exception("no session with Redis yet")
        if said >= since:
            away = durations.format_ms(round(loop.time() - since) * 1000)
            log.warning("a session with Redis again, after %s", away)
        self._syncing = None
        self.ready = True
        self._renewed(pending)

    def close(self) -> None:
        self.ready = False
        if self._syncing is not None:
            self._syncing.cancel()
