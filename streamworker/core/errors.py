"""What can go wrong: the exceptions that users raise and catch, and the codes that they carry.

What kind of wrong an exception is, this package's or any other, says `core.classify`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from streamworker.core.classify import Verdict as Verdict
    from streamworker.core.classify import classify as classify
    from streamworker.core.classify import error_text as error_text


class StreamworkerError(Exception):
    """The root of all errors of this package. Pickles with its facts, whatever its signature."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(cls: type[StreamworkerError], args: tuple[Any, ...], facts: dict[str, Any]) -> StreamworkerError:
    error = cls.__new__(cls, *args)
    error.args = args  # OSError's __new__ leaves them to __init__, which is not run here
    error.__dict__.update(facts)
    return error


# --- bad input -------------------------------------------------------------------------------------------


class ConfigurationError(StreamworkerError, ValueError):
    """A setting, a policy or a declaration cannot work; the message says what to change.

    `lasting`: it is in the handler's code, so no retry mends it.
    """

    def __init__(self, problem: object = "", *, lasting: bool = False) -> None:
        self.lasting = lasting
        super().__init__(problem)


class InvalidArgument(StreamworkerError, ValueError):
    """A name, key or id that is not allowed. `what` names it, `value` is what was given."""

    def __init__(self, what: str, value: object, problem: str) -> None:
        self.what = what
        self.value = value
        self.problem = problem
        super().__init__(f"{what} {_shown(value)}: {problem}")


class DoesNotFit(InvalidArgument):
    """A value that may be given and does not fit what is there now; another time it may."""


class DurationError(StreamworkerError, ValueError):
    """A value that is no duration. `what` names the setting."""

    def __init__(self, what: str, value: object, problem: str) -> None:
        self.what = what
        self.value = value
        self.problem = problem
        super().__init__(f"{what}: {_shown(value)} {problem}")


class SerializationError(StreamworkerError, ValueError):
    """A value that JSON cannot hold exactly. `path` says where it is, `problem` what it is."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}")


class PayloadTooLarge(StreamworkerError, ValueError):
    """A payload above its limit; `size` and `limit` in bytes; `at_least`, where nobody wrote it to count."""

    def __init__(self, size: int, limit: int, what: str = "payload", *, at_least: bool = False) -> None:
        self.size = size
        self.limit = limit
        self.what = what
        # What is shared in memory counts as often as it is there: the number may be too long to be shown.
        shown = f"{size}" if not at_least else f"{size} or more" if size < 1 << 63 else "more than 2 ** 63"
        super().__init__(
            f"{what}: {shown} bytes of JSON, the limit is {limit}; keep the data elsewhere, pass a reference"
        )


class UnknownTask(StreamworkerError):
    """No task of that name is registered. `known` lists the names that are."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        self.known = tuple(sorted(known))
        near = difflib.get_close_matches(name, self.known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self.known) or 'none'}"
        super().__init__(f"no task is named {_shown(name)}; {hint}")


# --- raised by handlers ----------------------------------------------------------------------------------


class TransientError(StreamworkerError):
    """Raise it for what may work later: the job is retried by its task's policy.

    `code` is a short token for metrics and the dead-letter list; a subclass may set it once for all.
    """

    code: str = "transient"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        if code is not None:
            self.code = check_code(code)
        super().__init__(message)


class PersistentError(StreamworkerError):
    """Raise it for what no retry can mend: the job fails at once and becomes a dead letter."""

    code: str = "persistent"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        if code is not None:
            self.code = check_code(code)
        super().__init__(message)


class RetryAfter(TransientError):
    """Raise it when the other side said how long to wait. Charged as an attempt.

    The retry never comes earlier than `seconds` (below zero counts as zero, above a day as a day).
    """

    code = "retry_after"

    def __init__(self, seconds: float, message: str = "") -> None:
        given: object = seconds
        if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
            raise DurationError("RetryAfter", given, "is not a finite number of seconds")
        self.seconds = float(seconds)
        super().__init__(message or f"retry after {seconds:g} s")


class DependencyTimeout(TransientError):
    """A call of a dependency took longer than it may. `phase` is "connect", or "total" for the whole call."""

    def __init__(self, dependency: str, seconds: float, *, phase: str) -> None:
        self.dependency = dependency
        self.seconds = seconds
        self.phase = phase
        what = "was not connected" if phase == "connect" else "did not end"
        super().__init__(
            f"a call of {dependency} {what} within {seconds:g} s",
            code="dependency_connect_timeout" if phase == "connect" else "dependency_timeout",
        )


class LockBusy(TransientError):
    """`ctx.lock` waited in vain: another handler holds it. `left`: seconds for which it is held at least.

    `own`: another part of the same handler holds it, such as the block that the waiting task was begun in.
    """

    code = "lock_busy"

    def __init__(self, name: str, left: float, *, own: bool = False) -> None:
        self.name = name
        self.left = left
        self.own = own
        super().__init__(
            f"another part of this handler holds the lock {name!r}: take it once, around all that needs it"
            if own
            else f"another handler holds the lock {name!r}, for {left:g} s or more"
        )


class LockLost(TransientError):
    """A lock went to somebody else, or nobody knows: it could not be renewed in its time."""

    code = "lock_lost"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"the lock {name!r} was lost: it was not renewed in its time")


class FencedOut(TransientError):
    """A row, or the job itself, has seen a newer fence than ours: nothing was written."""

    code = "fenced_out"


