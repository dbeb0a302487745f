"""Follows the event log by its own ids while a run goes on: the log is capped, and what was read is safe."""

from __future__ import annotations

import threading
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from streamworker.core.states import TERMINAL
from streamworker.store.events import Transition, decode
from streamworker.store.keys import Keys

#: Entries that one read asks for, and seconds between two reads that found nothing.
PAGE, PAUSE = 500, 0.02


def own_client(url: str) -> Any:
    """A client past every proxy, without retries of its own (R16)."""
    return redis.Redis.from_url(url, protocol=2, socket_timeout=10, retry=Retry(NoBackoff(), 0))


class LogReader:
    """A thread that reads everything; a context manager. Survives that Redis is away."""

    def __init__(self, url: str, keys: Keys) -> None:
        self._redis = own_client(url)
        self._keys = keys
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-log", daemon=True)
        self._cursor = "-"
        self._sequence = 0
        self._transitions: list[Transition] = []
        #: Jobs that the log knows and that are not over.
        self.open: set[str] = set()
        #: Jobs that are over, of those not taken yet.
        self.over: set[str] = set()
        #: How many transitions there were.
        self.moved = 0
        #: Entries that were trimmed before they were read.
        self.unread = 0

    def __enter__(self) -> LogReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._redis.close()

    def take(self) -> tuple[list[Transition], int]:
        """The transitions and the number of lost entries since the last call."""
        with self._lock:
            taken, self._transitions = self._transitions, []
            unread, self.unread = self.unread, 0
            self.over.clear()
            return taken, unread

    def seen(self) -> list[Transition]:
        """The transitions since the last `take`, as far as read."""
        with self._lock:
            return list(self._transitions)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                found = self._redis.xrange(self._keys.events, self._cursor, "+", PAGE)
            except redis.RedisError:
                self._stop.wait(PAUSE)
                continue
            if found:
                self._enter(found)
            if len(found) < PAGE:
                self._stop.wait(PAUSE)

    def _enter(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        with self._lock:
            for entry, fields in entries:
                sequence = int(fields[b"n"])
                self.unread += max(0, sequence - self._sequence - 1)
                self._sequence = sequence
                for edge in decode(fields):
                    self._note(edge)
                self._cursor = f"({entry.decode()}"

    def _note(self, edge: Transition) -> None:
        self._transitions.append(edge)
        self.moved += 1
        if edge.to_status in TERMINAL:
            self.open.discard(edge.job_id)
            self.over.add(edge.job_id)
        else:
            self.over.discard(edge.job_id)
            self.open.add(edge.job_id)
