"""What a claim came to, by what its handler did: decisions of policy, without any I/O."""

from __future__ import annotations

from typing import Any

from streamworker.core import codec, durations
from streamworker.core.classify import classify, error_text
from streamworker.core.errors import Cancel, TransientError
from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Skip, Snooze, Success
from streamworker.core.overrides import RetryOverride
from streamworker.core.retry import Burial, Decision, decide_recovery
from streamworker.core.states import ErrorClass, Reason, Status
from streamworker.core.text import ERROR_TEXT_BYTES, truncate_text
from streamworker.effects.duplicates import Duplicate
from streamworker.task import Task
from streamworker.worker import raising
from streamworker.worker.children import Died
from streamworker.worker.running import Running, Stop

#: An unknown task is handed back for so long, then it is a dead letter (ms).
UNKNOWN_TASK_AGE_MS = 3600 * 1000
UNKNOWN_TASK_DELAY_MS = (1000, 30_000)
#: Bytes of an error text that are left for where it was raised.
ROOM_FOR_PLACE = 512
#: What most jobs come to.
_RETURNED = Success()


def unknown_task_outcome(name: str, age_ms: int | None) -> Release | Fail:
    """Back through the schedule, 1 s doubling to 30 s with the age, until the task has been unknown for 1 h.

    A rolling deploy so bounces no job to death, and a typing error becomes visible.
    """
    if age_ms is not None and age_ms >= UNKNOWN_TASK_AGE_MS:
        text = f"no worker has known the task {name!r} for an hour"
        return Fail(ErrorClass.PERSISTENT, "unknown_task", text, Reason.UNKNOWN_TASK)
    shortest, longest = UNKNOWN_TASK_DELAY_MS
    return Release(Reason.UNKNOWN_TASK, min(longest, max(shortest, age_ms or 0)))


def returned(value: Any) -> Outcome:
    """The outcome of a handler that returned. What JSON cannot hold is a persistent error of the task."""
    if value is None:
        return _RETURNED
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
    if verdict.error_class is ErrorClass.UNKNOWN and (place := raising.place(error)):
        text = truncate_text(text, ERROR_TEXT_BYTES - ROOM_FOR_PLACE) + truncate_text(
            f"\n{place}", ROOM_FOR_PLACE
        )
    if decision.stopped:
        return Fail(ErrorClass.PERSISTENT, verdict.code, text, Reason.RETRIES_STOPPED)
    if not decision.retry:
        return Fail(verdict.error_class, verdict.code, text)
    reason = Reason.ERROR if verdict.retry_after is None else Reason.SERVER_DIRECTED
    return Retry(decision.delay_ms, verdict.error_class, verdict.code, text, decision.policy, reason)


def stopped(running: Running, task: Task[..., Any], override: RetryOverride | None = None) -> Outcome:
    """The outcome of a handler that was told to end, or ended itself by a CancelledError."""
    claim = running.claim
    match running.stopping:
        case Stop.TIMEOUT:
            limit = durations.format_ms(round(task.policy.timeout * 1000))
            error: Exception = TimeoutError(f"the attempt took longer than {limit}")
        case Stop.EXPIRED:
            return Fail(ErrorClass.PERSISTENT, "expired", "the job's deadline passed", Reason.EXPIRED)
        case Stop.CANCELLED:
            return Fail(ErrorClass.PERSISTENT, "cancelled", "cancelled while running", Reason.CANCELLED)
        case Stop.SHUTDOWN | Stop.LOST:
            return Release(Reason.SHUTDOWN)
        case Stop.OUT_OF_TOUCH:
            text = "Redis did not answer for longer than the lease, so the job's entity may be another's"
            error = TransientError(text, code="out_of_touch")
        case None:
            error = RuntimeError("the handler cancelled itself")
    return raised(error, claim, task, override)


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
