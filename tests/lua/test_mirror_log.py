"""What the log carries while a mirror is on, how it is taken away, and when enqueue is refused."""

from __future__ import annotations

from typing import Any

import pytest

from streamworker.core.outcome import Fail, Retry, Success
from streamworker.core.states import ErrorClass
from streamworker.store import events, scripts, settle_rows
from tests.lua.driver import Shard, job

KEYED: dict[str, Any] = {"key_id": "add::k", "fingerprint": "f", "deadline_ms": 90_000}
RETRY = Retry(700, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")
FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")


def switch_on(shard: Shard, marker: str = "m1", **more: str) -> None:
    shard.redis(
        "HSET", shard.keys.policies, "mirror", marker, *(each for pair in more.items() for each in pair)
    )


def parts(shard: Shard) -> list[dict[int, dict[str, bytes]]]:
    """What each entry has beside its lines."""
    return [events.parts(fields) for fields in shard.look().streams["events"].values()]


def log_bytes(shard: Shard) -> int:
    return int(shard.redis("HGET", shard.keys.stats, "log_bytes") or 0)


def enqueue(shard: Shard, *jobs: scripts.NewJob, marker: str = "") -> Any:
    rows = [word for one in jobs for word in one.row()]
    return shard.send(scripts.enqueue(clock=shard.clock, marker=marker, rows=rows))


def life(shard: Shard) -> None:
    """A job with all that can come along: envelope, key, an error, a result."""
    claim = shard.take("j", tenant="acme", **KEYED)
    shard.settle(claim, RETRY)
    shard.elapse(700, swept=False)
    shard.promote()
    claim = shard.claim_one()
    shard.settle(claim, Success(b'{"a":1}'))


@pytest.mark.parametrize("off", [None, "off"])
def test_without_a_mirror_the_log_has_nothing_but_lines(shard: Shard, off: str | None) -> None:
    if off:
        switch_on(shard, off)
    life(shard)

    assert set().union(*parts(shard)) == set()
    assert log_bytes(shard) == 0


def test_with_a_mirror_each_line_has_what_came_along(shard: Shard) -> None:
    switch_on(shard)
    shard.watchful = False  # the driver expects no reply about the marker
    enqueue(shard, job("j", tenant="acme", **KEYED), job("plain"), marker="m1")
    shard.session()
    (claim,) = [each for each in shard.claim() if each.job_id == "j"]
    shard.settle(claim, RETRY)
    shard.elapse(700, swept=False)
    shard.promote()
    claim = shard.claim_one()
    shard.exchange(settle_rows.outcome_row(claim, Success(b'{"a":1}'), 5))

    told = [each for each in parts(shard) if each]
    record = f"\nky=add::k\nkf=f\nkw=86400000\ndl={shard.now - 700 + 90_000}\ntn=acme".encode()
    assert told == [
        {1: {"p": b"env of j", "k": record}, 2: {"p": b"env of plain"}},
        {1: {"x": b"Timeout: x"}},
        {1: {"r": b'{"a":1}'}},
    ]


def test_a_dead_letters_error_text_is_told(shard: Shard) -> None:
    claim = shard.take("j")
    switch_on(shard)

    shard.settle(claim, FATAL)

    assert parts(shard)[-1] == {1: {"x": b"Bad: x"}}


def test_a_replay_tells_what_it_runs_with(shard: Shard) -> None:
    shard.settle(shard.take("j"), FATAL)
    shard.settle(shard.take("other"), FATAL)
    switch_on(shard)

    assert shard.replay(shard.letter("j"), shard.letter("other")) == ["OK", "OK"]

    assert parts(shard)[-1] == {1: {"p": b"env of j"}, 2: {"p": b"env of other"}}


def test_the_bytes_of_the_log_are_counted_and_taken_off_as_it_is_mirrored(shard: Shard) -> None:
    switch_on(shard)
    shard.watchful = False
    for number in range(5):
        enqueue(shard, job(f"j{number}", **KEYED), marker="m1")
    shard.cancel("j0")
    entries = shard.look().streams["events"]
    sizes = {entry: events.size_of(fields) for entry, fields in entries.items()}
    assert log_bytes(shard) == sum(sizes.values())

    first, *others = list(sizes)
    assert shard.send(scripts.mirrored(rows=[first, sizes[first], "1-1", 1000])) == 1
    assert log_bytes(shard) == sum(sizes[entry] for entry in others)
    assert list(shard.look().streams["events"]) == others

    rows = [word for entry in others for word in (entry, sizes[entry])]
    assert shard.send(scripts.mirrored(rows=rows)) == len(others)
    assert log_bytes(shard) == 0


def test_at_its_bound_the_log_takes_no_new_jobs_and_every_other_move(shard: Shard) -> None:
    claim = shard.take("held")
    shard.put("waiting")
    switch_on(shard, mirror_bound="80")
    shard.watchful = False
    enqueue(shard, job("last"), marker="m1")
    assert log_bytes(shard) >= 80

    replies = enqueue(shard, job("more", **KEYED), job("last"), marker="m1")

    assert replies == [b"REJECTED 1000 log_full", b"ACCEPTED"], "one that is there is not refused"
    assert shard.state("more") == {"status": None}
    assert "key:add::k" not in shard.look().strings
    assert shard.settle(claim, FATAL) == "OK"
    assert shard.cancel("waiting") == "OK"
    assert shard.replay(shard.letter("held")) == ["OK"]


def test_a_caller_learns_the_marker_and_that_it_is_off(shard: Shard) -> None:
    assert enqueue(shard, job("a")) == [b"ACCEPTED"]
    switch_on(shard)
    assert enqueue(shard, job("b")) == [b"ACCEPTED", b"MARKER m1"]
    assert enqueue(shard, job("c"), marker="m1") == [b"ACCEPTED"]
    switch_on(shard, "off")
    assert enqueue(shard, job("d"), marker="m1") == [b"ACCEPTED", b"MARKER "]


def test_whoever_knows_the_marker_is_refused_while_it_is_gone_or_another(shard: Shard) -> None:
    assert enqueue(shard, job("a"), marker="m1") == b"RESTORING"
    switch_on(shard, "m2")
    assert enqueue(shard, job("a"), marker="m1") == b"RESTORING"
    assert shard.state("a") == {"status": None}
    switch_on(shard, "m1")
    assert enqueue(shard, job("a"), marker="m1") == [b"ACCEPTED"]


def test_everybody_is_refused_until_redis_is_restored(shard: Shard) -> None:
    switch_on(shard, restoring="1")

    assert enqueue(shard, job("a")) == b"RESTORING"
    assert enqueue(shard, job("a"), marker="m1") == b"RESTORING"
