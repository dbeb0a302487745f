"""What Python decides before the scripts commit it, as small as it can be."""

from __future__ import annotations

from tests.model.protocol.state import (
    DIED,
    FAIL,
    MAX_ATTEMPTS,
    MAX_STRIKES,
    PROCESSING,
    RELEASE,
    RETRY,
    SNOOZE,
)


def decided(outcome: str, attempt: int, strikes: int) -> str:
    """What a worker sends for what its handler came to: the last attempt is not retried."""
    if outcome == DIED:
        return FAIL if strikes + 1 >= MAX_STRIKES or attempt >= MAX_ATTEMPTS else RETRY
    if outcome == SNOOZE:
        return RELEASE
    return FAIL if outcome == RETRY and attempt >= MAX_ATTEMPTS else outcome


def fate(status: str, attempt: int, strikes: int) -> str:
    """What a keeper decides about a claim that it found dead in this state."""
    over = strikes + 1 >= MAX_STRIKES or (status == PROCESSING and attempt >= MAX_ATTEMPTS)
    return FAIL if over else RETRY
