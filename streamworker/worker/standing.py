"""Whether the claims that we hold are still ours, by what the heartbeat hears of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from streamworker.worker.holdings import Holdings
from streamworker.worker.running import Running, Stop


class Standing:
    """Ends the handlers of claims that are lost or cancelled, and begins those that had to be asked about."""

    def __init__(self, holdings: Holdings, begin: Callable[[Running], None]) -> None:
        self._holdings = holdings
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._doubtful: list[Running] = []

    def doubt(self, running: Running) -> None:
        """Its claim came too late to trust: it begins once the heartbeat has confirmed it (D6)."""
        self._doubtful.append(running)

    def heard(self, asked: Mapping[str, int], lost: set[str], cancelled: Mapping[str, str]) -> None:
        """A heartbeat's answer for the claims that it asked about (job id to fence)."""
        now = self._loop.time()
        for job_id in lost:
            running = self._holdings.of_fence(job_id, asked.get(job_id))
            if running is not None and running.outcome is None:
                running.tell(Stop.LOST, now)
        for job_id, code in cancelled.items():
            running = self._holdings.of_fence(job_id, asked.get(job_id))
            if running is not None and running.outcome is None:
                running.tell(Stop.EXPIRED if code == "expired" else Stop.CANCELLED, now)
        waiting, self._doubtful = self._doubtful, []
        for running in waiting:
            if asked.get(running.claim.job_id) != running.claim.fence:
                self._doubtful.append(running)
            elif running.claim.job_id in lost:
                self._holdings.let_go(running)
            else:
                self._begin(running)

    def out_of_touch(self) -> None:
        """Redis has not answered for longer than a lease: what has an entity may not go on alone (D10).

        The others finish, and settle if nobody has taken them over.
        """
        now = self._loop.time()
        for running in self._holdings.running():
            if " entity:" in running.claim.gates:
                running.tell(Stop.OUT_OF_TOUCH, now)
