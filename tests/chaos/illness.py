"""A dependency that falls ill now and then, and is well again after a while."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

from streamworker.core.errors import StreamworkerError
from streamworker.request import Request
from tests.chaos.bench import Bench
from tests.chaos.history import Ill

#: The gate of the dependency that `paid` of the app calls.
BANK = "breaker:dependency:bank"
#: Jobs that want to call it as it falls ill: without a breaker, each would do so four times.
CROWD = 40


class Illness:
    """A thread; a context manager. What it did is with the bench."""

    def __init__(self, bench: Bench, rng: random.Random, *, every: float) -> None:
        """`every`: seconds for which it is well, on average."""
        self._bench = bench
        self._rng = rng
        self._every = every
        self._sign = bench.directory / "go-ill"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-illness", daemon=True)
        self.done: Counter[str] = Counter()

    def __enter__(self) -> Illness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._rng.expovariate(1 / self._every)):
            self._sign.touch()
            since = time.time()
            self._come()
            self._stop.wait(self._rng.uniform(0.5, 2.0) * self._bench.limits.lease)
            self._bench.illnesses.append(Ill(BANK, since, time.time()))
            self._sign.unlink()
            self.done["illnesses"] += 1

    def _come(self) -> None:
        try:
            self._bench.enqueue_many([Request("paid", {}) for _ in range(CROWD)])
        except StreamworkerError:
            return  # Redis is away; others will come
        self.done["crowds"] += 1
