from __future__ import annotations

import hashlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.classify import Verdict, classify
from streamworker.core.errors import ConfigurationError, DurationError, RetryAfter
from streamworker.core.retry import (
    MAX_RETRY_AFTER_MS,
    Burial,
    Decision,
    Retry,
    decide_recovery,
    recompute_delay_ms,
)
from streamworker.core.states import ErrorClass, Status

JOB = "018f3f2e-0000-7000-8000-000000000000"
TRANSIENT = Verdict(ErrorClass.TRANSIENT, "timeout")
UNKNOWN = Verdict(ErrorClass.UNKNOWN, "value_error")
PERSISTENT = Verdict(ErrorClass.PERSISTENT, "http_404")
CLAIMED, PROCESSING = Status.CLAIMED, Status.PROCESSING

VERDICTS = st.builds(
    Verdict,
    st.sampled_from(ErrorClass),
    st.just("code"),
    st.none() | st.floats(min_value=-10, max_value=1e9),
)
POLICIES = st.builds(
    Retry,
    st.lists(st.integers(0, 10**10), max_size=6).map(tuple),
    st.lists(st.integers(0, 10**10), max_size=6).map(tuple),
    st.floats(0, 1, exclude_max=True),
)


def delays(policy: Retry, verdict: Verdict, attempts: int = 6) -> list[int | None]:
    """The delay after each attempt, None where there is no retry."""
    decisions = [policy.decide(job_id=JOB, attempt=n, verdict=verdict) for n in range(1, attempts + 1)]
    return [decision.delay_ms if decision.retry else None for decision in decisions]


EXACT = Retry(jitter=0)


def test_the_default_policy_makes_4_attempts_after_30_s_2_min_and_10_min() -> None:
    assert Retry().attempts == 4
    assert delays(EXACT, TRANSIENT) == [30_000, 120_000, 600_000, None, None, None]


def test_unknown_errors_are_retried_twice_and_persistent_ones_never() -> None:
    assert delays(EXACT, UNKNOWN) == [120_000, 600_000, None, None, None, None]
    assert delays(EXACT, PERSISTENT) == [None] * 6


def test_one_counter_serves_all_classes_and_the_latest_error_picks_the_schedule() -> None:
    after_two_transient = EXACT.decide(job_id=JOB, attempt=2, verdict=UNKNOWN)
    after_three_transient = EXACT.decide(job_id=JOB, attempt=3, verdict=UNKNOWN)
    unknown_then_transient = EXACT.decide(job_id=JOB, attempt=3, verdict=TRANSIENT)

    assert after_two_transient.delay_ms == 600_000
    assert not after_three_transient.retry
    assert unknown_then_transient.delay_ms == 600_000


def test_unknown_errors_never_get_more_attempts_than_the_policy_has() -> None:
    assert (
        delays(Retry.schedule("1s", jitter=0, unknown=("1m", "2m", "3m")), UNKNOWN) == [60_000] + [None] * 5
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Retry.schedule("1s", "2m"), (1000, 120_000)),
        (Retry.schedule(), ()),
        (Retry.exponential(), (30_000, 120_000, 480_000)),
        (Retry.exponential(6, "1m", 10, "1h"), (60_000, 600_000, 3_600_000, 3_600_000, 3_600_000)),
        (Retry.exponential(3, "2h", 2, "1h"), (3_600_000, 3_600_000)),
        (Retry.exponential(1), ()),
        (Retry.fixed(4, 5), (5000, 5000, 5000)),
        (Retry.never(), ()),
    ],
)
def test_schedules(policy: Retry, expected: tuple[int, ...]) -> None:
    assert policy.delays_ms == expected
    assert policy.attempts == len(expected) + 1


def test_a_thousand_exponential_attempts_do_not_overflow() -> None:
    assert Retry.exponential(1000, "1s", 1000).delays_ms[-1] == 3_600_000


def test_never_means_one_attempt_whatever_the_error() -> None:
    for verdict in (TRANSIENT, UNKNOWN, PERSISTENT, classify(RetryAfter(1))):
        assert delays(Retry.never(), verdict, 2) == [None, None]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(jitter=-0.1),
        lambda: Retry(jitter=1.0),
        lambda: Retry(jitter=math.nan),
        lambda: Retry((-1,)),
        lambda: Retry.fixed(0, "1s"),
        lambda: Retry.fixed(1001, "1s"),
        lambda: Retry.fixed(True, "1s"),
        lambda: Retry.fixed(2.5, "1s"),  # type: ignore[arg-type]
        lambda: Retry.exponential(factor=0.5),
        lambda: Retry.exponential(factor=math.nan),
        lambda: Retry.exponential(base=0, factor=math.inf),
        lambda: Retry.exponential(factor="2"),  # type: ignore[arg-type]
        lambda: Retry(jitter=None),  # type: ignore[arg-type]
        lambda: Retry.schedule("1s", unknown="2m"),
        lambda: Retry(tuple([1000] * 1000)),
        lambda: Retry(3),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_cannot_work_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_a_delay_that_is_no_duration_is_refused() -> None:
    with pytest.raises(DurationError, match="retry delay: 'soon'"):
        Retry.schedule("soon")


