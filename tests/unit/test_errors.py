from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import errno
import http.client
import pickle
import socket
import ssl
import subprocess
import sys
import urllib.error
from email.message import Message
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import pytest
import requests
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from streamworker.core import errors
from streamworker.core.classify import Verdict, classify, error_text
from streamworker.core.errors import (
    Cancel,
    ConfigurationError,
    ConnectionLost,
    DependencyTimeout,
    DoesNotFit,
    DurationError,
    EnqueueRejected,
    FencedOut,
    IdempotencyConflict,
    InvalidArgument,
    JobFailed,
    JobMissing,
    JobNotFound,
    LockBusy,
    LockLost,
    OperationConflict,
    OutcomeUnknown,
    PayloadTooLarge,
    PersistentError,
    ResultTimeout,
    RetryAfter,
    SerializationError,
    ServerUnsuitable,
    StreamworkerError,
    TransientError,
    UnknownTask,
    UnusableUrl,
    check_code,
)
from streamworker.core.states import ErrorClass

TRANSIENT, PERSISTENT, UNKNOWN = ErrorClass.TRANSIENT, ErrorClass.PERSISTENT, ErrorClass.UNKNOWN

EXAMPLES: list[StreamworkerError] = [
    ConfigurationError("attempts must be at least 1"),
    ConfigurationError("a transaction within a transaction", lasting=True),
    InvalidArgument("tenant", "a b", "must be printable"),
    DoesNotFit("count", 7, "but 9 are there"),
    DurationError("timeout", -1, "is negative"),
    SerializationError("args.x", "is nan"),
    PayloadTooLarge(300, 200, "args"),
    UnknownTask("updat", ["update"]),
    TransientError("busy", code="carrier_busy"),
    PersistentError("gone"),
    RetryAfter(5),
    DependencyTimeout("carrier", 5, phase="connect"),
    LockBusy("order:7", 2.5),
    LockLost("order:7"),
    FencedOut("overtaken"),
    OperationConflict("pay", "p1"),
    OperationConflict("pay", "p1", "charge", begun=True),
    Cancel("not needed"),
    IdempotencyConflict("id", "key", "task"),
    EnqueueRejected("lane normal is full", 2.5),
    ConnectionLost("refused"),
    OutcomeUnknown(["a", "b"]),
    JobFailed("id", "http_404", "persistent", "HTTPStatusError: 404"),
    JobMissing("id", "queued"),
    JobNotFound("id"),
    ResultTimeout("id", 10, "processing"),
    ServerUnsuitable("maxmemory-policy is allkeys-lru", "set it to noeviction"),
    UnusableUrl("'x://' is not a Redis URL", "use redis://host:port/db"),
]


def test_the_examples_cover_every_public_error() -> None:
    public = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, StreamworkerError) and kind is not StreamworkerError
    }

    assert {type(error) for error in EXAMPLES} == public


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("clone", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_an_error_survives_pickling_with_message_and_facts(error: StreamworkerError, clone: Any) -> None:
    error.add_note("seen in a test")

    twin = clone(error)

    assert type(twin) is type(error)
    assert str(twin) == str(error) != ""
    assert vars(twin) == vars(error)
    assert twin.__notes__ == error.__notes__


def test_errors_are_also_the_builtin_that_callers_expect() -> None:
    assert issubclass(SerializationError, ValueError)
    assert issubclass(PayloadTooLarge, ValueError)
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(ResultTimeout, TimeoutError)
    assert issubclass(ConnectionLost, ConnectionError)


def test_an_unknown_task_is_answered_with_the_nearest_name_or_the_known_ones() -> None:
    assert str(UnknownTask("update_shipmnt", ["update_shipment", "pay"])).endswith(
        "did you mean 'update_shipment'?"
    )
    assert str(UnknownTask("x", ["pay", "mail"])).endswith("known: mail, pay")
    assert str(UnknownTask("x")).endswith("known: none")


def test_many_unsettled_jobs_make_a_short_message() -> None:
    error = OutcomeUnknown([f"id{n}" for n in range(1000)])

    assert len(error.job_ids) == 1000
    assert "1000 job(s)" in str(error)
    assert len(str(error)) < 200


@pytest.mark.parametrize("code", ["a", "http_429", "a.b-c_9", "x" * 44])
def test_an_error_code_is_a_token(code: str) -> None:
    assert check_code(code) == code
    assert TransientError(code=code).code == code


@pytest.mark.parametrize("code", ["", "A", "a b", "x" * 45, "é", "a\n", 7])
def test_another_error_code_is_refused(code: Any) -> None:
    with pytest.raises(InvalidArgument, match="error code"):
        check_code(code)
    with pytest.raises(ValueError, match="error code"):
        PersistentError("x", code=code)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), "5", True, None])
