"""dramatiq with its defaults: slots are threads."""

from __future__ import annotations

import threading
from typing import Any

import dramatiq  # type: ignore[import-not-found]  # only in its own environment
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]  # only in its own environment
from dramatiq.worker import Worker  # type: ignore[import-not-found]  # only in its own environment

from benchmarks.inside.peer import Args, BlockingPeer
from benchmarks.inside.tally import Watcher


class Adapter(BlockingPeer):
    def _build(self, url: str, watcher: Watcher | None = None) -> tuple[Any, Any]:
        broker = RedisBroker(url=url)
        dramatiq.set_broker(broker)

        def job(args: Args) -> None:
            assert watcher is not None
            watcher.ran(args)

        return broker, dramatiq.actor(job, actor_name="job")

    def connect(self, url: str) -> None:
        self.broker, self.job = self._build(url)

    def disconnect(self) -> None:
        self.broker.close()

    def put(self, args: Args) -> None:
        self.job.send(args)

    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        broker, _ = self._build(url, watcher)
        broker.emit_after("process_boot")
        Worker(broker, worker_threads=slots).start()
        threading.Event().wait()
