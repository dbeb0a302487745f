"""Producers and operators: they enqueue, repeat themselves, wait, cancel, replay, discard, pause, limit."""

from __future__ import annotations

import asyncio
import math
import random

from streamworker.app import App
from streamworker.core.errors import StreamworkerError
from streamworker.core.states import Disposition
from streamworker.ops import tune
from streamworker.store import events, scripts
from streamworker.store.connection import Argument
from streamworker.store.placing import Placed
from streamworker.store.queue import Queue
from streamworker.store.scripts import NewJob
from tests.chaos.history import Accepted, Figure, Paused
from tests.simulation.jobs import GATED, LANES, TASK, Act, new_job
from tests.simulation.loop import Host
from tests.simulation.story import Story

#: What handlers do, and how often of a hundred.
ACTS = {
    Act.RETURN: 60,
    Act.TRANSIENT: 12,
    Act.BUG: 5,
    Act.REFUSE: 5,
    Act.SNOOZE: 6,
    Act.DEAF: 6,
    Act.DIE: 6,
}
#: How long, in seconds: mostly short, some beyond a lease, few beyond their time limit.
LENGTHS = (0.0, 0.01, 0.3, 1.0, 4.0, 12.0, 25.0, 50.0)
OFTEN = (10, 15, 15, 15, 15, 15, 12, 3)
#: What is paused now and then, and for how many seconds at most.
SCOPES = ("lane:priority", "task:ordered", "task:strict", "task:act", "tenant:acme", "dependency:carrier")
PAUSED = 20.0
#: A limit that is changed, what is declared, and what is set.
LIMIT, DECLARED, SET = "concurrency:task:shared", 2, (1, 3)


class Producer:
    """Enqueues jobs while the storm lasts."""

    def __init__(self, app: App, host: Host, story: Story, queue: Queue, dice: random.Random) -> None:
        self._app = app
        self._host = host
        self._story = story
        self._queue = queue
        self._dice = dice
        #: Everything that was sent, answered or not.
        self.jobs: list[NewJob] = []
        self._known: set[str] = set()
        # Few kinds in each seed, so that their jobs meet.
        self._tasks = (TASK, *dice.sample(GATED, 2))

    async def work(self, jobs: int, seconds: float) -> None:
        """Enqueue so many jobs over this time."""
        left = jobs
        waits: list[asyncio.Task[None]] = []
        while left > 0:
            await asyncio.sleep(self._dice.expovariate(jobs / seconds))
            batch = [self._new() for _ in range(min(left, self._dice.choice((1, 1, 1, 2, 5))))]
            left -= len(batch)
            if self.jobs and self._dice.random() < 0.1:
                batch.append(self._dice.choice(self.jobs))  # enqueued again, as after a lost answer
            self.jobs += batch
            sent = [(job, self._queue.enqueuer.add(job)) for job in batch]
            for job, future in sent:
                waits.append(asyncio.get_running_loop().create_task(self._hear(job, future)))
        await asyncio.gather(*waits)

    def _new(self) -> NewJob:
        dice = self._dice
        plan = [
            (dice.choices(list(ACTS), list(ACTS.values()))[0], dice.choices(LENGTHS, OFTEN)[0])
            for _ in range(dice.choice((1, 2, 3, 5)))
        ]
        if plan[-1][0] is Act.SNOOZE:
            plan.append((Act.RETURN, 0.01))
        key = dice.choice(("", "", "", "k1", "k2"))
        return new_job(
            self._app,
            f"j{len(self.jobs) + 1}-{dice.randrange(16**4):04x}",
            dice.choice(self._tasks),
            plan,
            dice.choice((0, 0, 1)),
            lane=dice.choice(list(LANES)),
            tenant=dice.choice(("", "", "acme")),
            key_id=key,
            fingerprint=dice.choice(("same", "same", "other")) if key else "",
            delay_ms=dice.choice((0, 0, 0, 0, 3_000, 20_000)),
            deadline_ms=dice.choice((0, 0, 0, 0, 0, 30_000)),
            max_starts=dice.choice((20, 20, 20, 20, 20, 5)),
        )

    async def _hear(self, job: NewJob, answer: asyncio.Future[Placed]) -> None:
        story = self._story
        try:
            placed = await answer
        except StreamworkerError as error:  # it may have been accepted, or not
            story.maybe.add(job.job_id)
            story.note(f"{job.job_id} enqueued: {type(error).__name__}", self._host)
            return
        story.note(f"{job.job_id} enqueued: {placed.disposition} {placed.job_id}", self._host)
        if placed.disposition in (Disposition.CONFLICT, Disposition.DUPLICATE):
            story.maybe.add(job.job_id)  # sent twice, it is accepted if its key is free by the second time
        if placed.disposition is not Disposition.CONFLICT and placed.job_id not in self._known:
            self._known.add(placed.job_id)
            key = job.key_id or None  # all tasks share them here
            story.accepted.append(Accepted(placed.job_id, TASK, job.lane, placed.disposition, key))


