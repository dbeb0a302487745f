"""Notices when the machine did not let the processes of a run run: nobody could keep a bound then.

Linux counts how long each process wanted a processor and had none. Where it does not say, our own thread that
comes late tells.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

#: Seconds between two looks.
EVERY = 0.1
#: The part of the time between two looks that one process has to wait for it to count.
SHARE = 0.5
#: Two stalls with less than so many seconds between them are one: a good moment helps nobody.
APART = 0.25


class StallWatch:
    """A thread that looks at some processes. A context manager."""

    def __init__(self, pids: Callable[[], Iterable[int]], *, least: float) -> None:
        """`least`: seconds of a stall that is worth noting."""
        self._pids = pids
        self._least = least
        self._lock = threading.Lock()
        self._stalls: list[tuple[float, float]] = []
        self._waited: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-stalls", daemon=True)

    def __enter__(self) -> StallWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def stalls(self) -> list[tuple[float, float]]:
        """Those that are not taken yet, short ones included."""
        with self._lock:
            return list(self._stalls)

    def take(self) -> list[tuple[float, float]]:
        """The stalls since the last call: from when to when."""
        with self._lock:
            taken, self._stalls = self._stalls, []
        return [stall for stall in taken if stall[1] - stall[0] >= self._least]

    def note(self, begin: float, end: float) -> None:
        """Enter a stall, or make the last one longer."""
        with self._lock:
            if self._stalls and begin - self._stalls[-1][1] <= APART:
                begin = self._stalls.pop()[0]
            self._stalls.append((begin, end))

    def _run(self) -> None:
        begin = time.time()
        while not self._stop.wait(EVERY):
            end = time.time()
            late = end - begin - EVERY
            if late >= EVERY or max(self._waits(), default=0.0) >= SHARE * (end - begin):
                self.note(begin, end)
            begin = end

    def _waits(self) -> list[float]:
        """Seconds that each process waited for a processor since the last look."""
        waited: dict[int, float] = {}
        for pid in self._pids():
            with suppress(OSError, ValueError, IndexError):  # it is gone, or the kernel does not count
                waited[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        before, self._waited = self._waited, waited
        return [seconds - before[pid] for pid, seconds in waited.items() if pid in before]
