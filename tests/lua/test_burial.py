"""A job whose effect may be committed is looked at before anybody ends it, whatever the cause (D14)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import settle_rows
from tests.lua.driver import LEASE, Shard, job, plan_of

FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")
AGAIN = Retry(700, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")
DEAD = Fail(ErrorClass.UNKNOWN, "crash_loop", "its worker is gone", Reason.RECOVERED)
#: What the look came to.
COMMITTED = Success(b"17", Reason.EFFECT_COMMITTED)
NOTHING = Fail(ErrorClass.UNKNOWN, "buried", "", Reason.BURIED)
NOBODY_KNOWS = Retry(30_000, ErrorClass.UNKNOWN, "buried", "", "-", Reason.BURIAL_WAITS)


def with_effects(shard: Shard, task: str = "add") -> None:
    """A worker has said that this task commits effects."""
    shard.redis("HSET", shard.keys.policies, f"effects:{task}", "1")


def own_failure(shard: Shard) -> None:
    shard.settle(shard.take("j"), FATAL)


def third_death(shard: Shard) -> None:
    shard.settle(shard.take("j"), Retry(0, ErrorClass.UNKNOWN, "worker_lost", "x", "p", Reason.DIED))
    claim = shard.claim_one(plan=plan_of(("normal", 1, 0, "q")))
    shard.start(claim)
    shard.pass_hold()
    shard.elapse(LEASE + 1)
    (found,) = shard.found_dead(kind="q")
    assert shard.recovery(found, DEAD).startswith("OK")


def cancelled_while_it_waits(shard: Shard) -> None:
    shard.settle(shard.take("j"), AGAIN)
    assert shard.cancel("j") == "FLAGGED"
    assert shard.cancel("j") == "FLAGGED"


def cancelled_while_it_ran(shard: Shard) -> None:
    claim = shard.take("j")
    shard.cancel("j")
    shard.settle(claim, AGAIN)


def deadline_while_it_waits(shard: Shard) -> None:
    shard.settle(shard.take("j", deadline_ms=5_000), AGAIN)
    shard.elapse(5_000)
    assert shard.promote()[:2] == (0, 1)


def deadline_when_it_is_claimed(shard: Shard) -> None:
    shard.settle(shard.take("j", deadline_ms=5_000), Release(Reason.SHUTDOWN))
    shard.elapse(5_000)
    assert shard.claim() == []


def too_many_starts(shard: Shard) -> None:
    shard.settle(shard.take("j", max_starts=1), Release(Reason.SHUTDOWN))
    assert shard.claim() == []


CAUSES: list[tuple[Callable[[Shard], None], str]] = [
    (own_failure, "persistent bad"),
    (third_death, "unknown crash_loop"),
    (cancelled_while_it_waits, "persistent cancelled"),
    (cancelled_while_it_ran, "persistent cancelled"),
    (deadline_while_it_waits, "persistent expired"),
    (deadline_when_it_is_claimed, "persistent expired"),
    (too_many_starts, "unknown too_many_starts"),
]


def claim_for_burial(shard: Shard) -> Claim:
    (claim,) = shard.claim()
    assert claim.bury
    assert claim.gates == ""
    return claim


@pytest.mark.parametrize("cause", CAUSES)
def test_a_job_with_effects_is_looked_at_before_it_ends(
    shard: Shard, cause: tuple[Callable[[Shard], None], str]
) -> None:
    with_effects(shard)
    bring_about, ends_as = cause

    bring_about(shard)
    before = shard.record("j")
    claim = claim_for_burial(shard)
    held = shard.record("j")
    assert claim.cause.partition(" ")[2] == ends_as
    assert shard.settle(claim, NOTHING, ago=None) == "OK"

    assert (held.attempt, held.starts) == (before.attempt, before.starts), "a look is charged to nobody"
    shard.check("j", status="failed_terminal", place=None)
    assert shard.record("j").text("ec") == ends_as
    assert shard.record("j").text("bu") is None
    assert shard.history("j")[-2].reason == "burial"


@pytest.mark.parametrize("cause", CAUSES)
def test_a_committed_effect_wins_over_burial(
    shard: Shard, cause: tuple[Callable[[Shard], None], str]
) -> None:
    with_effects(shard)
    cause[0](shard)

    assert shard.settle(claim_for_burial(shard), COMMITTED, ago=None) == "OK"

    shard.check("j", status="succeeded", place=None)
    assert shard.record("j").text("re") == "17"
    assert shard.record("j").text("bu") is None
    assert shard.history("j")[-1].reason == "effect_committed"


@pytest.mark.parametrize("cause", CAUSES)
def test_without_effects_it_ends_at_once(shard: Shard, cause: tuple[Callable[[Shard], None], str]) -> None:
    with_effects(shard, task="another")
    if cause[0] is cancelled_while_it_waits:
        shard.settle(shard.take("j"), AGAIN)
        assert shard.cancel("j") == "OK"
    else:
        cause[0](shard)

    shard.check("j", status="failed_terminal")
    assert shard.record("j").text("ec") == cause[1]


def test_a_job_that_never_started_ends_at_once(shard: Shard) -> None:
    with_effects(shard)
    shard.put("j")

    assert shard.cancel("j") == "OK"

    shard.check("j", status="failed_terminal")


def test_the_error_of_the_attempt_is_that_of_the_dead_letter(shard: Shard) -> None:
    with_effects(shard)
    own_failure(shard)

    shard.settle(claim_for_burial(shard), NOTHING, ago=None)

    fields = shard.look().streams["dlq"][shard.letter("j")]
    assert (fields[b"error"], fields[b"reason"], fields[b"code"]) == (b"Bad: x", b"error", b"bad")


def test_while_nobody_can_look_it_waits_and_holds_nothing(shard: Shard) -> None:
    with_effects(shard)
    gates = "1 entity:order:7|strict"
    shard.settle(shard.take("j", gates=gates, key_id="add::k", fingerprint="f"), FATAL)

    assert shard.settle(claim_for_burial(shard), NOBODY_KNOWS, ago=None) == "OK"

    shard.check("j", status="retry_scheduled", place="schedule", due_in=30_000, attempt=1, starts=1)
    assert shard.take("other", gates=gates).job_id == "other", "its lock is free"
    shard.elapse(30_000)
    shard.promote()
    shard.settle(claim_for_burial(shard), COMMITTED, ago=None)
    shard.check("j", status="succeeded")


@pytest.mark.parametrize(
    "outcome",
    [
        Release(Reason.SHUTDOWN),
        Fail(ErrorClass.PERSISTENT, "cancelled", "x", Reason.CANCELLED),
        AGAIN,
    ],
)
def test_what_is_no_answer_hands_it_back_as_it_was(shard: Shard, outcome: Outcome) -> None:
    with_effects(shard)
    own_failure(shard)

    assert shard.settle(claim_for_burial(shard), outcome, ago=None).startswith("OK")

    shard.check("j", status="queued", place="r", attempt=1, starts=1)
    assert claim_for_burial(shard).job_id == "j"


def test_a_worker_that_dies_while_it_looks_adds_no_strike(shard: Shard) -> None:
    with_effects(shard)
    own_failure(shard)
    claim_for_burial(shard)
    shard.pass_hold()
    shard.elapse(LEASE + 1)

    (found,) = shard.found_dead(kind="r")
    assert shard.recovery(found, DEAD) == "OK burial", "it has not failed yet"

    shard.check("j", status="queued", place="r", strikes=0)
    assert claim_for_burial(shard).job_id == "j"


def test_a_struck_job_is_looked_at_where_others_run(shard: Shard) -> None:
    with_effects(shard)
    third_death(shard)

    shard.check("j", status="retry_scheduled", place="r", strikes=2)


def test_a_look_passes_no_gate_and_no_pause(shard: Shard) -> None:
    with_effects(shard)
    gates = "1 concurrency:x|1"
    shard.settle(shard.take("j", gates=gates), FATAL)
    shard.tune("pause", "task:add")
    shard.redis("HSET", shard.keys.policies, "limit:concurrency:x", "0")

    assert shard.settle(claim_for_burial(shard), COMMITTED, ago=None) == "OK"

    shard.check("j", status="succeeded")


def test_a_parked_job_that_is_cancelled_leaves_its_gate(shard: Shard) -> None:
    with_effects(shard)
    gates = "1 concurrency:x|1"
    shard.settle(shard.take("j", gates=gates), AGAIN)
    shard.take("other", gates=gates)
    shard.elapse(700)
    shard.promote()
    assert shard.claim() == []
    assert shard.record("j").gate == "concurrency:x"

    assert shard.cancel("j") == "FLAGGED"

    assert shard.settle(claim_for_burial(shard), NOTHING, ago=None) == "OK"
    shard.check("j", status="failed_terminal")


def test_a_look_whose_reply_was_lost_is_the_same_claim_again(shard: Shard) -> None:
    with_effects(shard)
    own_failure(shard)
    first = claim_for_burial(shard)
    shard.session()

    (again,) = shard.claim(offers=[shard.offer_of(first)])
    shard.session()
    shard.claim(offers=[shard.offer_of(again)], limit=0)

    assert again.bury
    assert again.attempt == first.attempt == 1
    shard.check("j", status="queued", place="r", attempt=1, starts=1)


def test_a_job_whose_deadline_passes_while_it_is_to_be_buried_is_left_alone(shard: Shard) -> None:
    with_effects(shard)
    shard.settle(shard.take("j", deadline_ms=5_000), FATAL)
    shard.elapse(5_000)

    assert shard.promote()[:2] == (0, 0)

    shard.settle(claim_for_burial(shard), NOTHING, ago=None)
    assert shard.record("j").text("ec") == "persistent bad"


def test_the_first_cause_stands(shard: Shard) -> None:
    with_effects(shard)
    cancelled_while_it_waits(shard)
    own = shard.record("j").version

    assert shard.cancel("j") == "FLAGGED"

    assert shard.record("j").version == own
    assert [line for line in shard.audits() if "burial" in line] == ["j 0 burial_requested"]


def test_a_tenants_other_jobs_do_not_hold_a_look_up(shard: Shard) -> None:
    with_effects(shard)
    claim = shard.take("j", tenant="acme")
    shard.enqueue(*(job(f"n{number}", tenant="acme") for number in range(40)))

    shard.settle(claim, FATAL)

    shard.check("j", status="retry_scheduled", place="r")


def test_a_look_may_come_after_the_deadline(shard: Shard) -> None:
    with_effects(shard)
    shard.settle(shard.take("j", deadline_ms=5_000), FATAL)
    shard.elapse(6_000)

    assert shard.settle(claim_for_burial(shard), NOBODY_KNOWS, ago=None) == "OK"


def test_a_look_that_finds_no_slot_after_the_deadline_is_handed_back(shard: Shard) -> None:
    with_effects(shard)
    shard.settle(shard.take("j", deadline_ms=5_000), FATAL)
    first = claim_for_burial(shard)
    shard.elapse(6_000)
    shard.session()

    shard.claim(offers=[shard.offer_of(first)], limit=0)

    shard.check("j", status="queued", place="r", attempt=1)


def test_without_its_envelope_nobody_can_look(shard: Shard) -> None:
    with_effects(shard)
    own_failure(shard)
    claim = claim_for_burial(shard)
    shard.delete_entry("j")
    head, job_id, text, _ = settle_rows.outcome_row(claim, Release(Reason.SHUTDOWN), None)

    assert shard.settle_rows((head, job_id, text, b"")) == ["OK"]

    shard.check("j", status="failed_terminal")
    assert shard.record("j").text("ec") == "unknown entry_deleted"


def test_a_job_that_is_due_and_too_late_is_made_ready_once(shard: Shard) -> None:
    with_effects(shard)
    shard.settle(shard.take("j", deadline_ms=5_000), AGAIN)
    shard.elapse(5_000)

    assert shard.promote()[:2] == (0, 1)


def test_a_replayed_job_runs(shard: Shard) -> None:
    with_effects(shard)
    own_failure(shard)
    shard.settle(claim_for_burial(shard), NOTHING, ago=None)

    assert shard.replay(shard.letter("j")) == ["OK"]

    assert not shard.claim_one().bury


def test_a_failure_that_is_put_off_is_no_failure_yet(shard: Shard) -> None:
    claim = shard.take("i")
    assert shard.settle(claim, FATAL) == "OK"
    with_effects(shard)

    claim = shard.take("j")

    assert shard.settle(claim, FATAL) == "OK burial"
    assert shard.settle(claim, FATAL) == "ALREADY retry", "as does a settle that is sent twice"


@pytest.mark.parametrize("found", [COMMITTED, NOTHING])
def test_a_look_is_no_start_of_a_handler(shard: Shard, found: Outcome) -> None:
    with_effects(shard)
    claim = shard.take("j")
    began = shard.now
    shard.elapse(500)
    shard.settle(claim, FATAL, ago=500)
    shard.elapse(2_000)

    assert shard.settle(claim_for_burial(shard), found, ago=None) == "OK"

    assert shard.record("j").started_at == began
    assert shard.record("j").finished_at == shard.now
