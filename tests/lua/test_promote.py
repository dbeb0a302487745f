"""promote, cancel and deadlines: what happens to a job when its time comes or somebody gives it up (D9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import scripts
from tests.lua.driver import LEASE, RETENTION, START, Shard, job

RETRY = Retry(700, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")
FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")
RELEASE = Release(Reason.SHUTDOWN)
SNOOZE = Release(Reason.SNOOZED, 700)
LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "the worker died", "-", Reason.RECOVERED)


# --- the schedule -----------------------------------------------------------------------------------------


def test_due_jobs_go_to_ready_and_others_stay(shard: Shard) -> None:
    shard.enqueue(job("now", delay_ms=1000), job("later", delay_ms=1001))
    shard.elapse(1000)

    assert shard.promote() == (1, 0, START + 1001)

    shard.check("now", status="queued", place="r")
    shard.check("later", status="queued", place="schedule", due_in=1)
    assert shard.stats()["queued:normal"] == shard.stats()["scheduled:normal"] == 1
    assert shard.look().body("now") == {}
    assert shard.edges("now") == ["->queued"], "a move between places is no transition"


def test_a_due_retry_keeps_its_state_and_its_error_text(shard: Shard) -> None:
    shard.settle(shard.take("j"), RETRY)
    shard.elapse(700)

    assert shard.promote() == (1, 0, None)

    shard.check("j", status="retry_scheduled", place="r", attempt=1, error="transient timeout")
    assert shard.look().body("j") == {b"error": b"Timeout: x"}
    assert shard.claim_one().attempt == 2


def test_nothing_due_changes_nothing(shard: Shard) -> None:
    shard.put("j", delay_ms=1000)
    before = shard.look()

    assert shard.promote() == (0, 0, START + 1000)

    assert shard.look().without_times() == before.without_times()


def test_a_call_promotes_no_more_than_its_limit(shard: Shard) -> None:
    shard.enqueue(*(job(f"j{i}", delay_ms=10) for i in range(5)))
    shard.elapse(10)

    assert [shard.promote(limit=2)[0] for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize("late", [{"delay_ms": 100}, {"deadline_ms": 100}], ids=["due", "overdue"])
def test_a_call_moves_little_payload_and_says_that_there_is_more(shard: Shard, late: dict[str, Any]) -> None:
    """B56, R46: a hundred jobs of 256 kB in one call kept everybody waiting for 200 ms."""
    large = b"x" * 262_144
    shard.enqueue(*(job(f"j{n}", env=large, **late) for n in range(5)))
    shard.elapse(100)
    call = scripts.promote(clock=shard.clock, worker="keeper", retention_ms=RETENTION, limit=100)

    replies = [shard.send(call) for _ in range(3)]

    assert [promoted + expired for promoted, expired, _, _ in replies] == [2, 2, 1]
    assert [more for *_, more in replies] == [1, 1, 0]


@pytest.mark.parametrize("stray", ["running", "ready", "done", "unknown"])
def test_a_due_id_that_does_not_wait_in_the_schedule_is_dropped(shard: Shard, stray: str) -> None:
    shard.settle(shard.take("done"), Success())
    shard.take("running")
    shard.settle(shard.take("ready", lane="other"), RELEASE)
    shard.tampered.add(stray)
    state = shard.state(stray)
    shard.redis("ZADD", shard.keys.schedule, START, stray)

    assert shard.promote() == (0, 0, None)

    shard.tampered.clear()
    assert shard.state(stray) == state
    assert "schedule" not in shard.look().zsets


def test_a_parked_job_whose_envelope_is_gone_ends_as_a_dead_letter(shard: Shard) -> None:
    shard.put("j", delay_ms=10)
    shard.tampered.add("j")
    shard.redis("DEL", shard.keys.body("j"))
    shard.elapse(10)

    assert shard.promote() == (0, 0, None)

    shard.tampered.clear()
    shard.check("j", status="failed_terminal", dead="entry_deleted", place=None)


def test_a_parked_job_whose_record_cannot_be_read_becomes_a_dead_letter(shard: Shard) -> None:
    shard.put("j", delay_ms=10, deadline_ms=60_000)
    shard.tampered.add("j")
    shard.damage("j")
    shard.elapse(10)

    assert shard.promote() == (0, 0, None)
    assert shard.promote() == (0, 0, None)

    after = shard.look()
    assert after.streams["dlq"][shard.letter("j")][b"env"] == b"env of j"
    assert after.ttls["job:j"] > 0
    assert after.ttls["body:j"] > 0
    assert "schedule" not in after.zsets
    assert "deadlines" not in after.zsets


@pytest.mark.parametrize("delay_ms", [0, 200])
def test_an_unreadable_record_past_its_deadline_makes_one_dead_letter_with_its_envelope(
    shard: Shard, delay_ms: int
) -> None:
    shard.put("j", delay_ms=delay_ms, deadline_ms=100)
    shard.tampered.add("j")
    shard.damage("j")
    shard.elapse(200)

    shard.promote()
    shard.claim()

    assert shard.look().streams["dlq"][shard.letter("j")][b"env"] == b"env of j"
    assert not shard.look().streams.get("lane:normal")


# --- the deadline in every state --------------------------------------------------------------------------


def test_a_deadline_ends_what_waits_and_flags_what_is_held(shard: Shard) -> None:
    shard.put("claimed", deadline_ms=100)
    claimed = shard.claim_one()
    shard.put("processing", deadline_ms=100)
    shard.start(shard.claim_one())
    shard.put("retrying", deadline_ms=100)
    shard.settle(shard.claim_one(), Retry(50, ErrorClass.TRANSIENT, "timeout", ""))
    shard.put("done", deadline_ms=100)
    shard.settle(shard.claim_one(), Success())
    shard.enqueue(job("queued", deadline_ms=100), job("parked", deadline_ms=100, delay_ms=500))
    shard.put("free", deadline_ms=101)
    shard.elapse(100)

    assert shard.promote() == (0, 3, None)

    for job_id in ("retrying", "queued", "parked"):
        shard.check(job_id, status="failed_terminal", error="persistent expired", dead="expired", place=None)
    shard.check("claimed", status="claimed", flag="expired")
    shard.check("processing", status="processing", flag="expired")
    shard.check("done", status="succeeded", flag=None)
    shard.check("free", status="queued", flag=None)
    assert shard.heartbeat(claimed) == ("OK", [], ["claimed", "expired"])
    assert shard.look().zsets["deadlines"] == {"free": START + 101}


def test_a_job_that_is_due_and_past_its_deadline_expires(shard: Shard) -> None:
    shard.put("j", delay_ms=100, deadline_ms=100)
    shard.elapse(100)

    assert shard.promote() == (0, 1, None)

    shard.check("j", status="failed_terminal", dead="expired")
    assert "schedule" not in shard.look().zsets


def test_an_expired_job_that_was_delivered_and_not_claimed_leaves_the_pending_list(shard: Shard) -> None:
    shard.take("other")
    shard.put("j", deadline_ms=100)
    (offer,) = shard.deliver("w1")
    shard.elapse(100)

    shard.promote()

    assert offer[2] not in shard.look().pending["lane:normal"]
    assert shard.claim(offers=[offer]) == []


@pytest.mark.parametrize(
    ("outcome", "deadline_ms", "elapsed", "expected"),
    [
        pytest.param(Success(), 100, 200, "succeeded", id="a success wins"),
        pytest.param(FATAL, 100, 200, "bad", id="a failure keeps its own code"),
        pytest.param(RELEASE, 100, 200, "expired", id="a release after the deadline"),
        pytest.param(RELEASE, 100, 99, "queued", id="a release before it"),
        pytest.param(SNOOZE, 1000, 500, "expired", id="a snooze past the deadline"),
        pytest.param(SNOOZE, 1200, 500, "queued", id="a snooze up to the deadline"),
        pytest.param(RETRY, 1000, 500, "expired", id="a retry past the deadline"),
        pytest.param(RETRY, 1200, 500, "retry_scheduled", id="a retry up to the deadline"),
        pytest.param(RETRY, 100, 200, "expired", id="a retry after the deadline"),
    ],
)
def test_an_outcome_respects_the_deadline(
    shard: Shard, outcome: Outcome, deadline_ms: int, elapsed: int, expected: str
) -> None:
    claim = shard.take("j", deadline_ms=deadline_ms)
    shard.elapse(elapsed)

    assert shard.settle(claim, outcome) == "OK"

    state = shard.state("j")
    assert expected in (state["status"], state["dead"]), state


@pytest.mark.parametrize("flagged", [False, True])
def test_a_recovery_past_the_deadline_expires_the_job(shard: Shard, flagged: bool) -> None:
    shard.pass_hold()
    shard.take("j", deadline_ms=100)
    shard.elapse(LEASE)
    if flagged:
        assert shard.promote() == (0, 0, None)
    (candidate,) = shard.found_dead()

    assert shard.recovery(candidate, LOST) == "OK"

    shard.check("j", status="failed_terminal", dead="expired", strikes=1)


# --- cancel in every state --------------------------------------------------------------------------------


def queued(shard: Shard) -> None:
    shard.put("j", **KEYED)


def parked(shard: Shard) -> None:
    shard.put("j", delay_ms=1000, deadline_ms=5000, **KEYED)


def ready(shard: Shard) -> None:
    shard.settle(shard.take("j", **KEYED), RELEASE)


def retrying(shard: Shard) -> None:
    shard.settle(shard.take("j", **KEYED), RETRY)


def delivered(shard: Shard) -> None:
    shard.claim()
    shard.put("j", **KEYED)
    shard.deliver("w1")


def claimed(shard: Shard) -> None:
    shard.take("j", **KEYED)


def processing(shard: Shard) -> None:
    shard.start(shard.take("j", **KEYED))


def done(shard: Shard) -> None:
    shard.settle(shard.take("j", **KEYED), Success())


def dead(shard: Shard) -> None:
    shard.settle(shard.take("j", **KEYED), FATAL)


KEYED: dict[str, Any] = {"key_id": "add::k", "fingerprint": "f"}


@pytest.mark.parametrize("arrange", [queued, parked, ready, retrying, delivered])
def test_cancelling_what_nobody_holds_ends_it_at_once(shard: Shard, arrange: Callable[[Shard], None]) -> None:
    arrange(shard)

    assert shard.cancel("j") == "OK"

    shard.check("j", status="failed_terminal", error="persistent cancelled", place=None, key=None, dead=None)
    assert shard.history("j")[-1].actor == "operator"
    assert all(not entries for entries in shard.look().pending.values())
    assert shard.cancel("j") == "OK", "the same call sent again gets the same reply"
    assert len(shard.history("j")) == len({line.version for line in shard.history("j")})
    assert shard.claim() == []
    assert shard.put("next", **KEYED) == "ACCEPTED"


@pytest.mark.parametrize("arrange", [claimed, processing])
def test_cancelling_what_is_held_flags_it_for_its_holder(
    shard: Shard, arrange: Callable[[Shard], None]
) -> None:
    arrange(shard)
    before = shard.state("j")

    assert shard.cancel("j") == "FLAGGED"
    assert shard.cancel("j") == "FLAGGED"

    assert shard.state("j") == before | {"flag": "cancelled"}


@pytest.mark.parametrize(("arrange", "status"), [(done, "succeeded"), (dead, "failed_terminal")])
def test_cancelling_what_is_over_changes_nothing(
    shard: Shard, arrange: Callable[[Shard], None], status: str
) -> None:
    arrange(shard)
    before = shard.look()

    assert shard.cancel("j") == f"ALREADY {status}"

    assert shard.look().without_times() == before.without_times()


def test_cancelling_an_unknown_job_says_so(shard: Shard) -> None:
    assert shard.cancel("unknown") == "GONE"


def test_cancel_names_the_epoch_that_it_means(shard: Shard) -> None:
    queued(shard)

    assert shard.cancel("j", 1) == "ALREADY queued"
    assert shard.cancel("j", 0) == "OK"


def flagged(shard: Shard, **options: Any) -> Claim:
    claim = shard.take("j", **options)
    assert shard.cancel("j") == "FLAGGED"
    return claim


@pytest.mark.parametrize(
    ("outcome", "status", "error"),
    [
        pytest.param(Success(), "succeeded", None, id="a success wins"),
        pytest.param(RETRY, "failed_terminal", "persistent cancelled", id="retry"),
        pytest.param(FATAL, "failed_terminal", "persistent cancelled", id="fail"),
        pytest.param(RELEASE, "failed_terminal", "persistent cancelled", id="release"),
        pytest.param(SNOOZE, "failed_terminal", "persistent cancelled", id="snooze"),
    ],
)
def test_what_a_flagged_job_comes_to(shard: Shard, outcome: Outcome, status: str, error: str | None) -> None:
    claim = flagged(shard)
    assert shard.heartbeat(claim) == ("OK", [], ["j", "cancelled"])

    assert shard.settle(claim, outcome) == "OK"

    shard.check("j", status=status, error=error, dead=None)


def test_a_flagged_job_whose_worker_died_is_cancelled(shard: Shard) -> None:
    shard.pass_hold()
    flagged(shard)
    shard.elapse(LEASE)
    (candidate,) = shard.found_dead()

    assert shard.recovery(candidate, LOST) == "OK"

    shard.check("j", status="failed_terminal", error="persistent cancelled", dead=None)


def test_a_cancel_stands_though_the_deadline_passes_later(shard: Shard) -> None:
    claim = flagged(shard, deadline_ms=100)
    shard.elapse(200)
    shard.promote()

    assert shard.heartbeat(claim)[2] == ["j", "cancelled"]
