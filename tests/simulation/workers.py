"""A simulated worker: the real session, pump, reader, keeper and runner, without their process.

What a process adds is small and here: the heartbeat's beat, which is a thread there, the look at time limits,
and the rounds of keeper and quarantine. Elections are off: every worker keeps, at times of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

from streamworker.app import App
from streamworker.core.errors import StreamworkerError
from streamworker.core.outcome import Outcome
from streamworker.store.caller import backoff
from streamworker.store.connection import Opens
from streamworker.worker import heartbeat
from streamworker.worker.children import Died
from streamworker.worker.keeper import Keeper
from streamworker.worker.pump import Pump
from streamworker.worker.quarantine import with_struck
from streamworker.worker.reader import Reader
from streamworker.worker.runner import Runner
from streamworker.worker.running import Running, Stop
from streamworker.worker.session import Session
from tests.simulation.loop import Host, inside

#: Seconds between two looks at time limits and start marks.
LOOK_EVERY = 1.0
#: Seconds that the handlers of a leaving worker may run, and that its good-bye may take.
GRACE, FAREWELL = 5.0, 10.0


class Worker:
    """One worker, made and run in the context of its host."""

    def __init__(self, host: Host, app: App, opens: Opens, dice: random.Random, *, slots: int) -> None:
        self.host = host
        self._app = app
        self._dice = dice
        settings = app.settings
        self._runner = Runner(
            app,
            threads=1,
            ended=self._ended,
            freed=self._freed,
            quarantine=Apart(host, app),
            quiet=True,
        )
        session = Session(settings, host.name, app.lanes, {"app": app.name}, opens=opens)
        self.pump = Pump(settings, app.lanes, slots, session, start=self._runner.start)
        self._reader = Reader(settings, self.pump, opens=opens)
        self._keeper = Keeper(app, host.name, opens=opens)
        self._link = opens(settings.redis_url, timeout=settings.lease / 3)  # the heartbeat's
        self._leaving = False

    def _ended(self, running: Running) -> None:
        self.pump.ended(running)

    def _freed(self, running: Running) -> None:
        self.pump.freed(running)

    async def live(self) -> None:
        """Run until the host is dead."""
        attempt = 0
        while True:
            try:
                await self.pump.renewal.open()
                break
            except StreamworkerError:
                attempt += 1
                await asyncio.sleep(backoff(attempt))
        self.pump.kick()
        await asyncio.gather(self._reader.run(), self._beat(), self._look(), self._keep(), self._take_apart())

    async def leave(self) -> None:
        """Stop as on SIGTERM: let handlers end, hand back the rest, say good-bye. Then the host is dead."""
        self._leaving = True
        self.pump.stop_claiming()
        self._reader.stop()
        try:
            async with asyncio.timeout(GRACE):
                await self.pump.idle()
        except TimeoutError:
            now = asyncio.get_running_loop().time()
            for running in self.pump.holdings.running():
                running.tell(Stop.SHUTDOWN, now)
        try:
            async with asyncio.timeout(FAREWELL):
                await self.pump.drained()
                await self._reader.ended.wait()
                await self.pump.hand_back()
                await self.pump.session.forget()
        except (TimeoutError, StreamworkerError):
            pass  # recovery finds what could not be told
        self.host.kill()

    async def _beat(self) -> None:
        settings = self._app.settings
        interval = settings.lease / 3
        failures = 0
        while True:
            await asyncio.sleep(min(interval, backoff(failures)) if failures else interval)
            try:
                if not self._link.connected:
                    await self._link.connect()
                for asked, call in heartbeat.calls(settings, self.pump):
                    reply = await self._link.script(call.script, self.pump.session.keys.tag, *call.argv)
                    answer = heartbeat.Answer.parse(reply)
                    self.pump.standing.heard(asked, answer.lost, answer.cancelled)
                    if not (answer.alive or self._leaving):
                        self.pump.session_lost()
                failures = 0
            except StreamworkerError:
                failures += 1

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self._runner.sweep(list(self.pump.holdings.by_job.values()), loop.time(), self.pump.mark)

    async def _keep(self) -> None:
        half = self._app.settings.lease / 12  # of what lies between two sweeps
        while True:
            await asyncio.sleep(half * self._dice.uniform(1.0, 1.05))
            try:
                await self._keeper.tick()
            except StreamworkerError:
                continue

    async def _take_apart(self) -> None:
        while not self._leaving:
            await asyncio.sleep(self._dice.uniform(2.0, 5.0))
            try:
                keys = self.pump.session.keys
                waiting = deque(await with_struck(self._keeper.caller.command, keys, self._app.lanes))
                while waiting and not self._leaving:
                    lane = waiting.popleft()
                    if await self.pump.run_apart(lane):
                        waiting.append(lane)
            except StreamworkerError:
                continue


class Apart:
    """The quarantine child: what dies there takes no worker with it (D22)."""

    def __init__(self, host: Host, app: App) -> None:
        self._host = host
        self._app = app

    async def run(self, running: Running, begun: Callable[[], None]) -> Outcome:
        """The outcome of one handler. Raises Died when its host died."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Outcome] = loop.create_future()

        def told(inner: Running) -> None:
            if not answer.done() and inner.outcome is not None:
                answer.set_result(inner.outcome)

        def died(_: Host) -> None:
            if not answer.done():
                answer.set_exception(Died("the process that ran the handler was killed by SIGKILL"))

        child = Host(self._host.name, died=died)
        self._host.children.append(child)
        begun()
        inside(child).run(self._begin, child, running, told)
        try:
            return await answer
        finally:
            child.kill()

    def _begin(self, child: Host, running: Running, told: Callable[[Running], None]) -> None:
        runner = Runner(self._app, threads=1, ended=told, freed=lambda _: None, quiet=True)
        runner.start(Running(running.claim))
