"""Runs the demo: a server, two workers, a steady producer, a kill midway, and the account at the end."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from streamworker import settings
from streamworker.core.errors import StreamworkerError
from streamworker.core.states import Disposition
from streamworker.demo import report, shop
from streamworker.demo.durable import Durable, embedded
from streamworker.demo.fleet import Fleet
from streamworker.demo.ledger import Account, Ledger, settle_account
from streamworker.demo.report import Progress, Snapshot
from streamworker.embedded import EmbeddedServer
from streamworker.ops import inspect
from streamworker.request import NO_OPTIONS, new_job
from streamworker.store.queue import Queue
from streamworker.store.scripts import NewJob

NAMESPACE = "demo"
WORKERS = 2
CONCURRENCY = 16
#: Seconds. Short, so that what a dead worker held comes back within the run.
LEASE = 2
#: Jobs enqueued in a second, and seconds between two batches of them.
RATE = 300
BATCH_EVERY = 0.05
#: Shares of the enqueuing time after which the job that kills its worker is enqueued, and a worker killed.
CRASH_AT, KILL_AT = 0.2, 0.5
#: Seconds, beyond those of the enqueuing, in which all must be over: the workers' start and the last jobs.
EXTRA_SECONDS = 32.0
#: Seconds that the workers may take to come up.
START_SECONDS = 20.0
#: How the process ends that SIGTERM stopped.
STOPPED = 128 + signal.SIGTERM


class DemoFailed(StreamworkerError):
    """The demo could not run; the message ends with the last lines of the workers' logs."""


def run_demo(seconds: float, *, as_json: bool) -> int:
    """Enqueue for `seconds`, wait for every job, print the account. Returns 1 if it does not balance.

    Raises EmbeddedServerMissing when the server's package is not installed, DemoFailed when the workers do
    not come up. Leaves no process and no file behind, whatever ends it.
    """
    told: list[str] = []
    with _terminable(), EmbeddedServer(appendonly=True) as server, embedded(told) as dsn:
        fleet = Fleet(
            server.url,
            workers=WORKERS,
            concurrency=CONCURRENCY,
            env={"STREAMWORKER_LEASE": str(LEASE), "STREAMWORKER_NAMESPACE": NAMESPACE},
        )
        with fleet:
            ledger = Ledger()
            account = asyncio.run(_until_told(_Run(server.url, dsn, fleet, ledger, seconds, told).run()))
            if account is None:
                raise SystemExit(STOPPED)
            if not account.balanced:
                sys.stderr.write(f"{fleet.log_tail()}\n")
    if as_json:
        sys.stdout.write(f"{report.as_json(account, fleet.deaths)}\n")
    else:
        report.print_account(account, fleet.deaths, ledger)
    return 0 if account.balanced else 1


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that workers, server and files go."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(_: int, __: FrameType | None) -> None:
    raise SystemExit(STOPPED)


async def _until_told(run: Coroutine[None, None, Account]) -> Account | None:
    """What `run` returns; None when SIGTERM cancels it.

    In a loop SIGTERM has to come as a cancellation: raised between two steps of whatever happens to run, an
    exit tears the loop down and leaves tasks behind that print their traces.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(run)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if not task.cancelled() or _cancelling():  # Ctrl-C cancels the caller of this
            raise
        return None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, _leave)


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def order(number: int) -> NewJob:
    """The job that the shop's customer number so and so causes."""
    if number % 400 == 7:  # a producer that does not know the task's arguments
        return new_job("send_email", {"recipient": f"customer-{number}@shop.example"}, NO_OPTIONS)
    match number % 10:
        case 0 | 1 | 2:
            cents = -1 if number % 200 == 1 else 100 + number % 9_900
            return shop.charge_payment.call(order_id=number, cents=cents).job
        case 3 | 4:
            to = f"customer-{number}@shop.example"
            return shop.send_email.call(to=to, subject=f"Order {number}").job
        case 5 | 6:
            express = shop.update_shipment.options(lane="priority")
            return express.call(shipment_id=number, status="sent").job
        case _:
            return shop.update_shipment.call(shipment_id=number, status="sent").job


