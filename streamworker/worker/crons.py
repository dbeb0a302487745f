"""Runs the ticks of an app's crons. Every worker does, and the script lets each tick count once.

Nobody is elected: whoever ran the last tick of a cron is there first for the next, and the others come a
moment later, find it done, or do it if that worker is gone. So the death of one loses no tick.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from dataclasses import dataclass

from streamworker.app import App
from streamworker.core.cron import LATE_WITHIN_MS, Cron
from streamworker.core.errors import StreamworkerError
from streamworker.core.job import encode_envelope
from streamworker.core.router import Subject
from streamworker.store import scripts
from streamworker.store.caller import Caller, backoff
from streamworker.store.connection import ReplyError
from streamworker.store.keys import Keys
from streamworker.store.placing import restoring
from streamworker.store.pressures import Pressures
from streamworker.store.scripts import NewJob

log = logging.getLogger("streamworker.worker")

#: ms that a worker lets the one that ran the last tick go ahead.
STAND_BACK_MS = (150, 450)
#: Redis's clock is asked again after so many seconds without a tick.
CLOCK_EVERY = 60.0
#: ms until a cron that could not be asked for is asked for again; others have their turns meanwhile.
AGAIN_AFTER_MS = 1_000
#: Seconds between two words about what crons wait for.
SAY_EVERY = 10.0


@dataclass(slots=True)
class _Turn:
    """One cron as this worker sees it."""

    cron: Cron
    tick: int  # the next to run, in ms
    stand_back_ms: int

    @property
    def at(self) -> int:
        return self.tick + self.stand_back_ms


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the script says of a cron: of the tick, and of what counted before."""

    verdict: str
    last: int  # ms of the last tick that counted, or when the cron was noted
    since: int  # ms from when its schedule holds; 0: always
    said: str  # that schedule, as the worker that ran the last tick had it; '': nobody has said


