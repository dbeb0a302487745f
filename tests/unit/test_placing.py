"""What a producer is told of a list that went in several calls, when some of them failed."""

from __future__ import annotations

import pytest

from streamworker.core.errors import ConnectionLost, EnqueueRejected, OutcomeUnknown
from streamworker.core.states import Disposition
from streamworker.store.connection import ReplyError
from streamworker.store.placing import Placed, together
from streamworker.store.scripts import NewJob

FULL = EnqueueRejected("Redis is out of memory (maxmemory)", 2.0)
AWAY = ConnectionLost("no connection")


def told(*calls: Exception | None) -> list[str]:
    """Two jobs a call, named by its number; None for one that was answered."""
    parts: list[tuple[list[NewJob], list[Placed] | Exception]] = []
    for number, failed in enumerate(calls):
        jobs = [NewJob(f"{number}{letter}", "add", "normal", b"{}") for letter in "ab"]
        parts.append((jobs, failed or [Placed(job.job_id, Disposition.ACCEPTED) for job in jobs]))
    return [f"{one.job_id} {one.disposition} {one.retry_after}" for one in together(parts)]


def test_what_was_answered_is_told_in_order() -> None:
    assert told(None, None) == [f"{job} ACCEPTED None" for job in ("0a", "0b", "1a", "1b")]


def test_those_of_a_refused_call_are_rejected_where_others_stand() -> None:
    assert told(FULL, None) == ["0a REJECTED 2.0", "0b REJECTED 2.0", "1a ACCEPTED None", "1b ACCEPTED None"]


@pytest.mark.parametrize(
    ("calls", "error"), [((FULL, FULL), FULL), ((AWAY, AWAY), AWAY), ((AWAY, FULL), AWAY)]
)
def test_where_nothing_stands_it_is_an_exception(calls: tuple[Exception, ...], error: Exception) -> None:
    with pytest.raises(type(error)):
        told(*calls)


@pytest.mark.parametrize(
    ("calls", "ids"),
    [
        ((None, AWAY), ("0a", "0b", "1a", "1b")),
        ((None, FULL, AWAY), ("0a", "0b", "2a", "2b")),
        ((OutcomeUnknown(["0a", "0b"]), None), ("0a", "0b", "1a", "1b")),
        ((AWAY, OutcomeUnknown(["1a", "1b"])), ("0a", "0b", "1a", "1b")),
        ((FULL, OutcomeUnknown(["1a", "1b"])), ("1a", "1b")),
    ],
)
def test_all_that_may_be_there_are_named_when_something_was_lost(
    calls: tuple[Exception | None, ...], ids: tuple[str, ...]
) -> None:
    """Of an exception for one call alone, the handles of the others were lost with it."""
    with pytest.raises(OutcomeUnknown) as lost:
        told(*calls)

    assert lost.value.job_ids == ids


def test_what_the_server_says_of_a_call_is_told_as_it_is() -> None:
    with pytest.raises(ReplyError, match="NOPERM"):
        told(None, ReplyError("NOPERM this user has no permissions"))
