"""The supervisor of several worker processes: starts them, starts them again, passes signals on.

It imports no app: what an app does to its process happens in the children, which are spawned, never forked
(R27). The first child is started alone, so that what hinders all of them is said once, and ends the fleet.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from streamworker.core.errors import ConfigurationError
from streamworker.settings import Endpoint
from streamworker.telemetry import loggers
from streamworker.worker.brood import Child, Place

if TYPE_CHECKING:
    from streamworker.telemetry.http import HttpServer

log = logging.getLogger("streamworker.supervisor")

#: Seconds that the first child may take to come up before the others are started regardless.
FIRST_ALONE = 10.0
#: Seconds that a new child may take to come up in a rolling restart.
COMING_UP = 60.0
#: Seconds beyond their grace until children that do not end are killed.
BEYOND_GRACE = 15.0
#: Seconds until it is looked again who has ended, behind one that somebody else waits for.
HIDDEN = 0.05


class Beside(Protocol):
    """A process that is another's to wait for, and has the same code as the workers."""

    @property
    def pid(self) -> int | None:
        """None: there is none, or its end was heard of."""

    def renew(self) -> None:
        """End it, and start it again."""


class Supervisor:
    """Keeps `processes` workers running: `Supervisor(command, processes=4, grace=30).run()`.

    `run` blocks. SIGTERM and SIGINT are passed on, twice if they come twice; SIGHUP restarts one child after
    the other. It returns 0 when all children ended with 0.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        processes: int,
        grace: float,
        endpoint: Endpoint | None = None,
        beside: Sequence[Beside] = (),
    ) -> None:
        """`beside`: renewed in a rolling restart once new code has come up."""
        self._command = list(command)
        self._places = [Place(number) for number in range(1, processes + 1)]
        self._grace = grace
        self._endpoint = endpoint
        self._beside = beside
        self._stopping = asyncio.Event()
        self._wanted = asyncio.Event()  # a rolling restart was asked for
        self._signals = 0
        self._ever_up = False
        self._code = 0

    def run(self) -> int:
        """Run until a signal. Returns 0, or 1 when a child had to be killed or ended otherwise."""
        loggers.shield()
        return asyncio.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        # A terminal that closes sends SIGHUP as well, and wants no restart.
        attended = os.isatty(0)
        loop.add_signal_handler(signal.SIGHUP, self._stop if attended else self._wanted.set)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        with ExitStack() as stack:
            if self._endpoint is not None:
                folder = stack.enter_context(_folder())
                for place in self._places:
                    place.path = Path(folder, f"{place.number}.sock")
            server = await self._answer()
            rolling = asyncio.create_task(self._roll())
            try:
                await self._start_all()
                await self._stopping.wait()
            finally:
                rolling.cancel()
                await self._end()
                if server is not None:
                    await server.close()
        log.info("supervisor: all processes have ended")
        return self._code

    async def _answer(self) -> HttpServer | None:
        if self._endpoint is None:
            return None
        from streamworker.telemetry.http import Address, HttpServer
        from streamworker.worker.gathering import routes

        server = HttpServer(routes(self._places))
        port = await server.open(Address(self._endpoint.host, self._endpoint.port))
        log.info("supervisor: /healthz, /readyz and /metrics on %s:%d", self._endpoint.host, port)
        return server

    # --- starting

    async def _start_all(self) -> None:
        first, *others = self._places
        self._start(first)
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ALONE):
                await self._either(first.up)
        for place in others:
            if not self._stopping.is_set():
                self._start(place)

    def _start(self, place: Place) -> None:
        place.timer = None
        if self._stopping.is_set():
            return
        try:
            place.start(self._command, self._came_up)
        except OSError as error:  # no memory, too many processes: others may end
            pause = place.backoff(0.0)
            log.error("supervisor: process %d cannot start (%s); again in %g s", place.number, error, pause)
            place.timer = asyncio.get_running_loop().call_later(pause, self._start, place)
            return
        log.info("supervisor: process %d is pid %d", place.number, place.pid)

    def _came_up(self) -> None:
        self._ever_up = True

    # --- the dead

    def _reap(self) -> None:
        """Bury all children that have ended; as process 1 also those that nobody else waits for (R47)."""
        if not hasattr(os, "waitid"):  # macOS
            for place in self._places:
                if place.child is not None and place.child.process.poll() is not None:
                    self._bury(place, place.child)
            return
        ours = {place.pid: place for place in self._places}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            its_place = ours.get(found.si_pid)
            if its_place is not None and its_place.child is not None:
                self._bury(its_place, its_place.child)
            elif any(found.si_pid == each.pid for each in self._beside):
                # A thread waits for it, and would not hear its exit code from us; it hides others until then.
                asyncio.get_running_loop().call_later(HIDDEN, self._reap)
                return
            else:
                with suppress(ChildProcessError):
                    os.waitpid(found.si_pid, os.WNOHANG)

    def _bury(self, place: Place, child: Child) -> None:
        code = child.end()
        if code in (-signal.SIGTERM, -signal.SIGINT) and (self._stopping.is_set() or place.expected):
            code = 0  # it did not listen yet, or not any more: it held nothing
        place.child = None
        place.gone.set()
        place.up.clear()
        told = f"exit code {code}" if code >= 0 else f"signal {-code}"
        if self._stopping.is_set():
            if code != 0:
                log.warning("supervisor: process %d ended with %s", place.number, told)
                self._code = self._code or 1
        elif place.expected:
            log.info("supervisor: process %d has ended to be restarted (%s)", place.number, told)
        elif not self._ever_up and code > 0:
            # Nothing ever ran: a wrong target, no Redis. The child has said what; others would say the same.
            self._code = code
            self._stop()
        else:
            pause = place.backoff(child.age)
            log.warning("supervisor: process %d ended with %s; again in %g s", place.number, told, pause)
            place.timer = asyncio.get_running_loop().call_later(pause, self._start, place)

    # --- rolling restart

    async def _roll(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            log.info("supervisor: rolling restart of %d processes", len(self._places))
            for place in self._places:
                if not await self._renew(place):
                    log.error(
                        "supervisor: rolling restart ended at process %d, which does not come up; the others "
                        "run as before",
                        place.number,
                    )
                    break
                if place is self._places[0]:  # early: an older mirror may not read what new workers write
                    for each in self._beside:
                        each.renew()
            else:
                log.info("supervisor: rolling restart is done")

    async def _renew(self, place: Place) -> bool:
        """End one child and start its successor; whether that came up."""
        place.expected = True
        try:
            if place.child is not None:
                place.signal(signal.SIGTERM)
                await self._await_end([place])
            place.cancel_timer()
            self._start(place)
        finally:
            place.expected = False
        try:
            async with asyncio.timeout(COMING_UP):
                await self._either(place.up, place.gone)
        except TimeoutError:
            return False
        return place.up.is_set()

    # --- the end

    def _stop(self) -> None:
        """SIGTERM or SIGINT: once is for a graceful end, twice for an end at once."""
        self._signals += 1
        self._stopping.set()
        for place in self._places:
            place.cancel_timer()
            place.signal(signal.SIGTERM if self._signals == 1 else signal.SIGINT)

    async def _end(self) -> None:
        self._stopping.set()
        if self._signals == 0:  # no signal but an error of ours
            self._stop()
        if await self._await_end(self._places):
            self._code = self._code or 1

    async def _await_end(self, places: Sequence[Place]) -> bool:
        """Return when these children have ended; True if some had to be killed."""
        waiting = [place for place in places if place.child is not None]
        try:
            async with asyncio.timeout(self._grace + BEYOND_GRACE):
                await asyncio.gather(*(place.gone.wait() for place in waiting))
        except TimeoutError:
            for place in waiting:
                if place.child is not None:
                    log.error("supervisor: process %d does not end; killed", place.number)
                    place.signal(signal.SIGKILL)
            await asyncio.gather(*(place.gone.wait() for place in waiting))
            return True
        return False

    async def _either(self, *events: asyncio.Event) -> None:
        """Return when one of them is set, or when we are to stop."""
        tasks = [asyncio.create_task(event.wait()) for event in (self._stopping, *events)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where the children answer us, of mode 0700. Raises ConfigurationError, as with a read-only root."""
    try:
        return tempfile.TemporaryDirectory(prefix="streamworker-")
    except OSError as error:
        raise ConfigurationError(
            f"metrics of several processes need a folder that can be written ({error}); set TMPDIR to one"
        ) from None