def test_jitter_follows_the_documented_formula() -> None:
    decision = Retry().decide(job_id=JOB, attempt=2, verdict=TRANSIENT)

    u = int.from_bytes(hashlib.sha256(f"{JOB}:2".encode()).digest()[:8]) / 2**64
    factor = 1 - 0.1 + 2 * 0.1 * u
    assert decision.delay_ms == round(120_000 * factor)
    assert decision.policy == f"transient:30000/120000;j=0.1;f={factor:.4f}"


def test_jitter_spreads_jobs_evenly_over_its_range() -> None:
    seen = sorted(
        Retry().decide(job_id=f"job{n}", attempt=1, verdict=TRANSIENT).delay_ms for n in range(4000)
    )

    assert 27_000 <= seen[0] < 27_100
    assert 32_900 < seen[-1] <= 33_000
    for quarter in (1, 2, 3):
        assert seen[quarter * 1000] == pytest.approx(27_000 + quarter * 1500, abs=200)


@given(POLICIES, st.text(max_size=40), st.integers(1, 8), VERDICTS)
def test_every_delay_can_be_recomputed_from_the_log(
    policy: Retry, job_id: str, attempt: int, verdict: Verdict
) -> None:
    job_id = job_id.encode("utf-8", "replace").decode()
    decision = policy.decide(job_id=job_id, attempt=attempt, verdict=verdict)

    assert decision == policy.decide(job_id=job_id, attempt=attempt, verdict=verdict)
    assert not any(char.isspace() for char in decision.policy)
    if decision.retry:
        assert recompute_delay_ms(decision.policy, job_id, attempt) == decision.delay_ms


@given(POLICIES, st.integers(1, 8), st.sampled_from([CLAIMED, PROCESSING]), st.integers(0, 5), st.booleans())
def test_every_delay_of_a_recovery_can_be_recomputed_from_the_log(
    policy: Retry, attempt: int, status: Status, strikes: int, known: bool
) -> None:
    decision = decide_recovery(
        policy if known else None, job_id=JOB, status=status, attempt=attempt, strikes=strikes
    )

    if isinstance(decision, Decision):
        assert decision.retry
        assert not any(char.isspace() for char in decision.policy)
        assert recompute_delay_ms(decision.policy, JOB, attempt) == decision.delay_ms


@pytest.mark.parametrize(
    "token", ["", "-", "persistent:none;attempt=1/1", "transient:;j=0.1;f=1.0", "transient:1 2"]
)
def test_a_token_without_a_delay_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="no policy token"):
        recompute_delay_ms(token, JOB, 1)


def test_a_decision_against_a_retry_says_why() -> None:
    assert Retry().decide(job_id=JOB, attempt=4, verdict=TRANSIENT) == Decision(
        False, 0, "transient:none;attempt=4/4"
    )
    assert Retry().decide(job_id=JOB, attempt=3, verdict=UNKNOWN).policy == "unknown:none;attempt=3/3"
    assert Retry().decide(job_id=JOB, attempt=1, verdict=PERSISTENT).policy == "persistent:none;attempt=1/1"


@given(st.floats(0, 80_000), st.text("abc", max_size=5), st.integers(1, 3))
def test_a_retry_is_never_earlier_than_the_server_asked(seconds: float, job_id: str, attempt: int) -> None:
    decision = Retry().decide(job_id=job_id, attempt=attempt, verdict=classify(RetryAfter(seconds)))

    assert decision.retry
    assert round(seconds * 1000) <= decision.delay_ms <= round(seconds * 1000 * 1.1) + 1
    assert decision.policy.startswith("retry_after:")


def test_retry_after_is_charged_bounded_and_never_negative() -> None:
    verdict = classify(RetryAfter(10))

    assert not Retry().decide(job_id=JOB, attempt=4, verdict=verdict).retry
    assert (
        Retry().decide(job_id=JOB, attempt=1, verdict=classify(RetryAfter(1e12))).delay_ms
        == MAX_RETRY_AFTER_MS
    )
    assert Retry().decide(job_id=JOB, attempt=1, verdict=classify(RetryAfter(-3))).delay_ms == 0


def test_retry_after_counts_only_for_transient_errors() -> None:
    unknown = Verdict(ErrorClass.UNKNOWN, "x", 1.0)
    persistent = Verdict(ErrorClass.PERSISTENT, "x", 1.0)

    assert EXACT.decide(job_id=JOB, attempt=1, verdict=unknown).delay_ms == 120_000
    assert not EXACT.decide(job_id=JOB, attempt=1, verdict=persistent).retry


