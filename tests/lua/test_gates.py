"""Gates: what a job must pass to be claimed, who holds it, and who comes next."""

from __future__ import annotations

from typing import Any

import pytest

from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from tests.lua.driver import LEASE, Shard, job, plan_of

LOCK = "0 entity:order:7"
LIMIT = "0 concurrency:task:add|2"
BOTH = "0 entity:order:7 concurrency:task:add|2"
RETRY = Retry(500, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p1")
BACK = Release(Reason.SHUTDOWN)
LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "", "-", Reason.RECOVERED)
#: ms after which a grant that nobody claims goes back.
UNCLAIMED = 5000


def fill(shard: Shard, *names: str, gates: str = LOCK, **options: Any) -> None:
    shard.enqueue(*(job(name, gates=gates, **options) for name in names))


def ids(claims: list[Claim]) -> list[str]:
    return [claim.job_id for claim in claims]


def holders(shard: Shard, gate: str = "entity:order:7") -> dict[str, str]:
    """Who holds the gate: `runs`, or `granted` and not claimed."""
    return {
        job_id: "runs" if score > 0 else "granted" for job_id, score in shard.look().holders(gate).items()
    }


def waiters(shard: Shard, gate: str = "entity:order:7", lane: str = "normal") -> list[str]:
    return list(shard.look().zsets.get(f"waiting:{lane}:{gate}", {}))


def places(shard: Shard, *names: str) -> dict[str, object]:
    return {name: shard.state(name)["place"] for name in names}


# --- passing and parking ----------------------------------------------------------------------------------


def test_a_job_without_gates_leaves_no_trace_of_any(shard: Shard) -> None:
    claim = shard.take("j")
    shard.settle(claim, Success())

    now = shard.look()
    assert not {name for name in now.ttls if name.split(":")[0] in ("gate", "waiting", "timers", "policies")}


def test_what_a_gate_lets_in_holds_it_until_it_ends(shard: Shard) -> None:
    fill(shard, "j")

    (claim,) = shard.claim()
    assert holders(shard) == {"j": "runs"}
    assert claim.gates == LOCK
    shard.settle(claim, Success())
    assert holders(shard) == {}


def test_a_blocked_job_waits_without_slot_and_attempt(shard: Shard) -> None:
    fill(shard, "a", "b")

    assert ids(shard.claim()) == ["a"]

    shard.check("b", status="queued", place="entity:order:7", attempt=0, starts=0, owner=None, held=False)
    assert waiters(shard) == ["b"]
    assert shard.stats()["parked:normal"] == 1
    assert shard.stats()["queued:normal"] == 0
    assert len(shard.look().streams["lane:normal"]) == 1


@pytest.mark.parametrize("gates", [LIMIT, "0 concurrency:user:7|2|concurrency:user@add"])
def test_a_limit_lets_in_as_many_as_it_says(shard: Shard, gates: str) -> None:
    fill(shard, *"abcde", gates=gates)

    assert ids(shard.claim()) == ["a", "b"]
    assert waiters(shard, gates.split()[1].split("|")[0]) == ["c", "d", "e"]


def test_the_end_of_a_holder_lets_the_next_in_and_he_holds_the_gate_before_he_is_ready(shard: Shard) -> None:
    fill(shard, "a", "b", "c")
    (a,) = shard.claim()

    shard.settle(a, Success())

    assert holders(shard) == {"b": "granted"}
    assert places(shard, "b", "c") == {"b": "r", "c": "entity:order:7"}
    assert ids(shard.claim()) == ["b"]
    assert holders(shard) == {"b": "runs"}


@pytest.mark.parametrize("outcome", [Success(), Fail(ErrorClass.PERSISTENT, "bad", "Bad: x"), RETRY, BACK])
def test_every_end_of_a_claim_frees_its_locks(shard: Shard, outcome: object) -> None:
    fill(shard, "a", gates=BOTH)
    (a,) = shard.claim()

    shard.settle(a, outcome)  # type: ignore[arg-type]

    assert holders(shard) == {}
    assert holders(shard, "concurrency:task:add") == {}


def test_a_recovery_frees_the_locks_of_the_dead(shard: Shard) -> None:
    shard.pass_hold()
    fill(shard, "a", "b")
    shard.claim()
    shard.elapse(LEASE)

    (candidate,) = shard.found_dead()
    shard.recovery(candidate, LOST)

    assert holders(shard) == {"b": "granted"}


def test_all_gates_or_none(shard: Shard) -> None:
    """A job that the second gate stops holds nothing of the first."""
    fill(shard, "a", gates="0 concurrency:b|1")
    fill(shard, "j", gates="0 concurrency:a|1 concurrency:b|1")

    assert ids(shard.claim()) == ["a"]

    assert holders(shard, "concurrency:a") == {}
    assert waiters(shard, "concurrency:b") == ["j"]


