"""What each lane is guaranteed, over any window: its reserved slots, and its weighted share of the others."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from streamworker.core.lanes import Lane, Slots, plan
from tests.unit.claiming import ENDLESS, LANES, Worker, everything

AGES = st.sampled_from([0, 500, 1000, 1999, 2000, 3999, 4000, 10**9])
AGEING_LANES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]),
    st.builds(
        Lane,
        reserved=st.integers(0, 20),
        weight=st.integers(1, 8),
        aging=st.none() | st.just(1),
    ),
    min_size=1,
)


def parts(lanes: Mapping[str, Lane], slots: Slots) -> dict[str, float]:
    """The part of all slots that is each lane's while every lane has work."""
    weights = sum(slots.weight.values())
    return {
        lane: (slots.reserved[lane] + slots.shared * slots.weight[lane] / weights) / slots.concurrency
        for lane in lanes
    }


@settings(max_examples=100, deadline=None)
@given(LANES, st.integers(1, 40), st.integers(1, 64), st.integers(0, 9999))
def test_each_lane_gets_its_share_of_the_starts_in_every_window(
    lanes: dict[str, Lane], concurrency: int, limit: int, seed: int
) -> None:
    """Jobs of one length, so that starts are what slots come to; however many end at a time."""
    worker, rng = Worker(lanes, concurrency, everything(lanes)), random.Random(seed)
    worker.fill(limit)
    part = parts(lanes, worker.slots)
    behind = dict.fromkeys(lanes, 0.0)  # starts that a lane is behind its share
    least = dict(behind)
    for _ in range(300):
        del worker.running[: rng.randint(1, concurrency)]  # the oldest end first
        while True:
            taken = worker.claim(limit)
            if not any(taken.values()):
                break
            for lane in lanes:
                behind[lane] += sum(taken.values()) * part[lane] - taken.get(lane, 0)
                least[lane] = min(least[lane], behind[lane])
                # The worst window is the one that began when the lane was furthest ahead.
                assert behind[lane] - least[lane] <= concurrency + 1, (lane, behind, least)


@settings(max_examples=100, deadline=None)
@given(LANES, st.integers(1, 40), st.data())
def test_a_lane_with_work_holds_its_reserved_slots_at_every_moment(
    lanes: dict[str, Lane], concurrency: int, data: st.DataObject
) -> None:
    """Whatever the others have, and however their jobs end."""
    quiet = data.draw(st.sampled_from(sorted(lanes)))
    worker = Worker(lanes, concurrency, everything(lanes) | {quiet: 0})
    rng = random.Random(data.draw(st.integers(0, 9999)))
    for turn in range(60):
        worker.fill(concurrency)
        if turn == 20:
            worker.work[quiet] = ENDLESS
            worker.fill(concurrency)
        if turn >= 20:
            assert worker.running.count(quiet) >= worker.slots.reserved[quiet]
        rng.shuffle(worker.running)
        del worker.running[: rng.randint(0, len(worker.running))]


# --- ageing ----------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(AGEING_LANES, st.integers(1, 70), st.data())
def test_ageing_moves_weights_and_nothing_else(
    lanes: dict[str, Lane], concurrency: int, data: st.DataObject
) -> None:
    slots = Slots.of(lanes, concurrency)
    ages = {lane: data.draw(AGES) for lane in lanes}

    aged = slots.aged(lanes, ages)

    assert (aged.concurrency, aged.shared, aged.reserved) == (slots.concurrency, slots.shared, slots.reserved)
    for lane, declared in lanes.items():
        old = declared.aging is not None and ages[lane] >= 1000
        assert (aged.weight[lane] > slots.weight[lane]) == old
        assert aged.weight[lane] <= 8 * slots.weight[lane]
    if not any(declared.aging for declared in lanes.values()):
        assert aged is slots


@settings(max_examples=150, deadline=None)
@given(AGEING_LANES, st.integers(1, 24), st.integers(1, 64), st.data())
def test_with_ageing_nothing_is_claimed_beyond_the_slots_and_no_lane_waits_for_ever(
    lanes: dict[str, Lane], concurrency: int, limit: int, data: st.DataObject
) -> None:
    """Ages move at random between claims: the worst that a fleet can tell."""
    worker = Worker(lanes, concurrency, everything(lanes))
    declared, rng = worker.slots, random.Random(data.draw(st.integers(0, 9999)))
    # The least that a lane may come to: its own weight beside the eightfold of all others.
    weights = sum(declared.weight.values())
    smallest = min(
        declared.reserved[lane] + declared.shared * declared.weight[lane] / (8 * weights) for lane in lanes
    )
    bound = (concurrency + 2) * concurrency / smallest + 4 * concurrency
    waited = dict.fromkeys(lanes, 0)
    for _ in range(300):
        worker.slots = declared.aged(lanes, {lane: rng.choice([0, 1000, 2000, 4000]) for lane in lanes})
        taken = worker.claim(limit)
        assert len(worker.running) <= concurrency
        assert sum(worker.borrowed(lane) for lane in lanes) <= worker.slots.shared
        for lane in lanes:
            held = taken.get(lane) or lane in worker.running
            waited[lane] = 0 if held else waited[lane] + sum(taken.values())
            assert waited[lane] <= bound, f"{lane} holds nothing and saw {waited[lane]} starts of others"
        rng.shuffle(worker.running)
        del worker.running[: rng.randint(0, len(worker.running))]


def test_an_old_lane_gets_the_larger_share_and_gives_it_back() -> None:
    lanes = {"a": Lane(0, 4), "b": Lane(0, 1, aging=1)}
    worker, rng = Worker(lanes, 20, everything(lanes)), random.Random(1)
    declared, held = worker.slots, {}

    for phase, age in (("young", 0), ("old", 4000), ("young again", 0)):
        worker.slots = declared.aged(lanes, {"b": age})
        for _ in range(2000):
            worker.fill()
            worker.running.pop(rng.randrange(20))
        worker.fill()
        held[phase] = worker.running.count("b")

    assert 3 <= held["young"] <= 5, "1 of 5 parts of 20 slots"
    assert 12 <= held["old"] <= 14, "8 of 12 parts"
    assert 3 <= held["young again"] <= 5


def test_a_plan_by_old_weights_still_fits_the_slots() -> None:
    """A call under way was planned by other weights: its slots count as taken all the same."""
    lanes = {"a": Lane(2, 4), "b": Lane(2, 1, aging=1)}
    worker = Worker(lanes, 20, everything(lanes))
    first = plan(worker.slots, worker.state, {}, 10)

    aged = worker.slots.aged(lanes, {"b": 4000})
    second = plan(aged, worker.state, {}, 20, under_way=[first])

    assert first.limit + second.limit <= 20
    assert second.shared <= aged.shared - min(first.limit, first.shared)
