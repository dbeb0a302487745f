"""How a claim reads the lanes: reserved and shared slots, ready before arrivals, quarantine one at a time."""

from __future__ import annotations

from collections import Counter

import pytest

from streamworker.core.job import Claim
from streamworker.core.outcome import Release, Retry
from streamworker.core.states import ErrorClass, Reason
from tests.lua.driver import LEASE, Shard, job, plan_of

LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "", "-", Reason.RECOVERED)


def fill(shard: Shard, *, arrivals: int = 0, ready: int = 0, lane: str = "normal") -> None:
    """Put jobs into a lane's streams; those in ready are named r0, r1, ..."""
    if ready:
        shard.enqueue(*(job(f"{lane[0]}-r{i}", lane=lane) for i in range(ready)))
        for claim in shard.claim(limit=ready, plan=plan_of((lane, 0, ready, 0))):
            shard.settle(claim, Release(Reason.SHUTDOWN))
    if arrivals:
        shard.enqueue(*(job(f"{lane[0]}-a{i}", lane=lane) for i in range(arrivals)))


def by_lane(claims: list[Claim]) -> dict[str, int]:
    return dict(Counter(claim.lane for claim in claims))


def kinds(claims: list[Claim]) -> str:
    return "".join(claim.kind for claim in claims)


# --- slots ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priority", "normal", "limit", "shared", "rows", "expected"),
    [
        pytest.param(9, 9, 4, 4, [("priority", 0, 2, 0), ("normal", 0, 2, 0)], {"priority": 2, "normal": 2},
                     id="each takes its quota"),
        pytest.param(9, 9, 4, 4, [("priority", 0, 4, 0), ("normal", 0, 0, 0)], {"priority": 4},
                     id="no quota, nothing left"),
        pytest.param(1, 9, 4, 4, [("priority", 0, 3, 0), ("normal", 0, 1, 0)], {"priority": 1, "normal": 3},
                     id="an unused share goes to who has work"),
        pytest.param(9, 1, 4, 4, [("priority", 0, 1, 0), ("normal", 0, 3, 0)], {"priority": 3, "normal": 1},
                     id="also back to an earlier row"),
        pytest.param(9, 9, 6, 2, [("priority", 3, 1, 0), ("normal", 1, 1, 0)], {"priority": 4, "normal": 2},
                     id="reserved slots come on top"),
        pytest.param(9, 9, 9, 2, [("priority", 3, 1, 0), ("normal", 1, 1, 0)], {"priority": 4, "normal": 2},
                     id="each slot is taken once"),
        pytest.param(0, 9, 6, 2, [("priority", 3, 1, 0), ("normal", 1, 1, 0)], {"normal": 3},
                     id="reserved slots serve only their lane"),
        pytest.param(9, 9, 5, 0, [("priority", 2, 0, 0), ("normal", 1, 0, 0)], {"priority": 2, "normal": 1},
                     id="only reserved slots are free"),
        pytest.param(9, 9, 1, 9, [("priority", 0, 5, 0), ("normal", 0, 4, 0)], {"priority": 1},
                     id="one claim at most, for who is owed most"),
        pytest.param(9, 9, 3, 9, [("normal", 2, 5, 0), ("priority", 2, 4, 0)], {"normal": 3},
                     id="the limit stands above everything"),
        pytest.param(9, 9, 0, 9, [("priority", 2, 5, 0), ("normal", 0, 4, 0)], {}, id="no limit, no claim"),
        pytest.param(2, 2, 9, 9, [("priority", 0, 5, 0), ("normal", 0, 4, 0)], {"priority": 2, "normal": 2},
                     id="no more than there is"),
        pytest.param(2, 2, 9, 9, [("normal", 0, 9, 0)], {"normal": 2}, id="a lane without a row is not read"),
    ],
)  # fmt: skip
def test_slots_are_filled_as_planned(
    shard: Shard,
    priority: int,
    normal: int,
    limit: int,
    shared: int,
    rows: list[tuple[str, int, int, int]],
    expected: dict[str, int],
) -> None:
    fill(shard, arrivals=priority, lane="priority")
    fill(shard, arrivals=normal)

    claims = shard.claim(limit=limit, shared=shared, plan=plan_of(*rows))

    assert by_lane(claims) == expected


def test_an_offered_entry_takes_its_lanes_slot_first(shard: Shard) -> None:
    fill(shard, arrivals=3, lane="priority")
    shard.claim(limit=1, plan=plan_of("priority"))
    (offer,) = shard.deliver("w1", "priority", count=1)
    fill(shard, arrivals=3)

    claims = shard.claim(
        limit=2, shared=1, plan=plan_of(("priority", 1, 0, 0), ("normal", 0, 1, 0)), offers=[offer]
    )

    assert by_lane(claims) == {"priority": 1, "normal": 1}
    assert claims[0].entry == offer[2]


# --- ready before arrivals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ready", "arrivals", "phase", "limit", "expected"),
    [
        (9, 9, 0, 4, "rrra"),
        (9, 9, 0, 8, "rrrrrraa"),
        (9, 9, 0, 3, "rrr"),
        (9, 9, 3, 1, "a"),
        (9, 9, 2, 2, "ra"),
        (9, 9, 3, 4, "rrra"),
        (0, 9, 0, 4, "aaaa"),
        (9, 0, 0, 4, "rrrr"),
        (9, 0, 3, 1, "r"),
        (1, 9, 0, 4, "raaa"),
        (9, 1, 0, 8, "rrrrrrar"),
    ],
)
def test_ready_goes_before_arrivals_but_for_every_fourth(
    shard: Shard, ready: int, arrivals: int, phase: int, limit: int, expected: str
) -> None:
    fill(shard, ready=ready, arrivals=arrivals)

    claims = shard.claim(limit=limit, plan=plan_of(("normal", 0, limit, phase)))

    assert kinds(claims) == expected


