"""Which lane's quarantine the pump reads next, and for whom: the child, or this worker alone (D22)."""

from __future__ import annotations

from streamworker.worker.flight import Flight
from streamworker.worker.holdings import Holdings


class Struck:
    """At most one lane at a time, until a call has read it."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self.lane: str | None = None
        self.apart = True  # what it gives runs in a child process; else alone
        #: The last call that read a quarantine for the child gave a job.
        self.found = False

    def want(self, lane: str, *, apart: bool) -> None:
        """Read this one next."""
        self.lane, self.apart = lane, apart
        if apart:
            self.found = False

    def forget(self) -> None:
        """It was read, or cannot be: nobody waits for it any more."""
        self.lane = None
        self._holdings.apart_over.set()

    @property
    def isolating(self) -> bool:
        """A job runs with nothing beside it, or is to."""
        return (self.lane is not None and not self.apart) or self._holdings.alone is not None

    def due(self, flights: list[Flight]) -> str | None:
        """The lane to read beside these calls; one whose job runs alone waits until nothing else does."""
        if self.lane is None:
            return None
        if not self.apart:
            return None if self._holdings.busy_slots or flights else self.lane
        return None if any(flight.quarantine for flight in flights) else self.lane

    async def over(self) -> bool:
        """Return when the child's job has ended, or none came; False: there was none."""
        over = self._holdings.apart_over
        while self.lane is not None or self._holdings.apart is not None:
            over.clear()
            await over.wait()
        return self.found