class Crons:
    """The crons of one app, as one worker runs them."""

    def __init__(self, app: App, worker: str) -> None:
        settings = app.settings
        self._app = app
        self._worker = worker
        self._keys = Keys(settings.namespace)
        self._caller = Caller(settings.redis_url, self._keys.tag, patience=settings.lease)
        self._pressures = Pressures()
        self._marker = ""  # of the mirror, as this worker knows it
        self._stopping = asyncio.Event()
        self._turns: list[_Turn] = []
        # Redis's clock less our monotonic one, in ms: our own clock is never asked what time it is.
        self._ahead = 0
        self._asked_at = 0.0

    async def run(self) -> None:
        """Run ticks until `stop`. Survives any error: a loop that ends would stop all crons silently."""
        failures, say_again = 0, 0.0
        unknown = list(self._app.crons.values())
        while (unknown or self._turns) and not self._stopping.is_set():
            try:
                if unknown:
                    self._turns.append(await self._begin(unknown[0]))
                    del unknown[0]
                else:
                    await self._next()
                failures = 0
            except Exception as error:
                failures += 1
                if not isinstance(error, StreamworkerError):
                    log.exception("crons")
                elif time.monotonic() >= say_again:
                    log.warning("crons: %s", error)
                    say_again = time.monotonic() + SAY_EVERY
                await self._pause(backoff(failures))

    def stop(self) -> None:
        self._stopping.set()

    async def close(self) -> None:
        await self._caller.close()

    async def _begin(self, cron: Cron) -> _Turn:
        """What is to be run first: the tick that nobody was up for, or the next one."""
        found = await self._ask(cron, None)
        now = self._now()
        if cron.begins_anew(found.said, last_ms=max(found.last, found.since), now_ms=now):
            log.info("cron %s: it was %s until now", cron.name, found.said)
            found = await self._ask(cron, None, was=found.said)
        last = max(found.last, found.since)
        missed = cron.missed(last_ms=last, now_ms=now)
        if missed is not None:
            log.info("cron %s: nobody was up at %s; it runs now", cron.name, cron.schedule.moment(missed))
        elif (lost := cron.lost(last_ms=last, now_ms=now)) is not None:
            moment = cron.schedule.moment(lost)
            log.warning(
                "cron %s: nobody was up at %s, a day ago or more; that is not made up for", cron.name, moment
            )
        tick = missed if missed is not None else cron.schedule.next_after(now)
        return _Turn(cron, tick, random.randint(*STAND_BACK_MS))

    async def _next(self) -> None:
        """Wait for the next turn and take it; or for a while."""
        turn = min(self._turns, key=lambda one: one.at)
        wait = (turn.at - self._now()) / 1000
        if wait > 0:
            await self._pause(min(wait, CLOCK_EVERY))
            if time.monotonic() - self._asked_at >= CLOCK_EVERY:
                seconds, micros = await self._caller.command("TIME")
                self._set_clock(int(seconds) * 1000 + int(micros) // 1000)
            return
        if self._now() - turn.tick > LATE_WITHIN_MS:  # an outage, or this process was asleep
            turn.tick = turn.cron.following(turn.tick - 1, now_ms=self._now())
        tick = turn.tick
        try:
            verdict = (await self._ask(turn.cron, tick)).verdict
        except Exception:
            turn.stand_back_ms = self._now() - turn.tick + AGAIN_AFTER_MS
            raise
        if verdict == "EARLY":  # the clock is set by now, so there is something to wait for
            return
        turn.stand_back_ms = 0 if verdict in ("OK", "SKIPPED") else random.randint(*STAND_BACK_MS)
        if verdict == "SKIPPED":
            log.info("cron %s: an earlier job is open, so this tick is skipped", turn.cron.name)
        turn.tick = turn.cron.following(tick, now_ms=self._now())

    async def _ask(self, cron: Cron, tick: int | None, *, was: str = "") -> _Answer:
        """Run one tick, or only note the cron; `was`: the schedule that it takes the place of.

        Raises EnqueueRejected while Redis is being restored.
        """
        call = scripts.cron(
            clock="",
            worker=self._worker,
            retention_ms=scripts.RETENTION_MS,
            marker=self._marker,
            name=cron.name,
            tick="" if tick is None else tick,
            ttl_ms=0 if tick is None else cron.ttl_ms(tick),
            overlap=cron.overlap,
            schedule=cron.schedule.text,
            was=was,
            rows=() if tick is None else (await self._job(cron, tick)).row(),
        )
        verdict, now, last, _, since, said, marker = await self._caller.run(call)
        self._set_clock(int(now))
        if verdict == b"RESTORING":
            raise restoring()
        self._marker = marker.decode()
        return _Answer(verdict.decode(), int(last), int(since or 0), said.decode())

    async def _job(self, cron: Cron, tick: int) -> NewJob:
        task = self._app.tasks[cron.name]
        policy, router = task.policy, self._app.router
        if fields := self._pressures.wanted(router):
            with suppress(ReplyError):  # may not be read: what was heard before is used on
                self._pressures.note(
                    router, await self._caller.command("HMGET", self._keys.policies, *fields)
                )
        placed = router.decide(Subject(cron.name, policy.lane), self._pressures.levels)
        return NewJob(
            job_id=cron.job_id(tick, namespace=self._app.settings.namespace),
            task=cron.name,
            lane=placed.lane,
            envelope=encode_envelope(cron.name, b"{}", tick=tick),
            deadline_ms=policy.deadline_ms,
            max_starts=policy.max_starts,
            gates=task.gates.line({}, tenant=None, lane=placed.lane, number=0) if task.gates else "",
            route=placed.why,
            backlog=placed.backlog,
        )

    def _now(self) -> int:
        """Redis's time in ms, or a little less: a call is rather late than early."""
        return self._ahead + int(time.monotonic() * 1000)

    def _set_clock(self, redis_ms: int) -> None:
        if self._asked_at and self._now() - redis_ms > LATE_WITHIN_MS:  # put back: another server's, say
            for turn in self._turns:
                turn.tick = min(turn.tick, turn.cron.schedule.next_after(redis_ms))
        self._asked_at = time.monotonic()
        self._ahead = redis_ms - int(self._asked_at * 1000)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
