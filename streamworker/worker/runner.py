"""Runs handlers: coroutines in the loop, plain functions in threads. Turns what happened into an outcome.

One task per job and one sweep for all time limits: a timer or a task group for each job would cost more
than everything else the worker does for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from streamworker.app import App
from streamworker.core import codec, durations
from streamworker.core.errors import Cancel, InvalidArgument, TransientError, classify, error_text
from streamworker.core.gates import Gates, regate
from streamworker.core.job import Claim, Envelope
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Skip, Snooze, Success
from streamworker.core.overrides import RetryOverride, RetryOverrides
from streamworker.core.retry import Burial, Decision, decide_recovery
from streamworker.core.states import ErrorClass, Reason, Status
from streamworker.core.text import truncate_text
from streamworker.effects.attempt import Effecting
from streamworker.effects.duplicates import Duplicate, loader_for
from streamworker.effects.transaction import committed_in
from streamworker.flow.dependency import Dependencies, Result, Told, blamed
from streamworker.flow.locks import Locking, LockTold
from streamworker.flow.renewals import Renewals
from streamworker.request import current_correlation_id
from streamworker.store import traces
from streamworker.task import BadArguments, Context, Task
from streamworker.worker.burial import look
from streamworker.worker.children import Died, Unloadable
from streamworker.worker.running import Running, Stop

log = logging.getLogger("streamworker.worker")

#: Seconds after which a handler that ignores its cancellation is settled over its head (R23).
UNRESPONSIVE_AFTER = 5.0
#: Jobs that run longer than this get a start mark (D20), in seconds.
MARK_AFTER = 0.02
#: Connections to Postgres that handlers of a process may have at once.
MOST_CONNECTIONS = 16
#: An unknown task is handed back for so long, then it is a dead letter (ms).
UNKNOWN_TASK_AGE_MS = 3600 * 1000
UNKNOWN_TASK_DELAY_MS = (1000, 30_000)


def unknown_task_outcome(name: str, age_ms: int | None) -> Release | Fail:
    """Back through the schedule, 1 s doubling to 30 s with the age, until the task has been unknown for 1 h.

    A rolling deploy so bounces no job to death, and a typing error becomes visible.
    """
    if age_ms is not None and age_ms >= UNKNOWN_TASK_AGE_MS:
        text = f"no worker has known the task {name!r} for an hour"
        return Fail(ErrorClass.PERSISTENT, "unknown_task", text, Reason.UNKNOWN_TASK)
    shortest, longest = UNKNOWN_TASK_DELAY_MS
    return Release(Reason.UNKNOWN_TASK, min(longest, max(shortest, age_ms or 0)))


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
        self._called = called
        self._dependencies = Dependencies(app.dependencies, self._tell_call)
        self._locking = Locking(lambda call: app.queue().run(call), self._timeout_of, renewals, locked)
        #: How handlers reach Postgres; to be closed.
        self.effecting = Effecting(
            app.settings, app.queue, self._gates_of, lanes=app.lanes, size=min(threads, MOST_CONNECTIONS)
        )
        self._said_here = False
        self._max_ages = {
            name: durations.to_ms(lane.max_age)
            for name, lane in app.lanes.items()
            if lane.max_age is not None
        }
        self._loop = asyncio.get_running_loop()
        # As many threads as slots, so that no slot waits for another's thread.
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="streamworker-job")
        self.state: Any = None  # what the app's lifespan yielded
        #: What operators have set of the tasks' retries.
        self.retries = RetryOverrides()

    def start(self, running: Running) -> bool:
        """Begin one claim. False: it ended at once, without taking a slot."""
        claim = running.claim
        if claim.bury:
            running.occupies = True
            running.handler = self._loop.create_task(self._bury(running))
            return True
        try:
            envelope = Envelope.decode(claim.envelope)
        except ValueError as error:
            text = truncate_text(f"the envelope cannot be read: {error}")
            self._finish(running, Fail(ErrorClass.PERSISTENT, "bad_envelope", text))
            return False
        running.task_name, running.envelope = envelope.task, envelope
        task = self._app.tasks.get(envelope.task)
        if task is None:
            self._finish(running, unknown_task_outcome(envelope.task, claim.unknown_age_ms))
            return False
        try:
            task.signature.check(envelope.args)
        except BadArguments as error:
            text = truncate_text(f"BadArguments: {error}")
            self._finish(running, Fail(ErrorClass.PERSISTENT, "bad_arguments", text))
            return False
        try:
            gates = self._other_gates(claim, envelope, task)
        except InvalidArgument as error:
            self._finish(running, Fail(ErrorClass.PERSISTENT, "bad_arguments", error_text(error)))
            return False
        if gates is not None:
            self._finish(running, Release(Reason.REGATED, gates=gates))
            return False
        if self._too_old(claim, envelope):
            text = f"it waited longer than the lane {claim.lane} allows for its first start"
            self._finish(running, Fail(ErrorClass.PERSISTENT, "expired", text, Reason.EXPIRED))
            return False
        if claim.deadline_in_ms is not None:
            running.stop_at = self._loop.time() + claim.deadline_in_ms / 1000
            running.stop_reason = Stop.EXPIRED
        house = self._quarantine if running.apart else self._processes if task.policy.in_process else None
        if house is None:
            self._begun(running, task)
            work = self._run(running, task, envelope)
        else:
            running.away = True
            work = self._run_away(running, task, envelope, house)
        running.occupies = True
        running.handler = self._loop.create_task(work)
        return True

    def _other_gates(self, claim: Claim, envelope: Envelope, task: Task[..., Any]) -> str | None:
        """What the job has to pass by this worker's newer declaration; None if it has passed it (D17)."""
        return regate(
            task.gates,
            claim.gates,
            envelope.args,
            tenant=envelope.tenant,
            lane=claim.lane,
            number=self._app.published.get(task.name, 0),
        )

    def _too_old(self, claim: Claim, envelope: Envelope) -> bool:
        """Whether a job waited for its first start longer than its lane allows; a delay is no waiting."""
        limit = self._max_ages.get(claim.lane)
        return limit is not None and claim.starts == 1 and claim.age_ms - envelope.delay_ms > limit

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
            outcome = self._stopped(running, task)
        except Unloadable as error:
            if not running.apart:
                running.away = False
                self._say_here(error)
                self._begun(running, task)
                await self._run(running, task, envelope)
                return
            outcome = Release(Reason.NO_SLOT)  # a suspect runs here alone, or not at all
        except BaseException as error:
            if running.stopping is not None:
                outcome = self._stopped(running, task)
            elif isinstance(error, Died):
                outcome = died(error, running.claim, task, self.retries.of(task.name))
            else:
                log.exception("job %s: its child process", running.claim.job_id)
                outcome = self._raised(error, running.claim, task)
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
            outcome, running.stale = await look(self.effecting, running.claim, self._app.tasks)
        except BaseException:
            outcome = Release(Reason.SHUTDOWN)  # as it was: somebody else looks
            if running.stopping is None:
                log.exception("job %s: whether its effect is committed", running.claim.job_id)
        self._free(running)
        self._finish(running, outcome)

    async def _run(self, running: Running, task: Task[..., Any], envelope: Envelope) -> None:
        # Total: whatever the handler does, an outcome is recorded first, and nothing escapes into the loop.
        running.entered = True
        attempt = None if traces.active is None else traces.active.attempt(running.claim, envelope)
        try:
            if running.stopping is not None:
                raise asyncio.CancelledError
            value = await self._call(running, task, envelope)
            outcome = returned(value)
        except asyncio.CancelledError:
            outcome = self._stopped(running, task)
        except BaseException as error:
            if (committed := committed_in(error)) is not None:
                outcome = Success(committed.result, Reason.EFFECT_COMMITTED)
            elif running.stopping is not None:
                outcome = self._stopped(running, task)
            else:
                outcome = self._raised(error, running.claim, task)
                running.dependency = blamed(error)
        if attempt is not None:
            attempt.ended(outcome)
        # The slot first, so that the call which settles this job also claims for its slot.
        if running.thread is None or running.thread.done():
            self._free(running)
        self._finish(running, outcome)

    async def _call(self, running: Running, task: Task[..., Any], envelope: Envelope) -> Any:
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
            task.moment(envelope.tick),
            _dependencies=self._dependencies,
            _locking=self._locking,
            _args=envelope.args,
            _effecting=self.effecting,
            _cache=self._app.cache,
        )
        current_correlation_id.set(context.correlation_id)
        try:
            value = await self._handle(running, task, context, envelope.args)
        except Exception as error:
            value = await self._first_result(error, task, context, envelope.args)
            if value is None:
                raise
        finally:
            running.stale = context._stale
        return context.recorded if value is None else value

    async def _first_result(
        self, error: Exception, task: Task[..., Any], context: Context, args: dict[str, Any]
    ) -> Duplicate | None:
        """What the first one came to, if the error says that the effect is there, and its loader finds it."""
        loader = loader_for(error, task.policy.duplicate_on) if task.policy.duplicate_on else None
        if loader is None:
            return None
        call = partial(contextvars.copy_context().run, loader, context, **args)
        found = await (call() if inspect.iscoroutinefunction(loader) else asyncio.to_thread(call))
        return None if found is None else Duplicate(found)

    async def _handle(
        self, running: Running, task: Task[..., Any], context: Context, args: dict[str, Any]
    ) -> Any:
        if task.is_async:
            return await task.handler(context, **args)
        call = partial(contextvars.copy_context().run, task.handler, context, **args)
        running.thread = self._threads.submit(_caught, call)
        running.thread.add_done_callback(lambda _: self._thread_ended(running))
        value, error = await asyncio.wrap_future(running.thread)
        if error is not None:
            raise error
        return await value if inspect.isawaitable(value) else value

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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts any more
            self._loop.call_soon_threadsafe(self._called, dependency, result, seconds)

    def _thread_ended(self, running: Running) -> None:
        try:
            self._loop.call_soon_threadsafe(self._free_after_thread, running)
        except RuntimeError:  # the loop is closed: nobody waits for the slot
            return

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
            if not self._quiet:
                report(running)

    def _stopped(self, running: Running, task: Task[..., Any]) -> Outcome:
        claim = running.claim
        match running.stopping:
            case Stop.TIMEOUT:
                limit = durations.format_ms(round(task.policy.timeout * 1000))
                return self._raised(TimeoutError(f"the attempt took longer than {limit}"), claim, task)
            case Stop.EXPIRED:
                return Fail(ErrorClass.PERSISTENT, "expired", "the job's deadline passed", Reason.EXPIRED)
            case Stop.CANCELLED:
                return Fail(ErrorClass.PERSISTENT, "cancelled", "cancelled while running", Reason.CANCELLED)
            case Stop.SHUTDOWN | Stop.LOST:
                return Release(Reason.SHUTDOWN)
            case Stop.OUT_OF_TOUCH:
                text = "Redis did not answer for longer than the lease, so the job's entity may be another's"
                return self._raised(TransientError(text, code="out_of_touch"), claim, task)
            case None:  # the handler raised CancelledError on its own account
                return self._raised(RuntimeError("the handler cancelled itself"), claim, task)

    def _raised(self, error: BaseException, claim: Claim, task: Task[..., Any]) -> Outcome:
        return raised(error, claim, task, self.retries.of(task.name))

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
        self._finish(running, self._stopped(running, self._app.tasks[running.task_name]))

    def close(self) -> None:
        """Let go of the threads; one that still runs a handler cannot be stopped (R23)."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._locking.close()


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What a plain function returned or raised. A future could not carry every exception: StopIteration
    would leave it without an end."""
    try:
        return call(), None
    except StopIteration as error:
        wrapped = RuntimeError("the handler raised StopIteration")
        wrapped.__cause__ = error
        return None, wrapped
    except BaseException as error:
        return None, error


