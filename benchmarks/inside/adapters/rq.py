"""rq with its SimpleWorker: one job at a time, in the worker's own process."""

from __future__ import annotations

from collections.abc import Sequence

from redis import Redis
from rq import Queue, SimpleWorker  # type: ignore[import-not-found]  # only in its own environment

from benchmarks.inside.peer import Args, BlockingPeer
from benchmarks.inside.tally import Watcher

#: rq imports its jobs by name: they cannot close over anything.
_watcher: Watcher | None = None


def job(args: Args) -> None:
    assert _watcher is not None
    _watcher.ran(args)


class Adapter(BlockingPeer):
    def connect(self, url: str) -> None:
        self.redis = Redis.from_url(url)
        self.queue = Queue(connection=self.redis)

    def disconnect(self) -> None:
        self.redis.close()

    def put(self, args: Args) -> None:
        self.queue.enqueue(f"{__name__}.job", args)

    def put_many(self, many: Sequence[Args]) -> None:
        self.queue.enqueue_many([Queue.prepare_data(f"{__name__}.job", (args,)) for args in many])

    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        global _watcher  # noqa: PLW0603  # see above
        _watcher = watcher
        redis = Redis.from_url(url)
        SimpleWorker([Queue(connection=redis)], connection=redis).work(logging_level="ERROR")
