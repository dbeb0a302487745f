"""A live fleet, mirror and relay under the demo load, and a real Prometheus that scrapes them."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import psycopg

from streamworker import App, Context, SyncClient, Task, enqueue_in
from streamworker.ops import tune
from streamworker.postgres import connection, migrate
from streamworker.request import Options, Request
from streamworker.settings import read
from streamworker.store.queue import Queue
from tests.chaos.bench import Bench
from tests.observability.monitor import Monitor
from tests.processes import WorkerProcess
from tests.waiting import wait_until

#: Seconds that may pass until something is seen; a machine that is busy needs them.
PATIENCE = 60.0
IN_BACKLOG = Options.of(lane="backlog")


def calm(tick: int) -> list[Request]:
    """A tenth of a second of a day like others."""
    requests = [
        *(Request("greet", {}) for _ in range(2)),
        *(Request("call", {"parcel": 2 * tick + n}) for n in range(2)),
        *(Request("charge", {"cents": cents}) for cents in (100, 200, -1)),
        Request("count", {"shelf": tick % 3}),
        Request("quote", {"sku": tick % 20}),
        Request("report", {"seconds": 0.05}),
    ]
    if tick % 10 == 0:  # who comes at once waits at gates
        requests += [Request("ship", {"order": 1}) for _ in range(10)]
        requests += [Request("remind", {}) for _ in range(12 if tick == 0 else 3)]
    if tick % 30 == 0:
        requests += [Request("charge", {"cents": 0}), Request("charge", {"cents": 1}, IN_BACKLOG)]
    return requests


def stormy(tick: int) -> list[Request]:
    """The same on a day when all goes wrong, and half of the world is urgent."""
    return [
        *calm(tick),
        *(Request("greet", {}) for _ in range(80)),
        *(Request("call", {"parcel": -9 * tick - n}) for n in range(3)),
        *(Request("charge", {"cents": 0}) for _ in range(4)),
        *(Request("ship", {"order": 1}) for _ in range(6)),
        *(Request("report", {"seconds": 5.0}) for _ in range(3)),
        *(Request("charge", {"cents": 100}, IN_BACKLOG) for _ in range(3)),
    ]


class Stage:
    """A bench with metrics, a mirror, a relay, and somebody who enqueues all the time. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outage = folder / "outage"
        self.bench = Bench(
            app="observed_jobs:app",
            workers=2,
            concurrency=16,
            arguments=("--metrics-port", "0"),
            respawn=False,
            postgres=True,
            env={"OBSERVED_OUTAGE": str(self._outage), "STREAMWORKER_WORKERS_EXPECTED": "2"},
        )
        self._stack = ExitStack()
        self._weather = calm
        self._stop = threading.Event()
        self._producer = threading.Thread(target=self._produce, name="producer", daemon=True)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.bench)
            postgres = self.bench.postgres
            assert postgres is not None
            asyncio.run(_migrate(postgres.dsn))
            self._mirror = stack.enter_context(self._companion("mirror", "run"))
            self._relay = stack.enter_context(self._companion("outbox", "relay"))
            self._mirror.wait_for_log("mirroring", timeout=PATIENCE)
            workers = [worker.process for worker in self.bench.fleet.up]
            ports = [port_of(process) for process in (*workers, self._mirror, self._relay)]
            self._orders = stack.enter_context(psycopg.connect(postgres.dsn, autocommit=True))
            self.monitor = stack.enter_context(Monitor(self._folder, ports))
            self._producer.start()
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def _companion(self, command: str, word: str) -> WorkerProcess:
        assert self.bench.postgres is not None
        return WorkerProcess(
            word,
            *("--metrics-port", "0"),
            command=command,
            redis_url=self.bench.server.url,
            namespace=self.bench.namespace,
            env={"STREAMWORKER_POSTGRES_DSN": self.bench.postgres.dsn},
        )

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _greet(self) -> Task[[], None]:
        """The task that is enqueued in transactions, of an app that knows where the bench is."""
        app = App(self.bench.app.name, redis_url=self.bench.server.url, namespace=self.bench.namespace)

        @app.task(name="greet", lane="priority")
        async def committed(ctx: Context) -> None: ...

        return committed

    def _end(self) -> None:
        self._stop.set()
        self._producer.join()

    def _produce(self) -> None:
        bench, greet = self.bench, self._greet()
        with SyncClient(bench.server.url, app=bench.app.name, namespace=bench.namespace) as client:
            for tick in itertools.count():
                client.enqueue_many(self._weather(tick))
                enqueue_in(self._orders, greet.call())
                if self._stop.wait(0.1):
                    return

    def storm(self) -> None:
        """The carrier is down, the priority lane stalls, the rest gets more than it can do."""
        self._outage.touch()
        asyncio.run(self._pause("lane:priority"))
        self._weather = stormy

    async def _pause(self, scope: str) -> None:
        bench = self.bench
        queue = Queue(read(bench.app.name, redis_url=bench.server.url, namespace=bench.namespace, environ={}))
        try:
            await tune.pause(queue, scope, actor="chaos", reason="to see who notices")
        finally:
            await queue.close()

    def repeat_deliveries(self) -> None:
        """Thousands of entries of one job that runs: as after a group that was made anew."""
        bench = self.bench
        job_id = bench.enqueue("report", {"seconds": 20.0})
        stream = bench.keys.stream("heavy")

        def entry() -> dict[bytes, bytes] | None:
            entries: list[dict[bytes, bytes]] = [fields for _, fields in bench.redis.xrange(stream)]
            return next((fields for fields in entries if job_id.encode() in fields.values()), None)

        fields = wait_until(entry, what="the job's entry is seen")
        pipeline = bench.redis.pipeline(transaction=False)
        for _ in range(3000):
            pipeline.xadd(stream, fields)
        pipeline.execute()

    def spoil_request(self) -> None:
        """One in the outbox that Redis cannot take."""
        assert self.bench.postgres is not None
        with psycopg.connect(self.bench.postgres.dsn) as orders:
            enqueue_in(orders, self._greet().call())
            orders.execute("UPDATE streamworker.outbox SET extra = 'no such thing' WHERE id = lastval()")

    def stop_mirror(self) -> None:
        """Nobody writes to Postgres any more."""
        self._mirror.kill()

    def stop_relay(self) -> None:
        """Nobody tells Redis of what was committed."""
        self._relay.kill()

    def lose_worker(self) -> None:
        """One of two."""
        self.bench.kill(self.bench.fleet.up[0])

    def lose_all_workers(self) -> None:
        """Nobody is left to tell anything."""
        for worker in self.bench.fleet.up:
            self.bench.kill(worker)


async def _migrate(dsn: str) -> None:
    link = await connection.connect(dsn)
    try:
        await migrate.migrate(link)
    finally:
        await link.close()


def port_of(process: WorkerProcess) -> int:
    """Where its endpoint is."""
    process.wait_for_log("/metrics on", timeout=PATIENCE)
    found = re.search(r"/metrics on \S+?:(\d+)", process.log())
    assert found is not None, process.log()
    return int(found[1])