def test_retry_after_takes_a_finite_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(DurationError, match="RetryAfter"):
        RetryAfter(seconds)


class CarrierBusy(TransientError):
    code = "carrier_busy"


class Forgetful(TransientError):
    def __init__(self) -> None:
        pass


class BadlyNamed(PersistentError):
    code = "Not A Token"


class Cancelled(Exception):
    pass


class HTTPTeapotV2Error(Exception):
    pass


@pytest.mark.parametrize(
    ("exc", "verdict"),
    [
        (TransientError("x"), Verdict(TRANSIENT, "transient")),
        (TransientError(code="db.busy"), Verdict(TRANSIENT, "db.busy")),
        (CarrierBusy(), Verdict(TRANSIENT, "carrier_busy")),
        (Forgetful(), Verdict(TRANSIENT, "transient")),
        (PersistentError(code="bad_address"), Verdict(PERSISTENT, "bad_address")),
        (BadlyNamed(), Verdict(PERSISTENT, "badly_named")),
        (RetryAfter(12), Verdict(TRANSIENT, "retry_after", 12.0)),
        (RetryAfter(-5), Verdict(TRANSIENT, "retry_after", 0.0)),
        (Cancel("why"), Verdict(PERSISTENT, "cancelled")),
        (SerializationError("args.x", "is nan"), Verdict(PERSISTENT, "serialization_error")),
        (PayloadTooLarge(2, 1), Verdict(PERSISTENT, "payload_too_large")),
        (EnqueueRejected("full", 3.0), Verdict(TRANSIENT, "enqueue_rejected", 3.0)),
        (ConnectionLost("x"), Verdict(TRANSIENT, "connection_error")),
        (OutcomeUnknown(["a"]), Verdict(TRANSIENT, "connection_error")),
        (ResultTimeout("id", 1, "queued"), Verdict(TRANSIENT, "timeout")),
        (ConfigurationError("no DSN"), Verdict(UNKNOWN, "configuration_error")),
        (ConfigurationError("in the code", lasting=True), Verdict(PERSISTENT, "configuration_error")),
        (JobNotFound("id"), Verdict(UNKNOWN, "job_not_found")),
    ],
)
def test_own_errors(exc: BaseException, verdict: Verdict) -> None:
    assert classify(exc) == verdict


def test_a_code_that_means_an_end_of_ours_is_no_handlers_to_give() -> None:
    """A dead letter that says `expired` has passed its deadline; `cancelled` would be none at all."""
    assert classify(PersistentError("no", code="expired")).code == "error_expired"
    assert classify(TransientError("no", code="cancelled")).code == "error_cancelled"


@pytest.mark.parametrize(
    "exc",
    [
        TimeoutError(),
        TimeoutError("timed out"),
        concurrent.futures.TimeoutError(),
        OSError(errno.ETIMEDOUT, "timed out"),
    ],
)
def test_builtin_time_outs_are_transient(exc: BaseException) -> None:
    assert classify(exc) == Verdict(TRANSIENT, "timeout")


async def test_an_asyncio_time_out_is_transient() -> None:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    assert classify(caught.value) == Verdict(TRANSIENT, "timeout")


