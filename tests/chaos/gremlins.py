"""Small faults all the time: hints and scripts are deleted, replies get lost, requests arrive late."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import redis

from tests.chaos.bench import Bench
from tests.chaos.fleet import Worker

#: What is found where a value was: nothing that anybody has kept there.
POISONS = (b"", b"{}", b"1 00000000 [666]", bytes(range(256)))


class Gremlins:
    """A thread that plays one of its tricks each few seconds. A context manager."""

    def __init__(self, bench: Bench, rng: random.Random, *, every: float) -> None:
        """`every`: seconds between two tricks, on average."""
        self._bench = bench
        self._rng = rng
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-gremlins", daemon=True)
        #: What it does, and how often each as compared with the others.
        self._tricks: dict[str, tuple[int, Callable[[], object]]] = {
            "hints_deleted": (2, lambda: bench.delete_hints(rng)),
            "scripts_flushed": (2, bench.flush_scripts),
            "replies_lost": (12, lambda: bench.lose_reply(self._somebody())),
            "requests_lost": (6, lambda: bench.lose_request(self._somebody())),
            "requests_late": (6, self._late),
            "caches_flushed": (1, lambda: self._spoil(None)),
            "caches_poisoned": (2, lambda: self._spoil(rng.choice(POISONS))),
            "connections_reset": (4, lambda: bench.cut(self._somebody())),
        }
        #: How often each was done.
        self.done: Counter[str] = Counter()

    def __enter__(self) -> Gremlins:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        names, weights = list(self._tricks), [weight for weight, _ in self._tricks.values()]
        while not self._stop.wait(self._rng.expovariate(1 / self._every)):
            (name,) = self._rng.choices(names, weights)
            try:
                self._tricks[name][1]()
            except redis.RedisError:
                continue  # Redis is away
            self.done[name] += 1

    def _somebody(self) -> Worker | None:
        """A worker, or None for the producers; for `cut`, None is everybody."""
        return self._rng.choice([None, *self._bench.fleet.up])

    def _spoil(self, poison: bytes | None) -> None:
        """Another value in each entry of the cache, or none."""
        redis_, keys = self._bench.redis, self._bench.keys
        for name in list(redis_.scan_iter(match=f"{keys.tag}:cache:*")):
            if poison is None:
                redis_.delete(name)
            else:
                redis_.set(name, poison, px=10_000)

    def _late(self) -> None:
        with self._bench.late_request(self._somebody()):
            self._stop.wait(self._rng.uniform(0.2, 1.2) * self._bench.limits.lease)