@pytest.mark.parametrize("gate", ["entity:order:7", "concurrency:g"])
def test_arrivals_do_not_overtake_waiters(shard: Shard, gate: str) -> None:
    gates = f"0 {gate}" if gate.startswith("entity") else f"0 {gate}|1"
    fill(shard, "a", "b", gates=gates)
    (a,) = shard.claim()
    fill(shard, "c", gates=gates)

    shard.exchange(("S " + str(a.fence) + " 0 returned", "a", b""), limit=5)

    assert holders(shard, gate) == {"b": "granted"}
    assert waiters(shard, gate) == ["c"]


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
    fill(shard, "a", "b", gates="0 entity:order:7|strict")
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
    fill(shard, "a", "b", gates="0 entity:order:7|strict")
    (a,) = shard.claim()
    shard.settle(a, RETRY)

    assert shard.cancel("a") == "OK"

    assert holders(shard) == {"b": "granted"}


def test_two_tasks_share_the_gates_that_they_name(shard: Shard) -> None:
    fill(shard, "a", task="pack")
    fill(shard, "b", task="ship")

    assert ids(shard.claim()) == ["a"]


def test_waiters_of_two_lanes_share_the_gate(shard: Shard) -> None:
    fill(shard, "a")
    (a,) = shard.claim()
    fill(shard, "b")
    fill(shard, "p", lane="priority")
    assert shard.claim(plan=plan_of("priority", "normal")) == []
    assert waiters(shard, lane="priority") == ["p"]

    shard.settle(a, Success())

    assert len(holders(shard)) == 1


def test_a_job_behind_full_gates_is_woken_at_most_once_for_each(shard: Shard) -> None:
    gates = ["concurrency:a", "concurrency:b", "concurrency:c"]
    for gate in gates:
        fill(shard, f"has-{gate}", gates=f"0 {gate}|1")
    full = {claim.job_id: claim for claim in shard.claim()}
    fill(shard, "j", gates="0 " + " ".join(f"{gate}|1" for gate in gates))
    assert shard.claim() == []
    entries: list[str] = []

    for gate in gates:
        shard.check("j", place=gate)
        shard.settle(full[f"has-{gate}"], Success())
        entries.append(str(shard.record("j").entry))
        claims = shard.claim()

    assert ids(claims) == ["j"]
    assert len(set(entries)) == 3
    assert claims[0].attempt == 1


@pytest.mark.parametrize("first", ["concurrency:a", "concurrency:b"])
def test_two_jobs_with_the_same_two_gates_never_wait_for_each_other(shard: Shard, first: str) -> None:
    fill(shard, "held", gates=f"0 {first}|1")
    (held,) = shard.claim()
    fill(shard, "j", "k", gates="0 concurrency:a|1 concurrency:b|1")
    assert shard.claim() == []
    shard.settle(held, Success())

    done = []
    for _ in range(6):
        for claim in shard.claim():
            done.append(claim.job_id)
            shard.settle(claim, Success())

    assert done == ["j", "k"]


# --- grants -----------------------------------------------------------------------------------------------


def granted(shard: Shard, gates: str = "0 concurrency:g|1", *others: str) -> Claim:
    """`a` ran and ended, `b` has its place and stands in ready, `c` and others wait; returns a's claim."""
    fill(shard, "a", "b", "c", *others, gates=gates)
    (a,) = shard.claim()
    shard.settle(a, Success())
    return a


def test_a_grant_that_nobody_claims_goes_to_the_next(shard: Shard) -> None:
    granted(shard)
    assert holders(shard, "concurrency:g") == {"b": "granted"}

    shard.elapse(UNCLAIMED - 1)
    assert shard.wake()[0] == 0
    shard.elapse(1)
    shard.wake()

    assert holders(shard, "concurrency:g") == {"c": "granted"}
    assert places(shard, "b", "c") == {"b": "r", "c": "r"}


def test_the_earlier_place_takes_over_a_later_grant_that_is_not_claimed(shard: Shard) -> None:
    granted(shard)
    shard.elapse(UNCLAIMED)
    shard.wake()

    assert ids(shard.claim()) == ["b"]

    assert holders(shard, "concurrency:g") == {"b": "runs"}
    shard.check("c", place="concurrency:g", attempt=0)


def test_a_later_place_takes_nothing_over(shard: Shard) -> None:
    granted(shard)
    shard.elapse(UNCLAIMED)
    shard.wake()
    fill(shard, "d", gates="0 concurrency:g|1")

    (b,) = shard.claim(limit=1)
    shard.settle(b, Success())

    assert holders(shard, "concurrency:g") == {"c": "granted"}


