"""Celery on Redis without a result backend, its default; variant: the pool."""

from __future__ import annotations

from typing import Any

from celery import Celery  # type: ignore[import-not-found]  # only in its own environment

from benchmarks.inside.peer import Args, BlockingPeer
from benchmarks.inside.tally import Watcher


class Adapter(BlockingPeer):
    def _build(self, url: str, watcher: Watcher | None = None) -> tuple[Any, Any]:
        app = Celery("bench", broker=url)
        app.conf.worker_redirect_stdouts = False
        app.conf.broker_connection_retry_on_startup = True

        def job(args: Args) -> None:
            assert watcher is not None
            watcher.ran(args)

        return app, app.task(name="job")(job)

    def connect(self, url: str) -> None:
        self.app, self.job = self._build(url)

    def disconnect(self) -> None:
        self.app.close()

    def put(self, args: Args) -> None:
        self.job.delay(args)

    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        app, _ = self._build(url, watcher)
        app.worker_main(["worker", f"--pool={self.variant}", f"--concurrency={slots}", "--loglevel=ERROR"])
