"""Calls handlers: coroutines in the loop, plain functions in threads, each with its context."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from streamworker.app import App
from streamworker.context import Context
from streamworker.core.gates import Gates
from streamworker.core.job import Envelope
from streamworker.effects.attempt import Effecting
from streamworker.effects.duplicates import Duplicate, loader_for
from streamworker.flow.dependency import Dependencies, Result, Told
from streamworker.flow.locks import Locking, LockTold
from streamworker.flow.renewals import Renewals
from streamworker.request import current_correlation_id
from streamworker.store.caller import backoff
from streamworker.task import Task
from streamworker.worker import forks
from streamworker.worker.running import Running

log = logging.getLogger("streamworker.worker")

#: Connections to Postgres that handlers of a process may have at once.
MOST_CONNECTIONS = 16


class Handlers:
    """What handlers of an app run with: their threads, dependencies, locks, effects and cache."""

    def __init__(
        self,
        app: App,
        threads: int,
        *,
        begun: Callable[[Running, Task[..., Any]], None],
        thread_ended: Callable[[Running], None],
        called: Told | None = None,
        locked: LockTold | None = None,
        renewals: Renewals | None = None,
    ) -> None:
        """`begun` is told when a plain function has its thread, `thread_ended`, in the loop too, when that is
        free again; for the rest see Runner."""
        self._app = app
        self._begun = begun
        self._thread_ended = thread_ended
        self._called = called
        self._dependencies = Dependencies(app.dependencies, self._tell_call)
        self._locking = Locking(lambda call: app.queue().run(call), self._timeout_of, renewals, locked)
        #: How handlers reach Postgres; to be closed.
        self.effecting = Effecting(
            app.settings, app.queue, self._gates_of, lanes=app.lanes, size=min(threads, MOST_CONNECTIONS)
        )
        self._loop = asyncio.get_running_loop()
        # As many threads as slots, so that no slot waits for another's thread.
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="streamworker-job")
        self.state: Any = None  # what the app's lifespan yielded

    async def call(self, running: Running, task: Task[..., Any], envelope: Envelope) -> Any:
        """What the handler returned. Raises what it raised; notes the cached values that it has made old."""
        claim = running.claim
        context = Context(
            claim.job_id,
            envelope.task,
            envelope.key or claim.job_id,
            claim.attempt,
            claim.fence,
            claim.lane,
            envelope.tenant,
            envelope.correlation_id or claim.job_id,
            self.state,
            None if envelope.tick is None else task.moment(envelope.tick),
            _dependencies=self._dependencies,
            _locking=self._locking,
            _sent=claim.envelope,
            _effecting=self.effecting,
            _cache=self._app.cache,
        )
        current_correlation_id.set(context.correlation_id)
        try:
            if task.is_async:
                value = await task.handler(context, **envelope.args)
            else:
                value = await self._in_thread(running, task, context, envelope.args)
        except Exception as error:
            value = await self._first_result(error, task, context, claim.envelope)
            if value is None:
                raise
        finally:
            running.stale = context._stale
        return context.recorded if value is None else value

    async def _first_result(
        self, error: Exception, task: Task[..., Any], context: Context, sent: bytes
    ) -> Duplicate | None:
        """What the first one came to, if the error says that the effect is there, and its loader finds it."""
        loader = loader_for(error, task.policy.duplicate_on) if task.policy.duplicate_on else None
        if loader is None:
            return None
        args = Envelope.decode(sent).args  # as they were sent: the handler may have changed its own
        call = partial(contextvars.copy_context().run, loader, context, **args)
        if inspect.iscoroutinefunction(loader):
            found = await call()
        else:
            found, failed = await asyncio.to_thread(_caught, call)
            if failed is not None:
                raise failed
        return None if found is None else Duplicate(found)

    async def _in_thread(
        self, running: Running, task: Task[..., Any], context: Context, args: dict[str, Any]
    ) -> Any:
        call = partial(contextvars.copy_context().run, task.handler, context, **args)
        running.thread = await self._thread_for(running, call)
        self._begun(running, task)
        running.thread.add_done_callback(lambda _: self._in_loop(self._thread_ended, running))
        value, error = await asyncio.wrap_future(running.thread)
        if error is not None:
            raise error
        return await value if inspect.isawaitable(value) else value

    async def _thread_for(self, running: Running, call: Callable[[], Any]) -> Future[Any]:
        """Have it called in a thread, once one can be started: that none can be is no fault of the job's."""
        failures = 0
        while True:
            # The pool keeps a call for which it could not start a thread, and makes it when another is free.
            future: Future[Any] = Future()
            try:
                self._threads.submit(_make, future, call)
            except RuntimeError as error:
                if not future.cancel():  # another one was free meanwhile
                    return future
                failures += 1
                if failures == 1:
                    log.error("job %s waits for a thread: %s", running.claim.job_id, error)
                await asyncio.sleep(backoff(failures))
            else:
                return future

    def _gates_of(self, task: str) -> Gates | None:
        return self._app.tasks[task].gates

    def _timeout_of(self, task: str) -> float:
        return self._app.tasks[task].policy.timeout

    def _tell_call(self, dependency: str, result: Result, seconds: float) -> None:
        """A handler's call of a dependency ended; the handler may be in a thread."""
        if self._called is None:
            return
        if asyncio._get_running_loop() is self._loop:  # at once: it goes with the outcome of its job
            self._called(dependency, result, seconds)
            return
        self._in_loop(self._called, dependency, result, seconds)

    def _in_loop(self, tell: Callable[..., None], *what: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts, or waits for a slot
            self._loop.call_soon_threadsafe(tell, *what)

    def close(self) -> None:
        """Let go of the threads; one that still runs a handler cannot be stopped (R23)."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._locking.close()


def _make(future: Future[Any], call: Callable[[], Any]) -> None:
    """Make the call, unless nobody waits for it any more."""
    if future.set_running_or_notify_cancel():
        here = os.getpid()
        result = _caught(call)
        if os.getpid() != here:
            forks.leave()
        future.set_result(result)


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What a plain function returned or raised. A future could not carry every exception: StopIteration
    would leave it without an end."""
    try:
        return call(), None
    except StopIteration as error:
        wrapped = RuntimeError("a plain function raised StopIteration")
        wrapped.__cause__ = error
        return None, wrapped
    except BaseException as error:
        return None, error