def test_a_grant_of_an_entity_does_not_go_back(shard: Shard) -> None:
    granted(shard, LOCK)

    shard.elapse(10 * UNCLAIMED)

    assert shard.wake()[0] == 0
    assert holders(shard) == {"b": "granted"}


def test_a_claimed_grant_does_not_go_back(shard: Shard) -> None:
    granted(shard)
    shard.claim()
    shard.elapse(UNCLAIMED)

    assert shard.wake()[0] == 0

    assert holders(shard, "concurrency:g") == {"b": "runs"}


def test_a_job_that_is_stopped_later_keeps_the_locks_before_and_gives_back_the_rest(shard: Shard) -> None:
    two = "0 concurrency:a|1 concurrency:b|1 concurrency:c|1"
    fill(shard, "has-a", gates="0 concurrency:a|1")
    (has_a,) = shard.claim()
    fill(shard, "j", gates=two)
    shard.claim()
    fill(shard, "has-b", gates="0 concurrency:b|1")
    shard.claim()

    shard.settle(has_a, Success())
    assert shard.claim() == []

    assert holders(shard, "concurrency:a") == {"j": "granted"}
    shard.check("j", place="concurrency:b")
    shard.elapse(UNCLAIMED)
    shard.wake()
    assert holders(shard, "concurrency:a") == {"j": "granted"}


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_waiter_that_ends_leaves_the_queue(shard: Shard, end: str) -> None:
    fill(shard, "a")
    (a,) = shard.claim()
    fill(shard, "b", deadline_ms=100)
    fill(shard, "c")
    shard.claim()

    if end == "cancel":
        assert shard.cancel("b") == "OK"
    else:
        shard.elapse(100)
        shard.promote()

    assert waiters(shard) == ["c"]
    shard.settle(a, Success())
    assert ids(shard.claim()) == ["c"]


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_granted_job_that_ends_wakes_the_next(shard: Shard, end: str) -> None:
    fill(shard, "a")
    (a,) = shard.claim()
    fill(shard, "b", deadline_ms=100)
    fill(shard, "c")
    shard.claim()
    shard.settle(a, Success())

    if end == "cancel":
        shard.cancel("b")
    else:
        shard.elapse(100)
        shard.promote()

    assert holders(shard) == {"c": "granted"}


# --- what is wrong ----------------------------------------------------------------------------------------


def test_a_holder_whose_record_disagrees_is_dropped(shard: Shard) -> None:
    shard.tampered.add("ghost")
    shard.redis("ZADD", f"{shard.keys.tag}:gate:concurrency:g", 1, "ghost")
    fill(shard, "a", gates="0 concurrency:g|1")

    assert ids(shard.claim()) == ["a"]

    assert holders(shard, "concurrency:g") == {"a": "runs"}


def test_a_grant_that_its_record_does_not_know_is_dropped(shard: Shard) -> None:
    fill(shard, "other", gates="")
    shard.tampered.add("other")
    shard.redis("ZADD", f"{shard.keys.tag}:gate:concurrency:g", -5, "other")
    fill(shard, "a", gates="0 concurrency:g|1")

    assert ids(shard.claim()) == ["other", "a"]


def test_an_entity_that_nobody_holds_is_given_by_repair(shard: Shard) -> None:
    shard.tampered.add("ghost")
    shard.redis("ZADD", f"{shard.keys.tag}:gate:entity:order:7", 1, "ghost")
    fill(shard, "a")

    shard.repair("a")

    assert holders(shard) == {"a": "granted"}


def test_repair_lets_in_who_waits_at_a_gate_that_is_free(shard: Shard) -> None:
    fill(shard, "a", "b")
    shard.claim()
    shard.forget_record("a")
    shard.tampered.add("a")
    shard.redis("DEL", f"{shard.keys.tag}:lane:normal")

    shard.repair("b")

    assert holders(shard) == {"b": "granted"}


def test_repair_brings_back_a_waiter_that_no_gate_knows(shard: Shard) -> None:
    fill(shard, "a", "b")
    shard.claim()
    shard.watchful = False
    shard.redis("ZREM", f"{shard.keys.tag}:waiting:normal:entity:order:7", "b")

    assert shard.repair("b")[0] == 1

    shard.check("b", place="r")
    assert shard.claim() == []
    shard.check("b", place="entity:order:7")


def test_a_dead_waiter_is_passed_over(shard: Shard) -> None:
    fill(shard, "a", "b", "c")
    (a,) = shard.claim()
    shard.tampered.add("b")
    shard.forget_record("b")

    shard.settle(a, Success())

    assert holders(shard) == {"c": "granted"}


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