class _Run:
    """One run, in one event loop."""

    def __init__(
        self,
        url: str,
        dsn: str | None,
        fleet: Fleet,
        ledger: Ledger,
        seconds: float,
        told: Sequence[str],
    ) -> None:
        self._settings = settings.read(NAMESPACE, redis_url=url, namespace=NAMESPACE, lease=LEASE, environ={})
        self._durable = None if dsn is None else Durable(self._settings, dsn, ledger)
        self._told = told
        self._fleet = fleet
        self._ledger = ledger
        self._seconds = seconds
        #: Ids that Redis said it accepted.
        self._accepted: set[str] = set()
        self._launched = self._began = 0.0

    async def run(self) -> Account:
        queue = Queue(self._settings)
        self._launched = asyncio.get_running_loop().time()
        try:
            with Progress(self._seconds) as progress:
                for line in self._told:
                    progress.tell(0, line)
                if self._durable is not None and not await self._durable.start():
                    raise DemoFailed("the mirror to Postgres does not come up")
                await self._until_workers_are_up(queue)
                self._began = asyncio.get_running_loop().time()
                progress.tell(0, f"{WORKERS} workers with {CONCURRENCY} slots each, {RATE} jobs a second")
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(self._watch(queue, progress))
                    await self._produce(queue, progress)
                    await self._until_over()
                    watching.cancel()
            if self._durable is None:
                await self._ledger.catch_up(queue)
                return await settle_account(queue, self._accepted, self._ledger)
            await self._durable.close()
            return await settle_account(queue, self._accepted, self._ledger, check=self._durable.compare)
        finally:
            if self._durable is not None:
                await self._durable.close()
            await queue.close()

    @property
    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    async def _until_workers_are_up(self, queue: Queue) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while len(await inspect.workers(queue)) < WORKERS:
                    self._fleet.tend()
                    if self._fleet.deaths.exits:
                        raise DemoFailed(f"a worker does not come up:\n{self._fleet.log_tail()}")
                    await asyncio.sleep(BATCH_EVERY)
        except TimeoutError:
            raise DemoFailed(
                f"the workers were not up within {START_SECONDS:g} s:\n{self._fleet.log_tail()}"
            ) from None

    async def _produce(self, queue: Queue, progress: Progress) -> None:
        """Enqueue steadily; what a slow moment left out is made up for."""
        number, crash_due, kill_due = 0, True, True
        while (elapsed := self._elapsed) < self._seconds:
            if crash_due and elapsed >= CRASH_AT * self._seconds:
                crash_due = False
                await self._enqueue(queue, [shop.crash.call(why="demo").job])
                progress.tell(elapsed, "a job that kills its worker is enqueued")
            if kill_due and elapsed >= KILL_AT * self._seconds:
                kill_due = not self._fleet.kill_oldest()
            target = int(elapsed * RATE)
            await self._enqueue(queue, [order(each) for each in range(number, target)])
            number = target
            await asyncio.sleep(BATCH_EVERY)

    async def _enqueue(self, queue: Queue, jobs: list[NewJob]) -> None:
        for placed in await queue.enqueuer.place(jobs):
            if placed.disposition is not Disposition.ACCEPTED:
                raise DemoFailed(f"job {placed.job_id} was not accepted but {placed.disposition}")
            self._accepted.add(placed.job_id)

    async def _watch(self, queue: Queue, progress: Progress) -> None:
        """Keep the fleet going and follow the log."""
        while True:
            for news in self._fleet.tend():
                progress.tell(self._elapsed, news)
            if self._durable is None:  # else the mirror tells the ledger, and takes the log away
                await self._ledger.catch_up(queue)
            now = Snapshot(self._elapsed, len(self._accepted), len(self._ledger.ended))
            progress.update(now, self._ledger)
            await asyncio.sleep(BATCH_EVERY)

    async def _until_over(self) -> None:
        """Return when the log has an end for every accepted job, or the time is over."""
        until = self._launched + self._seconds + EXTRA_SECONDS
        while not self._accepted <= self._ledger.ended:
            if asyncio.get_running_loop().time() > until:
                return
            await asyncio.sleep(BATCH_EVERY)