def test_one_by_one_the_phase_keeps_the_share(shard: Shard) -> None:
    fill(shard, ready=9, arrivals=9)

    taken = [shard.claim_one(plan=plan_of(("normal", 0, 1, turn % 4)), shared=1).kind for turn in range(8)]

    assert "".join(taken) == "rrrarrra"


def test_the_second_pass_goes_on_with_the_phase_of_the_first(shard: Shard) -> None:
    fill(shard, ready=9, arrivals=9)

    claims = shard.claim(limit=4, plan=plan_of(("normal", 0, 2, 0), ("priority", 0, 2, 0)))

    assert kinds(claims) == "rrra"


# --- quarantine -------------------------------------------------------------------------------------------


def struck(shard: Shard, count: int) -> None:
    """Put jobs with one strike into the lane's quarantine."""
    shard.pass_hold()
    shard.enqueue(*(job(f"q{i}") for i in range(count)))
    shard.claim()
    shard.elapse(LEASE)
    for candidate in shard.found_dead():
        assert shard.recovery(candidate, LOST) == "OK"


@pytest.mark.parametrize("row", [("normal", 1, 0, "q"), ("normal", 1, 5, "q")])
def test_a_quarantine_row_gives_one_job(shard: Shard, row: tuple[str, int, int, str]) -> None:
    struck(shard, 3)

    claims = shard.claim(limit=10, plan=plan_of(row))

    assert [(claim.kind, claim.strikes) for claim in claims] == [("q", 1)]


def test_the_struck_wait_while_nobody_asks_for_them(shard: Shard) -> None:
    struck(shard, 1)
    fill(shard, arrivals=2)

    assert kinds(shard.claim()) == "aa"

    shard.check("q0", status="retry_scheduled", place="q", owner=None)


def test_quarantine_and_lane_are_planned_side_by_side(shard: Shard) -> None:
    struck(shard, 2)
    fill(shard, arrivals=3)

    claims = shard.claim(limit=4, plan=plan_of(("normal", 1, 0, "q"), ("normal", 0, 3, 0)))

    assert kinds(claims) == "qaaa"


def test_a_reserved_quarantine_row_has_a_slot_beside_the_limit(shard: Shard) -> None:
    struck(shard, 2)
    fill(shard, arrivals=5)

    claims = shard.claim(limit=3, plan=plan_of(("normal", 1, 0, "q"), ("normal", 0, 3, 0)))
    assert kinds(claims) == "qaaa"
    claims = shard.claim(limit=0, plan=plan_of(("normal", 1, 0, "q")))
    assert kinds(claims) == "q"


def test_an_offered_struck_job_leaves_no_second_one_beside_it(shard: Shard) -> None:
    struck(shard, 3)
    shard.claim_one("w2", plan=plan_of(("normal", 1, 0, "q")))  # makes the group
    (offer,) = shard.deliver("w1", kind="q", count=1)

    claims = shard.claim(
        limit=2, shared=2, offers=[offer], plan=plan_of(("normal", 0, 2, 0), ("normal", 1, 0, "q"))
    )

    assert kinds(claims) == "q"


@pytest.mark.parametrize("limit", [0, 2])
def test_an_empty_quarantine_lends_its_slot_to_nobody(shard: Shard, limit: int) -> None:
    fill(shard, arrivals=5)

    claims = shard.claim(limit=limit, plan=plan_of(("normal", 1, 0, "q"), ("normal", 0, 5, 0)))

    assert kinds(claims) == "a" * limit


def test_an_offered_struck_job_without_its_row_goes_back_to_quarantine(shard: Shard) -> None:
    struck(shard, 2)
    shard.claim_one("w2", plan=plan_of(("normal", 1, 0, "q")))
    (offer,) = shard.deliver("w1", kind="q")

    assert shard.claim(offers=[offer]) == []

    shard.check("q1", place="q", owner=None, strikes=1, starts=1)


# --- bounds -----------------------------------------------------------------------------------------------


def test_a_claim_looks_at_few_entries_that_it_does_not_take(shard: Shard) -> None:
    lanes = ("a", "b", "c", "d")
    shard.enqueue(*(job(f"{lane}{i}", lane=lane, deadline_ms=10) for lane in lanes for i in range(40)))
    shard.elapse(10)

    shard.claim(limit=40, plan=plan_of(*lanes))

    left = [shard.stats().get(f"queued:{lane}", 0) for lane in lanes]
    assert left == [0, 0, 40, 40], "from 64 on no further lane is read"


def test_stale_entries_do_not_hide_the_jobs_behind_them(shard: Shard) -> None:
    for i in range(20):
        shard.redis("XADD", shard.keys.stream("normal"), "*", "id", f"ghost{i}", "env", "x")
    shard.tampered |= {f"ghost{i}" for i in range(20)}
    shard.put("j")

    rounds = 0
    while not (claims := shard.claim(limit=5)):
        rounds += 1
        assert rounds < 10

    assert [claim.job_id for claim in claims] == ["j"]
    assert shard.stats()["claims:missing"] == 20


def test_a_full_lane_is_claimed_in_one_call(shard: Shard) -> None:
    shard.enqueue(*(job(f"j{i}") for i in range(128)))

    claims = shard.claim(limit=128, plan=plan_of(("normal", 0, 128, 0)))

    assert [claim.job_id for claim in claims] == [f"j{i}" for i in range(128)]
