"""Producers whose events are about the same few things, so that many become one job."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Sequence

from streamworker import Client
from streamworker.core.errors import StreamworkerError
from streamworker.request import Options, Request
from tests.chaos.bench import Bench

#: Clients that know nothing of each other, but for the events that one sends after another.
PRODUCERS = 3
#: Things that there are events about; for so many seconds all tell of the same one.
THINGS, ABOUT = 3, 0.5
#: Seconds between two bursts of a producer on average, and events of one at most.
EVERY, BURST = 0.25, 6
#: How many events are one that was sent before, and have an item that others have too.
AGAIN, COMMON = 0.15, 0.3
#: Events of which one is sent again: those of a few seconds.
RECENT = 100


class Events:
    """A thread with a loop of its own. A context manager."""

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self._bench = bench
        self._rng = rng
        #: Another in each round: a key outlives the round.
        self._name = f"told-{rng.getrandbits(32):08x}"
        self._count = 0
        #: Events, and when each was sent first.
        self._recent: deque[tuple[Request, float]] = deque(maxlen=RECENT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="chaos-events", daemon=True)
        self._error: BaseException | None = None
        self.failed_calls = 0

    def __enter__(self) -> Events:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._error = error

    async def _run(self) -> None:
        await asyncio.gather(*(self._produce() for _ in range(PRODUCERS)))

    async def _produce(self) -> None:
        bench = self._bench
        async with Client(bench.front.url, app=bench.app.name, namespace=bench.namespace) as client:
            while not self._stop.is_set():
                await asyncio.sleep(self._rng.expovariate(1 / EVERY))
                count = self._rng.randint(1, BURST)
                await self._send(client, [self._event() for _ in range(count)])

    def _event(self) -> tuple[Request, float]:
        """One of many about the same thing, now and then sent again by whoever it is."""
        if self._recent and self._rng.random() < AGAIN:
            return self._rng.choice(self._recent)
        self._count += 1
        thing = int(time.time() / ABOUT) % THINGS
        key = f"{self._name}-{self._count}"
        if self._rng.random() < 0.5:
            request = Request("newest", {"thing": thing, "event": key}, Options.of(key=key))
        else:
            items = [key, f"about-{thing}"] if self._rng.random() < COMMON else [key]
            request = Request("gathered", {"thing": thing, "items": items}, Options.of(key=key))
        self._recent.append((request, time.time()))
        return self._recent[-1]

    async def _send(self, client: Client, events: Sequence[tuple[Request, float]]) -> None:
        """In one call: a reply that is lost is that of all."""
        accounts = self._bench.accounts
        requests, sent = zip(*events, strict=True)
        try:
            with accounts.placing():
                accounts.note(requests, await client.enqueue_many(requests), sent)
        except StreamworkerError:
            self.failed_calls += 1