@pytest.mark.parametrize(
    "exc",
    [
        ConnectionRefusedError(),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        BrokenPipeError(),
        OSError(errno.EHOSTUNREACH, "no route"),
        OSError(errno.ENETDOWN, "down"),
        socket.gaierror(socket.EAI_NONAME, "unknown host"),
        ssl.SSLEOFError(8, "EOF"),
        http.client.RemoteDisconnected("closed"),
        urllib.error.URLError(ConnectionRefusedError()),
    ],
)
def test_lost_connections_are_transient(exc: BaseException) -> None:
    assert classify(exc) == Verdict(TRANSIENT, "connection_error")


@pytest.mark.parametrize(
    ("exc", "code"),
    [
        (ValueError("x"), "value_error"),
        (KeyError("x"), "key_error"),
        (FileNotFoundError(errno.ENOENT, "no file"), "file_not_found_error"),
        (PermissionError(errno.EACCES, "no"), "permission_error"),
        (ssl.SSLCertVerificationError(1, "self-signed"), "ssl_cert_verification_error"),
        (urllib.error.URLError("unknown url type"), "url_error"),
        (HTTPTeapotV2Error(), "http_teapot_v2_error"),
        (type("Ünknown" + "X" * 60, (Exception,), {})(), "_nknown_" + "x" * 36),
        (Cancelled(), "error_cancelled"),
        (asyncio.CancelledError(), "cancelled_error"),
        (SystemExit(1), "system_exit"),
    ],
)
def test_anything_else_is_unknown_with_its_name_as_code(exc: BaseException, code: str) -> None:
    assert classify(exc) == Verdict(UNKNOWN, code)
    assert check_code(code) == code


REQUEST = httpx.Request("GET", "http://carrier.test/")


def of_httpx(status: int, headers: dict[str, str]) -> Exception:
    response = httpx.Response(status, headers=headers, request=REQUEST)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    return caught.value


def of_requests(status: int, headers: dict[str, str]) -> Exception:
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    with pytest.raises(requests.HTTPError) as caught:
        response.raise_for_status()
    return caught.value


def of_aiohttp(status: int, headers: dict[str, str]) -> Exception:
    url = URL("http://carrier.test/")
    info = aiohttp.RequestInfo(url, "GET", CIMultiDictProxy(CIMultiDict[str]()), url)
    return aiohttp.ClientResponseError(info, (), status=status, headers=CIMultiDict(headers))


def of_urllib(status: int, headers: dict[str, str]) -> Exception:
    message = Message()
    for name, value in headers.items():
        message[name] = value
    error = urllib.error.HTTPError("http://carrier.test/", status, "no", message, None)
    error.close()
    return error


LIBRARIES = pytest.mark.parametrize("make", [of_httpx, of_requests, of_aiohttp, of_urllib])


@LIBRARIES
@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_http_statuses_that_may_pass_are_transient(make: Any, status: int) -> None:
    assert classify(make(status, {})) == Verdict(TRANSIENT, f"http_{status}")


@LIBRARIES
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422])
def test_http_statuses_that_stay_are_persistent(make: Any, status: int) -> None:
    assert classify(make(status, {})) == Verdict(PERSISTENT, f"http_{status}")


@LIBRARIES
@pytest.mark.parametrize("status", [402, 418, 500, 501, 599])
def test_other_http_statuses_are_unknown(make: Any, status: int) -> None:
    assert classify(make(status, {})) == Verdict(UNKNOWN, f"http_{status}")


@LIBRARIES
@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [
        (429, "120", 120.0),
        (503, " 7 ", 7.0),
        (429, "0", 0.0),
        (429, "1.5", 1.5),
        (502, "120", None),
        (429, "Wed, 21 Oct 2026 07:28:00 GMT", None),
        (429, "-5", None),
        (429, "nan", None),
        (429, "1e9", None),
        (429, "9" * 50, None),
        (429, "", None),
    ],
)
def test_retry_after_in_seconds_is_taken_from_429_and_503(
    make: Any, status: int, header: str, seconds: float | None
) -> None:
    assert classify(make(status, {"retry-after": header})) == Verdict(TRANSIENT, f"http_{status}", seconds)


