"""recover: only what is dead is taken, and a live worker keeps its job whatever a sweep believes (D6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamworker.core.job import Candidate, Claim
from streamworker.core.outcome import Fail, Release, Retry
from streamworker.core.states import ErrorClass, Reason
from tests.lua.driver import LEASE, Shard, job

AGAIN = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "the worker died", "-", Reason.RECOVERED)
BURY = Fail(ErrorClass.UNKNOWN, "crash_loop", "three strikes", Reason.RECOVERED)


def dead_claim(shard: Shard, *, started: bool = True) -> tuple[Claim, Candidate]:
    """A job whose worker died, and what a sweep finds of it."""
    shard.pass_hold()
    claim = shard.take("j")
    if started:
        shard.start(claim)
    shard.elapse(LEASE)
    (candidate,) = shard.found_dead()
    return claim, candidate


# --- the hold after an outage -----------------------------------------------------------------------------


def test_the_first_sweep_holds_for_one_lease(shard: Shard) -> None:
    shard.take("j")
    shard.elapse(2 * LEASE, swept=False)

    assert shard.recover() == (LEASE, True, [])
    shard.elapse(LEASE // 2, swept=False)
    assert shard.recover() == (LEASE // 2, True, [])
    shard.elapse(LEASE // 2, swept=False)

    hold, _, found = shard.recover()
    assert (hold, [one.job_id for one in found]) == (0, ["j"])


def test_a_gap_between_sweeps_is_an_outage_and_holds_again(shard: Shard) -> None:
    shard.pass_hold()
    shard.take("j")

    shard.elapse(LEASE + 1, swept=False)

    assert shard.recover() == (LEASE, True, []), "healthy workers could not renew either"


def test_a_second_outage_adds_up_and_does_not_start_the_hold_anew(shard: Shard) -> None:
    shard.recover()
    shard.elapse(LEASE // 2, swept=False)
    shard.recover()

    shard.elapse(10 * LEASE, swept=False)

    assert shard.recover()[0] == LEASE // 2


def test_sweeps_that_always_come_late_recover_all_the_same(shard: Shard) -> None:
    """On a machine that is too busy to sweep in time: the first two of them hold, the third recovers."""
    shard.pass_hold()
    shard.take("j")

    found = []
    for _ in range(3):
        shard.elapse(LEASE * 3 // 4, swept=False)
        hold, _, dead = shard.recover()
        found.append((hold, [one.job_id for one in dead]))

    assert found == [(LEASE, []), (LEASE // 2, []), (0, ["j"])]


def test_a_clock_that_jumps_back_is_an_outage(shard: Shard) -> None:
    shard.pass_hold()

    shard.now -= 1

    assert shard.recover()[0] == LEASE


def test_a_sweep_in_time_does_not_hold(shard: Shard) -> None:
    shard.pass_hold()

    shard.elapse(LEASE // 2, swept=False)

    assert shard.recover() == (0, True, [])


# --- what a sweep finds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("started", "status"), [(False, "claimed"), (True, "processing")])
def test_a_dead_claim_is_named_with_all_that_decides_its_fate(
    shard: Shard, started: bool, status: str
) -> None:
    _, candidate = dead_claim(shard, started=started)

    record = shard.record("j")
    assert (candidate.job_id, candidate.fence, candidate.version) == ("j", record.fence, record.version)
    assert (candidate.status, candidate.attempt, candidate.starts, candidate.strikes) == (status, 1, 1, 0)
    assert (candidate.lane, candidate.task, candidate.worker) == ("normal", "add", "w1")
    shard.check("j", status=status, held=True, owner="keeper")


def test_a_live_lease_goes_back_to_its_holder_and_is_found_when_it_runs_out(shard: Shard) -> None:
    shard.pass_hold()
    claim = shard.take("j")
    shard.elapse(LEASE - 1000)
    shard.heartbeat(claim)
    shard.redis(
        "XCLAIM", shard.keys.stream("normal"), "workers", "w1", 0, claim.entry, "IDLE", LEASE, "JUSTID"
    )
    shard.elapse(10_000)

    assert shard.found_dead() == []

    shard.check("j", status="claimed", owner="w1", lease_in=LEASE - 10_000)
    idle = shard.look().pending["lane:normal"][claim.entry].idle_ms
    assert 10_000 <= idle < 12_000, "idle reaches the lease when the lease runs out"
    shard.elapse(LEASE - 10_000)
    assert [one.job_id for one in shard.found_dead()] == ["j"]


@pytest.mark.parametrize("started", [False, True])
def test_a_lease_far_in_the_future_is_clamped(shard: Shard, started: bool) -> None:
    shard.now += 10 * LEASE
    claim = shard.take("j")
    if started:
        shard.start(claim)
    shard.now -= 10 * LEASE
    shard.pass_hold()
    shard.elapse(LEASE)

    assert shard.found_dead() == []

    shard.check("j", lease_in=2 * LEASE, owner="w1")
    shard.elapse(2 * LEASE)
    assert [one.job_id for one in shard.found_dead()] == ["j"]


def test_a_delivery_that_was_never_claimed_goes_to_ready_uncharged(shard: Shard) -> None:
    shard.pass_hold()
    shard.take("other")
    shard.put("j")
    shard.deliver("w1")
    shard.elapse(LEASE)

    found = shard.found_dead()

    assert [one.job_id for one in found] == ["other"]
    shard.check("j", status="queued", place="r", attempt=0, starts=0, strikes=0)
    assert shard.edges("j") == ["->queued"]


def test_stale_entries_are_removed_and_counted(shard: Shard) -> None:
    shard.pass_hold()
    shard.take("other")
    shard.enqueue(job("missing"), job("moved"), job("done"))
    shard.tampered |= {"missing", "moved", "done"}
    offers = shard.deliver("w1")
    shard.forget_record("missing")
    shard.rewrite("moved", en="a:1-1")
    shard.rewrite("done", "succeeded")
    shard.elapse(LEASE)

    assert [one.job_id for one in shard.found_dead()] == ["other"]

    left = shard.look().streams["lane:normal"]
    assert [offer[2] for offer in offers if offer[2] in left] == []
    counters = shard.stats()
    assert counters["claims:missing"] == counters["claims:conflict"] == counters["claims:final"] == 1


def test_an_unreadable_record_is_left_to_a_claim(shard: Shard) -> None:
    shard.pass_hold()
    claim = shard.take("j")
    shard.elapse(LEASE)
    shard.tampered.add("j")
    shard.damage("j")

    assert shard.found_dead() == []
    assert shard.claim("keeper", offers=[shard.offer_of(claim)]) == []

    assert shard.look().streams["dlq"][shard.letter("j")][b"env"] == b"env of j"
    assert shard.look().streams["lane:normal"] == {}


def test_a_deleted_entry_is_dropped_from_the_pending_list_and_counted(shard: Shard) -> None:
    shard.pass_hold()
    shard.take("j")
    shard.elapse(LEASE)
    shard.delete_entry("j")

    assert shard.found_dead() == []

    assert shard.look().pending["lane:normal"] == {}
    assert shard.stats()["claims:missing"] == 1
    shard.check("j", status="claimed", place=None)


def test_a_lane_without_stream_has_nothing_pending(shard: Shard) -> None:
    shard.pass_hold()

    assert shard.recover("nowhere", "q") == (0, True, [])


@pytest.mark.parametrize("kind", ["r", "q"])
def test_ready_and_quarantine_are_swept_as_well(shard: Shard, kind: str) -> None:
    _, candidate = dead_claim(shard)
    shard.recovery(candidate, AGAIN)
    claim = shard.claim_one("w2", plan="normal 1 0 q")
    if kind == "r":
        shard.settle(claim, replace(AGAIN, reason=Reason.ERROR))
        claim = shard.claim_one("w2")
    assert claim.kind == kind
    shard.elapse(LEASE)

    assert [one.job_id for one in shard.found_dead("normal", kind)] == ["j"]


def test_a_sweep_keeps_its_cursor_and_ends_its_pass(shard: Shard) -> None:
    shard.pass_hold()
    shard.enqueue(*(job(f"j{i}") for i in range(25)))
    claims = shard.claim()
    assert len(claims) == 25
    shard.elapse(LEASE)

    passes: list[bool] = []
    found: list[str] = []
    while not passes or not passes[-1]:
        _, complete, candidates = shard.recover(count=10)
        passes.append(complete)
        found += [one.job_id for one in candidates]

    assert found == [f"j{i}" for i in range(25)], "each once, none starved behind the first"
    assert passes == [False, False, True]


def test_a_dead_claim_behind_many_healthy_ones_is_found(shard: Shard) -> None:
    """A scan looks at ten times its count (R4): from the beginning each time, it would never get there."""
    shard.pass_hold()
    shard.enqueue(*(job(f"j{i}") for i in range(25)))
    claims = shard.claim()
    shard.elapse(LEASE)
    shard.heartbeat(*claims[:24])

    found = [one.job_id for _ in range(5) for one in shard.recover(count=1)[2]]

    assert found == ["j24"]


# --- what a recovery's settle comes to ---------------------------------------------------------------------


def test_a_death_while_processing_charges_the_attempt_and_strikes(shard: Shard) -> None:
    _, candidate = dead_claim(shard)

    assert shard.recovery(candidate, AGAIN) == "OK"

    shard.check("j", status="retry_scheduled", place="q", attempt=1, starts=1, strikes=1, held=False)
    assert shard.edges("j")[-1] == "processing>retry_scheduled"
    assert shard.stats()["recovered:normal:add"] == 1


def test_a_death_before_the_start_strikes_without_a_charge(shard: Shard) -> None:
    _, candidate = dead_claim(shard, started=False)

    assert shard.recovery(candidate, AGAIN) == "OK"

    shard.check("j", status="retry_scheduled", place="q", attempt=0, starts=1, strikes=1)
    assert shard.edges("j")[-1] == "claimed>retry_scheduled"


def test_strikes_add_up_until_python_buries_the_job(shard: Shard) -> None:
    _, candidate = dead_claim(shard)
    for strikes in (1, 2):
        shard.recovery(candidate, AGAIN)
        claim = shard.claim_one("w2", plan="normal 1 0 q")
        assert claim.strikes == strikes
        shard.start(claim)
        shard.elapse(LEASE)
        (candidate,) = shard.found_dead("normal", "q")
        assert candidate.strikes == strikes

    assert shard.recovery(candidate, BURY) == "OK"

    shard.check("j", status="failed_terminal", dead="crash_loop", strikes=3, attempt=3)


def test_a_recovery_with_a_delay_waits_in_the_schedule_with_the_envelope(shard: Shard) -> None:
    _, candidate = dead_claim(shard)

    shard.recovery(candidate, replace(AGAIN, delay_ms=120_000))

    shard.check("j", status="retry_scheduled", place="schedule", due_in=120_000, strikes=1)
    assert shard.look().body("j")[b"env"] == b"env of j"


def test_a_worker_that_came_back_keeps_its_job(shard: Shard) -> None:
    claim, candidate = dead_claim(shard)

    assert shard.heartbeat(claim) == ("OK", [], [])

    assert shard.recovery(candidate, AGAIN) == "STALE"
    shard.check("j", status="processing", lease_in=LEASE, strikes=0, owner="w1")


def test_a_worker_that_marked_its_start_in_between_keeps_its_job(shard: Shard) -> None:
    claim, candidate = dead_claim(shard, started=False)

    assert shard.start(claim) == "OK"

    assert shard.recovery(candidate, AGAIN) == "STALE"
    shard.check("j", status="processing", strikes=0)


def test_a_recovery_must_have_judged_this_very_version(shard: Shard) -> None:
    _, candidate = dead_claim(shard)
    before = shard.look()

    assert shard.recovery(replace(candidate, version=candidate.version - 1), AGAIN) == "STALE"

    assert shard.look().without_times() == before.without_times()


def test_a_recovery_must_have_judged_this_very_lease(shard: Shard) -> None:
    """Judged, renewed by its holder, and over again since, in an outage: it had no time to renew."""
    claim, candidate = dead_claim(shard)
    shard.heartbeat(claim)
    shard.elapse(LEASE)

    assert shard.recovery(candidate, AGAIN) == "STALE"

    shard.check("j", status="processing", strikes=0)


def test_a_recovery_of_an_old_fence_is_refused(shard: Shard) -> None:
    claim, candidate = dead_claim(shard)
    shard.settle(claim, Release(Reason.SHUTDOWN))
    shard.claim_one("w2")

    assert shard.recovery(candidate, AGAIN) == "ALREADY released"

    shard.check("j", status="claimed", strikes=0, owner="w2")


def test_two_sweepers_recover_a_job_once(shard: Shard) -> None:
    _, candidate = dead_claim(shard)

    assert shard.recovery(candidate, AGAIN) == "OK"
    before = shard.look()
    assert shard.recovery(candidate, AGAIN) == "STALE"

    assert shard.look().without_times() == before.without_times()


def test_a_dead_claim_whose_sweeper_died_is_found_by_the_next_sweep(shard: Shard) -> None:
    """D6's bound holds though the first answer was lost: the very look at the entry made it fresh."""
    _, lost = dead_claim(shard)

    (candidate,) = shard.found_dead()

    assert candidate == lost
    assert shard.recovery(candidate, AGAIN) == "OK"


