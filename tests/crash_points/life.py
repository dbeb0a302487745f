"""What the processes of these tests do until their point: a worker, and a producer that can begin again.

They are forked from a process that has imported this module, which takes no time.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from streamworker import App, Client, Context, Request, Retry, TransientError, Worker
from streamworker.client import Job
from streamworker.request import Options
from tests.apps.chaos_jobs import SHORT, journaled
from tests.crash_points import seam
from tests.crash_points.points import Point

LEASE = 1.0
#: Keys of the producer's jobs: one by itself, three in one call, one that is cancelled.
ONE, MANY, LATE = "one", ("many1", "many2", "many3"), "late"


@dataclass(frozen=True, slots=True)
class Life:
    """One process: who it is, and where it is to die."""

    number: int
    url: str
    namespace: str
    folder: Path
    point: Point | None = None

    @property
    def name_file(self) -> Path:
        """Where a worker writes its id."""
        return self.folder / f"{self.number}.id"

    @property
    def go_file(self) -> Path:
        """Once it is there, `hold` ends."""
        return self.folder / "go"

    @property
    def told_file(self) -> Path:
        """Where a producer writes what it was told, a line each."""
        return self.folder / "told"


def build(life: Life) -> App:
    """The app of these tests. Made by a function: so struck jobs run in the worker and need no process."""
    app = App("crash", redis_url=life.url, namespace=life.namespace, lease=LEASE)

    @app.task(retry=SHORT)
    async def quick(ctx: Context, number: int = 0) -> int:
        with journaled(ctx):
            return number

    @app.task(retry=SHORT)
    async def work(ctx: Context, seconds: float) -> int:
        with journaled(ctx):
            await asyncio.sleep(seconds)
            return ctx.attempt

    @app.task(retry=SHORT)
    async def hold(ctx: Context) -> int:
        with journaled(ctx):
            while not life.go_file.exists():  # noqa: ASYNC110 - no other process can set an event
                await asyncio.sleep(0.01)
            return ctx.attempt

    @app.task(retry=Retry.schedule("50ms", "100ms", "200ms", unknown=["50ms", "100ms"]))
    async def flaky(ctx: Context) -> int:
        with journaled(ctx):
            if ctx.attempt == 1:
                raise TransientError("the first time always")
            return ctx.attempt

    return app


def be_worker(life: Life) -> None:
    """Run jobs until SIGTERM, or the point."""
    os.environ["CHAOS_JOURNAL"] = str(life.folder / f"{life.number}.journal")
    app = build(life)
    worker = Worker(app, concurrency=4, grace="200ms")
    life.name_file.write_text(worker.id)
    if life.point is not None:
        seam.install(life.point)
    worker.run()


def be_client(life: Life) -> None:
    """Enqueue, cancel, and await a result; or die at the point, and be started again."""
    if life.point is not None:
        seam.install(life.point)
    asyncio.run(_produce(life))


async def _produce(life: Life) -> None:
    async with Client(life.url, app="crash", namespace=life.namespace) as client:
        one = await client.enqueue("hold", {}, key=ONE)
        _note(life, ONE, one)
        requests = [Request("quick", {"number": n}, Options.of(key=key)) for n, key in enumerate(MANY)]
        for key, job in zip(MANY, await client.enqueue_many(requests), strict=True):
            _note(life, key, job)
        late = await client.enqueue("quick", {"number": 9}, key=LATE, delay="60s")
        _note(life, LATE, late)
        await client.cancel(late.id)
        assert await client.result(one.id, timeout=30) == 1


def _note(life: Life, key: str, job: Job[object]) -> None:
    with life.told_file.open("a") as told:
        told.write(f"{job.id} {job.disposition} {key}\n")