def returned(value: Any) -> Outcome:
    """The outcome of a handler that returned. What JSON cannot hold is a persistent error of the task."""
    if value is None:
        return Success()
    if isinstance(value, Snooze):
        return Release(Reason.SNOOZED, durations.to_ms(value.seconds, what="Snooze"))
    if isinstance(value, Duplicate):
        return Success(codec.encode_result(value.result), Reason.DUPLICATE)
    if isinstance(value, Skip):
        return Success(codec.encode_result({"skipped": value.why}), Reason.SKIPPED)
    return Success(codec.encode_result(value))


def raised(
    error: BaseException, claim: Claim, task: Task[..., Any], override: RetryOverride | None = None
) -> Outcome:
    """The outcome of a handler that raised, by the task's retry policy and what operators have set. Pure."""
    if isinstance(error, Cancel):
        return Fail(ErrorClass.PERSISTENT, "cancelled", error_text(error), Reason.CANCELLED)
    policy = task.policy
    verdict = classify(error, transient=policy.transient, persistent=policy.persistent)
    decision: Decision = policy.retry.decide(
        job_id=claim.job_id, attempt=claim.attempt, verdict=verdict, override=override
    )
    text = error_text(error)
    if decision.stopped:
        return Fail(ErrorClass.PERSISTENT, verdict.code, text, Reason.RETRIES_STOPPED)
    if not decision.retry:
        return Fail(verdict.error_class, verdict.code, text)
    reason = Reason.ERROR if verdict.retry_after is None else Reason.SERVER_DIRECTED
    return Retry(decision.delay_ms, verdict.error_class, verdict.code, text, decision.policy, reason)


