"""So many threads at once, in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """What `threading.Semaphore` is not: fair.

    There, a thread that gives its turn back and asks for the next one is quicker than who was woken for it:
    with more threads than turns one of them may wait for ever.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[threading.Lock] = deque()  # each is locked until its owner's turn has come
        self._lock = threading.Lock()

    def take(self, timeout: float | None = None) -> bool:
        """Wait for a turn, for `timeout` seconds at most; whether it came."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        try:
            if mine.acquire(timeout=-1 if timeout is None else timeout):
                return True
        except BaseException:  # Ctrl-C: a turn that has come goes to the next
            if not self._leave(mine):
                self.give()
            raise
        return not self._leave(mine)

    def _leave(self, mine: threading.Lock) -> bool:
        """Stop waiting; False when the turn has come already."""
        with self._lock:
            try:
                self._waiting.remove(mine)
            except ValueError:
                return False
            return True

    def give(self) -> None:
        """Give a turn back, which goes to who has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
