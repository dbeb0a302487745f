from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamworker.core.errors import ConfigurationError
from streamworker.core.lanes import DEFAULT_LANES, Lane, Plan, Slots, State, charge, eligible, plan
from tests.unit.claiming import ENDLESS, LANES, Worker, everything, run_script


def test_a_worker_without_lanes_or_slots_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one lane"):
        Slots.of({}, 4)
    with pytest.raises(ConfigurationError, match="concurrency"):
        Slots.of(DEFAULT_LANES, 0)


@pytest.mark.parametrize(
    ("concurrency", "reserved", "shared"),
    [
        (64, {"priority": 4, "normal": 4}, 56),
        (9, {"priority": 4, "normal": 4}, 1),
        (8, {"priority": 3, "normal": 3}, 2),
        (2, {"priority": 0, "normal": 0}, 2),
        (1, {"priority": 0, "normal": 0}, 1),
    ],
)
def test_reservations_that_do_not_fit_scale_down(
    concurrency: int, reserved: dict[str, int], shared: int
) -> None:
    slots = Slots.of(DEFAULT_LANES, concurrency)

    assert slots.reserved == reserved
    assert slots.shared == shared


@given(LANES, st.integers(1, 100))
def test_one_slot_at_least_is_shared(lanes: dict[str, Lane], concurrency: int) -> None:
    slots = Slots.of(lanes, concurrency)

    assert slots.shared >= 1
    assert sum(slots.reserved.values()) + slots.shared == concurrency
    assert all(slots.reserved[lane] <= lanes[lane].reserved for lane in lanes)


def test_the_first_plan_gives_each_lane_its_reserved_slots_and_its_part_of_the_rest() -> None:
    proposal = plan(Slots.of(DEFAULT_LANES, 18), State(), {}, 64)

    assert (proposal.limit, proposal.shared) == (18, 10)
    assert [(row.lane, row.reserved, row.quota, row.phase) for row in proposal.rows] == [
        ("priority", 4, 8, 0),
        ("normal", 4, 2, 0),
    ]


def test_a_full_worker_claims_nothing() -> None:
    proposal = plan(Slots.of(DEFAULT_LANES, 18), State(), {"priority": 12, "normal": 6}, 64)

    assert (proposal.limit, proposal.shared, proposal.rows) == (0, 0, ())


def test_jobs_of_a_lane_no_longer_served_still_hold_their_slots() -> None:
    proposal = plan(Slots.of({"normal": Lane()}, 4), State(), {"normal": 1, "gone": 2}, 64)

    assert (proposal.limit, proposal.shared) == (1, 1)


@settings(max_examples=200)
@given(LANES, st.integers(1, 70), st.data())
def test_nothing_is_claimed_beyond_the_free_slots_or_the_limit(
    lanes: dict[str, Lane], concurrency: int, data: st.DataObject
) -> None:
    worker = Worker(lanes, concurrency, {lane: data.draw(st.integers(0, 40)) for lane in lanes})
    for _ in range(data.draw(st.integers(1, 6))):
        limit = data.draw(st.integers(0, 128))
        before = worker.in_flight()
        proposal = plan(worker.slots, worker.state, before, limit)
        waiting = dict(worker.work)
        taken = worker.claim(limit)
        after = worker.in_flight()

        assert sum(taken.values()) <= min(limit, concurrency - sum(before.values()))
        assert sum(worker.borrowed(lane) for lane in lanes) <= worker.slots.shared
        assert sum(row.quota for row in proposal.rows) == proposal.shared
        assert all(row.reserved >= 0 and row.quota >= 0 for row in proposal.rows)
        if limit >= concurrency:
            for lane in lanes:
                entitled = min(worker.slots.reserved[lane], before[lane] + waiting[lane])
                assert after[lane] >= entitled, "a lane with work holds its reserved slots at least"
            idle_slots = concurrency - sum(after.values())
            usable = sum(max(0, worker.slots.reserved[lane] - after[lane]) for lane in lanes)
            assert idle_slots == usable or not any(worker.work.values()), "no slot stays free beside work"
        rng = random.Random(data.draw(st.integers(0, 999)))
        rng.shuffle(worker.running)
        del worker.running[: data.draw(st.integers(0, len(worker.running)))]


