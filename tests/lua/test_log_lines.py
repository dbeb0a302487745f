"""Lines of the log that say no more than what differs from the line before."""

from __future__ import annotations

from typing import Any

import pytest

from streamworker.core.outcome import Outcome, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import events, settle_rows
from tests.lua.driver import Shard, job

RETRY = Retry(700, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")
SUCCESS = Success(b"")


def last(shard: Shard) -> dict[bytes, bytes]:
    """The newest entry."""
    return list(shard.look().streams["events"].values())[-1]


def told(shard: Shard) -> list[tuple[Any, ...]]:
    """All that the newest entry says of each move."""
    return [
        (m.job_id, m.from_status, m.to_status, m.attempt, m.starts, m.strikes, m.version, m.epoch, m.fence,
         m.reason, m.at_ms - shard.now, dict(m.facts), m.line)
        for m in events.decode(last(shard))
    ]  # fmt: skip


def test_jobs_that_move_alike_take_a_short_line_each(shard: Shard) -> None:
    shard.enqueue(job("a"), job("b"), job("c"))
    claims = shard.claim()
    first = claims[0].fence

    assert last(shard)[b"e"].splitlines()[1:] == [b"b = %d" % (first + 1), b"c = %d" % (first + 2)]
    assert told(shard) == [
        (each, "queued", "claimed", 1, 1, 0, 2, 0, first + n, "claimed", 0, {}, n + 1)
        for n, each in enumerate("abc")
    ]

    agos = (5, 5, 0)
    shard.settle_rows(*(settle_rows.outcome_row(claims[n], SUCCESS, agos[n]) for n in range(3)))

    assert last(shard)[b"e"].splitlines()[1:] == [b"b = %d -5" % (first + 1), b"c = %d 0" % (first + 2)]
    moves: list[tuple[Any, ...]] = []
    for n, each in enumerate("abc"):
        moves += [
            (each, "claimed", "processing", 1, 1, 0, 3, 0, first + n, "started", -agos[n], {}, n + 1),
            (each, "processing", "succeeded", 1, 1, 0, 4, 0, first + n, "returned", 0, {}, n + 1),
        ]
    assert told(shard) == moves


def test_start_marks_have_each_their_moment(shard: Shard) -> None:
    shard.enqueue(job("a"), job("b"))
    a, b = shard.claim()

    shard.settle_rows(settle_rows.mark_row(a, 30), settle_rows.mark_row(b, 40))

    assert last(shard)[b"e"].splitlines()[1] == b"b = %d -40" % b.fence
    assert [(move[0], move[8], move[10]) for move in told(shard)] == [
        ("a", a.fence, -30),
        ("b", b.fence, -40),
    ]
    shard.check("b", status="processing")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ("2 1 0 2 0", (2, 1, 0, 3, 0)),
        ("1 2 0 2 0", (1, 2, 0, 3, 0)),
        ("1 1 2 2 0", (1, 1, 2, 3, 0)),
        ("1 1 0 7 0", (1, 1, 0, 8, 0)),
        ("1 1 0 2 3", (1, 1, 0, 3, 3)),
    ],
    ids=["attempt", "starts", "strikes", "version", "epoch"],
)
def test_a_job_with_other_numbers_has_a_line_of_its_own(
    shard: Shard, counts: str, expected: tuple[int, ...]
) -> None:
    shard.enqueue(job("a"), job("b"))
    a, b = shard.claim()
    rewrite(shard, "b", "claimed 1 1 0 2 0", f"claimed {counts}")

    shard.settle_rows(settle_rows.mark_row(a, 30), settle_rows.mark_row(b, 30))

    assert told(shard)[1][3:8] == expected


def test_a_job_that_comes_from_elsewhere_has_a_line_of_its_own(shard: Shard) -> None:
    shard.enqueue(job("a"), job("b"))
    a, b = shard.claim()
    rewrite(shard, "b", "claimed 1 1 0 2 0", "processing 1 1 0 3 0")

    shard.settle_rows(settle_rows.outcome_row(a, SUCCESS, 5), settle_rows.outcome_row(b, SUCCESS, 5))

    assert [move[:3] for move in told(shard)] == [
        ("a", "claimed", "processing"),
        ("a", "processing", "succeeded"),
        ("b", "processing", "succeeded"),
    ]


@pytest.mark.parametrize(
    ("between", "after", "reasons"),
    [
        (RETRY, SUCCESS, ["started", "returned", "started", "error", "started", "returned"]),
        (SUCCESS, Success(b"", Reason.SKIPPED), ["started", "returned"] * 2 + ["started", "skipped"]),
    ],
    ids=["another line between", "another reason"],
)
def test_a_line_is_short_only_for_what_the_line_before_says(
    shard: Shard, between: Outcome, after: Outcome, reasons: list[str]
) -> None:
    shard.enqueue(job("a"), job("b"), job("c"))
    outcomes = (SUCCESS, between, after)

    claims = zip(shard.claim(), outcomes, strict=True)
    shard.settle_rows(*(settle_rows.outcome_row(claim, outcome, 5) for claim, outcome in claims))

    assert [move[9] for move in told(shard)] == reasons


def rewrite(shard: Shard, job_id: str, old: str, new: str) -> None:
    """Change a record by hand."""
    shard.tampered.add(job_id)
    key = shard.keys.job(job_id)
    raw = shard.redis("GET", key)
    assert raw.startswith(old.encode())
    shard.redis("SET", key, new.encode() + raw[len(old) :])
    shard.watchful = False