class OperationConflict(PersistentError):
    """The key has this effect already, for other arguments. `key` is the job's key or id.

    `begun`: nobody knows whether it happened, since no attempt that began it has said so.
    """

    code = "operation_conflict"

    def __init__(self, task: str, key: str, step: str = "", *, begun: bool = False) -> None:
        self.task = task
        self.key = key
        self.step = step
        self.begun = begun
        effect = f"its effect{f' {step!r}' if step else ''} for the key {_shown(key)} with other arguments"
        super().__init__(
            f"task {task} has begun {effect}, and nobody knows whether it happened: ask the other side, and "
            "see An effect that has begun in docs/how-to/dead-letters.md"
            if begun
            else f"task {task} has committed {effect}; a key stands for one thing: use another one"
        )


class Cancel(StreamworkerError):
    """Raise it to end the job as `cancelled`: no retry and no dead letter. `why` is kept."""

    def __init__(self, why: str = "") -> None:
        self.why = why
        super().__init__(why)


# --- met by producers ------------------------------------------------------------------------------------


class IdempotencyConflict(StreamworkerError):
    """The key is held by a job with other arguments. `job_id` is that job; nothing was enqueued."""

    def __init__(self, job_id: str, key: str, task: str) -> None:
        self.job_id = job_id
        self.key = key
        self.task = task
        super().__init__(
            f"key {_shown(key)} of task {task} is held by job {job_id} with other arguments; "
            "use another key, or the same arguments"
        )


class EnqueueRejected(StreamworkerError):
    """The queue took no more. `retry_after` is in seconds, None when there is no telling."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        self.reason = reason
        self.retry_after = retry_after
        wait = "" if retry_after is None else f"; try again in {retry_after:g} s"
        super().__init__(f"enqueue was rejected: {reason}{wait}")


class ConnectionLost(StreamworkerError, ConnectionError):
    """Redis could not be reached, or the connection broke before anything was sent."""


class OutcomeUnknown(StreamworkerError, ConnectionError):
    """The reply was lost and sending again did not settle it: the jobs may or may not be enqueued.

    Enqueue again with the same key, or look the ids up once Redis is back.
    """

    def __init__(self, job_ids: Sequence[str]) -> None:
        self.job_ids = tuple(job_ids)
        shown = ", ".join(self.job_ids[:3]) + (" …" if len(self.job_ids) > 3 else "")
        super().__init__(
            f"the reply was lost: {len(self.job_ids)} job(s) may or may not be enqueued ({shown}); "
            "look them up, or enqueue again with the same key"
        )


class JobFailed(StreamworkerError):
    """The awaited job ended in `failed_terminal`."""

    def __init__(self, job_id: str, code: str, error_class: str, error: str) -> None:
        self.job_id = job_id
        self.code = code
        self.error_class = error_class
        self.error = error
        super().__init__(f"job {job_id} failed ({error_class}, {code}): {error}")


class JobNotFound(StreamworkerError):
    """There is no record of the job: it never was, or its record has expired.

    With a durable record in Postgres, expired jobs are found there; then it never was.
    """

    def __init__(
        self, job_id: str, why: str = "its record has expired, or it was never enqueued here"
    ) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is not known: {why}")


class JobMissing(JobNotFound):
    """Postgres has the job as open, and Redis has no record of it.

    Redis lost data, or the mirror is so far behind that the record of an ended job expired meanwhile, or
    there is none. `status` is what Postgres knows.
    """

    def __init__(self, job_id: str, status: str, why: str = "") -> None:
        self.status = status
        super().__init__(
            job_id,
            why
            or f"Redis has no record of it, and in Postgres it is {status}: Redis lost data, and the mirror, "
            "or `streamworker mirror reconcile`, brings it back; or the mirror is far behind, and it has "
            "ended",
        )


class ResultTimeout(StreamworkerError, TimeoutError):
    """The job did not end in time; it goes on. `status` is the last one seen."""

    def __init__(self, job_id: str, seconds: float, status: str) -> None:
        self.job_id = job_id
        self.seconds = seconds
        self.status = status
        super().__init__(
            f"job {job_id} did not end within {round(seconds, 3):g} s; it is {status} and goes on"
        )


class ServerUnsuitable(StreamworkerError):
    """The Redis server cannot keep the promise. `remedy` says what to change."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}; {remedy}")


class UnusableUrl(ServerUnsuitable):
    """What was given is no URL of a Redis server, or has options that cannot be."""


# --- codes, and what of a message is shown ---------------------------------------------------------------

_CODE = re.compile(r"[a-z0-9_.-]{1,44}", re.ASCII)
#: Codes that the engine gives meaning to. An exception whose class happens to be called `Cancelled` must not
#: pass for a cancelled job, which would make no dead letter.
RESERVED_CODES = frozenset(
    {"cancelled", "discarded", "superseded", "expired", "crash_loop", "worker_lost", "too_many_starts"}
    | {"unknown_task", "bad_arguments", "bad_envelope", "entry_deleted", "bad_record"}
)


def check_code(code: object) -> str:
    """Return `code` if it is a valid error code: 1 to 44 of `a-z 0-9 _ . -`. Raises InvalidArgument."""
    if not is_code(code):
        raise InvalidArgument("error code", code, "use 1 to 44 characters of a-z, 0-9, '_', '.' and '-'")
    return code


def is_code(code: object) -> TypeGuard[str]:
    """Whether `check_code` would let it pass."""
    return isinstance(code, str) and _CODE.fullmatch(code) is not None


def _shown(value: object) -> str:
    """A short, printable form of what the caller gave."""
    try:
        text = ascii(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."
