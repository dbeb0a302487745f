"""A worker's side of its child processes: starts them, hands them jobs, ends what does not obey.

Children are spawned, never forked (R27), and end with the worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from streamworker.app import App
from streamworker.core.errors import StreamworkerError
from streamworker.core.outcome import Outcome
from streamworker.flow.dependency import Result, Told
from streamworker.flow.locks import Asked, LockTold
from streamworker.store.caller import backoff
from streamworker.telemetry import logs
from streamworker.worker import origin, wire
from streamworker.worker.running import Running, Stop

log = logging.getLogger("streamworker.worker")

#: Seconds until a child has imported the app and entered its lifespan.
START_SECONDS = 60.0
#: Seconds that a cancelled handler gets to end until its process is killed; fewer when the worker stops.
CANCEL_SECONDS = 2.0
SHUTDOWN_SECONDS = 0.75
#: Seconds that an idle child gets to leave its lifespan.
LEAVE_SECONDS = 0.5
#: Seconds that a dead child's last words may take, if what it started keeps its socket open.
LAST_WORDS_SECONDS = 0.1

#: Children in a row that do not live to begin a job until we do without: a lifespan that can be entered only
#: once, such as one that binds a port, must not hold jobs for ever.
FAILURES = 8

#: Makes the parent's modules importable, then is the child.
_PROGRAM = """
import json, sys
path, descriptor, parent = sys.argv[1:]
sys.path[:], sys.argv[1:] = json.loads(path), []
from streamworker.worker.child import main
main(int(descriptor), int(parent))
"""


class Unloadable(StreamworkerError):
    """No child process can have this app."""


class NotReady(StreamworkerError):
    """A child process did not come up this time."""


class Died(StreamworkerError):
    """The process that ran a handler ended without an outcome; the text says how."""


class _Unbegun(Exception):
    """A child died before the handler began: its death is not the job's."""


