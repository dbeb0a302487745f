"""Blocking connections for many threads: each call has one to itself, and comes back from a lost one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from streamworker.core.errors import ConnectionLost, OutcomeUnknown
from streamworker.store.caller import Doubt, backoff, moved, passes
from streamworker.store.connection import Argument, ReplyError, SyncLink
from streamworker.store.scripts import Call
from streamworker.store.turns import Turns

#: Connections of one process for calls that Redis answers at once. More threads than that wait their turn
#: instead of being refused (R24): a call takes well under a millisecond.
LINKS = 16
#: Seconds for which a thread waits for its turn at least.
SHORTEST_TURN = 0.5
#: Idle connections kept for those who wait for results. In use there is one for each waiting thread.
IDLE_WAITERS = 4


class LinkPool:
    """Connections of one process, each used by one thread at a time."""

    def __init__(self, url: str, *, limit: int | None, idle: int) -> None:
        self._url = url
        self._idle: list[SyncLink] = []
        self._keep = idle
        self._turns = None if limit is None else Turns(limit)
        self._closed = False

    @contextmanager
    def link(self, until: float | None = None) -> Iterator[SyncLink]:
        """A connected link for this block. Raises ConnectionLost or ServerUnsuitable before the block.

        `until`: monotonic; who has no turn by then, and for SHORTEST_TURN at least, gets ConnectionLost.

        A link whose call was broken off by any exception is thrown away: a reply that comes late would be
        taken for that of the next call. An error reply leaves it usable, unless it is the wrong server's.
        """
        if self._turns is not None:
            left = None if until is None else max(SHORTEST_TURN, until - time.monotonic())
            if not self._turns.take(left):
                raise ConnectionLost("all connections of the process are in use, and Redis does not answer")
        try:
            link = self._take()
            try:
                yield link
            except ReplyError as error:
                if moved(error):
                    link.close()
                    self._drop_idle()
                else:
                    self._put(link)
                raise
            except BaseException as error:
                link.close()
                if isinstance(error, ConnectionLost):  # the idle ones were most likely lost with it
                    self._drop_idle()
                raise
            self._put(link)
        finally:
            if self._turns is not None:
                self._turns.give()

    def _take(self) -> SyncLink:
        try:
            return self._idle.pop()  # one step under the GIL
        except IndexError:
            pass
        link = SyncLink(self._url)
        try:
            # Connects, so that what fails from here on has been sent.
            link.call("PING")
        except BaseException:
            link.close()
            raise
        return link

    def _put(self, link: SyncLink) -> None:
        if self._closed or len(self._idle) >= self._keep:
            link.close()
        else:
            self._idle.append(link)

    def close(self) -> None:
        """Close the idle links; those in use follow when they come back."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        while self._idle:
            with suppress(IndexError):  # another thread took the last one
                self._idle.pop().close()


class SyncCaller:
    """Calls that survive a lost connection, as `Caller` makes them; for any number of threads.

    A forked child gets connections of its own: what it inherited stays its parent's (R27).
    """

    def __init__(self, url: str, tag: str, *, patience: float = 10.0) -> None:
        self.url = url
        self.tag = tag
        #: Seconds that a call may take, lost connections included.
        self.patience = patience
        # By process. The parent's stay in the child's map, never used and never closed there; no lock of
        # theirs is taken, which another thread of the parent may have held during the fork.
        self._pools: dict[int, tuple[LinkPool, LinkPool]] = {}

    def _of_process(self) -> tuple[LinkPool, LinkPool]:
        pid = os.getpid()
        found = self._pools.get(pid)
        if found is None:
            fresh = (
                LinkPool(self.url, limit=LINKS, idle=LINKS),
                LinkPool(self.url, limit=None, idle=IDLE_WAITERS),
            )
            found = self._pools.setdefault(pid, fresh)  # one step under the GIL: one of two threads wins
        return found

    def run(self, call: Call, *, until: float | None = None) -> Any:
        """Run a script until it is answered or patience ends; then the last error is raised.

        `until` is a monotonic time that ends patience sooner.
        """
        return self._persist(lambda link: link.script(call.script, self.tag, *call.argv), until)

    def run_once_known(self, call: Call, job_ids: list[str], doubt: Doubt) -> Any:
        """As `run`, but raise OutcomeUnknown with these ids when a reply was lost and could not be had."""

        def send(link: SyncLink) -> Any:
            try:
                return link.script(call.script, self.tag, *call.argv)
            except ConnectionLost:
                doubt.lost = True
                raise

        try:
            return self._persist(send, None)
        except (ConnectionLost, ReplyError) as error:
            if doubt.lost and passes(error):
                raise OutcomeUnknown(job_ids) from None
            raise

    def command(self, *arguments: Argument, until: float | None = None) -> Any:
        """Send a plain command that is safe to be sent twice."""
        return self._persist(lambda link: link.call(*arguments), until)

    def block(self, *arguments: Argument) -> Any:
        """Send a blocking command once, on a connection that nobody else waits for (R24)."""
        with self._of_process()[1].link() as link:
            return link.call(*arguments)

    def _persist(self, send: Callable[[SyncLink], Any], until: float | None) -> Any:
        latest = time.monotonic() + self.patience
        until = latest if until is None else min(until, latest)
        attempt = 0
        while True:
            try:
                with self._of_process()[0].link(until) as link:
                    return send(link)
            except (ConnectionLost, ReplyError) as error:
                attempt += 1
                pause = backoff(attempt)
                if not passes(error) or time.monotonic() + pause > until:
                    raise
                time.sleep(pause)

    def close(self) -> None:
        """Close this process's connections. The next call makes new ones."""
        for pool in self._pools.pop(os.getpid(), ()):
            pool.close()