@settings(max_examples=200)
@given(LANES, st.integers(1, 70), st.data())
def test_calls_without_an_answer_never_claim_more_than_the_slots_together(
    lanes: dict[str, Lane], concurrency: int, data: st.DataObject
) -> None:
    worker = Worker(lanes, concurrency, {lane: data.draw(st.integers(0, 40)) for lane in lanes})
    worker.claim(data.draw(st.integers(0, concurrency)))
    limits = data.draw(st.lists(st.integers(1, concurrency), min_size=2, max_size=3))
    under_way: list[Plan] = []
    for limit in limits:
        under_way.append(plan(worker.slots, worker.state, worker.in_flight(), limit, under_way=under_way))

    taken = [run_script(proposal, worker.work) for proposal in under_way]  # all answered only now

    for lane in lanes:
        worker.running += [lane] * sum(claims.get(lane, 0) for claims in taken)
    assert len(worker.running) <= concurrency
    assert sum(worker.borrowed(lane) for lane in lanes) <= worker.slots.shared


def test_a_second_call_gets_the_slots_that_the_first_leaves() -> None:
    slots = Slots.of(DEFAULT_LANES, 18)
    first = plan(slots, State(), {}, 9)

    second = plan(slots, State(), {}, 9, under_way=[first])

    assert (first.limit, first.shared) == (9, 10)
    assert (second.limit, second.shared) == (1, 1)


def turn_over(worker: Worker, limit: int, jobs: int, rng: random.Random) -> dict[str, float]:
    """Keep the worker full while `jobs` jobs end, one by one; return the shared slots held on average."""
    worker.fill(limit)
    held = dict.fromkeys(worker.work, 0.0)
    for _ in range(jobs):
        worker.running.pop(rng.randrange(len(worker.running)))
        worker.claim(limit)
        for lane in held:
            held[lane] += worker.borrowed(lane) / jobs
    return held


@pytest.mark.parametrize("limit", [1, 2, 5, 64])
@pytest.mark.parametrize(("concurrency", "reserved"), [(3, 0), (12, 2), (24, 0), (24, 2)])
def test_lanes_with_work_share_the_shared_slots_by_weight(
    limit: int, concurrency: int, reserved: int
) -> None:
    lanes = {"a": Lane(reserved, 4), "b": Lane(reserved, 1), "c": Lane(reserved, 3)}
    worker = Worker(lanes, concurrency, everything(lanes))

    held = turn_over(worker, limit, 6000, random.Random(1))

    for lane in lanes:
        part = (worker.slots.reserved[lane] + worker.share(lane)) / concurrency
        assert worker.started[lane] / sum(worker.started.values()) == pytest.approx(part, rel=0.03)
        # Which job ends next is drawn by lot here, so the slots held scatter more than the starts.
        assert held[lane] == pytest.approx(worker.share(lane), rel=0.1, abs=0.3)


@pytest.mark.parametrize("limit", range(1, 65))
def test_starts_follow_the_weights_when_the_limit_is_what_is_short(limit: int) -> None:
    lanes = {"a": Lane(0, 4), "b": Lane(0, 1)}
    worker = Worker(lanes, 100, everything(lanes))

    for _ in range(300):
        worker.claim(limit)
        worker.running.clear()  # jobs so short that every slot is free again

    total = sum(worker.started.values())
    assert worker.started["a"] / total == pytest.approx(0.8, rel=0.1)
    assert worker.started["b"] / total == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("limit", [1, 3, 16, 64])
def test_reserved_slots_of_one_lane_do_not_starve_another_without_any(limit: int) -> None:
    lanes = {"a": Lane(50, 4), "b": Lane(0, 1)}
    worker = Worker(lanes, 60, everything(lanes))

    for _ in range(1200):
        worker.claim(limit)
        worker.running.clear()

    # As if the slots were full: a has 50 + 8 of the 60, b has 2.
    assert worker.started["b"] / sum(worker.started.values()) == pytest.approx(2 / 60, rel=0.1)


