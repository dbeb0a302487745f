"""claim: D5's table, row by row; sessions; records that cannot be claimed."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Fail, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from tests.lua.driver import LEASE, Shard, plan_of

NOW_AGAIN = Retry(0, ErrorClass.TRANSIENT, "timeout", "Timeout: x")
FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")


def test_a_claim_names_everything_the_worker_needs(shard: Shard) -> None:
    shard.put("j", deadline_ms=10_000)
    shard.elapse(400)

    claim = shard.claim_one()

    record = shard.record("j")
    assert (claim.job_id, claim.envelope, claim.fence) == ("j", b"env of j", record.fence)
    assert (claim.attempt, claim.starts, claim.strikes, claim.epoch) == (1, 1, 0, 0)
    assert (claim.lane, (claim.kind, claim.entry)) == ("normal", record.entry)
    assert (claim.age_ms, claim.deadline_in_ms, claim.unknown_age_ms) == (400, 9_600, None)
    shard.check("j", status="claimed", held=True, lease_in=LEASE, owner="w1", place="a")
    assert record.worker == "w1"
    assert shard.edges("j") == ["->queued", "queued>claimed"]


# --- sessions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [0, 1, 3])
def test_a_claim_of_another_session_finds_nothing(shard: Shard, session: int) -> None:
    shard.put("j")
    shard.session()
    assert shard.session() == 2
    before = shard.look()

    reply = shard.send(shard.claim_call(session=session))

    assert reply == [b"NOSESSION", []]
    assert shard.look().without_times() == before.without_times()


def test_a_worker_whose_key_expired_has_no_session(shard: Shard) -> None:
    shard.session()
    shard.redis("DEL", shard.keys.worker("w1"))

    assert shard.send(shard.claim_call()) == [b"NOSESSION", []]


def test_a_second_claim_in_the_same_session_finds_nothing_new(shard: Shard) -> None:
    claim = shard.take("j")
    before = shard.look()

    assert shard.claim() == []
    assert shard.claim(offers=[shard.offer_of(claim)]) == []

    assert shard.look().without_times() == before.without_times()


# --- D5's table: what an offered entry comes to ------------------------------------------------------------


def test_an_offered_queued_entry_is_an_ordinary_claim(shard: Shard) -> None:
    shard.take("other")
    shard.put("j")
    (offer,) = shard.deliver("w1")

    (claim,) = shard.claim(offers=[offer])

    assert (claim.job_id, claim.attempt, claim.starts) == ("j", 1, 1)
    shard.check("j", status="claimed", owner="w1")


def test_an_offered_queued_entry_without_a_slot_goes_to_ready_uncharged(shard: Shard) -> None:
    shard.take("other")
    shard.put("j")
    (offer,) = shard.deliver("w1")

    assert shard.claim(limit=0, offers=[offer]) == []

    shard.check("j", status="queued", place="r", attempt=0, starts=0, owner=None)
    assert shard.claim_one("w2").job_id == "j"


@pytest.mark.parametrize("plan", ["priority 1 0 0", "normal 0 0 0"])
def test_an_offered_entry_of_a_lane_without_room_goes_to_ready(shard: Shard, plan: str) -> None:
    shard.take("other")
    shard.put("j")
    (offer,) = shard.deliver("w1")

    assert shard.claim(limit=5, shared=0, plan=plan, offers=[offer]) == []

    shard.check("j", status="queued", place="r")


def test_an_offered_retry_with_its_entry_is_an_ordinary_claim(shard: Shard) -> None:
    shard.settle(shard.take("j"), NOW_AGAIN)
    (offer,) = shard.deliver("w1", kind="r")
    shard.check("j", status="retry_scheduled", place="r", owner="w1")

    (claim,) = shard.claim(offers=[offer])

    assert (claim.job_id, claim.attempt, claim.kind) == ("j", 2, "r")


def test_a_claim_of_mine_from_an_older_session_is_the_same_claim_again(shard: Shard) -> None:
    lost = shard.take("j")
    shard.elapse(1000)
    shard.session()

    (claim,) = shard.claim(offers=[shard.offer_of(lost)])

    assert claim.fence > lost.fence
    assert (claim.attempt, claim.starts) == (1, 1)
    shard.check("j", status="claimed", lease_in=LEASE, owner="w1")
    assert shard.edges("j") == ["->queued", "queued>claimed"], "no move: the claim never stopped"
    assert shard.settle(lost, Success()) == "STALE"
    assert shard.settle(claim, Success()) == "OK"


def test_a_claim_that_was_granted_again_is_of_the_new_session(shard: Shard) -> None:
    offer = shard.offer_of(shard.take("j"))
    shard.session()
    (claim,) = shard.claim(offers=[offer])

    assert shard.claim(offers=[offer]) == []

    assert shard.settle(claim, Success()) == "OK"


def test_an_offered_claim_that_a_sweep_took_over_is_pending_for_its_holder_again(shard: Shard) -> None:
    """Else a second lost answer would be the last: its holder would not find the claim among its own."""
    shard.pass_hold()
    lost = shard.take("j")
    shard.elapse(LEASE)
    shard.found_dead()
    shard.session()

    (claim,) = shard.claim(offers=[shard.offer_of(lost)])

    assert (claim.attempt, claim.starts) == (1, 1)
    shard.check("j", status="claimed", owner="w1")


def test_an_offer_finds_its_entry_without_the_group(shard: Shard) -> None:
    lost = shard.take("j")
    shard.session()
    shard.redis("XGROUP", "DESTROY", shard.keys.stream("normal"), "workers")

    (claim,) = shard.claim(offers=[shard.offer_of(lost)], plan="priority 0 9 0\nnormal 0 9 0")

    assert (claim.job_id, claim.starts) == ("j", 1)


def test_an_older_claim_of_mine_that_was_not_offered_is_left_alone(shard: Shard) -> None:
    """Not offered: it may be running here. A group that was made again delivers it all the same."""
    claim = shard.take("j")
    shard.session()
    shard.redis("XGROUP", "DESTROY", shard.keys.stream("normal"), "workers")

    assert shard.claim() == []

    assert shard.settle(claim, Success()) == "OK"


def test_a_claim_of_mine_without_a_slot_is_released(shard: Shard) -> None:
    lost = shard.take("j")
    shard.session()

    assert shard.claim(limit=0, offers=[shard.offer_of(lost)]) == []

    shard.check("j", status="queued", place="r", attempt=0, starts=1, held=False)
    assert shard.history("j")[-1].reason == "no_slot"
    assert shard.stats()["queued:normal"] == 1


def test_a_flagged_claim_of_mine_without_a_slot_is_cancelled(shard: Shard) -> None:
    lost = shard.take("j")
    assert shard.cancel("j") == "FLAGGED"
    shard.session()

    assert shard.claim(limit=0, offers=[shard.offer_of(lost)]) == []

    shard.check("j", status="failed_terminal", error="persistent cancelled", place=None, dead=None)


def test_a_claim_of_mine_past_its_deadline_without_a_slot_is_expired(shard: Shard) -> None:
    lost = shard.take("j", deadline_ms=100)
    shard.elapse(200)
    shard.session()

    assert shard.claim(limit=0, offers=[shard.offer_of(lost)]) == []

    shard.check("j", status="failed_terminal", error="persistent expired", place=None, dead="expired")


def test_a_processing_job_of_mine_is_left_to_recovery(shard: Shard) -> None:
    claim = shard.take("j")
    shard.start(claim)
    shard.session()
    before = shard.look()

    assert shard.claim(offers=[shard.offer_of(claim)]) == []

    assert shard.look().without_times() == before.without_times()
    assert shard.settle(claim, Success()) == "OK"


def test_an_entry_that_another_holds_goes_back_to_its_holder(shard: Shard) -> None:
    claim = shard.take("j", "w1")
    shard.redis("XCLAIM", shard.keys.stream("normal"), "workers", "w2", 0, claim.entry, "JUSTID")
    shard.check("j", owner="w2")

    assert shard.claim("w2", offers=[shard.offer_of(claim)]) == []

    shard.check("j", status="claimed", owner="w1")
    assert shard.settle(claim, Success()) == "OK"


def test_an_offered_entry_whose_record_is_gone_is_removed(shard: Shard) -> None:
    shard.take("other")
    shard.put("j")
    (offer,) = shard.deliver("w1")
    shard.tampered.add("j")
    shard.forget_record("j")

    assert shard.claim(offers=[offer]) == []

    assert offer[2] not in shard.look().streams["lane:normal"]
    assert offer[2] not in shard.look().pending["lane:normal"]
    assert shard.stats()["claims:missing"] == 1


def test_an_offered_entry_that_is_deleted_is_removed_from_the_pending_list(shard: Shard) -> None:
    shard.take("other")
    shard.put("j")
    (offer,) = shard.deliver("w1")
    shard.delete_entry("j")

    assert shard.claim(offers=[offer]) == []

    assert offer[2] not in shard.look().pending["lane:normal"]
    assert shard.stats()["claims:missing"] == 1


def test_an_offered_entry_of_a_finished_job_is_removed(shard: Shard) -> None:
    shard.settle(shard.take("j"), Success())
    stray = shard.redis("XADD", shard.keys.stream("normal"), "*", "id", "j", "env", "x").decode()
    shard.tampered.add("j")
    assert shard.deliver("w1") == [("normal", "a", stray)]

    assert shard.claim(offers=[("normal", "a", stray)]) == []

    assert shard.look().streams["lane:normal"] == {}
    assert shard.stats()["claims:final"] == 1
    shard.check("j", status="succeeded")


@pytest.mark.parametrize("other", [("normal", "a"), ("normal", "r"), ("priority", "a")])
def test_an_entry_that_the_record_does_not_honour_is_removed(shard: Shard, other: tuple[str, str]) -> None:
    shard.put("j")
    shard.tampered.add("j")
    stray = shard.redis("XADD", shard.keys.stream(*other), "*", "id", "j", "env", "x").decode()

    claims = shard.claim(plan=plan_of("priority", "normal"))

    assert [claim.job_id for claim in claims] == ["j"], "the entry that it honours is taken"
    assert claims[0].envelope == b"env of j"
    assert stray not in shard.look().streams[f"lane:{other[0]}{':ready' if other[1] == 'r' else ''}"]
    assert shard.stats()["claims:conflict"] == 1


def test_an_entry_of_another_lane_with_the_same_id_is_removed(shard: Shard) -> None:
    shard.put("j")
    shard.tampered.add("j")
    entry = shard.record("j").fields["en"].partition(":")[2]
    shard.redis("XADD", shard.keys.stream("priority"), entry, "id", "j", "env", "x")

    assert shard.claim(plan=plan_of("priority")) == []

    assert shard.look().streams["lane:priority"] == {}
    assert shard.stats()["claims:conflict"] == 1
    assert shard.claim_one().envelope == b"env of j"


@pytest.mark.parametrize("started", [False, True])
def test_a_group_that_was_made_again_delivers_held_entries_and_nothing_runs_twice(
    shard: Shard, started: bool
) -> None:
    held = shard.take("held", "w1")
    if started:
        shard.start(held)
    shard.put("queued")
    shard.redis("XGROUP", "DESTROY", shard.keys.stream("normal"), "workers")

    claims = shard.claim("w2")

    assert [claim.job_id for claim in claims] == ["queued"]
    shard.check("held", owner="w1", status="processing" if started else "claimed")
    assert shard.heartbeat(held) == ("OK", [], [])
    assert shard.settle(held, Success()) == "OK"


def test_a_group_that_was_made_again_gives_my_own_claim_back_to_me(shard: Shard) -> None:
    held = shard.take("held", "w1")
    shard.redis("XGROUP", "DESTROY", shard.keys.stream("normal"), "workers")

    assert shard.claim("w1") == []

    shard.check("held", status="claimed", owner="w1")
    assert shard.settle(held, Success()) == "OK"


def test_a_stream_without_a_group_is_read_from_its_beginning(shard: Shard) -> None:
    shard.put("a")
    shard.put("b")

    assert [claim.job_id for claim in shard.claim()] == ["a", "b"]


# --- what is not started -----------------------------------------------------------------------------------


@pytest.mark.parametrize("retry", [False, True])
def test_a_job_past_its_deadline_expires_instead_of_starting(shard: Shard, retry: bool) -> None:
    shard.put("j", deadline_ms=100)
    if retry:
        shard.settle(shard.claim_one(), NOW_AGAIN)
    shard.elapse(100)

    assert shard.claim() == []

    shard.check("j", status="failed_terminal", error="persistent expired", dead="expired")
    assert shard.redis("XLEN", shard.keys.stream("normal")) == 0
    assert shard.look().streams["dlq"][shard.letter("j")][b"env"] == b"env of j"


def test_a_job_that_started_too_often_ends(shard: Shard) -> None:
    shard.put("j", max_starts=2)
    for _ in range(2):
        shard.settle(shard.claim_one(), Release(Reason.SNOOZED))

    assert shard.claim() == []

    shard.check("j", status="failed_terminal", dead="too_many_starts", starts=2, attempt=0)


def test_twenty_starts_are_enough_by_default(shard: Shard) -> None:
    shard.put("j")
    for _ in range(20):
        shard.settle(shard.claim_one(), Release(Reason.SNOOZED))

    assert shard.claim() == []

    shard.check("j", status="failed_terminal", dead="too_many_starts", starts=20)


@pytest.mark.parametrize("damage", ["junk", "", "queued 0 0 0", "queued 0 0 0 1 0 0 x"])
def test_a_record_that_cannot_be_read_becomes_a_dead_letter_and_blocks_nobody(
    shard: Shard, damage: str
) -> None:
    shard.put("bad", key_id="add::k", fingerprint="f", deadline_ms=60_000)
    shard.put("good")
    shard.tampered.add("bad")
    shard.damage("bad", damage)

    claims = shard.claim()

    assert [claim.job_id for claim in claims] == ["good"]
    after = shard.look()
    letter = after.streams["dlq"][shard.letter("bad")]
    assert (letter[b"code"], letter[b"env"], letter[b"lane"]) == (b"bad_record", b"env of bad", b"normal")
    assert damage.encode() in letter[b"error"]
    assert len(after.streams["lane:normal"]) == len(after.pending["lane:normal"]) == 1
    assert after.ttls["job:bad"] > 0
    assert "bad" not in after.zsets.get("deadlines", {})
    assert "key:add::k" not in after.strings
    assert shard.stats()["claims:bad_record"] == 1
    assert shard.claim() == []


def test_a_claim_says_whether_the_job_was_retried(shard: Shard) -> None:
    shard.put("j")
    (first,) = shard.claim("w1")
    shard.settle(first, Retry(0, ErrorClass.TRANSIENT, "timeout", "late"))

    (second,) = shard.claim("w1")

    assert (first.retried, first.kind) == (False, "a")
    assert (second.retried, second.kind) == (True, "r")


def test_a_claim_says_which_entries_led_nowhere(shard: Shard) -> None:
    shard.put("j")
    shard.session("w1")
    shard.redis("XADD", shard.keys.stream("normal"), "*", "id", "gone", "env", "{}")

    verdict, claims = shard.send(shard.claim_call("w1"))

    assert verdict == b"OK normal=missing=1"
    assert len(claims) == 3
