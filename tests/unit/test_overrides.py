"""What operators set of retries and slots: the words by which it travels, and what it makes of policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.classify import Verdict, classify
from streamworker.core.errors import InvalidArgument, RetryAfter
from streamworker.core.lane import Lane
from streamworker.core.overrides import RetryOverride, RetryOverrides
from streamworker.core.retry import Burial, Decision, Retry, decide_recovery, recompute_delay_ms
from streamworker.core.slots import SlotsOverride, in_force, read_slots
from streamworker.core.states import ErrorClass, Status
from streamworker.ops.slots import check_room
from tests.unit.test_retry import EXACT, JOB, POLICIES, TRANSIENT, UNKNOWN, VERDICTS

CODES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_.-", min_size=1, max_size=44)
OVERRIDES = st.builds(
    RetryOverride,
    st.floats(0.1, 100),
    st.none() | st.floats(0, 1, exclude_max=True),
    st.frozensets(CODES, max_size=20),
)
SLOTS = st.builds(SlotsOverride, st.none() | st.integers(0, 100_000), st.none() | st.integers(1, 1000))


@given(OVERRIDES)
def test_an_override_of_retries_survives_its_word(override: RetryOverride) -> None:
    assert RetryOverride.parse(override.word) == override
    assert not any(char.isspace() or char == ";" for char in override.word)


@given(SLOTS)
def test_an_override_of_slots_survives_its_word(override: SlotsOverride) -> None:
    assert SlotsOverride.parse(override.word) == override


@pytest.mark.parametrize(
    "given",
    [{"multiply": 0.05}, {"multiply": 101.0}, {"multiply": float("nan")}, {"jitter": 1.0}, {"jitter": -0.1},
     {"stop": frozenset({"No Code"})}, {"stop": frozenset(map(str, range(21)))}],
)  # fmt: skip
def test_figures_out_of_bounds_are_refused(given: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        RetryOverride(**given)


def test_a_line_that_cannot_be_read_is_told_and_the_others_hold() -> None:
    text = (
        "retries add multiply=2.0 me 1 x\nretries new shape=7 me 1 x\nretries bad multiply=9999 me 1 x\nshort"
    )
    problems: list[str] = []

    found = RetryOverrides.read(text, report=problems.append)

    assert found.by_task == {"add": RetryOverride(2.0)}
    assert len(problems) == 3
    assert read_slots("slots a 1,2 me 1 x\nslots b x,y me 1 x") == {"a": SlotsOverride(1, 2)}


def test_a_tasks_own_override_wins_over_that_of_every_task() -> None:
    found = RetryOverrides.read("retries * multiply=2.0 me 1 -\nretries add jitter=0.5 me 1 -")

    assert found.of("add") == RetryOverride(jitter=0.5)
    assert found.of("mail") == RetryOverride(2.0)
    assert RetryOverrides().of("add") is None


# --- retries ---------------------------------------------------------------------------------------------


def test_back_offs_are_multiplied_and_the_token_says_so() -> None:
    decision = EXACT.decide(job_id=JOB, attempt=2, verdict=TRANSIENT, override=RetryOverride(3.0))

    assert decision == Decision(True, 360_000, "transient:30000/120000;j=0;m=3.0;f=1.0000")
    assert (
        EXACT.decide(job_id=JOB, attempt=1, verdict=UNKNOWN, override=RetryOverride(0.5)).delay_ms == 60_000
    )


def test_jitter_is_replaced() -> None:
    delays = {
        EXACT.decide(
            job_id=f"j{n}", attempt=1, verdict=TRANSIENT, override=RetryOverride(jitter=0.3)
        ).delay_ms
        for n in range(500)
    }

    assert 21_000 <= min(delays) < 21_500
    assert 38_500 < max(delays) <= 39_000


def test_what_a_server_asked_for_is_not_multiplied() -> None:
    decision = EXACT.decide(
        job_id=JOB, attempt=1, verdict=classify(RetryAfter(7)), override=RetryOverride(3.0)
    )

    assert decision.delay_ms == 7000
    assert ";m=" not in decision.policy


def test_a_stopped_code_is_not_tried_again() -> None:
    override = RetryOverride(stop=frozenset({"timeout"}))

    decision = Retry().decide(job_id=JOB, attempt=1, verdict=TRANSIENT, override=override)

    assert decision == Decision(False, 0, "stopped:timeout")
    assert decision.stopped
    other = Verdict(ErrorClass.TRANSIENT, "http_503")
    assert Retry().decide(job_id=JOB, attempt=1, verdict=other, override=override).retry


def test_retries_of_lost_workers_can_be_stopped_but_of_no_job_that_did_not_run() -> None:
    override = RetryOverride(stop=frozenset({"worker_lost"}))
    known: dict[str, Any] = {"job_id": JOB, "attempt": 1, "strikes": 0, "override": override}

    assert decide_recovery(Retry(), status=Status.PROCESSING, **known) == Burial("worker_lost")
    assert isinstance(decide_recovery(Retry(), status=Status.CLAIMED, **known), Decision)


@given(POLICIES, OVERRIDES, st.integers(1, 8), VERDICTS)
def test_every_delay_can_be_recomputed_whatever_is_set(
    policy: Retry, override: RetryOverride, attempt: int, verdict: Verdict
) -> None:
    decision = policy.decide(job_id=JOB, attempt=attempt, verdict=verdict, override=override)
    without = policy.decide(job_id=JOB, attempt=attempt, verdict=verdict)

    assert not any(char.isspace() for char in decision.policy)
    assert without.retry or not decision.retry, "nobody runs more often for what operators set"
    if decision.retry:
        assert recompute_delay_ms(decision.policy, JOB, attempt) == decision.delay_ms


@given(POLICIES, OVERRIDES, st.integers(1, 8), st.integers(0, 1))
def test_every_delay_of_a_recovery_can_be_recomputed_whatever_is_set(
    policy: Retry, override: RetryOverride, attempt: int, strikes: int
) -> None:
    decision = decide_recovery(
        policy, job_id=JOB, status=Status.CLAIMED, attempt=attempt, strikes=strikes, override=override
    )

    assert isinstance(decision, Decision)
    assert recompute_delay_ms(decision.policy, JOB, attempt) == decision.delay_ms


# --- slots -----------------------------------------------------------------------------------------------


def test_lanes_have_the_figures_that_are_set_and_keep_the_others() -> None:
    lanes = {"priority": Lane(4, 4, aging="1s"), "normal": Lane(4, 1)}

    found = in_force(lanes, {"priority": SlotsOverride(weight=9), "bulk": SlotsOverride(1, 1)})

    assert found == {"priority": Lane(4, 9, aging="1s"), "normal": Lane(4, 1)}


def _worker(concurrency: int | None, *lanes: str) -> dict[str, Any]:
    return {"id": "w", "concurrency": concurrency, "lanes": list(lanes)}


@pytest.mark.parametrize(
    ("worker", "before", "after", "refused"),
    [
        (_worker(16, "a", "b"), {"a": 4, "b": 4}, {"a": 11, "b": 4}, False),
        (_worker(16, "a", "b"), {"a": 4, "b": 4}, {"a": 12, "b": 4}, True),
        (_worker(16, "a"), {"a": 4, "b": 4}, {"a": 12, "b": 4}, False),
        (_worker(2, "a", "b"), {"a": 4, "b": 4}, {"a": 3, "b": 4}, False),
        (_worker(2, "a", "b"), {"a": 4, "b": 4}, {"a": 5, "b": 4}, True),
        (_worker(None, "a", "b"), {"a": 4}, {"a": 5}, False),
    ],
    ids=["fits", "one too many", "lane not served", "fewer than before", "scaled already", "unknown"],
)
def test_what_a_worker_cannot_reserve_is_refused(
    worker: dict[str, Any], before: dict[str, int], after: dict[str, int], refused: bool
) -> None:
    if refused:
        with pytest.raises(InvalidArgument, match="--clamp"):
            check_room([worker], before, after)
    else:
        check_room([worker], before, after)
