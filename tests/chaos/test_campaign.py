"""A small run of the long form: every kind of fault at once, and nothing that the judge can blame."""

from __future__ import annotations

import random

import pytest

from tests.chaos.bench import Bench
from tests.chaos.campaign import Campaign
from tests.chaos.checker import report
from tests.chaos.figures import Figures, percentile
from tests.chaos.history import FaultKind, Limits
from tests.chaos.plan import FULL, FULL_BLOWS, ROUND, Blow, Plan
from tests.chaos.traffic import Mix


def test_a_small_run_over_every_kind_of_fault_is_clean() -> None:
    """The issue's promise, on one server in small: nothing lost, nothing recorded twice, nothing stale."""
    blows = (
        *(Blow.KILL, Blow.KILL_SERVER, Blow.PARTITION, Blow.KILL_KEEPER, Blow.BLACK_HOLE),
        *(Blow.FREEZE, Blow.REFUSE, Blow.KILL_ALL, Blow.RESTART, Blow.FULL),
    )
    told: list[str] = []
    with Bench(lease=1.0, workers=3, concurrency=8, margin=3.0) as bench:
        campaign = Campaign(bench, Plan(400, blows), rate=100, seed=7, tell=told.append)
        account = campaign.run()

    print(*told, sep="\n")
    assert report(account.violations) == ""
    assert account.problems == []
    assert account.figures.jobs >= 400
    assert account.figures.faults[FaultKind.KILL] >= 3
    assert account.dealt == dict.fromkeys(map(str, blows), 1)
    assert account.tricks["pauses"] + account.tricks["limits_set"], "the operator has done nothing"
    assert account.tricks["illnesses"], "the bank was well all the time"
    assert account.figures.moved["drained"], "nothing went through the backlog"
    assert account.figures.moved["events merged"] >= 50
    assert account.figures.moved["windows closed by limit"], "no window was full"
    assert account.figures.moved["windows closed by time"] >= 10
    assert account.figures.recovery_seconds, "no worker held a job when it died: the load is too light"


def test_the_full_plan_deals_out_what_the_issue_asks_for() -> None:
    counts = Plan.of(FULL, seed=1).count()

    assert counts[Blow.KILL] + counts[Blow.KILL_KEEPER] >= 100
    assert counts[Blow.FREEZE] >= 30
    assert counts[Blow.KILL_SERVER] >= 10
    assert counts[Blow.BLACK_HOLE] + counts[Blow.REFUSE] >= 10


@pytest.mark.parametrize("jobs", [1, 20_000, 60_001, FULL])
def test_rounds_share_out_all_jobs_and_faults(jobs: int) -> None:
    plan = Plan.of(jobs, seed=1)
    rounds = list(plan.rounds())

    assert sum(part.jobs for part in rounds) == jobs
    assert all(part.jobs <= ROUND for part in rounds)
    assert [blow for part in rounds for blow in part.blows] == list(plan.blows)


def test_the_shortest_plan_has_every_fault_and_a_seed_is_a_plan() -> None:
    assert set(Plan.of(100, seed=1).blows) == set(FULL_BLOWS) == set(Blow)
    assert Plan.of(100, seed=1) == Plan.of(100, seed=1)
    assert Plan.of(20_000, seed=1).blows != Plan.of(20_000, seed=2).blows


def test_the_mix_has_every_task_that_ends_in_its_own_way() -> None:
    drawn = Mix(random.Random(1), lease=1.0).draw(50_000)
    keys = [request.options.key for request in drawn if request.options.key]

    tasks = {"quick", "work", "work_in_thread", "work_in_process", "flaky", "snooze", "broken", "crash"}
    assert {request.task for request in drawn} >= tasks
    assert {request.task for request in drawn} >= {"ordered", "strict", "shared", "metered", "called"}
    assert {request.task for request in drawn} >= {"paid", "gathered", "looked_up"}
    assert {request.options.lane for request in drawn} == {None, "priority", "backlog"}
    assert {request.options.tenant for request in drawn} == {None, "acme", "umbra"}
    assert any(request.options.delay_ms for request in drawn)
    assert len(set(keys)) < len(keys)


def test_figures_add_up_and_percentiles_are_by_nearest_rank() -> None:
    first = Figures(jobs=2, recovery_seconds=[1.0, 3.0], closest=2.0)
    first.add(Figures(jobs=1, recovery_seconds=[2.0], closest=0.5))

    assert (first.jobs, first.closest) == (3, 0.5)
    assert [percentile(first.recovery_seconds, share) for share in (0.5, 0.99, 1.0)] == [2.0, 3.0, 3.0]
    assert percentile([], 0.5) is None
    assert Limits(lease=3.0).sweep == 0.5


def test_no_round_uses_the_keys_of_another() -> None:
    """A key outlives its round; the job that it stands for is not in the next one's history."""

    def keys(seed: int) -> set[str]:
        drawn = Mix(random.Random(seed), lease=1.0).draw(1_000)
        return {str(each.options.key) for each in drawn if each.options.key}

    assert keys(1)
    assert keys(1).isdisjoint(keys(2))
