"""settle and exchange: each outcome from each held state, and who is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import events, settle_rows
from tests.lua.driver import LEASE, RETENTION, START, Shard, job

SUCCESS = Success(b"42")
RETRY = Retry(700, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")
FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")
RELEASE = Release(Reason.SHUTDOWN)
OUTCOMES: dict[str, Outcome] = {"S": SUCCESS, "R": RETRY, "F": FATAL, "L": RELEASE}
STARTED = ["->queued", "queued>claimed", "claimed>processing"]

#: What each outcome makes of a job on its first attempt, by outcome.
AFTER: dict[str, dict[str, Any]] = {
    "S": {"status": "succeeded", "attempt": 1, "place": None, "key": "succeeded", "error": None,
          "dead": None},
    "R": {"status": "retry_scheduled", "attempt": 1, "place": "schedule", "due_in": 700, "key": "open",
          "error": "transient timeout", "dead": None},
    "F": {"status": "failed_terminal", "attempt": 1, "place": None, "key": None, "error": "persistent bad",
          "dead": "bad"},
    "L": {"status": "queued", "attempt": 0, "place": "r", "key": "open", "error": None, "dead": None},
}  # fmt: skip


def take(shard: Shard, *, started: bool) -> Claim:
    claim = shard.take("j", key_id="add::k", fingerprint="f")
    if started:
        assert shard.start(claim) == "OK"
    return claim


@pytest.mark.parametrize("started", [False, True], ids=["claimed", "processing"])
@pytest.mark.parametrize("kind", OUTCOMES)
def test_an_outcome_moves_the_job(shard: Shard, kind: str, started: bool) -> None:
    claim = take(shard, started=started)

    assert shard.settle(claim, OUTCOMES[kind]) == "OK"

    shard.check("j", starts=1, strikes=0, held=False, owner=None, **AFTER[kind])
    assert shard.edges("j") == [*STARTED, f"processing>{AFTER[kind]['status']}"]
    assert claim.entry not in shard.look().streams["lane:normal"]
    assert claim.entry not in shard.look().pending["lane:normal"]


@pytest.mark.parametrize("kind", ["R", "F", "L"])
def test_a_handler_that_did_not_run_leaves_no_start_mark(shard: Shard, kind: str) -> None:
    claim = take(shard, started=False)

    assert shard.settle(claim, OUTCOMES[kind], ago=None) == "OK"

    assert shard.edges("j") == ["->queued", "queued>claimed", f"claimed>{AFTER[kind]['status']}"]
    shard.check("j", **AFTER[kind])


def test_a_success_always_passes_through_processing(shard: Shard) -> None:
    claim = take(shard, started=False)

    assert shard.settle(claim, SUCCESS, ago=None) == "OK"

    assert shard.edges("j") == [*STARTED, "processing>succeeded"]


def test_a_start_mark_extends_the_lease_and_dates_the_start(shard: Shard) -> None:
    claim = shard.take("j")
    shard.elapse(5_000)

    assert shard.start(claim, ago=20) == "OK"

    shard.check("j", status="processing", lease_in=LEASE, attempt=1)
    line = shard.history("j")[-1]
    assert (line.offset_ms, line.reason, line.fence) == (-20, "started", claim.fence)
    assert shard.record("j").number("sa") == START + 5_000 - 20


def test_a_start_that_is_told_in_the_settle_has_its_own_time(shard: Shard) -> None:
    claim = shard.take("j")

    shard.settle(claim, SUCCESS, ago=7)

    assert [(line.target, line.offset_ms) for line in shard.history("j")[2:]] == [
        ("processing", -7),
        ("succeeded", 0),
    ]


def test_the_start_in_the_line_of_a_release_is_of_the_attempt_that_ran(shard: Shard) -> None:
    shard.settle(shard.take("j"), RELEASE, ago=7)

    assert [(line.target, line.attempt) for line in shard.history("j")[2:]] == [
        ("processing", 1),
        ("queued", 0),
    ]


def test_the_log_says_from_what_a_due_time_follows(shard: Shard) -> None:
    shard.settle(shard.take("j"), RETRY)

    line = shard.history("j")[-1]
    assert line.details == {
        "class": "transient",
        "code": "timeout",
        "due": str(START + 700),
        "policy": "p1",
    }
    assert (line.reason, line.attempt, line.actor, line.script) == ("error", 1, "w1", "settle")


def test_a_retry_that_is_due_at_once_goes_to_ready_as_a_retry(shard: Shard) -> None:
    shard.settle(shard.take("j"), replace(RETRY, delay_ms=0))

    shard.check("j", status="retry_scheduled", place="r")


def test_a_release_with_a_delay_waits_in_the_schedule_as_queued(shard: Shard) -> None:
    shard.settle(shard.take("j"), Release(Reason.SNOOZED, 900))

    shard.check("j", status="queued", place="schedule", due_in=900, attempt=0, starts=1)
    assert shard.history("j")[-1].details == {"due": str(START + 900)}


@pytest.mark.parametrize(("size", "in_record"), [(0, False), (64, True), (65, False), (5_000, False)])
def test_a_long_result_has_the_body(shard: Shard, size: int, in_record: bool) -> None:
    result = b"x" * size

    shard.settle(shard.take("j"), Success(result))

    assert ("re" in shard.record("j").fields) == in_record
    assert shard.look().body("j") == ({b"result": result} if size > 64 else {})
    assert shard.watch("j") == [b"succeeded", result, b"", b""]


@pytest.mark.parametrize("kind", ["S", "F"])
def test_a_finished_job_expires_with_its_body(shard: Shard, kind: str) -> None:
    claim = take(shard, started=True)
    shard.settle(claim, RETRY)
    shard.elapse(700)
    shard.promote()
    again = shard.claim_one()

    shard.settle(again, Success(b"x" * 100) if kind == "S" else FATAL)

    lives = shard.look().ttls
    for name in ("job:j", "body:j"):
        assert RETENTION - 5_000 < lives[name] <= RETENTION


def test_a_dead_letter_carries_what_an_operator_needs(shard: Shard) -> None:
    shard.put("j", tenant="acme", key_id="add::k", fingerprint="f", window_ms=5_000, max_starts=7)
    claim = shard.claim_one()
    shard.elapse(100)

    shard.settle(claim, FATAL)

    (letter,) = shard.look().dead_letters().values()
    assert letter == {
        "id": "j", "task": "add", "lane": "normal", "tenant": "acme", "class": "persistent", "code": "bad",
        "reason": "error", "error": "Bad: x", "attempt": "1", "starts": "1", "strikes": "0", "epoch": "0",
        "version": "4", "at": str(START), "dead_at": str(START + 100), "worker": "w1", "ky": "add::k",
        "kf": "f", "kw": "5000", "ms": "7",
    }  # fmt: skip
    assert shard.record("j").text("dq") == shard.letter("j")
    assert shard.stats()["dead:normal:add"] == 1


@pytest.mark.parametrize("code", ["cancelled", "discarded", "superseded"])
def test_quiet_codes_make_no_dead_letter(shard: Shard, code: str) -> None:
    shard.settle(shard.take("j"), Fail(ErrorClass.PERSISTENT, code, "", Reason.CANCELLED))

    shard.check("j", status="failed_terminal", error=f"persistent {code}", dead=None)
    assert "dlq" not in shard.look().streams


def test_an_unknown_task_is_bounded_by_age_and_not_by_starts(shard: Shard) -> None:
    shard.put("j", max_starts=2)
    for turn in range(4):
        claim = shard.claim_one()
        assert claim.unknown_age_ms == (None if turn == 0 else turn * 1000)
        shard.settle(claim, Release(Reason.UNKNOWN_TASK, 1000), ago=None)
        shard.elapse(1000)
        assert shard.promote()[0] == 1

    shard.check("j", status="queued", starts=0, attempt=0)
    shard.settle(shard.claim_one(), RELEASE)
    assert shard.claim_one().unknown_age_ms is None, "a worker that knows the task ends that age"


# --- who is refused ---------------------------------------------------------------------------------------


def rows_of(claim: Claim) -> dict[str, tuple[Any, ...]]:
    return {"M": settle_rows.mark_row(claim, 20)} | {
        kind: settle_rows.outcome_row(claim, outcome, 5) for kind, outcome in OUTCOMES.items()
    }


@pytest.mark.parametrize("kind", "MSRFL")
def test_a_stale_fence_is_refused_by_every_kind_of_settle(shard: Shard, kind: str) -> None:
    old = shard.take("j")
    shard.settle(old, replace(RELEASE, delay_ms=0))
    new = shard.claim_one("w2")
    shard.settle(new, RELEASE)
    newest = shard.claim_one("w2")
    before = shard.look()

    assert shard.settle_rows(rows_of(old)[kind]) == ["STALE"]
    verdict, claims, replies = shard.exchange(rows_of(old)[kind])

    assert (verdict, claims, replies) == ("OK", [], ["STALE"])
    assert shard.heartbeat(old) == ("OK", ["j"], [])
    assert shard.look().without_times() == before.without_times()
    assert shard.settle(newest, SUCCESS) == "OK"


def test_a_fence_of_zero_names_no_claim(shard: Shard) -> None:
    shard.put("j")

    assert shard.settle_rows(("S 0 5 returned", "j", b"")) == ["STALE"]

    shard.check("j", status="queued")


@pytest.mark.parametrize("kind", "MSRFL")
def test_a_job_that_is_gone_is_said_to_be_gone(shard: Shard, kind: str) -> None:
    claim = shard.take("j")
    shard.settle(claim, SUCCESS)
    shard.forget_record("j")

    assert shard.settle_rows(rows_of(claim)[kind]) == ["GONE"]
    assert shard.heartbeat(claim) == ("OK", ["j"], [])


@pytest.mark.parametrize(
    ("kind", "name"), [("S", "succeeded"), ("R", "retry"), ("F", "failed"), ("L", "released")]
)
@pytest.mark.parametrize("again", "SRFL")
def test_a_claim_that_was_settled_hears_what_it_came_to(
    shard: Shard, kind: str, name: str, again: str
) -> None:
    claim = shard.take("j")
    shard.settle_rows(rows_of(claim)[kind])
    before = shard.look()

    assert shard.settle_rows(rows_of(claim)[again]) == [f"ALREADY {name}"]

    assert shard.look().without_times() == before.without_times()


def test_a_settle_is_remembered_until_the_next_claim_is_settled(shard: Shard) -> None:
    first = shard.take("j")
    shard.settle(first, RELEASE)
    second = shard.claim_one()
    assert shard.settle(first, SUCCESS) == "ALREADY released"

    shard.settle(second, SUCCESS)

    assert shard.settle(second, SUCCESS) == "ALREADY succeeded"
    assert shard.settle(first, SUCCESS) == "STALE"


def test_a_mark_that_comes_after_the_end_changes_nothing(shard: Shard) -> None:
    claim = shard.take("j")
    shard.settle(claim, SUCCESS)

    assert shard.start(claim) == "ALREADY succeeded"

    shard.check("j", status="succeeded")


def test_a_claim_that_was_recovered_is_stale_for_its_first_holder(shard: Shard) -> None:
    shard.pass_hold()
    claim = shard.take("j")
    shard.elapse(LEASE)
    (dead,) = shard.found_dead()
    shard.recovery(dead, replace(RETRY, reason=Reason.RECOVERED))

    assert shard.settle(claim, SUCCESS) == "STALE", "its success was not recorded"


# --- batches ----------------------------------------------------------------------------------------------


def test_rows_are_answered_in_order_and_see_each_other(shard: Shard) -> None:
    shard.enqueue(job("a"), job("b"), job("c"))
    a, b, c = shard.claim()

    replies = shard.settle_rows(
        settle_rows.mark_row(a, 30),
        settle_rows.outcome_row(b, RETRY, 5),
        settle_rows.outcome_row(a, SUCCESS, 30),
        settle_rows.outcome_row(a, FATAL, 30),
        settle_rows.outcome_row(replace(c, fence=c.fence + 99), SUCCESS, 5),
        settle_rows.outcome_row(replace(c, job_id="unknown"), SUCCESS, 5),
    )

    assert replies == ["OK", "OK", "OK", "ALREADY succeeded", "STALE", "GONE"]
    assert shard.edges("a") == [*STARTED, "processing>succeeded"]
    shard.check("c", status="claimed")
    assert len(shard.look().streams["events"]) == 3, "one entry for each call, however many jobs it moved"


def test_an_exchange_settles_and_claims_in_one_step(shard: Shard) -> None:
    claim = shard.take("a")
    shard.put("b")

    verdict, claims, replies = shard.exchange(settle_rows.outcome_row(claim, SUCCESS, 5), limit=5)

    assert (verdict, [one.job_id for one in claims], replies) == ("OK", ["b"], ["OK"])
    last = list(shard.look().streams["events"].values())[-1]
    assert last[b"s"] == b"exchange"
    moves = [(move.job_id, move.from_status, move.to_status) for move in events.decode(last)]
    assert moves == [
        ("a", "claimed", "processing"),
        ("a", "processing", "succeeded"),
        ("b", "queued", "claimed"),
    ]


def test_an_exchange_of_an_older_session_settles_and_claims_nothing(shard: Shard) -> None:
    claim = shard.take("a")
    shard.put("b")
    shard.session()

    verdict, claims, replies = shard.exchange(settle_rows.outcome_row(claim, SUCCESS, 5), limit=5, session=1)

    assert (verdict, claims, replies) == ("NOSESSION", [], ["OK"])
    shard.check("a", status="succeeded")
    shard.check("b", status="queued")


def test_an_exchange_does_not_claim_what_it_released(shard: Shard) -> None:
    claim = shard.take("a")

    _, claims, replies = shard.exchange(
        settle_rows.outcome_row(claim, RELEASE, 5), limit=5, offers=[shard.offer_of(claim)]
    )

    assert (claims, replies) == ([], ["OK"])
    shard.check("a", status="queued", place="r")


# --- strikes (D22) ----------------------------------------------------------------------------------------


def struck(shard: Shard) -> Claim:
    """A claim of a job that has one strike."""
    shard.pass_hold()
    shard.take("j")
    shard.elapse(LEASE)
    (dead,) = shard.found_dead()
    shard.recovery(dead, replace(RETRY, delay_ms=0, reason=Reason.RECOVERED))
    claim = shard.claim_one("w2", plan="normal 1 0 q")
    assert claim.strikes == 1
    return claim


@pytest.mark.parametrize(
    ("kind", "ago", "strikes"),
    [("S", 5, 0), ("R", 5, 0), ("F", 5, 0), ("L", 5, 1), ("R", None, 1), ("F", None, 1), ("L", None, 1)],
)
def test_only_the_outcome_of_a_handler_that_ran_clears_strikes(
    shard: Shard, kind: str, ago: int | None, strikes: int
) -> None:
    claim = struck(shard)

    assert shard.settle(claim, OUTCOMES[kind], ago=ago) == "OK"

    shard.check("j", strikes=strikes)
    if kind == "L":
        shard.check("j", place="q")


DIED = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "killed by SIGSEGV", "p1", Reason.DIED)


@pytest.mark.parametrize("marked", [False, True])
def test_a_death_of_the_handlers_process_strikes_at_once(shard: Shard, marked: bool) -> None:
    """Neither the lease nor the version is looked at: the owner itself says so."""
    claim = struck(shard)
    if marked:
        shard.start(claim)

    assert shard.settle(claim, DIED, ago=5) == "OK"

    shard.check("j", status="retry_scheduled", place="q", strikes=2, attempt=claim.attempt)
    assert shard.edges("j")[-2:] == ["claimed>processing", "processing>retry_scheduled"]
    assert shard.stats()["died:normal:add"] == 1


def test_a_first_death_of_the_handlers_process_leads_to_quarantine(shard: Shard) -> None:
    claim = shard.take("j")

    assert shard.settle(claim, DIED, ago=5) == "OK"

    shard.check("j", place="q", strikes=1, attempt=1)


def test_a_death_may_bury_the_job(shard: Shard) -> None:
    claim = struck(shard)

    assert shard.settle(claim, Fail(ErrorClass.UNKNOWN, "crash_loop", "x", Reason.DIED), ago=5) == "OK"

    shard.check("j", status="failed_terminal", dead="crash_loop", strikes=2)


def test_a_death_that_is_told_twice_strikes_once(shard: Shard) -> None:
    claim = struck(shard)
    shard.settle(claim, DIED, ago=5)

    assert shard.settle(claim, DIED, ago=5) == "ALREADY retry"

    shard.check("j", strikes=2)


def test_a_death_under_a_stale_fence_changes_nothing(shard: Shard) -> None:
    claim = struck(shard)

    assert shard.settle(replace(claim, fence=claim.fence - 1), DIED, ago=5) == "STALE"

    shard.check("j", status="claimed", strikes=1)


def test_a_start_mark_keeps_the_strikes(shard: Shard) -> None:
    claim = struck(shard)

    shard.start(claim)

    shard.check("j", status="processing", strikes=1)


def test_a_struck_job_returns_from_the_schedule_to_quarantine(shard: Shard) -> None:
    claim = struck(shard)
    shard.settle(claim, Release(Reason.SNOOZED, 500))
    shard.elapse(500)

    shard.promote()

    shard.check("j", place="q", strikes=1)