def died(
    error: Died, claim: Claim, task: Task[..., Any], override: RetryOverride | None = None
) -> Retry | Fail:
    """The outcome of a handler whose process died: what recovery would make of it, at once (D22). Pure."""
    decision = decide_recovery(
        task.policy.retry,
        job_id=claim.job_id,
        status=Status.PROCESSING,
        attempt=claim.attempt,
        strikes=claim.strikes,
        override=override,
    )
    if isinstance(decision, Burial):
        return Fail(ErrorClass.UNKNOWN, decision.code, str(error), Reason.DIED)
    return Retry(
        decision.delay_ms, ErrorClass.UNKNOWN, "worker_lost", str(error), decision.policy, Reason.DIED
    )


def report(running: Running) -> None:
    """One log line for what went wrong; never an exception, never the payload."""
    outcome = running.outcome
    if isinstance(outcome, Retry):
        log.info(
            "job %s of task %s: attempt %d failed (%s, %s), next in %s",
            running.claim.job_id,
            running.task_name,
            running.claim.attempt,
            outcome.error_class,
            outcome.code,
            durations.format_ms(outcome.delay_ms),
        )
    elif isinstance(outcome, Fail):
        log.warning(
            "job %s of task %s: failed at attempt %d (%s, %s)",
            running.claim.job_id,
            running.task_name,
            running.claim.attempt,
            outcome.error_class,
            outcome.code,
        )
