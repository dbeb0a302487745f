"""enqueue: every disposition, idempotency keys (D11, R43), and that a re-sent request changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamworker.core.outcome import Fail, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store.events import decode, pairs
from tests.lua.driver import START, Shard, job

KEYED: dict[str, Any] = {"key_id": "add::k", "fingerprint": "same"}
FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")


def test_a_job_without_delay_is_accepted_into_arrivals(shard: Shard) -> None:
    assert shard.put("j") == "ACCEPTED"

    shard.check("j", status="queued", place="a", attempt=0, starts=0, strikes=0, held=False, owner=None)
    (line,) = shard.history("j")
    assert (line.source, line.target, line.version, line.reason) == ("-", "queued", 1, "enqueued")
    assert line.details == {"task": "add", "lane": "normal"}
    assert shard.stats() == {"queued:normal": 1, "enqueued:normal:add": 1, "sequence": 1}


def test_a_delayed_job_is_scheduled_with_its_envelope_in_the_body(shard: Shard) -> None:
    assert shard.put("j", delay_ms=1500, tenant="acme") == f"SCHEDULED {START + 1500}"

    shard.check("j", status="queued", place="schedule", due_in=1500)
    assert shard.look().body("j") == {b"env": b"env of j"}
    (line,) = shard.history("j")
    assert line.reason == "delayed"
    assert line.details == {
        "task": "add",
        "lane": "normal",
        "tenant": "acme",
        "due": str(START + 1500),
    }


def test_options_are_kept_in_the_record(shard: Shard) -> None:
    shard.put("j", deadline_ms=5000, tenant="acme", max_starts=3, lane="priority", window_ms=7000, **KEYED)

    fields = shard.record("j").fields
    assert fields["dl"] == str(START + 5000)
    assert (fields["tn"], fields["ms"], fields["la"]) == ("acme", "3", "priority")
    assert (fields["ky"], fields["kf"], fields["kw"]) == ("add::k", "same", "7000")
    assert shard.look().zsets["deadlines"] == {"j": START + 5000}
    assert shard.look().strings["key:add::k"] == b"j same open"


def test_a_plain_record_is_one_line_of_five_words(shard: Shard) -> None:
    shard.put("j")

    raw = shard.redis("GET", shard.keys.job("j"))

    entry = shard.record("j").fields["en"]
    assert raw.decode() == f"queued {entry} normal add {START}"


def test_new_jobs_of_one_call_are_told_apart_in_the_log(shard: Shard) -> None:
    """Task and lane stand once for those that follow with the same."""
    rows = [
        job("a"),
        job("b"),
        job("c", task="pack"),
        job("d", task="pack", lane="other"),
        job("e", task="pack", lane="other", tenant="t"),
        job("f", task="pack", lane="other", delay_ms=900),
        job("g", task="pack", lane="other"),
        job("h", task="pack", lane="other", route="acme"),
        job("i", task="pack", lane="other", backlog="asked"),
    ]
    more: list[dict[str, str]] = [
        {},
        {},
        {},
        {},
        {"tenant": "t"},
        {"due": str(START + 900)},
        {},
        {"route": "acme"},
        {"backlog": "asked"},
    ]

    shard.enqueue(*rows)

    (fields,) = (pairs(entry[1]) for entry in shard.redis("XRANGE", shard.keys.events, "-", "+"))
    assert fields[b"e"].split(b"\n")[1] == b"b +"
    assert [(move.job_id, dict(move.facts)) for move in decode(fields)] == [
        (one.job_id, {"task": one.task, "lane": one.lane, **others})
        for one, others in zip(rows, more, strict=True)
    ]


@pytest.mark.parametrize("options", [{}, KEYED], ids=["no key", "key"])
@pytest.mark.parametrize("delay_ms", [0, 900])
def test_the_same_job_id_sent_again_gets_the_same_disposition(
    shard: Shard, delay_ms: int, options: dict[str, Any]
) -> None:
    first = shard.put("j", delay_ms=delay_ms, **options)
    before = shard.look()
    shard.now += 10_000

    again = shard.put("j", delay_ms=delay_ms, **options)

    assert again == first
    assert shard.look().without_times() == before.without_times()


def test_the_same_job_id_is_known_while_it_runs_and_after_it_ended(shard: Shard) -> None:
    claim = shard.take("j", **KEYED)
    assert shard.put("j", **KEYED) == "ACCEPTED"

    shard.settle(claim, Success())

    assert shard.put("j", **KEYED) == "ACCEPTED"
    shard.check("j", status="succeeded")


def test_a_finished_job_is_known_by_its_key_after_its_record_expired(shard: Shard) -> None:
    shard.settle(shard.take("j", **KEYED), Success())
    shard.forget_record("j")

    assert shard.put("j", **KEYED) == "ACCEPTED"

    assert shard.state("j") == {"status": None}, "it ran already"


def test_a_key_that_is_held_makes_duplicates_and_conflicts(shard: Shard) -> None:
    shard.put("first", **KEYED)

    replies = shard.enqueue(
        job("same", key_id="add::k", fingerprint="same"),
        job("other", key_id="add::k", fingerprint="other"),
        job("elsewhere", key_id="add::l", fingerprint="same"),
    )

    assert replies == ["DUPLICATE first queued", "CONFLICT first queued", "ACCEPTED"]
    assert shard.state("same") == shard.state("other") == {"status": None}


def test_a_batch_is_judged_in_its_own_order(shard: Shard) -> None:
    replies = shard.enqueue(
        job("a", **KEYED),
        job("b", **KEYED),
        job("c", key_id="add::k", fingerprint="other"),
        job("a", **KEYED),
        job("b", **KEYED),
        job("d", delay_ms=100),
        job("d", delay_ms=100),
    )

    due = f"SCHEDULED {START + 100}"
    assert replies == ["ACCEPTED", "DUPLICATE a queued", "CONFLICT a queued", "ACCEPTED",
                       "DUPLICATE a queued", due, due]  # fmt: skip
    assert sorted(shard.look().records()) == ["a", "d"]
    assert shard.stats()["enqueued:normal:add"] == 2


def test_a_duplicate_hears_how_far_the_first_has_come(shard: Shard) -> None:
    claim = shard.take("j", **KEYED)
    assert shard.put("dup", **KEYED) == "DUPLICATE j claimed"
    shard.start(claim)
    assert shard.put("dup", **KEYED) == "DUPLICATE j processing"

    shard.settle(claim, Success())

    assert shard.put("dup", **KEYED) == "DUPLICATE j succeeded"
    assert shard.put("dup", key_id="add::k", fingerprint="other") == "CONFLICT j succeeded"


def test_a_key_without_fingerprint_still_makes_duplicates(shard: Shard) -> None:
    assert shard.put("first", key_id="add::k") == "ACCEPTED"

    assert shard.put("second", key_id="add::k") == "DUPLICATE first queued"


def test_an_open_key_whose_job_is_gone_is_free(shard: Shard) -> None:
    shard.put("lost", delay_ms=1000, **KEYED)
    shard.tampered.add("lost")
    shard.redis("ZREM", shard.keys.schedule, "lost")
    shard.forget_record("lost")

    assert shard.put("next", **KEYED) == "ACCEPTED"

    shard.check("next", status="queued", key="open")


def test_a_final_key_holds_for_its_window_though_the_record_is_gone(shard: Shard) -> None:
    shard.settle(shard.take("j", window_ms=123_456, **KEYED), Success())
    shard.forget_record("j")

    assert 123_000 < shard.look().ttls["key:add::k"] <= 123_456
    assert shard.put("next", **KEYED) == "DUPLICATE j succeeded"


def test_the_window_is_a_day_unless_the_job_says_otherwise(shard: Shard) -> None:
    shard.settle(shard.take("j", **KEYED), Success())

    assert 86_390_000 < shard.look().ttls["key:add::k"] <= 86_400_000


def test_a_key_whose_window_is_over_is_free(shard: Shard) -> None:
    shard.settle(shard.take("j", **KEYED), Success())
    shard.redis("DEL", shard.keys.key("add::k"))

    assert shard.put("next", **KEYED) == "ACCEPTED"


def test_a_dead_job_frees_its_key(shard: Shard) -> None:
    shard.settle(shard.take("j", **KEYED), FATAL)

    shard.check("j", status="failed_terminal", key=None)
    assert shard.put("next", **KEYED) == "ACCEPTED"


@pytest.mark.parametrize("outcome", [Success(), FATAL])
def test_a_job_that_lost_its_key_does_not_touch_the_new_owner(shard: Shard, outcome: Success | Fail) -> None:
    claim = shard.take("old", **KEYED)
    shard.tampered.add("old")
    shard.redis("DEL", shard.keys.key("add::k"))
    shard.put("new", **KEYED)

    assert shard.settle(claim, outcome) == "OK"

    assert shard.look().strings["key:add::k"] == b"new same open"
    assert shard.look().ttls["key:add::k"] == -1


def fail(shard: Shard) -> None:
    shard.settle(shard.claim_one(), FATAL)


def succeed(shard: Shard) -> None:
    shard.settle(shard.claim_one(), Success())


def retry(shard: Shard) -> None:
    shard.settle(shard.claim_one(), Retry(500, ErrorClass.TRANSIENT, "timeout", "Timeout: x"))


def release(shard: Shard) -> None:
    shard.settle(shard.claim_one(), Release(Reason.SHUTDOWN))


def cancel(shard: Shard) -> None:
    shard.cancel("j")


def cancel_while_it_runs(shard: Shard) -> None:
    claim = shard.claim_one()
    shard.cancel("j")
    shard.settle(claim, Release(Reason.SHUTDOWN))


def expire_while_it_waits(shard: Shard) -> None:
    shard.elapse(1000)
    shard.promote()


def expire_at_its_claim(shard: Shard) -> None:
    shard.elapse(1000)
    shard.claim()


def die_and_come_back(shard: Shard) -> None:
    fail(shard)
    shard.replay(shard.letter("j"))


@pytest.mark.parametrize(
    ("step", "key"),
    [
        (succeed, "succeeded"),
        (fail, None),
        (retry, "open"),
        (release, "open"),
        (cancel, None),
        (cancel_while_it_runs, None),
        (expire_while_it_waits, None),
        (expire_at_its_claim, None),
        (die_and_come_back, "open"),
    ],
)
def test_a_key_lives_as_long_as_its_job_and_after_a_success_for_its_window(
    shard: Shard, step: Callable[[Shard], None], key: str | None
) -> None:
    shard.put("j", deadline_ms=1000, window_ms=60_000, **KEYED)

    step(shard)

    shard.check("j", key=key)
    ttl = shard.look().ttls.get("key:add::k")
    match key:
        case "open":
            assert ttl == -1
        case "succeeded":
            assert ttl is not None
            assert 55_000 < ttl <= 60_000
        case None:
            assert ttl is None


def test_names_reach_redis_as_they_are(shard: Shard) -> None:
    key = "add:tenant%3A7:" + "é ü".replace(" ", "_")

    assert shard.put("j", key_id=key, fingerprint="f", tenant="Zoë") == "ACCEPTED"

    assert shard.redis("GET", shard.keys.key(key)) == b"j f open"
    assert shard.record("j").text("tn") == "Zoë"
