"""huey with threads as slots and else its defaults."""

from __future__ import annotations

from typing import Any

from huey import RedisHuey  # type: ignore[import-not-found]  # only in its own environment

from benchmarks.inside.peer import Args, BlockingPeer
from benchmarks.inside.tally import Watcher


class Adapter(BlockingPeer):
    def _build(self, url: str, watcher: Watcher | None = None) -> tuple[Any, Any]:
        huey = RedisHuey("bench", url=url)

        def job(args: Args) -> None:
            assert watcher is not None
            watcher.ran(args)

        return huey, huey.task(name="job")(job)

    def connect(self, url: str) -> None:
        self.huey, self.job = self._build(url)

    def disconnect(self) -> None:
        self.huey.storage.close()

    def put(self, args: Args) -> None:
        self.job(args)

    def work(self, url: str, slots: int, watcher: Watcher) -> None:
        huey, _ = self._build(url, watcher)
        huey.create_consumer(workers=slots, worker_type="thread").run()
