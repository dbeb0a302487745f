"""hasten: what waits for its time is due now, and nothing else of it changes."""

from __future__ import annotations

from streamworker.core.outcome import Retry, Success
from streamworker.core.states import ErrorClass
from tests.lua.driver import Shard, job
from tests.lua.merging import due, event, items_of

RETRY = Retry(60_000, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")


def test_a_delayed_job_is_due_now(shard: Shard) -> None:
    shard.enqueue(job("j", delay_ms=60_000), job("other", delay_ms=60_000))
    shard.elapse(5)

    assert shard.hasten("j") == ["OK"]

    shard.check("j", status="queued", place="schedule", due_in=0)
    shard.check("other", status="queued", place="schedule", due_in=59_995)
    assert shard.promote()[:2] == (1, 0)
    assert shard.claim_one().job_id == "j"


def test_a_retry_keeps_its_attempts_and_its_error(shard: Shard) -> None:
    shard.settle(shard.take("j"), RETRY)
    before = shard.edges("j")

    assert shard.hasten("j") == ["OK"]

    shard.check(
        "j", status="retry_scheduled", place="schedule", attempt=1, error="transient timeout", due_in=0
    )
    assert shard.edges("j") == before, "it is no transition"
    assert shard.audits() == ["j 0 hastened"]
    shard.promote()
    assert shard.claim_one().attempt == 2


def test_what_is_due_already_is_said_once(shard: Shard) -> None:
    shard.put("j", delay_ms=1000)
    shard.elapse(2000)

    assert shard.hasten("j") == ["OK"]

    assert shard.audits() == []
    shard.check("j", status="queued", place="schedule", due_in=-1000)


def test_what_waits_for_no_time_is_left_alone(shard: Shard) -> None:
    shard.settle(shard.take("over"), Success())
    shard.take("held")
    shard.put("queued")
    before = shard.look().without_times()

    assert shard.hasten("over", "held", "queued", "unknown") == [
        "ALREADY succeeded",
        "ALREADY claimed",
        "ALREADY queued",
        "GONE",
    ]

    assert shard.look().without_times() == before


def test_a_record_that_cannot_be_read_is_left_to_who_buries_it(shard: Shard) -> None:
    shard.put("j", delay_ms=1000)
    shard.tampered.add("j")
    shard.damage("j")
    before = shard.look().without_times()

    assert shard.hasten("j") == ["GONE"]

    assert shard.look().without_times() == before


def test_a_window_that_is_hastened_is_over(shard: Shard) -> None:
    shard.coalesce(event("a"), event("b"))

    assert shard.hasten("a") == ["OK"]

    assert shard.coalesce(event("c")) == [due(shard)], "it opens a window of its own"
    shard.promote()
    claim = shard.claim_one()
    assert (claim.job_id, items_of(claim.envelope)) == ("a", ["a", "b"])