@settings(max_examples=60, deadline=None)
@given(LANES, st.integers(1, 24), st.integers(1, 64), st.integers(0, 9999))
def test_no_lane_with_work_waits_for_ever(
    lanes: dict[str, Lane], concurrency: int, limit: int, seed: int
) -> None:
    worker, rng = Worker(lanes, concurrency, everything(lanes)), random.Random(seed)
    waited = dict.fromkeys(lanes, 0)
    smallest = min(worker.slots.reserved[lane] + worker.share(lane) for lane in lanes)
    bound = 6 * concurrency * (1 + 1 / smallest)

    for _ in range(600):
        taken = worker.claim(limit)
        for lane in lanes:
            waited[lane] = (
                0 if taken.get(lane) or lane in worker.running else waited[lane] + sum(taken.values())
            )
            assert waited[lane] <= bound, f"{lane} holds nothing and saw {waited[lane]} starts of others"
        rng.shuffle(worker.running)
        del worker.running[: rng.randint(0, len(worker.running))]


def test_who_is_behind_by_most_rounds_gets_the_next_shared_slot() -> None:
    """The share of `a` is 0.4 slots: 8 starts are 240 of all, while `c` is behind by less than two rounds."""
    slots = Slots.of({"a": Lane(0, 2), "b": Lane(1, 1), "c": Lane(5, 1), "d": Lane(5, 1)}, 12)
    state = State(owed={"a": 8.2, "b": -0.1, "c": 8.6, "d": -11.7})

    proposal = plan(slots, state, {"b": 1, "c": 5, "d": 5}, 11)

    assert {row.lane: row.quota for row in proposal.rows} == {"a": 1, "b": 0, "c": 0, "d": 0}


@pytest.mark.parametrize("seed", range(6))
def test_a_lane_with_a_part_of_a_slot_gets_it(seed: int) -> None:
    lanes = {"a": Lane(0, 2), "b": Lane(1, 1), "c": Lane(5, 1), "d": Lane(5, 1)}
    worker, rng = Worker(lanes, 12, everything(lanes)), random.Random(seed)

    for _ in range(3000):
        worker.claim(11)
        rng.shuffle(worker.running)
        del worker.running[: rng.randint(0, len(worker.running))]

    assert worker.started["a"] / sum(worker.started.values()) == pytest.approx(0.4 / 12, rel=0.02)


@pytest.mark.parametrize("limit", [1, 64])
def test_a_lane_that_comes_back_gets_its_share_at_once_and_no_more(limit: int) -> None:
    lanes = {"a": Lane(0, 4), "b": Lane(0, 1)}
    worker, rng = Worker(lanes, 20, {"a": ENDLESS}), random.Random(2)
    turn_over(worker, limit, 5000, rng)
    assert worker.running.count("a") == 20, "an idle lane leaves its slots to others"

    worker.work["b"] = ENDLESS
    for _ in range(5):
        worker.running.remove("a")
        worker.claim(limit)
    assert 3 <= worker.running.count("b") <= 5, "its share is 4"

    for _ in range(400):
        worker.running.pop(rng.randrange(20))
        worker.claim(limit)
        assert worker.running.count("b") <= 6


def test_a_lane_that_was_away_while_jobs_were_short_does_not_come_back_with_a_claim_on_all_of_them() -> None:
    lanes = {"a": Lane(0, 1), "b": Lane(0, 1)}
    worker = Worker(lanes, 64, {"a": ENDLESS})
    for _ in range(1000):
        worker.claim(4)
        worker.running.clear()

    worker.work["b"] = ENDLESS
    started = dict(worker.started)
    for _ in range(20):
        worker.claim(4)
        worker.running.clear()

    assert 36 <= worker.started["b"] - started["b"] <= 44
    assert 36 <= worker.started["a"] - started["a"] <= 44


@pytest.mark.parametrize("limit", [1, 64])
def test_a_lane_of_long_jobs_does_not_collect_the_shared_slots(limit: int) -> None:
    lanes = {"short": Lane(0, 4), "long": Lane(0, 1), "empty": Lane(0, 5)}
    worker = Worker(lanes, 30, {"short": ENDLESS, "long": ENDLESS})
    worker.fill(limit)

    for turn in range(3000):
        worker.running.remove("short")
        if turn % 100 == 0:
            worker.running.remove("long")
        worker.fill(limit)
        assert 1 <= worker.running.count("long") <= 8, "its share is 6; one slot more may be owed"


