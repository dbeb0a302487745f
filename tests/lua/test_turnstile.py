"""The turnstile: of one tenant few jobs stand in a lane, so that nobody waits behind a flood."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import settle_rows
from tests.lua.driver import Shard, job, plan_of
from tests.lua.gating import ids

#: Jobs of one tenant that may stand in a lane.
STAND = 16
SOON = Retry(100, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")


def flood(shard: Shard, count: int, *, tenant: str = "flood", lane: str = "normal") -> list[str]:
    names = [f"{tenant}{i}" for i in range(count)]
    shard.enqueue(*(job(name, tenant=tenant, lane=lane) for name in names))
    return names


def counts(shard: Shard, tenant: str = "flood", lane: str = "normal") -> tuple[int, int]:
    """(who stands, who waits), as counted; a recount must agree."""
    now = shard.look()
    found = now.hashes.get("turnstile", {}).get(f"{lane} {tenant}".encode(), b"0 0")
    stand, wait = (int(word) for word in found.split())
    records = [one for one in now.records().values() if one.text("tn") == tenant and one.lane == lane]
    kinds = [one.entry[0] for one in records if one.entry and one.fence == 0]
    assert (stand, wait) == (sum(kind in "ar" for kind in kinds), kinds.count("t"))
    return stand, wait


def test_few_of_a_flood_stand_and_the_rest_wait_behind(shard: Shard) -> None:
    flood(shard, 40)

    assert counts(shard) == (STAND, 24)
    assert shard.stats()["turned:normal"] == 24


def test_jobs_without_a_tenant_have_no_turnstile(shard: Shard) -> None:
    shard.enqueue(*(job(f"j{i}") for i in range(40)))

    assert shard.stats()["queued:normal"] == 40
    assert "turnstile" not in shard.look().hashes


def test_a_retry_that_goes_behind_while_others_move_in_is_not_forgotten(shard: Shard) -> None:
    flood(shard, STAND + 2)
    held = shard.claim_one()  # so one moves in, and one is left behind

    retry = settle_rows.outcome_row(held, Retry(0, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1"), 5)
    _, claims, _ = shard.exchange(retry, limit=2)

    assert len(claims) == 2
    assert counts(shard) == (STAND, 0)


def test_the_quiet_stand_right_behind_the_few(shard: Shard) -> None:
    flood(shard, 100)
    shard.put("quiet", tenant="quiet")

    claims = shard.claim(limit=STAND + 1)

    assert ids(claims)[-1] == "quiet"


def test_a_claim_moves_the_next_in_and_keeps_their_order(shard: Shard) -> None:
    names = flood(shard, 60)
    ran = []
    while claims := shard.claim(limit=5):
        ran += ids(claims)
        for claim in claims:
            shard.settle(claim, Success())
        counts(shard)

    assert ran == names
    assert "turnstile" not in shard.look().hashes
    assert not any(":turn:" in name for name in shard.look().ttls)


def test_as_many_may_stand_as_one_claim_can_take(shard: Shard) -> None:
    flood(shard, 200)

    assert len(shard.claim(limit=64)) == STAND

    assert counts(shard) == (64, 200 - STAND - 64)
    assert len(shard.claim(limit=64)) == 64


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_whoever_stops_standing_moves_the_next_in(shard: Shard, how: str) -> None:
    shard.put("first", tenant="flood", deadline_ms=100)
    flood(shard, 20)
    assert counts(shard) == (STAND, 5)

    if how == "cancel":
        shard.cancel("first")
    else:
        shard.elapse(100)
        shard.promote()

    assert counts(shard) == (STAND, 4)


def test_a_job_behind_that_is_cancelled_is_gone(shard: Shard) -> None:
    names = flood(shard, 18)

    assert shard.cancel(names[16]) == "OK"

    assert counts(shard) == (STAND, 1)
    shard.claim(limit=1)
    assert counts(shard) == (STAND, 0)
    shard.check(names[17], place="a")


def test_retries_that_come_due_go_behind_as_well(shard: Shard) -> None:
    flood(shard, STAND)
    for claim in shard.claim(limit=STAND):
        shard.settle(claim, SOON)
    shard.enqueue(*(job(f"new{i}", tenant="flood") for i in range(STAND)))
    shard.elapse(SOON.delay_ms)

    shard.promote()

    assert counts(shard) == (STAND, STAND)


def test_a_handed_back_job_counts_again(shard: Shard) -> None:
    flood(shard, 3)
    (claim,) = shard.claim(limit=1)
    assert counts(shard) == (2, 0)

    shard.settle(claim, Release(Reason.SHUTDOWN))

    assert counts(shard) == (3, 0)


def test_tenants_and_lanes_have_turnstiles_of_their_own(shard: Shard) -> None:
    flood(shard, 20)
    flood(shard, 5, tenant="calm")
    shard.enqueue(*(job(f"p{i}", tenant="flood", lane="priority") for i in range(18)))

    assert counts(shard) == (STAND, 4)
    assert counts(shard, "calm") == (5, 0)
    assert counts(shard, lane="priority") == (STAND, 2)


def test_who_waits_at_a_gate_does_not_stand(shard: Shard) -> None:
    shard.enqueue(*(job(f"j{i}", tenant="flood", gates="0 concurrency:c|1") for i in range(40)))

    assert ids(shard.claim(limit=20)) == ["j0"]

    # 16 were looked at: one runs, 15 are parked, and the next stand.
    assert shard.stats()["parked:normal"] == 15
    assert counts(shard) == (20, 4)


def test_a_job_that_a_gate_lets_in_passes_the_turnstile(shard: Shard) -> None:
    gates = "0 entity:e:1"
    shard.enqueue(*(job(name, tenant="flood", gates=gates) for name in ("a", "b")))
    (a,) = shard.claim()
    flood(shard, 40)

    shard.settle(a, Success())

    shard.check("b", place="r")
    assert counts(shard)[0] == STAND + 1


def test_repair_counts_anew_when_a_lane_is_empty_beside_those_behind(shard: Shard) -> None:
    names = flood(shard, 20)
    shard.watchful = False
    shard.claim(limit=20)
    shard.claim(limit=20)
    shard.redis("DEL", f"{shard.keys.tag}:turnstile")
    flood(shard, 2, tenant="flood")
    assert len(names) == 20
    shard.redis("HSET", f"{shard.keys.tag}:turnstile", "normal flood", "16 0")
    shard.enqueue(job("behind", tenant="flood"))
    assert shard.claim(plan=plan_of("normal")) == []

    shard.repair("behind")

    assert ids(shard.claim()) == ["behind"]


def test_nobody_passes_those_behind(shard: Shard) -> None:
    flood(shard, 17)
    shard.redis("HSET", f"{shard.keys.tag}:turnstile", "normal flood", "3 1")
    shard.watchful = False

    shard.put("late", tenant="flood")

    shard.check("late", place="t")
