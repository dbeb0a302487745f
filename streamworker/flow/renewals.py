"""Renews the locks that handlers hold, from a thread: one that blocks the loop keeps its own (R22, R56)."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from streamworker.core.errors import StreamworkerError
from streamworker.store import scripts
from streamworker.store.connection import SyncLink

log = logging.getLogger("streamworker")

#: Seconds that one renewal may take, and until the next after one that failed.
TIMEOUT = 2.0
AGAIN_AFTER = 0.1


def ttl_ms(seconds: float) -> int:
    """As the scripts want it."""
    return max(1, round(seconds * 1000))


class Held(Protocol):
    """A lock that somebody holds. Times are monotonic seconds."""

    key: str
    #: Whose it is, in Redis.
    by: str
    ttl: float
    #: Until then it is ours, whatever happens to Redis.
    deadline: float

    def lose(self) -> None:
        """It is another's, or nobody's. Called in the thread."""


class Renewals:
    """One thread and one connection for all locks of a process; both begin with the first lock."""

    def __init__(self, url: str, tag: str) -> None:
        self._link = SyncLink(url, timeout=TIMEOUT)
        self._tag = tag
        self._due: dict[Held, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, lock: Held) -> None:
        """From now on it is renewed at every third of its time. Raises RuntimeError when no thread can."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="streamworker-locks", daemon=True)
                thread.start()
                self._thread = thread
            self._due[lock] = time.monotonic() + lock.ttl / 3
            self._changed.notify()

    def drop(self, lock: Held) -> None:
        """It is not held any more. A renewal under way does no harm: it names the holder."""
        with self._changed:
            self._due.pop(lock, None)

    def close(self) -> None:
        """End the thread; a call under way ends by its timeout."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    break
                lock = min(self._due, key=self._due.__getitem__, default=None)
                wait = None if lock is None else self._due[lock] - time.monotonic()
                if lock is None or (wait is not None and wait > 0):
                    self._changed.wait(wait)
                    continue
            self._renew(lock)
        self._link.close()

    def _renew(self, lock: Held) -> None:
        sent = time.monotonic()
        call = scripts.lock_extend(name=lock.key, holder=lock.by, ttl_ms=ttl_ms(lock.ttl))
        lost = sent >= lock.deadline
        again = sent + lock.ttl / 3
        if not lost:
            try:
                lost = self._link.script(call.script, self._tag, *call.argv) != b"OK"
            except StreamworkerError:  # until its time is over nobody else can have it
                self._link.close()
                again = time.monotonic() + AGAIN_AFTER
            except Exception:
                log.exception("lock %s was not renewed", lock.key)
                again = time.monotonic() + AGAIN_AFTER
            else:
                lock.deadline = sent + lock.ttl
        with self._changed:
            if lock not in self._due:
                return
            if lost:
                del self._due[lock]
            else:
                self._due[lock] = again
        if lost:
            lock.lose()