def recover(status: Status, attempt: int, strikes: int, policy: Retry | None = EXACT) -> int | str:
    """The delay of the recovery, or the code of the burial."""
    decision = decide_recovery(policy, job_id=JOB, status=status, attempt=attempt, strikes=strikes)
    return decision.code if isinstance(decision, Burial) else decision.delay_ms


def test_the_first_death_is_due_at_once_and_the_second_waits() -> None:
    assert recover(PROCESSING, 1, 0) == 0
    assert recover(PROCESSING, 2, 1) == 120_000
    assert recover(CLAIMED, 1, 0) == 0
    assert recover(CLAIMED, 1, 1) == 120_000


def test_the_third_death_is_a_crash_loop() -> None:
    assert recover(PROCESSING, 1, 2) == "crash_loop"
    assert recover(CLAIMED, 1, 2) == "crash_loop"
    assert recover(CLAIMED, 1, 7) == "crash_loop"


def test_a_death_in_processing_is_charged_as_an_unknown_error() -> None:
    assert recover(PROCESSING, 3, 0) == "worker_lost"
    assert recover(PROCESSING, 4, 0) == "worker_lost"
    assert recover(PROCESSING, 1, 0, Retry.never()) == "worker_lost"
    assert recover(PROCESSING, 2, 0, Retry.schedule("1s")) == "worker_lost"


def test_a_death_in_claimed_is_not_charged() -> None:
    assert recover(CLAIMED, 4, 0) == 0
    assert recover(CLAIMED, 4, 1) == 120_000


def test_a_policy_without_unknown_retries_still_spaces_out_deaths_in_claimed() -> None:
    assert recover(CLAIMED, 1, 1, Retry((), (), 0)) == 120_000


def test_the_jitter_of_a_recovery_is_the_policys() -> None:
    decision = Retry().decide_recovery(job_id=JOB, status=PROCESSING, attempt=2, strikes=1)

    assert isinstance(decision, Decision)
    assert 108_000 <= decision.delay_ms <= 132_000
    assert decision.delay_ms != 120_000


def test_a_task_unknown_to_the_sweeper_is_never_buried() -> None:
    assert recover(PROCESSING, 1, 0, None) == 0
    for status in (CLAIMED, PROCESSING):
        for strikes, base in ((1, 120_000), (2, 600_000), (9, 600_000)):
            assert recover(status, 99, strikes, None) == pytest.approx(base, rel=0.1)


@pytest.mark.parametrize(
    "status", [Status.QUEUED, Status.RETRY_SCHEDULED, Status.SUCCEEDED, Status.FAILED_TERMINAL]
)
def test_only_a_held_job_is_recovered(status: Status) -> None:
    with pytest.raises(ValueError, match=status):
        recover(status, 1, 0)


def test_the_default_policy_warns_of_nothing() -> None:
    assert Retry().warnings("update") == []
    assert Retry.never().warnings("update") == []


def test_a_policy_that_is_probably_not_meant_warns() -> None:
    assert "after 500ms" in Retry.schedule("500ms", "1m").warnings("update")[0]
    assert "after 0s" in Retry.schedule("1m", unknown=(0,)).warnings("update")[0]
    assert "without jitter" in Retry.schedule("1m", jitter=0).warnings("update")[0]
    assert "makes 11 attempts" in Retry.fixed(11, "1m").warnings("update")[0]
    assert all("task update" in text for text in Retry.fixed(11, 0, jitter=0).warnings("update"))
    assert len(Retry.fixed(11, 0, jitter=0).warnings("update")) == 3


@given(
    POLICIES,
    st.text("abc", max_size=4),
    st.lists(st.sampled_from([TRANSIENT, UNKNOWN]), min_size=8, max_size=8),
)
def test_the_span_covers_every_way_through_the_attempts(
    policy: Retry, job_id: str, verdicts: list[Verdict]
) -> None:
    total = 0
    for attempt, verdict in enumerate(verdicts, start=1):
        decision = policy.decide(job_id=job_id, attempt=attempt, verdict=verdict)
        if not decision.retry:
            break
        total += decision.delay_ms

    assert total <= policy.span_ms


def test_the_span_of_the_default_policy() -> None:
    assert EXACT.span_ms == 120_000 + 600_000 + 600_000
    assert Retry().span_ms == 1_452_000
    assert Retry.never().span_ms == 0


def test_a_policy_describes_itself() -> None:
    assert Retry().describe() == "4 attempts; 30s, 2m, 10m; unknown errors 2m, 10m; jitter 0.1"
    assert Retry.never().describe() == "1 attempts; never; unknown errors never; jitter 0.1"
