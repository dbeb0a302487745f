"""What ended and what has begun, until an exchange takes it along (group commit)."""

from __future__ import annotations

import logging

from streamworker.store import scripts
from streamworker.store.caller import of_script
from streamworker.store.connection import ReplyError
from streamworker.worker.flight import Flight, fitting
from streamworker.worker.holdings import Holdings
from streamworker.worker.running import Running

log = logging.getLogger("streamworker.worker")

#: Times that a row may be refused by the script, alone in its call, until the claim is left to recovery.
REFUSALS = 3


class Unsent:
    """Outcomes and start marks that Redis has not been told of, or has not acknowledged."""

    def __init__(self, holdings: Holdings) -> None:
        self.ended: list[Running] = []
        self.begun: list[Running] = []  # long enough ago for a start mark (D20)
        self._holdings = holdings
        self._most = scripts.BATCH

    def __bool__(self) -> bool:
        return bool(self.ended or self.begun)

    def take(self) -> tuple[list[Running], list[Running]]:
        """The outcomes and the marks of the next call; what has come to an outcome needs no mark."""
        settled = fitting(self.ended[: self._most])
        del self.ended[: len(settled)]
        if not self.begun:
            return settled, []
        begun = [running for running in self.begun if running.outcome is None]
        room = self._most - len(settled)
        self.begun = begun[room:]
        return settled, begun[:room]

    def put_back(self, flight: Flight) -> None:
        """A call has failed: its rows are sent again, before all others."""
        self.ended[:0] = flight.settled
        self.begun[:0] = flight.marked

    def accepted(self) -> None:
        """A call was answered: the next one may carry more rows again."""
        self._most = min(scripts.BATCH, self._most * 2)

    def refused(self, flight: Flight, error: ReplyError) -> None:
        """A call that was put back was refused. If by the script, send fewer rows, to find the one."""
        rows = len(flight.settled)
        log.error("exchange with %d rows was refused: %s", rows, flight.call.script.locate(str(error)))
        if not of_script(error):
            return
        self._most = max(1, min(self._most, rows) // 2)
        if rows != 1:
            return
        (running,) = flight.settled
        running.refusals += 1
        if running.refusals >= REFUSALS:
            self.ended.remove(running)
            self._holdings.abandon(running)  # no heartbeat any more: its lease runs out and recovery decides
            log.error("job %s: its outcome cannot be recorded; left to recovery", running.claim.job_id)