CERTIFICATE_KEY = ConnectionKey("carrier.test", 443, True, True, None, None, None)


@pytest.mark.parametrize(
    ("exc", "verdict"),
    [
        (httpx.ConnectTimeout("x"), Verdict(TRANSIENT, "timeout")),
        (httpx.ReadTimeout("x"), Verdict(TRANSIENT, "timeout")),
        (httpx.PoolTimeout("x"), Verdict(TRANSIENT, "timeout")),
        (httpx.ConnectError("x"), Verdict(TRANSIENT, "connection_error")),
        (httpx.RemoteProtocolError("x"), Verdict(TRANSIENT, "connection_error")),
        (httpx.ProxyError("x"), Verdict(TRANSIENT, "connection_error")),
        (httpx.UnsupportedProtocol("x"), Verdict(UNKNOWN, "unsupported_protocol")),
        (httpx.LocalProtocolError("x"), Verdict(UNKNOWN, "local_protocol_error")),
        (httpx.TooManyRedirects("x"), Verdict(UNKNOWN, "too_many_redirects")),
        (httpx.InvalidURL("x"), Verdict(UNKNOWN, "invalid_url")),
        (requests.ConnectTimeout("x"), Verdict(TRANSIENT, "timeout")),
        (requests.ReadTimeout("x"), Verdict(TRANSIENT, "timeout")),
        (requests.ConnectionError("x"), Verdict(TRANSIENT, "connection_error")),
        (requests.exceptions.ChunkedEncodingError("x"), Verdict(TRANSIENT, "connection_error")),
        (requests.exceptions.InvalidURL("x"), Verdict(UNKNOWN, "invalid_url")),
        (requests.HTTPError("made without a response"), Verdict(UNKNOWN, "http_error")),
        (requests.JSONDecodeError("x", "", 0), Verdict(UNKNOWN, "json_decode_error")),
        (aiohttp.ServerTimeoutError("x"), Verdict(TRANSIENT, "timeout")),
        (aiohttp.ConnectionTimeoutError("x"), Verdict(TRANSIENT, "timeout")),
        (aiohttp.ServerDisconnectedError(), Verdict(TRANSIENT, "connection_error")),
        (aiohttp.ClientOSError(errno.EIO, "x"), Verdict(TRANSIENT, "connection_error")),
        (aiohttp.ClientPayloadError("x"), Verdict(TRANSIENT, "connection_error")),
        (aiohttp.InvalidURL("x"), Verdict(UNKNOWN, "invalid_url")),
        (
            aiohttp.ClientConnectorCertificateError(CERTIFICATE_KEY, ssl.CertificateError("x")),
            Verdict(UNKNOWN, "client_connector_certificate_error"),
        ),
        (of_aiohttp(200, {}), Verdict(UNKNOWN, "client_response_error")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_http_libraries(exc: BaseException, verdict: Verdict) -> None:
    assert classify(exc) == verdict


def test_a_users_subclass_of_a_library_error_is_recognised() -> None:
    class CarrierTimeout(httpx.ReadTimeout):
        pass

    assert classify(CarrierTimeout("x")) == Verdict(TRANSIENT, "timeout")


def test_a_status_on_an_exception_of_another_library_means_nothing() -> None:
    error = RuntimeError("x")
    error.response = SimpleNamespace(status_code=503)  # type: ignore[attr-defined]

    assert classify(error) == Verdict(UNKNOWN, "runtime_error")


def test_no_http_library_is_imported_to_classify() -> None:
    script = (
        "import sys; from streamworker.core.classify import classify; classify(ValueError('x'));"
        "print([name for name in ('httpx', 'requests', 'aiohttp') if name in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_declared_types_change_the_class_and_keep_the_code() -> None:
    assert classify(KeyError("x"), transient=(KeyError,)) == Verdict(TRANSIENT, "key_error")
    assert classify(of_httpx(500, {}), transient=(httpx.HTTPStatusError,)) == Verdict(TRANSIENT, "http_500")
    assert classify(TimeoutError(), persistent=(OSError,)) == Verdict(PERSISTENT, "timeout")
    assert classify(RetryAfter(5), persistent=(RetryAfter,)) == Verdict(PERSISTENT, "retry_after")
    assert classify(PersistentError(), transient=(PersistentError,)) == Verdict(TRANSIENT, "persistent")


def test_of_two_declared_types_the_nearer_wins() -> None:
    declared: Any = {"transient": (LookupError,), "persistent": (KeyError,)}
    swapped: Any = {"transient": (KeyError,), "persistent": (LookupError,)}

    assert classify(KeyError("x"), **declared).error_class is PERSISTENT
    assert classify(IndexError("x"), **declared).error_class is TRANSIENT
    assert classify(KeyError("x"), **swapped).error_class is TRANSIENT
    assert classify(IndexError("x"), **swapped).error_class is PERSISTENT
    assert classify(KeyError("x"), transient=(KeyError,), persistent=(KeyError,)).error_class is TRANSIENT


def test_a_group_is_as_bad_as_its_worst_member() -> None:
    transient, unknown, persistent = TimeoutError(), ValueError("x"), PersistentError(code="gone")

    assert classify(ExceptionGroup("g", [transient])) == Verdict(TRANSIENT, "timeout")
    assert classify(ExceptionGroup("g", [transient, unknown])) == Verdict(UNKNOWN, "value_error")
    assert classify(ExceptionGroup("g", [transient, ExceptionGroup("h", [persistent]), unknown])) == Verdict(
        PERSISTENT, "gone"
    )
    assert classify(ExceptionGroup("g", [RetryAfter(1), RetryAfter(9)])).retry_after == 9.0
    assert classify(ExceptionGroup("g", [unknown]), transient=(ValueError,)).error_class is TRANSIENT


class Hostile(httpx.HTTPError):
    @property
    def response(self) -> Any:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_a_hostile_exception_is_unknown_and_still_has_a_text() -> None:
    assert classify(Hostile("x")) == Verdict(UNKNOWN, "hostile")
    assert error_text(Hostile("x")) == "Hostile: (its message cannot be shown: RuntimeError)"


class Leaving(Exception):
    """Wants to end the process as soon as somebody looks at it."""

    @property
    def reason(self) -> Any:
        raise SystemExit(3)

    def __str__(self) -> str:
        raise SystemExit(3)


class LeavingSocket(OSError, Leaving): ...


@pytest.mark.parametrize("kind", [Leaving, LeavingSocket])
def test_an_exception_that_raises_more_than_errors_cannot_keep_a_job_from_its_outcome(
    kind: type[BaseException],
) -> None:
    assert classify(kind("x")).error_class is UNKNOWN
    assert error_text(kind("x")).startswith(f"{kind.__name__}: ")


def test_groups_within_groups_without_end_have_a_class_and_a_short_text() -> None:
    error: Exception = ValueError("deep down")
    for _ in range(5_000):
        error = ExceptionGroup("g", [error, error])

    assert classify(error).error_class is UNKNOWN
    assert error_text(error).count("ExceptionGroup") == 31
    assert "[…]" in error_text(error)


def test_an_error_text_is_the_class_and_the_message() -> None:
    assert error_text(ValueError("no such address")) == "ValueError: no such address"
    assert error_text(ValueError()) == "ValueError"
    assert error_text(ValueError("a\x00\ud800")) == "ValueError: a\ufffd\ufffd"


def test_an_error_text_of_a_group_shows_its_members() -> None:
    group = ExceptionGroup("unhandled", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])

    assert error_text(group) == (
        "ExceptionGroup: unhandled (2 sub-exceptions) "
        "[ValueError: a; ExceptionGroup: inner (1 sub-exception) [KeyError: 'b']]"
    )


def test_a_long_error_text_is_cut() -> None:
    text = error_text(ValueError("é" * 1_000_000))

    assert len(text.encode()) <= 8192
    assert text.endswith("characters in all]")
