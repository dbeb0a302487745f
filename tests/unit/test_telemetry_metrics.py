"""What is counted, under which labels, and how it reads when somebody scrapes."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamworker import PersistentError, TransientError
from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.telemetry.exposition import Page, merge
from streamworker.telemetry.labels import MAX_CODES, Codes, declared_codes
from streamworker.telemetry.metrics import Metrics
from streamworker.telemetry.status import Status


class BadTotal(PersistentError):
    code = "bad_total"


class CarrierAway(Exception):
    """Declared by a task, without a code of its own."""


@dataclass
class Told:
    claim: Claim
    task_name: str
    outcome: Outcome | None
    started: float | None = 10.0
    ended: float = 10.2


def claim(lane: str = "normal", *, starts: int = 1, age_ms: int = 40) -> Claim:
    return Claim("id", 7, starts, starts, 0, 0, lane, "a", "1-0", age_ms, None, None, b"")


def told(outcome: Outcome, task: str = "pack", lane: str = "normal") -> Told:
    return Told(claim(lane), task, outcome)


def fail(code: str) -> Fail:
    return Fail(ErrorClass.PERSISTENT, code, "text")


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(
        tasks=["pack", "ship"],
        lanes=["priority", "normal"],
        slots={"priority": (28, 4), "normal": (28, 4)},
        codes=["bad_total"],
        dependencies=["carrier", "mail"],
    )


def read(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Every sample: name and sorted label values."""
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(Page(metrics, "1.2.3").text())
        for sample in family.samples
    }


def test_outcomes_are_counted_by_lane_task_and_code(metrics: Metrics) -> None:
    retry = Retry(100, ErrorClass.TRANSIENT, "http_503", "text")
    settled = [
        told(Success()),
        told(Success()),
        told(retry),
        told(fail("bad_total")),
        told(Success(), "ship"),
    ]

    metrics.exchanged(settled, [b"OK"] * 5, [], {})

    found = read(metrics)
    processed = "streamworker_jobs_processed_total"
    assert found[(processed, "lane=normal", "outcome=succeeded", "task=pack")] == 2
    assert found[(processed, "lane=normal", "outcome=retried", "task=pack")] == 1
    assert found[(processed, "lane=normal", "outcome=failed", "task=pack")] == 1
    assert found[(processed, "lane=normal", "outcome=succeeded", "task=ship")] == 1
    assert found[(processed, "lane=priority", "outcome=succeeded", "task=pack")] == 0
    assert found[("streamworker_job_failures_total", "error_code=bad_total", "task=pack")] == 1
    retries = ("streamworker_retries_scheduled_total", "error_code=http_503", "lane=normal", "task=pack")
    assert found[retries] == 1


def test_only_what_was_recorded_counts_as_an_outcome(metrics: Metrics) -> None:
    settled = [told(Success()), told(Success()), told(Success()), told(Release(Reason.SHUTDOWN))]

    metrics.exchanged(settled, [b"STALE", b"GONE", b"ALREADY", b"OK"], [], {})
    metrics.lost(told(Release(Reason.SHUTDOWN)))

    found = read(metrics)
    assert found[("streamworker_stale_outcomes_total", "task=pack")] == 3
    processed = ("streamworker_jobs_processed_total", "lane=normal", "outcome=succeeded", "task=pack")
    assert found[processed] == 1
    assert found[("streamworker_job_duration_seconds_count", "outcome=succeeded", "task=pack")] == 1


def test_calls_of_dependencies_are_counted_by_how_they_went(metrics: Metrics) -> None:
    for result in ("ok", "ok", "error", "timeout"):
        metrics.called("carrier", result, 0.2)

    found = read(metrics)
    counts = {
        (name, result): found[
            ("streamworker_dependency_requests_total", f"dependency={name}", f"result={result}")
        ]
        for name in ("carrier", "mail")
        for result in ("ok", "error", "timeout")
    }
    assert list(counts.values()) == [2, 1, 1, 0, 0, 0], "those of declared dependencies begin at zero"
    assert found[("streamworker_dependency_duration_seconds_count", "dependency=carrier")] == 4


def test_counters_of_registered_tasks_and_declared_codes_begin_at_zero(metrics: Metrics) -> None:
    found = read(metrics)

    for task in ("pack", "ship"):
        assert found[("streamworker_job_failures_total", "error_code=bad_total", f"task={task}")] == 0
        assert found[("streamworker_stale_outcomes_total", f"task={task}")] == 0
        for lane in ("priority", "normal"):
            key = ("streamworker_retries_scheduled_total", "error_code=bad_total", f"lane={lane}")
            assert found[(*key, f"task={task}")] == 0


