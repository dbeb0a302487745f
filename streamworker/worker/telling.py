"""What a worker tells telemetry, and the endpoint that serves it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamworker.core.lanes import Lane, Slots
from streamworker.settings import read_expected_workers
from streamworker.telemetry.catalogue import Scope
from streamworker.telemetry.cluster import ClusterNumbers
from streamworker.telemetry.exposition import CONTENT_TYPE, Page, WorkerNumbers
from streamworker.telemetry.http import Address, Answer, Route, ServerThread, json_answer
from streamworker.telemetry.labels import Codes, codes_of_tasks
from streamworker.telemetry.metrics import Metrics
from streamworker.telemetry.status import Health, Status
from streamworker.worker.watcher import Watcher

if TYPE_CHECKING:
    from streamworker.worker.worker import Worker


def _shares(lanes: Mapping[str, Lane], concurrency: int) -> dict[str, tuple[int, int]]:
    """For each lane how many slots it can fill at most, and how many are reserved for it."""
    slots = Slots.of(lanes, concurrency)
    return {lane: (slots.shared + own, own) for lane, own in slots.reserved.items()}


class Telling:
    """Counters and health of one worker. Told by its loop, asked by the endpoint's thread."""

    def __init__(self, worker: Worker) -> None:
        from streamworker import __version__

        app = worker.app
        codes = codes_of_tasks(task.policy for task in app.tasks.values())
        self.metrics = Metrics(
            tasks=app.tasks,
            lanes=worker.lanes,
            slots=_shares(worker.lanes, worker.concurrency),
            codes=codes,
            dependencies=app.dependencies,
            gates={each for task in app.tasks.values() if task.gates for each in task.gates.about()},
        )
        #: What Redis knows, told by whoever of the fleet was elected to look.
        self.cluster = ClusterNumbers(codes=Codes(codes), expected=read_expected_workers())
        self.health = Health(time.monotonic, lease=app.settings.lease, slots=worker.concurrency)
        self._page = Page(
            {Scope.WORKER: WorkerNumbers(self.metrics, __version__), Scope.CLUSTER: self.cluster}
        )

    def take_up(self, lanes: Mapping[str, Lane], concurrency: int) -> None:
        """The slots are shared by other figures."""
        self.metrics.slots = _shares(lanes, concurrency)

    def tell(self, status: Status) -> None:
        """How the worker is."""
        self.metrics.tell(status)
        self.health.tell(status)

    def watcher(self, worker: Worker) -> Watcher:
        """What looks at Redis for these numbers."""
        return Watcher(worker.app.settings, worker.id, self.cluster)

    def serve(self, address: Address) -> ServerThread:
        """Answer probes and scrapes there. Raises ConfigurationError when the address cannot be had."""
        thread = ServerThread(self._routes(), address)
        thread.start()
        return thread

    def _routes(self) -> Mapping[str, Route]:
        async def healthz() -> Answer:
            return json_answer(*self.health.alive())

        async def readyz() -> Answer:
            return json_answer(*self.health.ready())

        async def metrics() -> Answer:
            return Answer(200, self._page.text(), CONTENT_TYPE)

        return {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}
