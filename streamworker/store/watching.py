"""What the script `watch` tells of a job: its outcome, that it is open, or that nothing is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamworker.core.states import Status

#: Seconds that one blocking read for a wake-up lasts (R17: at most 2 s, and less than the connection's
#: timeout).
BLOCK = 2
#: The same where the server refuses to release a blocked read for those who come meanwhile.
BLOCK_UNRELEASED = 0.2


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished job: its result as JSON (empty: None), or its error."""

    status: Status
    result: bytes
    error_class: str
    error_code: str
    error: str


def parse(reply: Any) -> Ended | bool | None:
    """The outcome; None while the job is open; False when there is no record of it."""
    if reply == b"GONE":
        return False
    if reply == b"WAIT":
        return None
    status, result, code, error = reply
    error_class, _, error_code = code.decode().partition(" ")
    return Ended(Status(status.decode()), result, error_class, error_code, error.decode("utf-8", "replace"))
