"""What producers were told: the accepted jobs, and those of which nobody knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from streamworker.core.errors import OutcomeUnknown
from streamworker.core.states import Disposition
from streamworker.request import Request
from tests.chaos.history import Accepted

#: What an enqueue answers when a job stands for the request.
_NEW = frozenset({Disposition.ACCEPTED, Disposition.SCHEDULED, Disposition.DEFERRED, Disposition.PARKED})
_TAKEN = _NEW | {Disposition.COALESCED, Disposition.DUPLICATE}


class Handle(Protocol):
    """A job as the clients give it."""

    id: str
    disposition: Disposition


class Accounts:
    """One list for all producers of a run; safe in many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accepted: list[Accepted] = []
        self._maybe: set[str] = set()
        self._wanted: set[str] = set()
        #: New jobs since the last `take`.
        self.made = 0

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Notes the jobs of a call whose reply was lost for good; the error goes on."""
        try:
            yield
        except OutcomeUnknown as unknown:
            with self._lock:
                self._maybe.update(unknown.job_ids)
            raise

    def note(
        self, requests: Sequence[Request], handles: Sequence[Handle], sent: Sequence[float] = ()
    ) -> None:
        """Enter what was answered. `sent`: when each request was sent first, if that is known."""
        answered = time.time()
        with self._lock:
            for request, handle, first in zip(requests, handles, sent or [0.0] * len(requests), strict=True):
                lane = request.options.lane or ""
                key, disposition = request.options.key, handle.disposition
                one = Accepted(handle.id, request.task, lane, disposition, key, first, answered)
                self._accepted.append(one)
                if handle.disposition in _TAKEN:
                    self._wanted.add(handle.id)
                    self.made += handle.disposition in _NEW

    def wanted(self) -> set[str]:
        """The ids of jobs that must come to an end."""
        with self._lock:
            return set(self._wanted)

    def take(self) -> tuple[list[Accepted], set[str]]:
        """The accepted jobs and the uncertain ones since the last call."""
        with self._lock:
            taken = (self._accepted, self._maybe)
            self._accepted, self._maybe, self._wanted, self.made = [], set(), set(), 0
            return taken
