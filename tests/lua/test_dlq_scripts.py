"""dlq/edit, dlq/import, dlq/trim: letters are changed, brought back and let go, and the log tells of it."""

from __future__ import annotations

from typing import Any

import pytest

from streamworker.core.outcome import Fail
from streamworker.core.states import ErrorClass
from streamworker.store import scripts
from tests.lua.driver import RETENTION, Shard

FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")
DAY = 86_400_000


def dead(shard: Shard, job_id: str = "j", **options: Any) -> str:
    """A dead letter's entry id."""
    shard.settle(shard.take(job_id, **options), FATAL)
    return shard.letter(job_id)


def operate(shard: Shard, script: Any, *rows: Any) -> list[str]:
    call = script(clock=shard.clock, actor="operator", retention_ms=RETENTION, rows=rows)
    return [reply.decode() for reply in shard.send(call)]


def letters(shard: Shard) -> dict[str, dict[str, str]]:
    """All dead letters with their envelopes, the oldest first."""
    return {
        entry: {name.decode(): value.decode() for name, value in fields.items()}
        for entry, fields in shard.look().streams.get("dlq", {}).items()
    }


def edit(shard: Shard, *words: str, env: str = "new env", detail: str = "x") -> list[str]:
    return operate(shard, scripts.dlq_edit, *words, env, detail)


def restore(shard: Shard, job_id: str, epoch: str, fields: dict[str, str]) -> list[str]:
    flat = [word for pair in fields.items() for word in pair]
    return operate(shard, scripts.dlq_import, job_id, epoch, len(flat), *flat)


def trim(shard: Shard, *, age: int = 30 * DAY, count: int = 100, limit: int = 100) -> tuple[int, int, int]:
    removed, aged, more = shard.send(
        scripts.dlq_trim(
            clock=shard.clock,
            worker="w",
            retention_ms=RETENTION,
            max_age_ms=age,
            max_count=count,
            limit=limit,
        )
    )
    return removed, aged, more


def audit(shard: Shard) -> list[str]:
    """All lines of what was asked for, the oldest first."""
    found = shard.redis("XRANGE", shard.keys.events, "-", "+")
    told = [dict(zip(flat[::2], flat[1::2], strict=True)).get(b"a", b"") for _, flat in found]
    return [line for text in told for line in text.decode().split("\n") if line]


# --- edit


def test_an_edited_letter_is_replayed_with_the_new_envelope(shard: Shard) -> None:
    letter = dead(shard)
    before = letters(shard)[letter]

    (new,) = edit(shard, *shard.named(letter), detail="n:1->2")

    assert letters(shard) == {new: {**before, "env": "new env"}}
    shard.check("j", status="failed_terminal", dead="bad")
    assert shard.record("j").text("dq") == new
    assert audit(shard)[-1] == "j 0 edited n:1->2"
    assert shard.replay(new) == ["OK"]
    assert shard.claim_one().envelope == b"new env"


def test_a_letter_is_edited_once_under_its_name(shard: Shard) -> None:
    letter = dead(shard)
    named = shard.named(letter)
    (new,) = edit(shard, *named)
    before = shard.look()

    assert edit(shard, *named) == ["ALREADY"]
    assert edit(shard, new, "j", "1") == ["ALREADY"]
    assert edit(shard, new, "k", "0") == ["ALREADY"]

    assert shard.look().without_times() == before.without_times()


def test_a_letter_that_outlived_its_record_can_be_edited(shard: Shard) -> None:
    letter = dead(shard)
    named = shard.named(letter)
    shard.forget_record("j")

    (new,) = edit(shard, *named)

    assert shard.replay(new) == ["OK"]
    assert shard.claim_one().envelope == b"new env"


# --- import