class Child:
    """One process. Lives until it dies or is told to leave."""

    def __init__(
        self,
        gone: Callable[[Child], None],
        called: Told | None = None,
        locked: LockTold | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        """Spawn it, in `folder`; `gone` is called once it is dead and has been waited for. Raises NotReady.

        `called` is told of each call of a dependency, `locked` of each lock.
        """
        self._loop = asyncio.get_running_loop()
        self._tell_gone = gone
        self._called = called
        self._locked = locked
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._answer: asyncio.Future[Outcome] | None = None
        self._begun: Callable[[], None] | None = None
        self._blamed: str | None = None  # the dependency whose call failed, of the last job
        self._stale: set[str] = set()  # cached values that it made old
        self._writer: asyncio.StreamWriter
        self._ear: asyncio.Task[None] | None = None
        self._doomed = False  # it has been killed, though it may not be gone yet
        self._exited = asyncio.Event()
        self._watch: int | None = None
        try:
            self._link, theirs = socket.socketpair()
        except OSError as error:
            raise NotReady(f"no child process could be started: {error}") from error
        path = json.dumps([place for place in list[Any](sys.path) if isinstance(place, str)])
        arguments = [sys.executable, "-c", _PROGRAM, path, str(theirs.fileno()), str(os.getpid())]
        try:
            # In this thread: Linux ties a child's life to the thread that started it (PR_SET_PDEATHSIG).
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), cwd=folder
            )
        except OSError as error:
            self._link.close()
            raise NotReady(f"no child process could be started: {error}") from error
        finally:
            theirs.close()

    async def introduce(self, app: App, place: origin.Origin) -> None:
        """Give it the app; returns when it can take jobs. Raises Unloadable or NotReady, and kills it."""
        try:
            async with asyncio.timeout(START_SECONDS):
                reader, self._writer = await asyncio.open_connection(sock=self._link)
                self._ear = self._loop.create_task(self._listen(reader))
                self._watch_over()
                hello = {
                    "origin": asdict(place),
                    "settings": asdict(app.settings),
                    "log": logs.described(),
                }
                self._writer.write(orjson.dumps(hello) + b"\n")
                await self._ready
        except TimeoutError:
            raise NotReady(f"a child process was not ready within {START_SECONDS:g} s") from None
        finally:
            if not self.alive:
                await self.kill()
        if self._ear.done():  # nobody would hear of a job that it is given now
            raise NotReady(f"a child process {_how(self._process.returncode)} as soon as it was ready")

    def _watch_over(self) -> None:
        # Not everywhere; without it the end of the socket tells.
        with suppress(AttributeError, OSError):
            self._watch = os.pidfd_open(self._process.pid)
            self._loop.add_reader(self._watch, self._gone)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """It is ready, and lives as far as we know."""
        ready = self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None
        return ready and not self._doomed and self._process.poll() is None

    def tell_retries(self, text: str) -> None:
        """What operators have set of retries, as the list that Redis has."""
        self._writer.write(wire.frame({"do": "retries"}, text.encode()))

    async def run(self, running: Running, begun: Callable[[], None]) -> Outcome:
        """Run one job; `begun` is called when its handler is about to take its first step.

        Cancelled: the handler is cancelled, and the process killed if that does not help. Raises Died.
        """
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        self._answer = answer
        self._begun = begun
        claim = running.claim
        self._writer.write(wire.frame({"do": "run", "claim": wire.claim_head(claim)}, claim.envelope))
        try:
            await asyncio.wait([answer])  # unlike awaiting it, this does not cancel it with us
        except asyncio.CancelledError:
            if not answer.done() and running.stopping is not None:
                why = running.stopping
                self._writer.write(wire.frame({"do": "stop", "fence": claim.fence, "why": why}))
                patience = SHUTDOWN_SECONDS if why is Stop.SHUTDOWN else CANCEL_SECONDS
                await asyncio.wait([answer], timeout=patience)
            if not answer.done():
                log.warning(
                    "job %s of task %s did not end when told to (%s); its process %d is killed",
                    claim.job_id,
                    running.task_name,
                    running.stopping,
                    self.pid,
                )
                raise
        finally:
            self._answer = self._begun = None
            if not answer.done() or answer.exception() is not None:
                answer.cancel()
                await self.kill()
        running.dependency = self._blamed
        running.stale = self._stale
        return answer.result()

    def _heard(self, head: wire.Head, body: bytes) -> None:
        match head["is"]:
            case "ready" if not self._ready.done():
                self._ready.set_result(None)
            case "unloadable" if not self._ready.done():
                self._ready.set_exception(Unloadable(body.decode()))
            case "failed" if not self._ready.done():
                self._ready.set_exception(NotReady(body.decode()))
            case "begun" if self._begun is not None:
                self._begun()
                self._begun = None
            case "called" if self._called is not None:
                self._called(head["dependency"], Result(head["result"]), head["seconds"])
            case "locked" if self._locked is not None:
                self._locked(head["lock"], Asked(head["result"]), head["seconds"])
            case "done" if self._answer is not None and not self._answer.done():
                if head["busy"]:  # its thread still runs the handler
                    self._end()
                self._blamed = head.get("dependency")
                self._stale = set(head["stale"])
                self._answer.set_result(wire.outcome_from(head["outcome"], body))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while (message := await wire.read(reader)) is not None:
                self._heard(*message)
        except (ValueError, LookupError):
            log.exception("child process %d talks nonsense; it is killed", self.pid)
        self._end()
        await self._reap()
        end = _how(self._process.returncode)
        if not self._ready.done():
            self._ready.set_exception(NotReady(f"a child process {end} before it was ready"))
        if self._answer is not None and not self._answer.done():
            error = Died(f"the process that ran the handler {end}") if self._begun is None else _Unbegun(end)
            self._answer.set_exception(error)
        self._writer.close()
        self._tell_gone(self)

    def _gone(self) -> None:
        """The process ended. Its socket says so too, unless something that it started holds it open."""
        self._unwatch()
        self._process.poll()
        self._exited.set()
        self._loop.call_later(LAST_WORDS_SECONDS, self._writer.transport.abort)

    async def _reap(self) -> None:
        if self._watch is not None:
            await self._exited.wait()
        while self._process.poll() is None:  # noqa: ASYNC110 - only where the system cannot tell
            await asyncio.sleep(0.005)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._loop.remove_reader(self._watch)
            os.close(self._watch)
            self._watch = None

    def _end(self) -> None:
        self._doomed = True
        self._process.kill()

    async def kill(self) -> None:
        """End it now; returns when it is gone."""
        self._end()
        if self._ear is None:  # we have not even spoken
            self._process.wait()
            self._link.close()
            self._tell_gone(self)
            return
        await asyncio.wait([self._ear])
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # it has been looked at

    async def leave(self) -> None:
        """Let it leave its lifespan, and end it when that takes long."""
        self._writer.write_eof()
        if self._ear is not None:
            await asyncio.wait([self._ear], timeout=LEAVE_SECONDS)
        await self.kill()


