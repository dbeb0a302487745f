"""Runs claims: begins each, in the loop or in another process, and reports what it came to, once.

One task per job and one sweep for all time limits: a timer or a task group for each job would cost more
than everything else the worker does for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from streamworker.app import App
from streamworker.core.job import Envelope
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.overrides import RetryOverrides
from streamworker.core.states import ErrorClass, Reason
from streamworker.effects.transaction import committed_in
from streamworker.flow.dependency import Told, blamed
from streamworker.flow.locks import LockTold
from streamworker.flow.renewals import Renewals
from streamworker.store import traces
from streamworker.task import Task
from streamworker.worker import ends, raising
from streamworker.worker.burial import look
from streamworker.worker.children import Died, Unloadable
from streamworker.worker.fitness import Fitness
from streamworker.worker.handlers import Handlers
from streamworker.worker.outcomes import died, raised, returned, stopped
from streamworker.worker.running import Running, Stop

log = logging.getLogger("streamworker.worker")

#: Seconds after which a handler that ignores its cancellation is settled over its head (R23).
UNRESPONSIVE_AFTER = 5.0
#: Jobs that run longer than this get a start mark (D20), in seconds.
MARK_AFTER = 0.02


class House(Protocol):
    """Where handlers run in processes of their own."""

    async def run(self, running: Running, begun: Callable[[], None]) -> Outcome:
        """Raises Died, Unloadable."""


class Runner:
    """Starts handlers and reports each one's outcome, exactly once, to `ended`.

    `quarantine` runs what is to run apart, `processes` what tasks want to have run in a process; without
    them both run here. `quiet`: another process logs what the outcomes are. `called` is told of each call of
    a dependency. `renewals` keep the locks of handlers; they end with this runner.
    """

    def __init__(
        self,
        app: App,
        *,
        threads: int,
        ended: Callable[[Running], None],
        freed: Callable[[Running], None],
        quarantine: House | None = None,
        processes: House | None = None,
        quiet: bool = False,
        called: Told | None = None,
        locked: LockTold | None = None,
        renewals: Renewals | None = None,
    ) -> None:
        self._app = app
        self._ended = ended
        self._freed = freed
        self._quarantine = quarantine
        self._processes = processes
        self._quiet = quiet
        self._said_here = False
        self._loop = asyncio.get_running_loop()
        # What each handler begins with. The loop's own way, the context of whoever creates a task, would give
        # it that of the call in which the connection was made, which may be another job's (cpython#140947).
        self._context = contextvars.copy_context()
        self._fitness = Fitness(app)
        #: To be closed with the runner: its `effecting`, which may have connections.
        self.handlers = Handlers(
            app,
            threads,
            begun=self._begun,
            thread_ended=self._free_after_thread,
            called=called,
            locked=locked,
            renewals=renewals,
        )
        #: What operators have set of the tasks' retries.
        self.retries = RetryOverrides()

    def enter(self, state: Any) -> None:
        """The app has started: handlers get the state that its lifespan yielded, and the context of here."""
        self.handlers.state = state
        self._context = contextvars.copy_context()

    def start(self, running: Running) -> bool:
        """Begin one claim. False: it ended at once, without taking a slot."""
        claim = running.claim
        if claim.bury:
            with suppress(ValueError):
                running.envelope = Envelope.decode(claim.envelope)
                running.task_name = running.envelope.task
            running.occupies = True
            running.handler = self._create(self._bury(running))
            return True
        task = self._fitness.judge(running)
        if not isinstance(task, Task):
            self._finish(running, task)
            return False
        envelope = running.envelope
        assert envelope is not None
        if claim.deadline_in_ms is not None:
            running.stop_at = self._loop.time() + claim.deadline_in_ms / 1000
            running.stop_reason = Stop.EXPIRED
        house = self._quarantine if running.apart else self._processes if task.policy.in_process else None
        if house is None:
            if task.is_async:  # else once there is a thread
                self._begun(running, task)
            work = self._run(running, task, envelope)
        else:
            running.away = True
            work = self._run_away(running, task, envelope, house)
        running.occupies = True
        running.handler = self._create(work)
        return True

    def _create(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Not by `context=`, which a task factory of the app's may not know.
        return self._context.copy().run(self._loop.create_task, work)

    def _begun(self, running: Running, task: Task[..., Any]) -> None:
        """The handler takes its first step: its time runs."""
        running.started = self._loop.time()
        if running.started + task.policy.timeout < running.stop_at:
            running.stop_at = running.started + task.policy.timeout
            running.stop_reason = Stop.TIMEOUT

    async def _run_away(
        self, running: Running, task: Task[..., Any], envelope: Envelope, house: House
    ) -> None:
        # As total as _run.
        running.entered = True
        try:
            if running.stopping is not None:
                raise asyncio.CancelledError
            outcome = await house.run(running, partial(self._begun, running, task))
        except asyncio.CancelledError:
            outcome = stopped(running, task, self.retries.of(task.name))
        except Unloadable as error:
            if not running.apart:
                running.away = False
                self._say_here(error)
                if task.is_async:
                    self._begun(running, task)
                await self._run(running, task, envelope)
                return
            outcome = Release(Reason.NO_SLOT)  # a suspect runs here alone, or not at all
        except BaseException as error:
            if running.stopping is not None:
                outcome = stopped(running, task, self.retries.of(task.name))
            elif isinstance(error, Died):
                outcome = died(error, running.claim, task, self.retries.of(task.name))
            else:
                log.exception("job %s: its child process", running.claim.job_id)
                outcome = raised(error, running.claim, task, self.retries.of(task.name))
        self._free(running)
        self._finish(running, outcome)

    def _say_here(self, error: Unloadable) -> None:
        if not self._said_here:
            self._said_here = True
            log.warning(
                'no child process can have this app (%s): tasks with run_in="process" run in the worker',
                error,
            )

    async def _bury(self, running: Running) -> None:
        # As total as _run.
        running.entered = True
        try:
            if running.stopping is not None:
                raise asyncio.CancelledError
            outcome, running.stale = await look(
                self.handlers.effecting, running.claim, running.envelope, self._app.tasks
            )
        except BaseException:
            outcome = Release(Reason.SHUTDOWN)  # as it was: somebody else looks
            if running.stopping is None:
                log.exception("job %s: whether its effect is committed", running.claim.job_id)
        self._free(running)
        self._finish(running, outcome)

    async def _run(self, running: Running, task: Task[..., Any], envelope: Envelope) -> None:
        # Total: whatever the handler does, an outcome is recorded first, and nothing escapes into the loop.
        running.entered = True
        odd: BaseException | None = None
        attempt = None if traces.active is None else traces.active.attempt(running.claim, envelope)
        try:
            if running.stopping is not None:
                raise asyncio.CancelledError
            value = await self.handlers.call(running, task, envelope)
            outcome = returned(value)
        except asyncio.CancelledError:
            outcome = stopped(running, task, self.retries.of(task.name))
        except BaseException as error:
            outcome, odd = self._of_error(running, task, error), error
        if attempt is not None:
            attempt.ended(outcome)
        # The slot first, so that the call which settles this job also claims for its slot.
        if running.thread is None or running.thread.done():
            self._free(running)
        self._finish(running, outcome)
        if odd is not None:
            if isinstance(outcome, Retry | Fail) and outcome.error_class is ErrorClass.UNKNOWN:
                with suppress(Exception):  # it does not say where it was raised
                    raising.tell(running, odd)
            odd = None  # its traceback has this frame

    def _of_error(self, running: Running, task: Task[..., Any], error: BaseException) -> Outcome:
        override = self.retries.of(task.name)
        try:
            if (committed := committed_in(error)) is not None:
                return Success(committed.result, Reason.EFFECT_COMMITTED)
            if running.stopping is not None:
                return stopped(running, task, override)
            running.dependency = blamed(error)
            return raised(error, running.claim, task, override)
        except BaseException:  # its class answers each question about it by an error of its own
            plain = RuntimeError(f"the handler raised {type(error).__name__}, which cannot be looked at")
            return raised(plain, running.claim, task, override)

    def _free_after_thread(self, running: Running) -> None:
        if running.outcome is not None:
            self._free(running)

    def _free(self, running: Running) -> None:
        if running.occupies:
            running.occupies = False
            self._freed(running)

    def _finish(self, running: Running, outcome: Outcome) -> None:
        if running.outcome is None:
            running.outcome = outcome
            self._ended(running)
            if not self._quiet and isinstance(outcome, Retry) and not running.claim.bury:
                ends.retried(running, outcome)

    def sweep(self, held: list[Running], now: float, mark: Callable[[Running], None]) -> None:
        """All time limits and start marks of all jobs, a few times a second."""
        for running in held:
            if running.outcome is not None:
                continue
            if running.started is not None and not running.marked and now - running.started >= MARK_AFTER:
                running.marked = True
                mark(running)
            if running.stopping is None:
                if now >= running.stop_at:
                    running.tell(running.stop_reason, now)
            elif now - running.told_at >= UNRESPONSIVE_AFTER:
                self.overrule(running)

    def overrule(self, running: Running) -> None:
        """The handler ignores its cancellation: the job is settled, the slot stays taken until it ends."""
        log.warning(
            "job %s of task %s ignores its cancellation (%s); it is settled, but its slot stays taken until "
            "the handler ends (cancel_unresponsive)",
            running.claim.job_id,
            running.task_name,
            running.stopping,
        )
        task = self._app.tasks[running.task_name]
        self._finish(running, stopped(running, task, self.retries.of(task.name)))

    def close(self) -> None:
        """Let go of the threads and locks of handlers."""
        self.handlers.close()