def test_a_dead_claim_that_is_delivered_again_is_no_fresher_for_it(shard: Shard) -> None:
    """A group that is made again gives held entries to who reads first, and that one to their holder (R9)."""
    shard.pass_hold()
    shard.take("j", "dead")
    shard.elapse(LEASE)
    shard.redis("XGROUP", "DESTROY", shard.keys.stream("normal"), "workers")

    assert shard.claim("w2") == []

    assert [one.job_id for one in shard.found_dead()] == ["j"]


def test_an_entry_that_went_under_a_dead_claim_ends_the_job(shard: Shard) -> None:
    _, candidate = dead_claim(shard)
    shard.delete_entry("j")

    assert shard.recovery(candidate, AGAIN) == "OK"

    shard.check("j", status="failed_terminal", dead="entry_deleted", strikes=1)


@pytest.mark.parametrize("kind", ["R", "L"])
def test_a_living_worker_carries_the_envelope_of_an_entry_that_is_gone(shard: Shard, kind: str) -> None:
    claim = shard.take("j")
    shard.delete_entry("j")

    assert shard.settle(claim, AGAIN if kind == "R" else Release(Reason.SHUTDOWN)) == "OK"

    shard.tampered.clear()
    shard.check("j", place="r")
    assert shard.claim_one().envelope == b"env of j"
