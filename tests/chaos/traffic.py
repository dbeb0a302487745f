"""The producers of a long run: a steady mix of jobs by all clients, from a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from streamworker import Client, settings
from streamworker.core.errors import JobNotFound, StreamworkerError
from streamworker.ops import dlq
from streamworker.request import Options, Request
from streamworker.store.queue import Queue
from tests.chaos.bench import Bench

#: Seconds between two batches.
EVERY = 0.05
#: Seconds between two replays of dead letters, and of how many.
REPLAY_EVERY, REPLAYED = 5.0, 5
#: Whose jobs stand behind a turnstile when they are many.
TENANTS = ("acme", "acme", "acme", "umbra")
#: Jobs of one batch at least, and at most: one script call, so that a call that fails is known as a whole.
TRICKLE, MOST = 1, 500


class Mix:
    """Draws jobs: mostly short ones, and some of each kind that ends otherwise."""

    def __init__(self, rng: random.Random, lease: float) -> None:
        self._rng = rng
        #: Another in each round: a key outlives the round, and its job is not judged again.
        self._name = f"order-{rng.getrandbits(32):08x}"
        self._keys = 0
        self._events = 0
        kinds: list[tuple[float, Callable[[], Request]]] = [
            (32, lambda: self._plain("quick", {"number": 7})),
            (8, lambda: Request("quick", {"number": 7}, Options.of(tenant=rng.choice(TENANTS)))),
            *self._gated(),
            (4, lambda: Request("quick", {"number": 7}, Options.of(lane="backlog"))),
            (6, lambda: self._plain("paid", {})),
            (6, self._event),
            (4, lambda: self._plain("looked_up", {"number": rng.randrange(20)})),
            (14, lambda: self._plain("work", {"seconds": round(rng.uniform(0.005, 0.15), 3)})),
            (6, lambda: self._plain("work_in_thread", {"seconds": round(rng.uniform(0.005, 0.1), 3)})),
            (2, lambda: self._plain("work_in_process", {"seconds": round(rng.uniform(0.005, 0.05), 3)})),
            (1, lambda: self._plain("work", {"seconds": round(rng.uniform(0.5, 1.5) * lease, 3)})),
            (8, lambda: self._plain("flaky", {"failures": rng.choice((1, 1, 1, 2))})),
            (4, lambda: self._plain("snooze", {"times": 1})),
            (2, lambda: self._plain("broken", {})),
            (4, lambda: Request("quick", {"number": 1}, Options.of(delay=round(rng.uniform(0.1, lease), 3)))),
            (5, self._keyed),
            (0.004, lambda: self._plain("crash", {})),
            (0.008, lambda: self._plain("crash_once", {})),
        ]
        self._kinds = [make for _, make in kinds]
        self._weights = [weight for weight, _ in kinds]

    def _gated(self) -> list[tuple[float, Callable[[], Request]]]:
        """Those that pass gates: few things for many jobs, so that some always wait."""
        rng = self._rng

        def seconds() -> float:
            return round(rng.uniform(0.005, 0.1), 3)

        def failures() -> int:
            return rng.choice((0, 0, 1))

        def number() -> int:
            return rng.randrange(4)

        return [
            (3, lambda: self._plain("ordered", {"thing": number(), "seconds": seconds()})),
            (2, lambda: self._plain("strict", {"part": number(), "failures": failures()})),
            (3, lambda: self._plain("shared", {"seconds": seconds()})),
            (3, lambda: self._plain("metered", {})),
            (3, lambda: self._plain("called", {"parcel": number(), "seconds": seconds()})),
        ]

    def draw(self, count: int) -> list[Request]:
        return [make() for make in self._rng.choices(self._kinds, self._weights, k=count)]

    def _plain(self, task: str, args: dict[str, object]) -> Request:
        return Request(task, args, Options.of(lane=self._rng.choice((None, None, None, "priority"))))

    def _event(self) -> Request:
        """One of many about the same thing, now and then sent again."""
        if self._rng.random() < 0.9:
            self._events += 1
        item = f"{self._name}-event-{self._events}"
        return Request("gathered", {"thing": self._events % 3, "items": [item]}, Options.of(key=item))

    def _keyed(self) -> Request:
        """Under a key that others have now and then, as when a producer sends again."""
        if self._rng.random() < 0.7:
            self._keys += 1
        return Request("work", {"seconds": 0.01}, Options.of(key=f"{self._name}-{self._keys}"))


class Traffic:
    """Makes `jobs` new jobs, `rate` a second, and slows down where it may not go on. A context manager.

    Beyond the number that `allowed` gives, and beyond `jobs` until `release`, only a trickle is made: faults
    need workers that are busy.
    """

    def __init__(
        self, bench: Bench, jobs: int, *, rate: float, rng: random.Random, allowed: Callable[[], int]
    ) -> None:
        self._bench = bench
        self._jobs = jobs
        self._rate = rate
        self._rng = rng
        self._allowed = allowed
        self._mix = Mix(rng, bench.limits.lease)
        self._stop = threading.Event()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._main, name="chaos-traffic", daemon=True)
        self._error: BaseException | None = None
        #: Calls that failed, dead letters that were replayed, jobs that were cancelled.
        self.failed_calls = 0
        self.replayed = 0
        self.cancelled = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        if kind is not None:
            self._stop.set()
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    @property
    def made(self) -> int:
        """New jobs so far."""
        return self._bench.accounts.made

    @property
    def done(self) -> bool:
        """It has failed."""
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            asyncio.run(self._produce())
        except BaseException as error:
            self._error = error

    async def _produce(self) -> None:
        bench, loop = self._bench, asyncio.get_running_loop()
        began = loop.time()
        late = 0.0  # seconds that were spent waiting for a fault, and are not made up for
        replay_at = began + REPLAY_EVERY
        known = settings.read(bench.app.name, redis_url=bench.front.url, namespace=bench.namespace)
        async with Client(bench.front.url, app=bench.app.name, namespace=bench.namespace) as client:
            while not self._stop.is_set():
                made = self.made
                if made >= self._jobs and self._released.is_set():
                    return
                await asyncio.sleep(EVERY)
                due = int((loop.time() - began - late) * self._rate)
                wanted = min(due, self._allowed(), self._jobs, made + MOST) - made
                await self._send(client, self._mix.draw(max(wanted, TRICKLE)))
                if loop.time() >= replay_at:
                    replay_at = loop.time() + REPLAY_EVERY
                    await self._replay(Queue(known))
                late = max(late, loop.time() - began - (made + MOST) / self._rate)

    async def _replay(self, queue: Queue) -> None:
        """As an operator does: some of the latest dead letters, if they are of this round."""
        wanted = set()
        try:
            async for letter in dlq.letters(queue, newest_first=True):
                if letter.job_id in self._bench.reader.over:
                    wanted.add(letter.job_id)
                if len(wanted) == REPLAYED or letter.job_id not in self._bench.reader.over:
                    break
            self.replayed += (await dlq.replay(queue, wanted, actor="chaos", again=True)).moved
        except StreamworkerError:
            self.failed_calls += 1
        finally:
            await queue.close()

    async def _send(self, client: Client, batch: Sequence[Request]) -> None:
        """By one of the ways there are."""
        accounts = self._bench.accounts
        way = self._rng.randrange(3)
        try:
            with accounts.placing():
                if way == 0:
                    await asyncio.to_thread(self._bench.enqueue_many, batch)
                elif way == 1:
                    accounts.note(batch, await client.enqueue_many(batch))
                else:
                    await asyncio.gather(*(self._one(client, request) for request in batch))
        except StreamworkerError:
            self.failed_calls += 1

    async def _one(self, client: Client, request: Request) -> None:
        """One by one, which travel together; now and then one is cancelled again."""
        options, accounts = request.options, self._bench.accounts
        try:
            with accounts.placing():
                job = await client.enqueue(
                    request.task,
                    request.args,
                    key=options.key,
                    lane=options.lane,
                    tenant=options.tenant,
                    delay=options.delay_ms / 1000 or None,
                )
            accounts.note([request], [job])
            if self._rng.random() < 0.02:
                self.cancelled += await job.cancel()
        except JobNotFound:
            return
        except StreamworkerError:
            self.failed_calls += 1
