"""Errors of networks and databases, as the standard library, HTTP libraries and drivers of Postgres tell.

The libraries are recognised by module and class name and never imported: who does not use them does not
pay for them.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import Any

from streamworker.core.states import ErrorClass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an exception means. `retry_after`: seconds that the other side asked for, or None."""

    error_class: ErrorClass
    code: str
    retry_after: float | None = None


#: HTTP statuses that may pass, and those that will not. Any other error status is *unknown*.
_TRANSIENT_STATUS = frozenset({429, 502, 503, 504})
_PERSISTENT_STATUS = frozenset({400, 401, 403, 404, 409, 410, 422})
#: Only these say with `Retry-After` when to come back.
_RETRY_AFTER_STATUS = frozenset({429, 503})
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)

#: Exceptions of libraries that are not imported here, by top module and class name; the class nearest in the
#: MRO decides. None: looks like a lost connection by its bases, but no retry mends it.
_LIBRARY_CODES: dict[str, dict[str, str | None]] = {
    "httpx": {
        "TimeoutException": "timeout",
        "TransportError": "connection_error",
        "UnsupportedProtocol": None,
        "LocalProtocolError": None,
    },
    "requests": {
        "Timeout": "timeout",
        "ConnectTimeout": "timeout",  # nearer to ConnectionError in its MRO
        "ConnectionError": "connection_error",
        "ChunkedEncodingError": "connection_error",
    },
    "aiohttp": {
        "ServerTimeoutError": "timeout",
        "ClientConnectionError": "connection_error",
        "ClientPayloadError": "connection_error",
        "ClientConnectorCertificateError": None,
    },
    "socket": {"gaierror": "connection_error"},
    "ssl": {"SSLError": "connection_error", "SSLCertVerificationError": None},
}
_STATE = re.compile(r"[0-9A-Z]{5}", re.ASCII)
_HTTP_LIBRARIES = frozenset({"httpx", "requests", "aiohttp", "urllib"})

_NETWORK_ERRNO = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.EPIPE, errno.ETIMEDOUT}
    | {errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH}
    | {errno.EADDRNOTAVAIL}
)


#: Drivers of Postgres, and what is built on them.
_DRIVERS = frozenset({"asyncpg", "psycopg", "psycopg2", "sqlalchemy", "django"})
#: SQLSTATEs that may pass, by their first characters: lost connections, serialization failures and
#: deadlocks, no room, shutdown or time limit, a replica that became read-only, a lock that was not free, a
#: silent transaction.
_PASSING_STATES = ("08", "40", "53", "57", "25006", "55P03", "25P03", "25P04")
_UNIQUE_STATES = ("23505", "23P01")


def database(exc: BaseException) -> Verdict | None:
    """Return *transient* for an error of Postgres that a retry may mend, or None."""
    for error in _of_driver(exc):
        state = _sqlstate(error)
        if state is not None:
            passes = state.startswith(_PASSING_STATES)
            return Verdict(ErrorClass.TRANSIENT, f"sqlstate_{state.lower()}") if passes else None
        if type(error).__name__ == "InterfaceError" and "connection is closed" in str(error):
            return Verdict(ErrorClass.TRANSIENT, "connection_error")
    return None


def violated(exc: BaseException) -> str | None:
    """Return the name of the unique or exclusion constraint that `exc` is about, or None."""
    for error in _of_driver(exc):
        if _sqlstate(error) in _UNIQUE_STATES:
            name = getattr(error, "constraint_name", None) or getattr(
                getattr(error, "diag", None), "constraint_name", None
            )
            if isinstance(name, str):
                return name
    return None


def answered(exc: BaseException) -> int | None:
    """Return the HTTP status that `exc` carries, or None."""
    verdict = http_status(exc)
    return None if verdict is None else int(verdict.code.removeprefix("http_"))


def _of_driver(exc: BaseException) -> list[BaseException]:
    """The error and those that it wraps, if a driver raised it."""
    if not _by_driver(type(exc)):
        return []
    found: list[BaseException] = []
    waiting: list[object] = [exc]
    while waiting and len(found) < 8:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and one not in found:
            found.append(one)
            waiting += [getattr(one, "orig", None), one.__cause__]
    return found


def _by_driver(cls: type[BaseException]) -> bool:
    return any(base.__module__.partition(".")[0] in _DRIVERS for base in cls.__mro__)


def _sqlstate(exc: BaseException | type[BaseException]) -> str | None:
    state = getattr(exc, "sqlstate", None) or getattr(exc, "pgcode", None)
    return state if isinstance(state, str) and _STATE.fullmatch(state) else None


def http_status(exc: BaseException) -> Verdict | None:
    """Return what an HTTP status of 400 and above means, or None when `exc` carries none."""
    if not any(cls.__module__.partition(".")[0] in _HTTP_LIBRARIES for cls in type(exc).__mro__):
        return None
    # httpx and requests carry a response, aiohttp and urllib are one.
    response = getattr(exc, "response", None)
    source: Any = exc if response is None else response
    for name in ("status_code", "status", "code"):
        status = getattr(source, name, None)
        if isinstance(status, int) and 400 <= status <= 599:
            break
    else:
        return None
    code = f"http_{status:d}"
    if status in _TRANSIENT_STATUS:
        wait = _retry_after(source) if status in _RETRY_AFTER_STATUS else None
        return Verdict(ErrorClass.TRANSIENT, code, wait)
    return Verdict(ErrorClass.PERSISTENT if status in _PERSISTENT_STATUS else ErrorClass.UNKNOWN, code)


def _retry_after(source: Any) -> float | None:
    headers = getattr(source, "headers", None)
    text = None if headers is None else headers.get("Retry-After")
    # The other form, a date, would need a clock that agrees with the server's.
    return float(text) if isinstance(text, str) and _SECONDS.fullmatch(text := text.strip()) else None


def network(exc: BaseException) -> Verdict | None:
    """Return *transient* for a time-out or a lost connection, or None when `exc` is neither."""
    code = _network_code(type(exc))
    if code is not None:
        return Verdict(ErrorClass.TRANSIENT, code) if code else None
    if isinstance(exc, OSError) and exc.errno in _NETWORK_ERRNO:
        return Verdict(ErrorClass.TRANSIENT, "connection_error")
    reason = getattr(exc, "reason", None)  # urllib's URLError wraps what the socket raised
    return network(reason) if isinstance(exc, OSError) and isinstance(reason, BaseException) else None


def _network_code(cls: type[BaseException]) -> str | None:
    """The code by the type alone, "" where no retry mends it, None where the type does not tell."""
    for base in cls.__mro__:
        codes = _LIBRARY_CODES.get(base.__module__.partition(".")[0], {})
        if base.__name__ in codes:
            return codes[base.__name__] or ""
    if issubclass(cls, TimeoutError):
        return "timeout"
    return "connection_error" if issubclass(cls, ConnectionError) else None


def code_of_type(cls: type[BaseException]) -> str | None:
    """Return the code that errors of networks and databases have by their type alone, or None."""
    state = _sqlstate(cls) if _by_driver(cls) else None
    if state is not None:
        return f"sqlstate_{state.lower()}" if state.startswith(_PASSING_STATES) else None
    return _network_code(cls) or None