def test_arrivals_do_not_take_over(shard: Shard) -> None:
    granted(shard)
    fill(shard, "d", gates="0 concurrency:g|1")

    assert ids(shard.claim(plan=plan_of(("normal", 0, 1, 3)), limit=1)) == ["b"], "d was read first"

    shard.check("d", place="concurrency:g")
    assert holders(shard, "concurrency:g") == {"b": "runs"}


def test_a_later_place_does_not_take_over_an_earlier_grant(shard: Shard) -> None:
    granted(shard)
    for _ in range(2):  # b's grant goes to c, and c's to nobody: both stand in ready without
        shard.elapse(UNCLAIMED)
        shard.wake()
    fill(shard, "x", gates="0 concurrency:g|1")
    (x,) = shard.claim(limit=1, plan=plan_of(("normal", 0, 1, 3)))
    b, c = shard.deliver("w1", kind="r")
    assert shard.claim(offers=[b]) == []
    shard.settle(x, Success())
    assert holders(shard, "concurrency:g") == {"b": "granted"}

    assert ids(shard.claim(limit=1, offers=[c])) == ["b"], "c was looked at first"

    shard.check("c", place="concurrency:g")


def test_a_strict_lock_that_succeeds_is_free(shard: Shard) -> None:
    fill(shard, "a", "b", gates="0 entity:order:7|strict")
    (a,) = shard.claim()

    shard.settle(a, Success())

    assert holders(shard) == {"b": "granted"}


@pytest.mark.parametrize("status", ["succeeded", "queued"])
def test_a_waiter_that_is_over_or_elsewhere_is_passed_over(shard: Shard, status: str) -> None:
    fill(shard, "a", "b", "c")
    (a,) = shard.claim()
    shard.tampered.add("b")
    shard.rewrite("b", status, en="-")

    shard.settle(a, Success())

    assert holders(shard) == {"c": "granted"}


def test_a_grant_that_waits_at_a_later_gate_is_kept(shard: Shard) -> None:
    fill(shard, "has-a", gates="0 concurrency:a|1")
    (has_a,) = shard.claim()
    fill(shard, "has-b", gates="0 concurrency:b|1")
    shard.claim()
    fill(shard, "j", gates="0 concurrency:a|1 concurrency:b|1")
    shard.claim()
    shard.settle(has_a, Success())
    shard.claim()
    shard.check("j", place="concurrency:b")

    shard.redis("ZADD", f"{shard.keys.tag}:timers", shard.now, "grant:j")
    shard.wake()

    assert holders(shard, "concurrency:a") == {"j": "granted"}


def test_a_limit_is_not_passed_by_dropping_true_holders(shard: Shard) -> None:
    fill(shard, *"abcd", gates=LIMIT)
    shard.claim(limit=2)

    assert shard.claim() == []

    assert len(holders(shard, "concurrency:task:add")) == 2


def test_repair_leaves_alone_who_waits(shard: Shard) -> None:
    fill(shard, "a", "b")
    shard.claim()

    assert shard.repair("a", "b") == (0, [])

    shard.check("b", place="entity:order:7")


def test_a_parked_job_that_is_still_scheduled_stays_parked(shard: Shard) -> None:
    fill(shard, "a", "b")
    shard.claim()
    shard.watchful = False
    shard.redis("ZADD", shard.keys.schedule, shard.now, "b")

    shard.promote()
    shard.watchful = True

    shard.check("b", place="entity:order:7")


def test_an_arrival_does_not_take_a_free_entity_for_which_others_wait(shard: Shard) -> None:
    """Somebody has to give it to them; here that is `repair`, after an error took the holder away."""
    fill(shard, "a", "b")
    shard.tampered |= {"a", "b"}
    shard.redis("ZREM", f"{shard.keys.tag}:gate:entity:order:7", "a")

    fill(shard, "c")

    shard.check("c", place="entity:order:7")


def test_how_long_a_job_waits_costs_no_commands(valkey_shard: Shard) -> None:
    """Each of 200 jobs behind one entity costs as many commands as each of 20."""
    shard = valkey_shard
    shard.watchful = False
    costs = []
    for count in (20, 200):
        fill(shard, *(f"{count}-{i}" for i in range(count)))
        before = commands(shard)
        while claims := shard.claim(limit=4):
            for claim in claims:
                shard.settle(claim, Success())
        costs.append((commands(shard) - before) / count)

    assert costs[1] <= costs[0] * 1.05, costs


def commands(shard: Shard) -> int:
    """Commands that the server has run so far, those inside scripts included."""
    lines = shard.redis("INFO", "commandstats").decode().splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line)
