"""An operator at work: something is paused for a while, or a limit is another one."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from streamworker import settings
from streamworker.core.errors import StreamworkerError
from streamworker.ops import tune
from streamworker.store.queue import Queue
from tests.chaos.bench import Bench
from tests.chaos.history import Figure, Paused

#: What is paused now and then. What is done to a lane is done to all of its jobs, so that is rarer.
SCOPES = ("task:ordered", "task:strict", "task:metered", "tenant:acme", "dependency:carrier") * 2 + (
    "lane:priority",
)
#: Limits that are changed, and the most that is set.
LIMITS = ("concurrency:task:shared", "concurrency:dependency:carrier")
MOST = 6
#: Who is in the log.
ACTOR = "chaos"


class Operator:
    """A thread that makes a move each few seconds, and puts everything back. A context manager."""

    def __init__(self, bench: Bench, rng: random.Random, *, every: float) -> None:
        """`every`: seconds between two moves, on average."""
        self._bench = bench
        self._rng = rng
        self._every = every
        self._settings = settings.read(
            bench.app.name, redis_url=bench.server.url, namespace=bench.namespace, environ={}
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-operator", daemon=True)
        #: What is in force of each limit, and since when.
        self._figures = {name: (bench.limits.holders[name], 0.0) for name in LIMITS}
        #: How often each move was made.
        self.done: Counter[str] = Counter()

    def __enter__(self) -> Operator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._rng.expovariate(1 / self._every)):
            if self._rng.random() < 0.6:
                self._pause(self._rng.choice(SCOPES))
            else:
                self._set(self._rng.choice(LIMITS), self._rng.randint(1, MOST))
        for name in LIMITS:
            self._set(name, None)
            most, since = self._figures[name]
            self._bench.figures.append(Figure(name, most, since, math.inf))

    def _pause(self, scope: str) -> None:
        lease = self._bench.limits.lease
        over = self._rng.choice((0.0, lease / 2))
        begin = time.time()
        self._surely(lambda queue: tune.pause(queue, scope, actor=ACTOR, reason="to see who waits"))
        since = time.time()
        self._stop.wait(self._rng.uniform(0.1, 1.0) * lease)
        until = time.time()
        self._surely(lambda queue: tune.resume(queue, scope, actor=ACTOR, over=over))
        self._bench.pauses.append(Paused(scope, since, until, begin, time.time() + over))
        self.done["pauses"] += 1

    def _set(self, name: str, most: int | None) -> None:
        """Another figure, or the one that was declared."""
        begin = time.time()
        if most is None:
            self._surely(lambda queue: tune.reset_limit(queue, name, actor=ACTOR))
        else:
            figures = str(most)
            self._surely(lambda queue: tune.set_limit(queue, name, figures, actor=ACTOR))
        before, since = self._figures[name]
        self._bench.figures.append(Figure(name, before, since, time.time()))
        self._figures[name] = (self._bench.limits.holders[name] if most is None else most, begin)
        self.done["limits_set"] += most is not None

    def _surely(self, move: Callable[[Queue], Awaitable[object]]) -> None:
        """Until Redis has answered; twice does nothing more than once."""

        async def once() -> None:
            queue = Queue(self._settings)
            try:
                await move(queue)
            finally:
                await queue.close()

        while True:
            try:
                return asyncio.run(once())
            except StreamworkerError:
                time.sleep(self._bench.limits.sweep)  # Redis is away, and comes back
