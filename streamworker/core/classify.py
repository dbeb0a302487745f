"""What kind of wrong an exception is.

`classify` turns any exception of a handler into the error class and code that the retry policy works with,
`error_text` into the text that is kept with the job.
"""

from __future__ import annotations

import re

from streamworker.core.errors import (
    RESERVED_CODES,
    Cancel,
    ConfigurationError,
    EnqueueRejected,
    PayloadTooLarge,
    PersistentError,
    RetryAfter,
    SerializationError,
    StreamworkerError,
    TransientError,
    is_code,
)
from streamworker.core.foreign import Verdict as Verdict
from streamworker.core.foreign import code_of_type as foreign_code
from streamworker.core.foreign import database, http_status, network
from streamworker.core.states import ErrorClass
from streamworker.core.text import truncate_text

_WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def classify(
    exc: BaseException,
    *,
    transient: tuple[type[BaseException], ...] = (),
    persistent: tuple[type[BaseException], ...] = (),
) -> Verdict:
    """Say what kind of error `exc` is; never raises.

    Types that the task declared come first, the one nearest in the MRO wins (a type in both is transient);
    they change the class and keep the code. Then this package's own errors, HTTP statuses, time-outs and lost
    connections. All else is *unknown*, with the class name as code. A group is as bad as its worst member:
    one persistent error makes it persistent, one unknown error unknown.
    """
    try:
        verdict = _judge(exc, transient, persistent)
        for cls in type(exc).__mro__:
            if cls in transient:
                return Verdict(ErrorClass.TRANSIENT, verdict.code, verdict.retry_after)
            if cls in persistent:
                return Verdict(ErrorClass.PERSISTENT, verdict.code)
    except BaseException:  # a property of a foreign exception may raise anything
        return Verdict(ErrorClass.UNKNOWN, _name_code(type(exc)))
    return verdict


def _judge(
    exc: BaseException,
    transient: tuple[type[BaseException], ...],
    persistent: tuple[type[BaseException], ...],
) -> Verdict:
    if isinstance(exc, BaseExceptionGroup):
        each = [classify(member, transient=transient, persistent=persistent) for member in members(exc)]
        return max(each, key=_badness)
    own = _own(exc) if isinstance(exc, StreamworkerError) else None
    found = own or http_status(exc) or database(exc) or network(exc)
    return found or Verdict(ErrorClass.UNKNOWN, _name_code(type(exc)))


def members(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """What is in the group and in the groups within it, however deep, each once."""
    found: list[BaseException] = []
    waiting: list[BaseException] = [group]
    seen = {id(group)}
    while waiting:
        one = waiting.pop()
        if not isinstance(one, BaseExceptionGroup):
            found.append(one)
            continue
        for member in reversed(one.exceptions):  # so that the first comes out first
            if id(member) not in seen:
                seen.add(id(member))
                waiting.append(member)
    return found


def _badness(verdict: Verdict) -> tuple[int, float]:
    rank = (ErrorClass.TRANSIENT, ErrorClass.UNKNOWN, ErrorClass.PERSISTENT).index(verdict.error_class)
    return rank, verdict.retry_after or 0.0


def _own(exc: StreamworkerError) -> Verdict | None:
    match exc:
        case RetryAfter():
            return Verdict(ErrorClass.TRANSIENT, _safe_code(exc.code, type(exc)), max(exc.seconds, 0.0))
        case TransientError():
            return Verdict(ErrorClass.TRANSIENT, _safe_code(exc.code, type(exc)))
        case PersistentError():
            return Verdict(ErrorClass.PERSISTENT, _safe_code(exc.code, type(exc)))
        case ConfigurationError(lasting=True):
            return Verdict(ErrorClass.PERSISTENT, code_of_type(type(exc)))
        case Cancel() | SerializationError() | PayloadTooLarge():
            return Verdict(ErrorClass.PERSISTENT, code_of_type(type(exc)))
        case EnqueueRejected():
            return Verdict(ErrorClass.TRANSIENT, code_of_type(type(exc)), exc.retry_after)
        case _:
            return None


def code_of_type(cls: type[BaseException]) -> str:
    """Return the code of an exception of this type that says nothing else of itself.

    No instance is made: what a half-made one of somebody else's type does, nobody knows. Raises what looking
    at a type raises, which may be anything.
    """
    if issubclass(cls, TransientError | PersistentError):
        return _safe_code(cls.code, cls)
    if issubclass(cls, Cancel):
        return "cancelled"
    if issubclass(cls, EnqueueRejected):
        return "enqueue_rejected"
    return foreign_code(cls) or _name_code(cls)


def _safe_code(code: object, cls: type[BaseException]) -> str:
    if not is_code(code):
        return _name_code(cls)
    return f"error_{code}" if code in RESERVED_CODES else code


def _name_code(cls: type) -> str:
    code = re.sub(r"[^a-z0-9_]", "_", _WORD_BREAK.sub("_", cls.__name__).lower())
    return (f"error_{code}" if code in RESERVED_CODES else code)[:44]


#: Members of a group that its text shows, and groups within groups: the text is cut anyway.
_SHOWN_MEMBERS, _SHOWN_DEPTH = 5, 4


def error_text(exc: BaseException) -> str:
    """Return `ClassName: message` for the record, at most 8 kB of valid UTF-8; never raises."""
    return truncate_text(_text(exc))


def _text(exc: BaseException, depth: int = 0) -> str:
    name = type(exc).__name__
    try:
        message = str(exc)
    except BaseException as broken:  # SystemExit too: the job's outcome waits for this text
        message = f"(its message cannot be shown: {type(broken).__name__})"
    text = f"{name}: {message}" if message else name
    if isinstance(exc, BaseExceptionGroup):  # its own message says only how many there are
        members = exc.exceptions[:_SHOWN_MEMBERS] if depth < _SHOWN_DEPTH else ()
        text += " [" + ("; ".join(_text(member, depth + 1) for member in members) or "…") + "]"
    return text
