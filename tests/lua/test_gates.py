"""Gates: what a job must pass to be claimed, who holds it, and who comes next."""

from __future__ import annotations

import pytest

from streamworker.core.outcome import Fail, Success
from streamworker.core.states import ErrorClass
from streamworker.store import scripts
from tests.lua.driver import Shard, job, plan_of
from tests.lua.gating import (
    BOTH,
    LIMIT,
    LOCK,
    RETRY,
    die,
    fill,
    holders,
    ids,
    places,
    waiters,
)


def test_a_job_without_gates_leaves_no_trace_of_any(shard: Shard) -> None:
    claim = shard.take("j")
    shard.settle(claim, Success())

    now = shard.look()
    assert not {name for name in now.ttls if name.split(":")[0] in ("gate", "waiting", "timers", "policies")}


def test_a_producer_is_told_that_its_job_waits_at_a_gate_from_the_start(shard: Shard) -> None:
    def of(entity: str, name: str) -> scripts.NewJob:
        return job(name, gates=f"0 entity:{entity}")

    told = shard.enqueue(of("1", "a"), of("1", "b"), of("2", "c"), of("1", "b"))

    assert told == ["ACCEPTED", "PARKED", "ACCEPTED", "PARKED"]
    assert shard.enqueue(of("1", "b"), of("1", "a"), of("1", "d")) == ["PARKED", "ACCEPTED", "PARKED"]
    shard.cancel("a")
    assert shard.enqueue(of("1", "b")) == ["PARKED"], "the same request has the same answer"
    assert places(shard, "b", "d") == {"b": "r", "d": "entity:1"}


def test_who_finds_its_entity_taken_is_counted_by_task(shard: Shard) -> None:
    fill(shard, "a", "b", "c")
    fill(shard, "free", gates="0 entity:order:8")
    assert shard.stats()["contended:normal:add"] == 2, "those that wait from the start"

    (first,) = (claim for claim in shard.claim() if claim.job_id == "a")
    shard.settle(first, RETRY)
    assert ids(shard.claim()) == ["b"]
    assert shard.stats()["contended:normal:add"] == 2
    shard.elapse(RETRY.delay_ms)
    shard.promote()
    shard.claim()
    assert waiters(shard) == ["a", "c"]
    assert shard.stats()["contended:normal:add"] == 3, "and one that comes back and finds another one there"


def test_who_waits_for_a_limit_finds_no_entity_taken(shard: Shard) -> None:
    fill(shard, "a", "b", gates="0 concurrency:user:7|1|concurrency:user@add")
    shard.claim()

    assert waiters(shard, "concurrency:user:7") == ["b"]
    assert "contended:normal:add" not in shard.stats()


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


def test_a_worker_is_told_at_which_gates_its_jobs_wait(shard: Shard) -> None:
    fill(shard, *"abcde", gates="0 concurrency:user:a=b|2|concurrency:user@add")

    shard.session()

    verdict, claims = shard.send(shard.claim_call())

    assert verdict == b"OK g:concurrency:user:a=b=parked=3"
    assert len(claims) == 3 * 2


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


@pytest.mark.parametrize("outcome", [Success(), Fail(ErrorClass.PERSISTENT, "bad", "Bad: x"), RETRY])
def test_every_end_of_a_claim_frees_its_locks(shard: Shard, outcome: object) -> None:
    fill(shard, "a", gates=BOTH)
    (a,) = shard.claim()

    shard.settle(a, outcome)  # type: ignore[arg-type]

    assert holders(shard) == {}
    assert holders(shard, "concurrency:task:add") == {}


def test_a_recovery_frees_the_locks_of_the_dead(shard: Shard) -> None:
    fill(shard, "a", "b", gates="0 concurrency:g|1")
    die(shard)

    assert holders(shard, "concurrency:g") == {"b": "granted"}


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
