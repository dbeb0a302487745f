"""A server for simulations, and the app that they run: made once for many seeds."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from tests.servers import BenchServer
from tests.simulation import jobs
from tests.simulation.redis import RealRedis
from tests.simulation.simulation import Result, run

NAMESPACE = "sim"


class Stage:
    """Runs one seed after the other."""

    def __init__(self, kind: str = "valkey", *, folder: Path | None = None) -> None:
        self._server = BenchServer(kind)
        self._folder = folder

    def __enter__(self) -> Stage:
        self._server.start()
        self._app = jobs.build(self._server.url, NAMESPACE)
        self._redis = RealRedis(self._server.url, NAMESPACE, tuple(jobs.LANES), folder=self._folder)
        return self

    def use(self, folder: Path | None) -> None:
        """Run other scripts from now on."""
        self._redis.close()
        self._redis = RealRedis(self._server.url, NAMESPACE, tuple(jobs.LANES), folder=folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redis.close()
        self._server.stop()

    def run(self, seed: int) -> Result:
        """What the seed comes to."""
        return run(seed, self._redis, self._app)
