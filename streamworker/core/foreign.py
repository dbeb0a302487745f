"""Errors of the network, as the standard library, httpx, requests, aiohttp and urllib raise them.

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
_HTTP_LIBRARIES = frozenset({"httpx", "requests", "aiohttp", "urllib"})

_NETWORK_ERRNO = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.EPIPE, errno.ETIMEDOUT}
    | {errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH}
    | {errno.EADDRNOTAVAIL}
)


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
    for cls in type(exc).__mro__:
        codes = _LIBRARY_CODES.get(cls.__module__.partition(".")[0], {})
        if cls.__name__ in codes:
            code = codes[cls.__name__]
            return None if code is None else Verdict(ErrorClass.TRANSIENT, code)
    if isinstance(exc, TimeoutError):
        return Verdict(ErrorClass.TRANSIENT, "timeout")
    if isinstance(exc, ConnectionError) or (isinstance(exc, OSError) and exc.errno in _NETWORK_ERRNO):
        return Verdict(ErrorClass.TRANSIENT, "connection_error")
    reason = getattr(exc, "reason", None)  # urllib's URLError wraps what the socket raised
    return network(reason) if isinstance(exc, OSError) and isinstance(reason, BaseException) else None