def _here() -> Path | None:
    """Where we are; None: it is gone, or not ours to read."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _how(code: int | None) -> str:
    if code is None:
        return "ended"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with {code}"


class Children:
    """Up to `size` child processes, started when they are needed. In one event loop."""

    def __init__(
        self, app: App, size: int, *, called: Told | None = None, locked: LockTold | None = None
    ) -> None:
        self._app = app
        self._called = called
        self._locked = locked
        self._place = origin.find(app)
        self._folder = _here()  # a handler may change it, for all that comes later
        self._room = asyncio.Semaphore(size)
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._failures = 0  # in a row
        self._retries = ""  # what operators have set of them
        #: Why no child can have the app; None: as far as we know one can.
        self.unloadable: str | None = None
        if self._place is None:
            self.unloadable = "it is not at the top of a module"

    def tell_retries(self, text: str) -> None:
        """What operators have set of retries: children decide those of what runs there."""
        self._retries = text
        for child in self._all:
            if child.alive:
                child.tell_retries(text)

    async def ready(self) -> None:
        """Have an idle child. Raises Unloadable or NotReady."""
        try:
            self._idle.append(await self._take())
        except NotReady as error:
            self._failed(error)
            raise

    async def run(self, running: Running, begun: Callable[[], None]) -> Outcome:
        """Run one job in a child, once one is free. Raises Unloadable, and Died when the process died.

        A child that does not come up is tried again, up to a limit.
        """
        async with self._room:
            while True:
                try:
                    child = await self._take()
                except NotReady as error:
                    log.warning("job %s waits: %s", running.claim.job_id, error)
                    self._failed(error)
                    await asyncio.sleep(backoff(self._failures))
                    continue
                try:
                    outcome = await child.run(running, begun)
                    self._failures = 0
                    return outcome
                except Died:
                    self._failures = 0
                    raise
                except _Unbegun as error:
                    log.warning("a child process %s before its job began; another one takes it", error)
                    self._failed(error)
                    await asyncio.sleep(backoff(self._failures))
                finally:
                    if child.alive:
                        self._idle.append(child)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if self._failures >= FAILURES:
            self.unloadable = f"{FAILURES} in a row failed, the last one: {error}"
            raise Unloadable(self.unloadable)

    async def _take(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            log.warning("idle child process %d is gone; starting another one", child.pid)
            await child.kill()
        if self._place is None or self.unloadable is not None:
            raise Unloadable(self.unloadable or "")
        folder = self._folder if self._folder is not None and self._folder.is_dir() else None
        child = Child(self._all.discard, self._called, self._locked, folder=folder)
        self._all.add(child)  # until it is gone, so that somebody waits for it
        try:
            await child.introduce(self._app, self._place)
        except Unloadable as error:
            self.unloadable = str(error)
            raise
        if self._retries:
            child.tell_retries(self._retries)
        return child

    async def close(self) -> None:
        """End all of them; one that runs a job is killed."""
        idle, self._idle = self._idle, []
        endings: list[Coroutine[Any, Any, None]] = [
            child.leave() if child in idle else child.kill() for child in self._all
        ]
        await asyncio.gather(*endings)
