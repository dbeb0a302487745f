"""What can be wrong with a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of violation; each has one rule, and one hand-made bad history in `test_checker.py`."""

    LOST = "lost"
    UNASKED = "unasked"
    UNREAD = "unread"
    BROKEN_CHAIN = "broken_chain"
    ILLEGAL_EDGE = "illegal_edge"
    DOUBLE_OUTCOME = "double_outcome"
    STALE_ACCEPTED = "stale_accepted"
    FENCE_FELL = "fence_fell"
    FALSE_OUTCOME = "false_outcome"
    MISCOUNTED = "miscounted"
    TOO_MANY_ATTEMPTS = "too_many_attempts"
    TOO_MANY_STARTS = "too_many_starts"
    TOO_MANY_STRIKES = "too_many_strikes"
    UNCLAIMED_START = "unclaimed_start"
    STARTED_TWICE = "started_twice"
    UNEXPLAINED_START = "unexplained_start"
    SHARED_KEY = "shared_key"
    LATE_RECOVERY = "late_recovery"
    TOO_MANY_HOLDERS = "too_many_holders"
    OVER_RATE = "over_rate"
    OUT_OF_ORDER = "out_of_order"
    CLAIMED_IN_PAUSE = "claimed_in_pause"
    UNDRAINED = "undrained"
    LOST_ITEM = "lost_item"
    DOUBLE_ITEM = "double_item"
    OVERFULL = "overfull"
    OVER_BREAKER = "over_breaker"
    WRONG_VALUE = "wrong_value"
    LEFT_OVER = "left_over"
    WRONG_RECORD = "wrong_record"
    WRONG_LETTER = "wrong_letter"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong."""

    kind: Kind
    #: None: it is about the whole run.
    job_id: str | None
    evidence: str

    def __str__(self) -> str:
        return f"{self.kind}: {'' if self.job_id is None else f'job {self.job_id}: '}{self.evidence}"
