"""Notices a worker in which no slot becomes free: each is taken by a handler that was given up and hangs.

A thread cannot be stopped (R23). One that hangs costs a slot; when they have cost all of them, the worker is
alive, answers probes and runs nothing any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from streamworker.worker.running import Running

log = logging.getLogger("streamworker.worker")

#: Seconds until a worker that has its process to itself ends, so that whoever runs it starts another one.
WEDGED_AFTER = 300.0


class Wedge:
    """Watches the slots of one worker. Times are monotonic seconds."""

    def __init__(self, worker: str, slots: int) -> None:
        self._worker = worker
        self._slots = slots
        self._since: float | None = None

    @property
    def wedged(self) -> bool:
        """Whether all slots are taken by handlers that were given up."""
        return self._since is not None

    def look(self, held: Iterable[Running], busy_slots: int, now: float) -> bool:
        """Whether it has been so for too long. `held`: the claims whose outcome is not recorded yet."""
        live = sum(one.occupies and not one.apart and one.outcome is None for one in held)
        if busy_slots - live < self._slots:
            self._since = None
            return False
        if self._since is None:
            self._since = now
            log.error(
                "worker %s: all %d slots are taken by handlers that were given up and do not end; "
                'nothing runs until one does (see run_in="process")',
                self._worker,
                self._slots,
            )
        return now - self._since >= WEDGED_AFTER