def test_durations_and_waits_fall_into_their_buckets(metrics: Metrics) -> None:
    retried = Told(claim(starts=2, age_ms=60_000), "pack", None)
    metrics.exchanged([told(Success())], [b"OK"], [Told(claim(), "pack", None), retried], {})

    found = read(metrics)
    duration = ("streamworker_job_duration_seconds_bucket", "le=0.1", "outcome=succeeded", "task=pack")
    assert found[duration] == 0
    duration = ("streamworker_job_duration_seconds_bucket", "le=0.25", "outcome=succeeded", "task=pack")
    assert found[duration] == 1
    assert found[("streamworker_job_wait_seconds_count", "lane=normal", "task=pack")] == 1
    assert found[("streamworker_job_wait_seconds_sum", "lane=normal", "task=pack")] == pytest.approx(0.04)
    assert found[("streamworker_job_wait_seconds_bucket", "lane=normal", "le=0.025", "task=pack")] == 0
    assert found[("streamworker_job_wait_seconds_bucket", "lane=normal", "le=0.05", "task=pack")] == 1
    assert found[("streamworker_job_wait_seconds_bucket", "lane=normal", "le=+Inf", "task=pack")] == 1


def test_claims_tell_what_they_found(metrics: Metrics) -> None:
    metrics.exchanged([], [], [], {"priority": 0, "normal": 3})

    found = read(metrics)
    assert found[("streamworker_claims_total", "lane=normal", "result=won")] == 3
    assert found[("streamworker_claims_total", "lane=normal", "result=empty")] == 0
    assert found[("streamworker_claims_total", "lane=priority", "result=empty")] == 1


def test_what_nobody_registered_is_other(metrics: Metrics) -> None:
    settled = [told(fail(f"order_{number}"), task=f"task_{number}") for number in range(300)]

    metrics.exchanged(settled, [b"OK"] * 300, [], {})

    found = read(metrics)
    failures = {key: value for key, value in found.items() if key[0] == "streamworker_job_failures_total"}
    assert failures[("streamworker_job_failures_total", "error_code=other", "task=other")] == 300
    assert len(failures) == 4  # bad_total of three, other of one


def test_a_code_is_known_when_code_has_it() -> None:
    codes = Codes()

    assert [codes.label(code) for code in ("worker_lost", "http_418", "bad_total", "carrier_away")] == [
        "worker_lost",
        "http_418",
        "bad_total",
        "carrier_away",
    ]
    assert codes.label("zero_division_error") == "zero_division_error"
    assert codes.label("http_999") == "other"
    assert codes.label("made_up_for_7") == "other"


def test_codes_are_bounded() -> None:
    codes = Codes()

    labels = {codes.label(f"http_{status}") for status in range(100, 600)}

    assert len(labels) == MAX_CODES + 1
    assert "other" in labels
    assert codes.label("http_100") == "http_100"


def test_the_apps_own_error_types_are_declared() -> None:
    declared = declared_codes([CarrierAway, TransientError])

    assert {"bad_total", "carrier_away", "transient"} <= set(declared)


def test_the_worker_is_told_of_as_it_is(metrics: Metrics) -> None:
    metrics.tell(Status(1.0, lag=0.02, busy={"normal": 5}, errors={"loading": 2}, recovered=3, promoted=4))

    found = read(metrics)
    assert found[("streamworker_worker_slots", "lane=normal", "state=capacity")] == 28
    assert found[("streamworker_worker_slots", "lane=normal", "state=in_use")] == 5
    assert found[("streamworker_worker_slots", "lane=normal", "state=reserved")] == 4
    assert found[("streamworker_redis_errors_total", "kind=loading")] == 2
    assert found[("streamworker_redis_errors_total", "kind=connection")] == 0
    assert found[("streamworker_keeper_recovered_total",)] == 3
    assert found[("streamworker_keeper_promoted_total",)] == 4
    assert found[("streamworker_event_loop_lag_seconds_bucket", "le=0.01")] == 0
    assert found[("streamworker_event_loop_lag_seconds_bucket", "le=0.025")] == 1
    assert any(key[0] == "streamworker_build_info" and "version=1.2.3" in key for key in found)


def test_a_metric_that_fails_is_said_once_and_raises_nothing(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "streamworker.telemetry"):
        for _ in range(3):
            metrics.tell(None)  # type: ignore[arg-type]

    assert len([record for record in caplog.records if "could not be counted" in record.message]) == 1


def test_texts_of_several_processes_become_one(metrics: Metrics) -> None:
    metrics.exchanged([told(Success())], [b"OK"], [], {})
    text = Page(metrics, "1").text()

    merged = merge({"1": text, "2": text})

    families = list(text_string_to_metric_families(merged))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert merged.count("# TYPE streamworker_jobs_processed_total counter") == 1
    samples = [sample for family in families for sample in family.samples]
    assert {sample.labels["proc"] for sample in samples} == {"1", "2"}
    assert len(samples) == 2 * len(read(metrics))
    own = [each for each in samples if each.name == "streamworker_keeper_recovered_total"]
    assert [sample.labels for sample in own] == [{"proc": "1"}, {"proc": "2"}]


def test_braces_and_spaces_in_a_label_survive_the_merge() -> None:
    text = '# HELP m_total x\n# TYPE m_total counter\nm_total{task="a {b} c"} 1.0\nm_total{} 2.0\n'

    (family,) = text_string_to_metric_families(merge({"3": text}))

    assert [(each.labels, each.value) for each in family.samples] == [
        ({"proc": "3", "task": "a {b} c"}, 1.0),
        ({"proc": "3"}, 2.0),
    ]
