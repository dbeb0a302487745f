"""What an attempt came to: Success, Retry, Fail or Release. Python decides, Lua commits."""

from __future__ import annotations

from dataclasses import dataclass

from streamworker.core.states import ErrorClass, Reason


@dataclass(frozen=True, slots=True)
class Success:
    """The handler returned; `result` is encoded JSON, empty for None."""

    result: bytes = b""
    reason: Reason = Reason.RETURNED


@dataclass(frozen=True, slots=True)
class Retry:
    """Run again after `delay_ms`; the attempt is charged."""

    delay_ms: int
    error_class: ErrorClass
    code: str
    error: str
    #: From which the delay can be recomputed; a token without white space.
    policy: str = "-"
    reason: Reason = Reason.ERROR


@dataclass(frozen=True, slots=True)
class Fail:
    """The job is over, as a dead letter unless the code is a quiet one."""

    error_class: ErrorClass
    code: str
    error: str
    reason: Reason = Reason.ERROR


@dataclass(frozen=True, slots=True)
class Release:
    """Hand the job back: the attempt is not charged.

    `gates`: with reason `regated`, what it must pass from now on.
    """

    reason: Reason
    delay_ms: int = 0
    gates: str = ""


Outcome = Success | Retry | Fail | Release


#: What a settle is answered of which nothing was recorded: another claim has the job, or it is gone.
NOT_RECORDED = (b"STALE", b"GONE")


def is_put_off(outcome: Outcome | None, reply: bytes) -> bool:
    """Whether a failure is not recorded as one yet: the job's effect is looked for first (D14).

    `reply`: what the settle was answered; a settle that was sent twice hears what the first came to.
    """
    return type(outcome) is Fail and reply in _PUT_OFF


#: The job is ready to be looked at.
_PUT_OFF = (b"OK burial", b"ALREADY retry")


@dataclass(frozen=True, slots=True)
class Snooze:
    """Returned by a handler: run this job again in `seconds`, without charging the attempt.

    Every start still counts towards the task's `max_starts`, so that no job snoozes for ever.
    """

    seconds: float | str


@dataclass(frozen=True, slots=True)
class Skip:
    """Returned by a handler: there is nothing to do, and that is a success."""

    why: str = ""
