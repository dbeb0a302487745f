"""What a worker and its child processes tell each other: frames of a JSON head and opaque bytes.

No pickle: a child hands back what a handler made, and that is data of users.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import asdict
from typing import Any

import orjson

from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason

#: Lengths of head and body in bytes.
_LENGTHS = struct.Struct("!II")

Head = dict[str, Any]


def frame(head: Head, body: bytes = b"") -> bytes:
    """One message."""
    data = orjson.dumps(head)
    return _LENGTHS.pack(len(data), len(body)) + data + body


async def read(reader: asyncio.StreamReader) -> tuple[Head, bytes] | None:
    """The next message; None at the end, also in the middle of a message: its sender is dead.

    Raises ValueError for what is no message.
    """
    try:
        head, body = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        data = await reader.readexactly(head)
        return orjson.loads(data), await reader.readexactly(body)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def claim_head(claim: Claim) -> Head:
    """A claim as a head; its envelope travels as the body."""
    head = asdict(claim)
    del head["envelope"]
    return head


def claim_from(head: Head, envelope: bytes) -> Claim:
    return Claim(**head, envelope=envelope)


def outcome_frame(outcome: Outcome) -> tuple[Head, bytes]:
    """An outcome as head and body: the result, or the text of the error."""
    match outcome:
        case Success(result, reason):
            return {"to": "success", "reason": reason}, result
        case Retry(delay_ms, error_class, code, error, policy, reason):
            head = {
                "to": "retry",
                "delay_ms": delay_ms,
                "class": error_class,
                "code": code,
                "policy": policy,
                "reason": reason,
            }
            return head, error.encode()
        case Fail(error_class, code, error, reason):
            return {"to": "fail", "class": error_class, "code": code, "reason": reason}, error.encode()
        case Release(reason, delay_ms):
            return {"to": "release", "delay_ms": delay_ms, "reason": reason}, b""


def outcome_from(head: Head, body: bytes) -> Outcome:
    """Raises ValueError or KeyError for what is no outcome."""
    reason = Reason(head["reason"])
    match head["to"]:
        case "success":
            return Success(body, reason)
        case "retry":
            kind = ErrorClass(head["class"])
            return Retry(head["delay_ms"], kind, head["code"], body.decode(), head["policy"], reason)
        case "fail":
            return Fail(ErrorClass(head["class"]), head["code"], body.decode(), reason)
        case "release":
            return Release(reason, head["delay_ms"])
    raise ValueError(f"no outcome is called {head['to']!r}")
