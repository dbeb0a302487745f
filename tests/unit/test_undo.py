"""Which change is taken back, and by which settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamworker.ops.settings import Change, Setting, read
from streamworker.ops.undo import NotUndone, choose, inverse

NOW = 1_000_000


def change(number: int, name: str = "a", *, undoes: int = 0) -> Change:
    return Change(number, NOW - 1000, "ana@host", "slots", name, "slots", "4,2", "why", undoes, "")


def newest_first(*changes: Change) -> list[Change]:
    return sorted(changes, key=lambda one: -one.id)


def test_the_last_that_nobody_took_back() -> None:
    known = newest_first(change(1), change(2), change(3, undoes=2))

    assert choose(known, None, now_ms=NOW).id == 1
    assert choose(known, 1, now_ms=NOW).id == 1, "what came in between is gone again"
    assert choose(known, 3, now_ms=NOW).id == 3, "a redo"
    with pytest.raises(NotUndone, match="taken back already, by change 3"):
        choose(known, 2, now_ms=NOW)


def test_a_redo_brings_the_change_back() -> None:
    known = newest_first(change(1), change(2), change(3, undoes=2), change(4, undoes=3))

    assert choose(known, None, now_ms=NOW).id == 2
    with pytest.raises(NotUndone, match="undo 2"):
        choose(known, 1, now_ms=NOW)


def test_an_undo_of_what_was_before_counts_as_a_change() -> None:
    known = newest_first(change(1), change(2), change(3, undoes=2), change(4, undoes=1))

    with pytest.raises(NotUndone, match="by change 4"):
        choose(known, 1, now_ms=NOW)
    with pytest.raises(NotUndone, match="undo 4"):
        choose(known, 3, now_ms=NOW)


def test_what_ended_by_itself_is_in_nobodys_way() -> None:
    timed = Change(2, NOW - 5000, "ana@host", "limit", "rate:a", "limit", "9,1000,9;for=5000", "why", 0, "")
    lasting = Change(1, NOW - 9000, "ana@host", "limit", "rate:a", "limit", "5,1000,5", "why", 0, "")
    known = newest_first(lasting, timed)

    assert choose(known, None, now_ms=NOW).id == 1, "the last that still means anything"
    assert choose(known, 1, now_ms=NOW).id == 1
    assert choose(known, None, now_ms=NOW - 1).id == 2
    with pytest.raises(NotUndone, match="undo 2"):
        choose(known, 1, now_ms=NOW - 1)


def test_other_things_do_not_matter() -> None:
    assert choose(newest_first(change(1), change(2, "b")), 1, now_ms=NOW).id == 1


@pytest.mark.parametrize("asked", [None, 7])
def test_what_is_not_known_is_not_undone(asked: int | None) -> None:
    with pytest.raises(NotUndone, match="known"):
        choose([], asked, now_ms=NOW)


def undone(one: Change) -> list[tuple[str, str, str]]:
    return inverse(one, now_ms=NOW, ramp_ms=60_000)


@pytest.mark.parametrize(
    ("before", "rows"),
    [
        ("", [("slots", "a", "")]),
        ("0 ana 5\t9,9\tx", [("slots", "a", "9,9")]),
        (f"{NOW + 500} ana 5\t9,9\tx", [("slots", "a", ""), ("slots", "a", "9,9;for=500")]),
        (
            f"{NOW + 500} ana 5\t9,9\tx\n0 ana 1\t7,7\ty",
            [("slots", "a", "7,7"), ("slots", "a", "9,9;for=500")],
        ),
        (f"{NOW} ana 5\t9,9\tx\n0 ana 1\t7,7\ty", [("slots", "a", "7,7")]),
        (f"{NOW - 1} ana 5\t9,9\tx", [("slots", "a", "")]),
    ],
    ids=["nothing", "for good", "for a time", "both", "its time is over", "alone, and over"],
)
def test_what_stood_before_is_set_again(before: str, rows: list[tuple[str, str, str]]) -> None:
    assert undone(replace(change(1), before=before)) == rows


def test_a_limit_is_reset() -> None:
    assert undone(replace(change(1), topic="limit", verb="limit", before="")) == [("reset", "a", "")]


def test_what_ended_by_itself_is_not_taken_back() -> None:
    with pytest.raises(NotUndone, match="time of change 1 was over"):
        undone(replace(change(1), value="4,2;for=1000"))


PAUSE = Change(1, NOW - 1000, "ana", "pause", "tenant:a", "pause", "-", "why", 0, "")
RESUME = replace(PAUSE, verb="resume", value="60000", before="paused 0 ana 5 why")


@pytest.mark.parametrize(
    ("one", "row"),
    [
        (PAUSE, ("resume", "tenant:a", "60000")),
        (replace(PAUSE, before="ramp 2000000 ana 5 x"), ("resume", "tenant:a", "60000")),
        (replace(PAUSE, before="paused 0 ana 5 x"), ("pause", "tenant:a", "")),
        (replace(PAUSE, before=f"paused {NOW + 9} ana 5 x"), ("pause", "tenant:a", "9")),
        (replace(PAUSE, before=f"paused {NOW} ana 5 x"), ("resume", "tenant:a", "60000")),
        (RESUME, ("pause", "tenant:a", "")),
        (replace(RESUME, before=f"paused {NOW + 9} ana 5 x"), ("pause", "tenant:a", "9")),
    ],
)
def test_pauses_are_resumed_and_resumes_paused(one: Change, row: tuple[str, str, str]) -> None:
    assert undone(one) == [row]


@pytest.mark.parametrize("before", [f"paused {NOW} ana 5 x", "ramp 2000000 ana 5 x"])
def test_a_resume_of_what_would_run_by_now_is_not_taken_back(before: str) -> None:
    with pytest.raises(NotUndone, match="would run again by now"):
        undone(replace(RESUME, before=before))


BREAKER = Change(1, NOW, "ana", "breaker", "breaker:dependency:c", "open", "0 0", "why", 0, "")


@pytest.mark.parametrize(
    ("one", "row"),
    [
        (BREAKER, ("auto", "")),
        (replace(BREAKER, before="closed 0 60000 ana 5 x y"), ("close", "0 60000")),
        (replace(BREAKER, before=f"open {NOW + 9} 0 ana 5 x"), ("open", "9 0")),
        (replace(BREAKER, before=f"open {NOW} 0 ana 5 x"), ("auto", "")),
        (replace(BREAKER, verb="auto", value="-", before="open 0 0 ana 5 x"), ("open", "0 0")),
    ],
)
def test_breakers_go_back(one: Change, row: tuple[str, str]) -> None:
    ((verb, name, value),) = undone(one)

    assert (verb, value) == row
    assert name == BREAKER.name


def test_calls_that_would_decide_by_now_are_left_alone() -> None:
    with pytest.raises(NotUndone, match="breaker c would decide"):
        undone(replace(BREAKER, verb="auto", value="-", before=f"open {NOW} 0 ana 5 x"))


def test_a_setting_is_read_with_what_is_below() -> None:
    found = read("slots", "a", "900 ana 5\t9,9\tx \ty\n0 bo 1\t7,7\t-")

    below = Setting("slots", "a", "7,7", "bo", 1, "-")
    assert found == Setting("slots", "a", "9,9", "ana", 5, "x \ty", 900, below)