def test_a_letter_that_was_taken_away_comes_back(shard: Shard) -> None:
    letter = dead(shard)
    fields = letters(shard)[letter]
    shard.discard(letter)

    assert restore(shard, "j", "0", fields) == ["OK"]

    (new,) = letters(shard)
    assert letters(shard)[new] == fields
    shard.check("j", status="failed_terminal", dead="bad", error="persistent bad")
    assert shard.record("j").text("dq") == new
    assert audit(shard)[-1] == "j 0 imported"
    assert shard.replay(new) == ["OK"]


def test_a_job_that_redis_has_forgotten_comes_back_as_a_letter(shard: Shard) -> None:
    letter = dead(shard)
    fields = letters(shard)[letter]
    shard.discard(letter)
    shard.forget_record("j")

    assert restore(shard, "j", "0", fields) == ["OK"]
    (new,) = letters(shard)
    assert shard.replay(new) == ["OK"]


def test_nobody_gets_a_second_letter_and_the_living_get_none(shard: Shard) -> None:
    letter = dead(shard)
    fields = letters(shard)[letter]
    assert restore(shard, "j", "0", fields) == ["ALREADY"]
    shard.replay(letter)
    before = shard.look()

    assert restore(shard, "j", "0", fields) == ["ALIVE"]
    shard.settle(shard.claim_one(), FATAL)
    again = shard.letter("j")
    shard.discard(again)
    assert restore(shard, "j", "0", fields) == ["ALIVE"]  # a letter of an epoch that is over

    assert before.dead_letters() == letters(shard) == {}


def test_a_job_that_is_open_gets_no_letter(shard: Shard) -> None:
    letter = dead(shard)
    fields = letters(shard)[letter]
    shard.put("k")

    assert restore(shard, "k", "0", {**fields, "id": "k"}) == ["ALIVE"]
    assert list(letters(shard)) == [letter]


def test_one_call_brings_each_letter_back_once(shard: Shard) -> None:
    letter = dead(shard)
    fields = letters(shard)[letter]
    shard.discard(letter)
    shard.forget_record("j")
    flat = [word for pair in fields.items() for word in pair]
    row = ("j", "0", len(flat), *flat)

    assert operate(shard, scripts.dlq_import, *row, *row) == ["OK", "ALREADY"]
    assert {name: count for name, count in shard.stats().items() if name.startswith("imported:")} == {
        f"imported:{fields['lane']}:{fields['task']}": 1
    }


# --- trim


def test_the_oldest_letters_go_when_there_are_too_many(shard: Shard) -> None:
    ids = [dead(shard, name) for name in "abcde"]

    assert trim(shard, count=3) == (2, 0, 0)
    assert trim(shard, count=3) == (0, 0, 0)

    assert list(letters(shard)) == ids[2:]
    assert audit(shard)[-2:] == ["a 0 trimmed", "b 0 trimmed"]
    shard.check("a", status="failed_terminal", dead=None)
    assert shard.record("a").text("dq") is None
    assert shard.stats()["dead_trimmed"] == 2


def test_letters_go_when_they_are_too_old(shard: Shard) -> None:
    old = dead(shard, "a")
    shard.elapse(2 * DAY, swept=False)
    new = dead(shard, "b")

    assert trim(shard, age=DAY) == (1, 1, 0)

    assert list(letters(shard)) == [new]
    assert old != new


def test_a_call_removes_no_more_than_it_may(shard: Shard) -> None:
    for name in "abcde":
        dead(shard, name)

    assert trim(shard, count=1, limit=3) == (3, 0, 1)
    assert trim(shard, count=1, limit=3) == (1, 0, 0)


@pytest.mark.parametrize("committed", [False, True])
def test_with_a_mirror_only_what_it_has_committed_goes(shard: Shard, committed: bool) -> None:
    shard.redis("HSET", shard.keys.policies, "mirror", "m1")
    dead(shard, "a")
    shard.elapse(1000)
    if committed:
        shard.watchful = False  # what a mirror takes away looks like a log that was rewritten
        shard.redis("XTRIM", shard.keys.events, "MAXLEN", 0)
    dead(shard, "b")

    assert trim(shard, count=0)[0] == (1 if committed else 0)