class Operator:
    """Looks at jobs and handles them, some under an epoch that they do not have."""

    def __init__(
        self, host: Host, story: Story, producer: Producer, queue: Queue, dice: random.Random
    ) -> None:
        self._host = host
        self._story = story
        self._producer = producer
        self._queue = queue
        self._dice = dice
        #: What is paused: when that was asked for, and since when it is sure.
        self._paused: dict[str, tuple[float, float]] = {}
        self._calm = False

    def calm(self) -> None:
        """No more moves at gates: everything is opened again."""
        self._calm = True
        for scope in list(self._paused):
            self._opened(scope)

    async def work(self, pause: float) -> None:
        """For ever, with so many seconds between two things to do on average."""
        waits: set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(self._dice.expovariate(1 / pause))
            if not self._producer.jobs:
                continue
            job = self._dice.choice(self._producer.jobs)
            what = self._dice.choice(("cancel", "wait", "wait", "replay", "discard", "pause", "limit"))
            try:
                if what == "wait":
                    waits.add(asyncio.get_running_loop().create_task(self._wait(job.job_id)))
                elif what in ("pause", "limit"):
                    if not self._calm:
                        move = self._pause if what == "pause" else self._limit
                        waits.add(asyncio.get_running_loop().create_task(move()))
                elif what == "cancel":
                    word = await self._queue.cancel(job.job_id, actor="operator")
                    self._story.note(f"cancels {job.job_id}: {word}", self._host)
                    if word == "FLAGGED":
                        self._story.flagged.append((job.job_id, self._story.now))
                else:
                    await self._handle(what)
            except StreamworkerError as error:
                self._story.note(f"{what}: {type(error).__name__}", self._host)

    async def _wait(self, job_id: str) -> None:
        try:
            ended = await self._queue.wait(job_id, timeout=20)
        except StreamworkerError as error:
            self._story.note(f"no result of {job_id}: {type(error).__name__}", self._host)
        else:
            self._story.results.append((job_id, ended.status))
            self._story.note(f"the result of {job_id}: {ended.status}", self._host)

    async def _pause(self) -> None:
        scope, story = self._dice.choice(SCOPES), self._story
        if scope in self._paused:
            return
        # It is sure only if no resume of before is still on its way.
        sure = all(one.scope != scope for one in story.pauses)
        self._paused[scope] = (story.now, math.inf)
        story.note(f"pauses {scope}", self._host)
        try:
            await tune.pause(self._queue, scope, actor="operator")
            if scope in self._paused and sure:
                self._paused[scope] = (self._paused[scope][0], story.now)
            await asyncio.sleep(self._dice.uniform(1.0, PAUSED))
            self._opened(scope)
            await tune.resume(self._queue, scope, actor="operator", over=self._dice.choice((0, 10)))
        except StreamworkerError as error:
            self._opened(scope)
            story.note(f"pause of {scope}: {type(error).__name__}", self._host)

    def _opened(self, scope: str) -> None:
        """It may be open from now on, and it may be paused again by a call that is late."""
        if scope in self._paused:
            begin, since = self._paused.pop(scope)
            self._story.pauses.append(Paused(scope, since, self._story.now, begin, math.inf))
            self._story.note(f"opens {scope}", self._host)

    async def _limit(self) -> None:
        most, story = self._dice.choice(SET), self._story
        if not story.figures:
            story.figures.append(Figure(LIMIT, DECLARED, 0.0, math.inf))
        story.figures.append(Figure(LIMIT, most, story.now, math.inf))
        story.note(f"sets {LIMIT} to {most}", self._host)
        try:
            await tune.set_limit(self._queue, LIMIT, str(most), actor="operator")
        except StreamworkerError as error:
            story.note(f"limit: {type(error).__name__}", self._host)

    async def _handle(self, what: str) -> None:
        """Replay or discard a dead letter. A replay takes its key back, which the checker cannot follow."""
        letters = await self._queue.caller.command("XRANGE", self._queue.keys.dlq, "-", "+")
        plain = [(entry, events.pairs(fields)) for entry, fields in letters]
        plain = [(entry, letter) for entry, letter in plain if what == "discard" or not letter[b"ky"]]
        if not plain:
            return
        entry, letter = self._dice.choice(plain)
        epoch = int(letter[b"epoch"]) + self._dice.choice((0, 0, 0, 1))
        row: list[Argument] = [entry, letter[b"id"], epoch]
        wrapper = scripts.replay if what == "replay" else scripts.discard
        if what == "replay":
            row.append("-")
        call = wrapper(clock="", actor="operator", retention_ms=scripts.RETENTION_MS, rows=row)
        (reply,) = await self._queue.run(call)
        self._story.note(f"{what} {letter[b'id'].decode()} of epoch {epoch}: {reply.decode()}", self._host)
