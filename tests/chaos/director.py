"""Deals out the faults of a plan, one after the other, while producers and workers are busy."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from streamworker.core.states import Reason
from tests.chaos.bench import Bench
from tests.chaos.fleet import Worker
from tests.chaos.plan import Blow
from tests.waiting import wait_until

#: Seconds that anything of the bench may take to come up or to be busy.
PATIENCE = 60.0
#: Seconds between two looks at the log.
LOOK = 0.05


class Director:
    """The faults of one run."""

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self._bench = bench
        self._rng = rng
        self._lease = bench.limits.lease
        self._how: dict[Blow, Callable[[], None]] = {
            Blow.KILL: self._kill,
            Blow.KILL_KEEPER: self._kill_keeper,
            Blow.KILL_ALL: self._kill_all,
            Blow.FREEZE: self._freeze,
            Blow.RESTART: self._restart,
            Blow.KILL_SERVER: self._kill_server,
            Blow.BLACK_HOLE: self._black_hole,
            Blow.REFUSE: self._refuse,
            Blow.PARTITION: self._partition,
            Blow.SLOW: self._slow,
            Blow.FULL: self._full,
        }
        self.dealt: Counter[Blow] = Counter()
        #: What went wrong with a worker that was asked to stop.
        self.problems: list[str] = []

    def deal(self, blow: Blow) -> None:
        """Deal one out; returns when it is over and all workers are up again."""
        self._bench.wait_up()
        self._how[blow]()
        self.dealt[blow] += 1

    def _busy(self, wanted: Callable[[Worker], bool] = lambda worker: True) -> Worker:
        """A worker that runs something now."""

        def found() -> Worker | None:
            busy = [worker for worker, _ in self._bench.running() if wanted(worker) and worker.up_at]
            return self._rng.choice(busy) if busy else None

        worker = wait_until(found, timeout=PATIENCE, what="a worker is busy")
        assert worker is not None
        return worker

    def _kill(self) -> None:
        self._bench.kill(self._busy())

    def _kill_keeper(self) -> None:
        self._bench.kill(self._busy(lambda worker: worker is self._bench.keeper()))

    def _kill_all(self) -> None:
        self._busy()
        for worker in self._bench.fleet.alive:
            self._bench.kill(worker)

    def _restart(self) -> None:
        worker = self._busy()
        if code := self._bench.restart_worker(worker):
            tail = worker.process.log_tail()
            self.problems.append(f"worker {worker.number} ended with {code} when asked to stop:\n{tail}")

    def _freeze(self) -> None:
        worker = self._busy()
        held = {mark.job_id for each, mark in self._bench.running() if each is worker}
        self._bench.freeze(worker)
        self._last(1.2)
        until = time.monotonic() + 2 * self._lease
        # Until another has taken over what it ran, which is not long unless hints or Redis are away as well.
        while not self._recovered(held) and time.monotonic() < until:
            time.sleep(LOOK)
        self._bench.thaw(worker)

    def _recovered(self, job_ids: set[str]) -> bool:
        log = self._bench.log()
        return job_ids <= {edge.job_id for edge in log if edge.reason == Reason.RECOVERED}

    def _kill_server(self) -> None:
        self._bench.kill_server()
        self._last(self._rng.uniform(0.1, 1.5))
        self._bench.restart_server()

    def _black_hole(self) -> None:
        self._bench.black_hole()
        self._last(self._rng.uniform(0.8, 2.0))
        self._bench.restore()

    def _refuse(self) -> None:
        self._bench.refuse()
        self._last(self._rng.uniform(0.8, 2.0))
        self._bench.restore()

    def _partition(self) -> None:
        worker = self._busy()
        self._bench.black_hole(worker)
        self._last(2.5)
        self._bench.restore(worker)

    def _slow(self) -> None:
        self._bench.delay(self._rng.uniform(0.05, 0.2))
        self._last(3.0)
        self._bench.restore()

    def _full(self) -> None:
        with self._bench.out_of_memory():
            self._last(self._rng.uniform(0.5, 2.0))

    def _last(self, leases: float) -> None:
        """Let the fault last: its length is what it is."""
        time.sleep(leases * self._lease)
