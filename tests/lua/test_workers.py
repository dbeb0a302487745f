"""session, heartbeat, forget, elect and watch: who is there, who leads, who waits for a result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from tests.lua.driver import LEASE, LIVENESS, Shard, job, plan_of

FATAL = Fail(ErrorClass.PERSISTENT, "bad", "Bad: x")
RETRY = Retry(0, ErrorClass.TRANSIENT, "timeout", "Timeout: x")

# --- session ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "own", "expected"), [(None, 0, 1), (None, 7, 8), (3, 0, 4), (3, 3, 4), (3, 9, 10), (9, 3, 10)]
)
def test_a_session_is_larger_than_any_before(
    shard: Shard, stored: int | None, own: int, expected: int
) -> None:
    if stored is not None:
        shard.redis("HSET", shard.keys.worker("w1"), "session", stored)
        shard.redis("PEXPIRE", shard.keys.worker("w1"), 1000)

    assert shard.session(own=own) == expected

    fields = shard.look().hashes["worker:w1"]
    assert fields == {b"session": str(expected).encode(), b"host": b"h"}
    assert LIVENESS - 5_000 < shard.look().ttls["worker:w1"] <= LIVENESS


def test_sessions_of_two_workers_are_their_own(shard: Shard) -> None:
    shard.session("w1")
    shard.session("w1")

    assert shard.session("w2") == 1


# --- heartbeat --------------------------------------------------------------------------------------------


def test_a_heartbeat_renews_lease_entry_and_liveness_together(shard: Shard) -> None:
    claim = shard.take("j")
    shard.elapse(20_000)
    shard.redis("PEXPIRE", shard.keys.worker("w1"), 1000)
    version = shard.record("j").version

    assert shard.heartbeat(claim) == ("OK", [], [])

    shard.check("j", status="claimed", lease_in=LEASE, owner="w1")
    assert shard.record("j").version == version
    entry = shard.look().pending["lane:normal"][claim.entry]
    assert entry.idle_ms < 5_000
    assert entry.deliveries == 1, "only a delivery counts"
    assert shard.look().ttls["worker:w1"] > LIVENESS - 5_000


def test_a_heartbeat_extends_an_expired_lease_that_nobody_took(shard: Shard) -> None:
    claim = shard.take("j")
    shard.elapse(10 * LEASE)

    assert shard.heartbeat(claim) == ("OK", [], [])

    shard.check("j", lease_in=LEASE)


def test_a_heartbeat_takes_its_entry_back_from_a_sweep(shard: Shard) -> None:
    shard.pass_hold()
    claim = shard.take("j")
    shard.elapse(LEASE)
    assert len(shard.found_dead()) == 1
    shard.check("j", owner="keeper")

    shard.heartbeat(claim)

    shard.check("j", owner="w1", lease_in=LEASE)


def test_a_heartbeat_names_the_lost_and_extends_the_rest(shard: Shard) -> None:
    shard.enqueue(job("mine"), job("released"), job("settled"), job("taken"), job("gone"))
    claims = {claim.job_id: claim for claim in shard.claim()}
    shard.settle(claims["released"], Release(Reason.SHUTDOWN))
    shard.settle(claims["settled"], Success())
    shard.settle(claims["taken"], RETRY)
    shard.claim("w2")
    shard.settle(claims["gone"], Success())
    shard.forget_record("gone")
    shard.elapse(1000)

    verdict, lost, cancelled = shard.heartbeat(*claims.values())

    assert (verdict, sorted(lost), cancelled) == ("OK", ["gone", "released", "settled", "taken"], [])
    shard.check("mine", lease_in=LEASE)
    shard.check("taken", owner="w2", lease_in=LEASE - 1000)


def test_a_heartbeat_with_a_stale_fence_does_not_touch_the_new_claim(shard: Shard) -> None:
    claim = shard.take("j")
    shard.elapse(1000)
    before = shard.look()

    assert shard.heartbeat(replace(claim, fence=claim.fence - 1)) == ("OK", ["j"], [])

    assert shard.look().without_times() == before.without_times()


def test_a_worker_whose_key_is_gone_hears_it_and_keeps_its_claims(shard: Shard) -> None:
    claim = shard.take("j")
    shard.redis("DEL", shard.keys.worker("w1"))
    shard.elapse(1000)

    assert shard.heartbeat(claim) == ("NOSESSION", [], [])

    shard.check("j", lease_in=LEASE)


def test_a_heartbeat_survives_a_stream_or_group_that_is_gone(shard: Shard) -> None:
    claim = shard.take("j")
    shard.redis("XGROUP", "DESTROY", shard.keys.stream("normal"), "workers")

    assert shard.heartbeat(claim) == ("OK", [], [])

    shard.tampered.add("j")
    shard.redis("DEL", shard.keys.stream("normal"))
    assert shard.heartbeat(claim) == ("OK", [], [])


def test_a_heartbeat_renews_more_entries_than_one_command_takes(shard: Shard) -> None:
    shard.enqueue(*(job(f"j{i}") for i in range(501)))
    claims = shard.claim(limit=501, plan=plan_of(("normal", 0, 501, 0)))
    shard.elapse(20_000)

    assert shard.heartbeat(*claims) == ("OK", [], [])

    assert all(one.idle_ms < 10_000 for one in shard.look().pending["lane:normal"].values())


# --- forget -----------------------------------------------------------------------------------------------


def consumers(shard: Shard, lane: str = "normal", kind: str = "a") -> set[bytes]:
    return {row[1] for row in shard.redis("XINFO", "CONSUMERS", shard.keys.stream(lane, kind), "workers")}


def test_a_worker_that_lives_is_not_forgotten(shard: Shard) -> None:
    shard.settle(shard.take("j"), Success())

    assert shard.forget("w1") == "ALIVE"

    assert consumers(shard) == {b"w1"}


def test_a_dead_worker_without_pending_entries_is_forgotten(shard: Shard) -> None:
    shard.settle(shard.take("j", "w1"), Success())
    shard.claim("w2")
    shard.redis("DEL", shard.keys.worker("w1"))

    assert shard.forget("w1") == 2, "arrivals and ready"

    assert b"w1" not in consumers(shard)
    assert b"w1" not in consumers(shard, kind="r")


def test_a_dead_worker_keeps_its_pending_entries_until_they_are_recovered(shard: Shard) -> None:
    claim = shard.take("j")
    shard.redis("DEL", shard.keys.worker("w1"))

    assert shard.forget("w1", "normal", "nowhere") == 1, "only from ready, where nothing is pending"

    shard.check("j", owner="w1")
    assert shard.settle(claim, Success()) == "OK"
    assert shard.forget("w1") == 2
    assert consumers(shard) == set()


def test_a_worker_that_leaves_takes_its_key_with_it(shard: Shard) -> None:
    shard.settle(shard.take("j"), Success())

    assert shard.forget("w1", leave=1) == 2

    assert "worker:w1" not in shard.look().ttls
    assert shard.send(shard.claim_call()) == [b"NOSESSION", []]


# --- elect ------------------------------------------------------------------------------------------------


def test_a_role_has_one_holder_until_its_time_is_over(shard: Shard) -> None:
    assert shard.elect("w1")
    assert shard.elect("w1"), "asking again prolongs it"
    assert not shard.elect("w2")

    shard.redis("DEL", shard.keys.elect("keeper"))

    assert shard.elect("w2")
    assert not shard.elect("w1")


def test_a_role_always_has_a_ttl_and_asking_again_renews_it(shard: Shard) -> None:
    shard.elect("w1", ttl_ms=500)
    shard.elect("w1", ttl_ms=10_000)

    assert 5_000 < shard.look().ttls["elect:keeper"] <= 10_000

    shard.elect("w2", ttl_ms=50_000)

    assert shard.look().ttls["elect:keeper"] <= 10_000, "others do not prolong it"


@pytest.mark.parametrize("left", ["for ever", "an hour"])
def test_a_dead_workers_role_is_taken_though_its_time_was_made_longer(shard: Shard, left: str) -> None:
    """yii2-queue#370, resque-scheduler#553: Redis's clock was put back, so that the key outlived its holder
    by an hour, or somebody had taken its end away: nobody kept until then."""
    shard.elect("dead", ttl_ms=1_000)
    key = shard.keys.elect("keeper")
    shard.redis("PERSIST", key) if left == "for ever" else shard.redis("PEXPIRE", key, 3_600_000)

    assert shard.elect("w1", ttl_ms=1_000)

    assert shard.look().ttls["elect:keeper"] <= 1_000
    assert not shard.elect("dead", ttl_ms=1_000)


def test_a_role_is_not_taken_by_one_who_would_have_it_for_a_shorter_time(shard: Shard) -> None:
    """Workers of different leases: each asks again long before the term of the longer one is over."""
    shard.elect("w1", ttl_ms=3_000)

    assert not shard.elect("w2", ttl_ms=200)


# --- watch ------------------------------------------------------------------------------------------------


def test_watching_an_unknown_job_says_so(shard: Shard) -> None:
    assert shard.watch("unknown", wait=1) == "GONE"


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Success(b"42"), [b"succeeded", b"42", b"", b""]),
        (Success(b"x" * 100), [b"succeeded", b"x" * 100, b"", b""]),
        (Success(), [b"succeeded", b"", b"", b""]),
        (FATAL, [b"failed_terminal", b"", b"persistent bad", b"Bad: x"]),
    ],
)
def test_who_waits_is_woken_once_for_each_registration(
    shard: Shard, outcome: Outcome, expected: list[bytes]
) -> None:
    claim = shard.take("j")
    assert shard.watch("j", wait=1) == "WAIT"
    assert shard.watch("j", wait=0) == "WAIT"
    assert shard.watch("j", wait=1) == "WAIT"

    shard.settle(claim, outcome)

    after = shard.look()
    assert after.lists["done:j"] == [expected[0]] * 2
    assert 0 < after.ttls["done:j"] <= 60_000
    assert shard.watch("j", wait=1) == expected


def test_nobody_is_woken_for_a_job_that_nobody_awaits(shard: Shard) -> None:
    claim = shard.take("j")
    shard.watch("j", wait=0)

    shard.settle(claim, Success())

    assert shard.look().lists == {}


def test_who_waits_is_woken_by_a_cancel_and_by_a_deadline(shard: Shard) -> None:
    shard.enqueue(job("a"), job("b", deadline_ms=100))
    shard.watch("a", wait=1)
    shard.watch("b", wait=1)
    shard.elapse(100)

    shard.cancel("a")
    shard.promote()

    assert shard.look().lists == {"done:a": [b"failed_terminal"], "done:b": [b"failed_terminal"]}
    assert shard.watch("b") == [b"failed_terminal", b"", b"persistent expired", b""]


def test_a_success_after_a_retry_shows_no_error(shard: Shard) -> None:
    shard.settle(shard.take("j"), RETRY)

    shard.settle(shard.claim_one(), Success(b"1"))

    assert shard.watch("j") == [b"succeeded", b"1", b"", b""]


def test_no_more_than_a_hundred_are_woken(shard: Shard) -> None:
    claim = shard.take("j")
    shard.rewrite("j", wa="5000")

    shard.settle(claim, Success())

    assert len(shard.look().lists["done:j"]) == 100