def test_a_lane_that_is_seldom_asked_is_still_asked() -> None:
    lanes = {"a": Lane(0, 1000), "b": Lane(0, 1000), "rare": Lane(0, 1)}
    worker, rng = Worker(lanes, 2, {"a": ENDLESS, "b": ENDLESS}), random.Random(3)
    turn_over(worker, 1, 100, rng)
    worker.work["rare"] = 1

    turns = 0
    while worker.work["rare"]:
        worker.running.pop(rng.randrange(2))
        worker.claim(1)
        turns += 1

        assert turns < 4100, "its part is one of 2001 starts"


@given(LANES, st.integers(1, 64), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 40)))
def test_a_claim_that_finds_nothing_leaves_no_lane_to_be_asked_again(
    lanes: dict[str, Lane], concurrency: int, work: dict[str, int]
) -> None:
    """Else an idle worker would go on asking, instead of waiting in its blocking read."""
    worker = Worker(lanes, concurrency, work)
    while any(worker.work.values()):
        worker.fill()
        worker.running.clear()

    worker.claim(concurrency)

    assert worker.state.idle == set(lanes)


def test_the_phase_counts_the_claims_of_a_lane_modulo_4() -> None:
    slots = Slots.of(DEFAULT_LANES, 64)
    state, proposal = State(), plan(slots, State(), {}, 64)

    for taken, expected in ((3, 3), (0, 3), (2, 1), (11, 0)):
        state = charge(state, proposal, {"normal": taken})
        rows = {row.lane: row.phase for row in plan(slots, state, {}, 64).rows}
        assert rows == {"normal": expected, "priority": 0}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_a_call_beside_another_goes_on_with_its_turn(size: int) -> None:
    """Else two calls under way would each begin with ready jobs, and arrivals get less than their quarter."""
    slots = Slots.of({"normal": Lane()}, 64)
    first = plan(slots, State(phase={"normal": 3}), {}, size)

    (row,) = plan(slots, State(phase={"normal": 3}), {}, 8, under_way=[first]).rows

    assert row.phase == (3 + size) % 4


def test_what_is_owed_stays_bounded() -> None:
    lanes = {"short": Lane(0, 1), "long": Lane(0, 1)}
    worker = Worker(lanes, 8, everything(lanes))
    worker.fill()

    for _ in range(500):
        worker.running.remove("short")  # each start of it is one more that the lane of long jobs is behind
        worker.claim(1)

    assert worker.state.owed == {"short": -8.0, "long": 8.0}


@given(LANES, st.integers(1, 70), st.data())
def test_a_lane_is_eligible_exactly_when_a_plan_gives_it_a_slot(
    lanes: dict[str, Lane], concurrency: int, data: st.DataObject
) -> None:
    worker = Worker(lanes, concurrency, {lane: data.draw(st.integers(0, 40)) for lane in lanes})
    worker.claim(data.draw(st.integers(0, concurrency)))
    proposal = plan(worker.slots, worker.state, worker.in_flight(), concurrency)

    given = {row.lane for row in proposal.rows if row.reserved or proposal.shared}

    assert set(eligible(worker.slots, worker.in_flight())) == given


@settings(max_examples=200)
@given(LANES, st.integers(2, 300))
def test_half_a_plan_leaves_the_other_half_to_the_next_call(lanes: dict[str, Lane], concurrency: int) -> None:
    slots = Slots.of(lanes, concurrency)

    first = plan(slots, State(), {}, concurrency).half()
    second = plan(slots, State(), {}, concurrency - first.limit, under_way=(first,))

    assert first.limit + second.limit <= concurrency
    assert first.limit <= (concurrency + len(lanes) + 1) // 2
    assert second.shared == slots.shared - first.shared
    for lane, reserved in slots.reserved.items():
        given = sum(row.reserved for half in (first, second) for row in half.rows if row.lane == lane)
        assert given == reserved


def test_planning_is_pure() -> None:
    slots, state = Slots.of(DEFAULT_LANES, 20), State(owed={"normal": 1.5}, phase={"normal": 2})

    first = plan(slots, state, {"normal": 5}, 8)

    assert plan(slots, state, {"normal": 5}, 8) == first
    assert state == State(owed={"normal": 1.5}, phase={"normal": 2})
