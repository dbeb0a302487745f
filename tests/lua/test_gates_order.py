"""The order of an entity, and of who comes back: by the first place, whatever happens in between (D16)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamworker.core.outcome import Fail, Release, Success
from streamworker.core.states import ErrorClass, Reason
from tests.lua.driver import Shard, plan_of
from tests.lua.gating import (
    APART,
    BACK,
    BOTH,
    LOCK,
    LOST,
    RETRY,
    die,
    fill,
    holders,
    ids,
    places,
    waiters,
)

STRICT = "0 entity:order:7|strict"
ONE = "0 concurrency:g|1"


def test_one_entity_runs_in_the_order_of_arrival(shard: Shard) -> None:
    names = [f"j{i}" for i in range(20)]
    fill(shard, *names)
    ran = []
    claims = shard.claim(limit=3)
    while claims:
        (claim,) = claims
        ran.append(claim.job_id)
        assert claim.attempt == 1
        assert claim.starts == 1
        shard.settle(claim, Success())
        claims = shard.claim(limit=3)

    assert ran == names


def test_the_order_of_an_entity_does_not_hang_on_who_looks_first(shard: Shard) -> None:
    shard.claim("w1")
    fill(shard, "a", "b")
    offers = shard.deliver("w2", count=1)  # its reader was given a, and has not told it yet

    assert shard.claim("w1") == []
    assert ids(shard.claim("w2", offers=offers)) == ["a"]


def test_an_entity_stays_with_who_waits_for_a_token(shard: Shard) -> None:
    fill(shard, "x", gates="0 rate:r|1,1000,1")
    shard.claim()
    fill(shard, "a", gates="0 rate:r|1,1000,1 entity:order:7")
    fill(shard, "b")
    shard.claim()

    shard.check("a", place="rate:r")
    assert holders(shard) == {"a": "granted"}


def test_an_entity_goes_to_the_next_while_its_first_is_paused(shard: Shard) -> None:
    shard.tune("pause", "tenant:acme")
    fill(shard, "a", tenant="acme")
    fill(shard, "b")
    shard.claim()

    shard.check("a", place="pause:tenant:acme")
    assert holders(shard) == {"b": "granted"}


def test_a_delayed_job_takes_its_place_when_its_time_has_come(shard: Shard) -> None:
    fill(shard, "later", delay_ms=100)
    fill(shard, "a", "b")
    shard.elapse(100)
    shard.promote()
    (a,) = shard.claim()
    shard.settle(a, Success())
    (b,) = shard.claim()
    shard.settle(b, Success())

    assert (a.job_id, b.job_id, ids(shard.claim())) == ("a", "b", ["later"])


@pytest.mark.parametrize("gates", [LOCK, BOTH])
def test_a_retry_comes_back_to_its_first_place(shard: Shard, gates: str) -> None:
    fill(shard, "a", "b", "c", gates=gates)
    (a,) = shard.claim()
    shard.settle(a, RETRY)
    (b,) = shard.claim()
    assert b.job_id == "b"
    shard.elapse(RETRY.delay_ms)
    shard.promote()
    assert shard.claim() == []  # a waits again

    shard.settle(b, Success())

    assert ids(shard.claim()) == ["a"]


def test_a_strict_lock_stays_with_the_retry(shard: Shard) -> None:
    fill(shard, "a", "b", gates=STRICT)
    (a,) = shard.claim()
    shard.settle(a, RETRY)

    assert shard.claim() == []
    assert holders(shard) == {"a": "granted"}
    shard.elapse(RETRY.delay_ms)
    shard.promote()
    (a,) = shard.claim()
    assert (a.job_id, a.attempt) == ("a", 2)
    shard.settle(a, Success())
    assert ids(shard.claim()) == ["b"]


def test_a_strict_lock_is_free_when_its_job_is_over(shard: Shard) -> None:
    fill(shard, "a", "b", gates=STRICT)
    (a,) = shard.claim()
    shard.settle(a, RETRY)

    assert shard.cancel("a") == "OK"

    assert holders(shard) == {"b": "granted"}


def test_a_strict_lock_that_succeeds_is_free(shard: Shard) -> None:
    fill(shard, "a", "b", gates=STRICT)
    (a,) = shard.claim()

    shard.settle(a, Success())

    assert holders(shard) == {"b": "granted"}


def test_a_replay_passes_its_gates_again(shard: Shard) -> None:
    fill(shard, "a", "b")
    (a,) = shard.claim()
    shard.settle(a, Fail(ErrorClass.PERSISTENT, "bad", "Bad: x"))
    letter = shard.letter("a")
    shard.forget_record("a")

    assert shard.replay(letter) == ["OK"]

    (b,) = shard.claim()
    assert b.job_id == "b"
    shard.check("a", place="entity:order:7")


def test_an_arrival_does_not_take_a_free_entity_for_which_others_wait(shard: Shard) -> None:
    """Somebody has to give it to them; here that is `repair`, after an error took the holder away."""
    fill(shard, "a", "b")
    shard.tampered |= {"a", "b"}
    shard.redis("ZREM", f"{shard.keys.tag}:gate:entity:order:7", "a")

    fill(shard, "c")

    shard.check("c", place="entity:order:7")


# --- who comes back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gates", [LOCK, STRICT, BOTH])
def test_a_crash_keeps_the_order_of_an_entity(shard: Shard, gates: str) -> None:
    fill(shard, "a", "b", gates=gates)

    die(shard)

    assert holders(shard) == {"a": "granted"}
    (a,) = shard.claim(plan=plan_of("normal", APART))
    assert (a.job_id, a.kind) == ("a", "q")
    shard.settle(a, Success())
    assert ids(shard.claim()) == ["b"]


@pytest.mark.parametrize("gates", [LOCK, STRICT])
def test_a_job_that_is_handed_back_keeps_its_entity(shard: Shard, gates: str) -> None:
    fill(shard, "a", "b", gates=gates)
    shard.settle(shard.claim_one(), BACK)
    offers = shard.deliver("w2", kind="r")  # another worker's reader has it, and has not told it yet

    assert shard.claim() == []

    assert ids(shard.claim("w2", offers=offers)) == ["a"]


def test_a_claim_that_finds_no_slot_again_keeps_its_entity(shard: Shard) -> None:
    fill(shard, "a", "b")
    lost = shard.claim_one()  # its reply never came
    shard.session(own=1)

    assert shard.claim(limit=0, offers=[shard.offer_of(lost)]) == []

    shard.check("a", status="queued", place="r", attempt=0)
    assert holders(shard) == {"a": "granted"}


def test_a_crash_that_has_to_wait_lets_the_next_run_and_comes_back_before_the_others(shard: Shard) -> None:
    """As every retry does: only the first recovery is due at once."""
    fill(shard, "a", "b", "c")
    die(shard)
    die(shard, replace(LOST, delay_ms=500))
    (b,) = shard.claim()
    assert b.job_id == "b"

    shard.elapse(500)
    shard.promote()
    assert shard.claim(plan=plan_of("normal", APART)) == []
    shard.settle(b, Success())

    assert ids(shard.claim(plan=plan_of("normal", APART))) == ["a"]


def test_a_crash_does_not_keep_out_who_was_there_before(shard: Shard) -> None:
    fill(shard, "a", "b")
    shard.settle(shard.claim_one(), RETRY)
    (b,) = shard.claim()
    shard.elapse(RETRY.delay_ms)
    shard.promote()
    assert shard.claim() == []

    shard.settle(b, BACK)

    assert holders(shard) == {"a": "granted"}
    assert places(shard, "a", "b") == {"a": "r", "b": "r"}
    assert ids(shard.claim()) == ["a"]


def test_other_gates_take_nothing_of_what_is_still_needed(shard: Shard) -> None:
    fill(shard, "a", "b")
    claim = shard.claim_one()

    shard.settle(claim, Release(Reason.REGATED, gates="5 entity:order:7 concurrency:task:add|1"), ago=None)

    assert holders(shard) == {"a": "granted"}


def test_who_passed_without_waiting_comes_back_before_those_who_came_later(shard: Shard) -> None:
    """It was given no place; the time of its enqueue stands for it."""
    fill(shard, "a", "b", gates=ONE)
    shard.settle(shard.claim_one(), RETRY)
    shard.elapse(10)
    (b,) = shard.claim()
    fill(shard, "c", gates=ONE)
    shard.claim()
    shard.elapse(RETRY.delay_ms)
    shard.promote()
    assert shard.claim() == []
    assert waiters(shard, "concurrency:g") == ["a", "c"]

    shard.settle(b, Success())

    assert holders(shard, "concurrency:g") == {"a": "granted"}


def test_nobody_passes_before_who_waits_although_there_is_room(shard: Shard) -> None:
    """The limit was raised, and w is not let in yet: only who comes back before it may pass."""
    fill(shard, "a", gates=ONE)
    shard.settle(shard.claim_one(), RETRY)
    fill(shard, "x", "w", gates=ONE)
    shard.claim()
    shard.elapse(RETRY.delay_ms)
    shard.promote()
    fill(shard, "n", gates=ONE)
    shard.tune("limit", "concurrency:g", "3")

    assert ids(shard.claim()) == ["a"]

    shard.check("n", place="concurrency:g")
    assert holders(shard, "concurrency:g") == {"x": "runs", "a": "runs", "w": "granted"}


def test_nobody_passes_before_who_was_parked_by_the_same_call(shard: Shard) -> None:
    """Two tasks see one gate with figures of their own."""
    wide, narrow = "0 concurrency:u:7|5|concurrency:u@wide", "0 concurrency:u:7|1|concurrency:u@narrow"
    fill(shard, "a", gates=wide)
    fill(shard, "b", gates=narrow)
    fill(shard, "c", gates=wide)

    assert ids(shard.claim()) == ["a"]

    assert waiters(shard, "concurrency:u:7") == ["b", "c"]


def test_a_delay_is_no_waiting(shard: Shard) -> None:
    fill(shard, "late", delay_ms=100, gates=ONE)
    shard.elapse(50)
    shard.tune("pause", "tenant:acme")
    fill(shard, "w", gates=ONE, tenant="acme")
    shard.claim()
    shard.elapse(50)
    shard.promote()
    (late,) = shard.claim()
    fill(shard, "x", gates=ONE)
    shard.settle(late, RETRY)
    (x,) = shard.claim()
    shard.tune("resume", "tenant:acme", 0)
    shard.wake()
    shard.elapse(RETRY.delay_ms)
    shard.promote()

    assert shard.claim() == []

    assert x.job_id == "x"
    assert waiters(shard, "concurrency:g") == ["w", "late"]


def test_a_job_that_never_ran_stands_behind_those_who_wait(shard: Shard) -> None:
    """Whoever was enqueued earlier and is looked at later has no claim on the place of others."""
    fill(shard, "has", gates=ONE)
    shard.claim()
    fill(shard, "early", gates=ONE, lane="other")
    shard.elapse(10)
    fill(shard, "late", gates=ONE)
    shard.claim()

    shard.claim(plan=plan_of("other"))

    records = shard.look().records()
    assert int(records["late"].text("pl") or 0) < int(records["early"].text("pl") or 0)


def test_a_replay_lines_up_when_it_is_replayed(shard: Shard) -> None:
    fill(shard, "a", gates=ONE)
    shard.settle(shard.claim_one(), Fail(ErrorClass.PERSISTENT, "bad", "Bad: x"))
    fill(shard, "has", "before", gates=ONE)
    (has,) = shard.claim()

    shard.replay(shard.letter("a"))
    shard.elapse(10)
    fill(shard, "after", gates=ONE)
    assert shard.claim(limit=1, plan=plan_of(("normal", 0, 1, 3))) == []  # arrivals first
    shard.settle(has, Success())

    assert waiters(shard, "concurrency:g") == ["a", "after"]
    assert holders(shard, "concurrency:g") == {"before": "granted"}


def test_places_grow_although_the_clock_is_put_back(shard: Shard) -> None:
    fill(shard, "a", "b")
    shard.now -= 60_000
    fill(shard, "c")

    (a,) = shard.claim()
    shard.settle(a, Success())

    assert holders(shard) == {"b": "granted"}
