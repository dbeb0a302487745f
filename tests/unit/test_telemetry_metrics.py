"""What is counted, under which labels, and how it reads when somebody scrapes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import cast

import asyncpg
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamworker import Cancel, PersistentError, RetryAfter, TransientError
from streamworker.core.classify import classify, code_of_type
from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store.scripts import Call
from streamworker.telemetry.catalogue import Scope, of_scope
from streamworker.telemetry.exposition import Page, WorkerNumbers, merge
from streamworker.telemetry.labels import (
    MAX_CODES,
    MAX_LOCKS,
    REMEMBERED,
    Codes,
    Limiters,
    LockNames,
    declared_codes,
)
from streamworker.telemetry.metrics import Metrics
from streamworker.telemetry.status import Status
from streamworker.worker.flight import Flight, tell


class BadTotal(PersistentError):
    code = "bad_total"


class CarrierAway(Exception):
    """Declared by a task, without a code of its own."""


@dataclass
class Told:
    claim: Claim
    task_name: str
    outcome: Outcome | None
    taken: float = 9.9
    started: float | None = 10.0
    ended: float = 10.2


def claim(lane: str = "normal", *, starts: int = 1, age_ms: int = 40, gates: str = "") -> Claim:
    return Claim("id", 7, starts, starts, 0, 0, lane, "a", "1-0", age_ms, None, None, b"", gates)


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
        gates=["rate:task:pack", "concurrency:user:", "entity:order:"],
    )


def page(metrics: Metrics) -> str:
    """What a scrape of one worker gives."""
    return Page({Scope.WORKER: WorkerNumbers(metrics, "1.2.3")}).text()


def read(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Every sample: name and sorted label values."""
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(metrics))
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


def test_a_failure_that_is_put_off_counts_once_it_is_one(metrics: Metrics) -> None:
    """Its effect is looked for first, by a claim that is no attempt (D14)."""
    look = told(fail("bad_total"))
    look.claim.bury, look.started = True, None
    waits = told(Retry(30_000, ErrorClass.UNKNOWN, "-", "", "-", Reason.BURIAL_WAITS))
    waits.claim.bury, waits.started = True, None
    failed = ("streamworker_jobs_processed_total", "lane=normal", "outcome=failed", "task=pack")
    code = ("streamworker_job_failures_total", "error_code=bad_total", "task=pack")

    metrics.exchanged([told(fail("bad_total"))] * 2, [b"OK burial", b"ALREADY retry"], [], {})
    metrics.exchanged([waits], [b"OK"], [waits, look], {})
    before = read(metrics)
    metrics.exchanged([look], [b"OK"], [], {})
    after = read(metrics)

    assert (before[failed], before[code], after[failed], after[code]) == (0, 0, 1, 1)
    retried = ("streamworker_jobs_processed_total", "lane=normal", "outcome=retried", "task=pack")
    assert after[retried] == 0
    took = "streamworker_job_duration_seconds_count"
    assert after[(took, "outcome=retried", "task=pack")] == 2, "the handler ran, and the job went on"
    assert (took, "outcome=failed", "task=pack") not in after


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


def test_outcomes_are_counted_by_attempt_and_later_ones_together(metrics: Metrics) -> None:
    jobs = [Told(claim(starts=attempt), "pack", Success()) for attempt in (1, 4, 5, 6, 9)]

    metrics.exchanged(jobs, [b"OK"] * 5, jobs, {})

    found = read(metrics)
    counted = {
        attempt: found[
            ("streamworker_attempts_total", f"attempt={attempt}", "outcome=succeeded", "task=pack")
        ]
        for attempt in ("1", "2", "3", "4", "5+")
    }
    assert counted == {"1": 1, "2": 0, "3": 0, "4": 1, "5+": 3}
    spread = "streamworker_execution_attempt"
    assert found[(f"{spread}_sum", "lane=normal", "task=pack")] == 1 + 4 + 5 + 6 + 9
    for bound, count in (("1.0", 1), ("3.0", 1), ("4.0", 2), ("5.0", 3), ("+Inf", 5)):
        assert found[(f"{spread}_bucket", "lane=normal", f"le={bound}", "task=pack")] == count


def test_a_job_is_timed_to_its_end_and_not_to_a_retry(metrics: Metrics) -> None:
    retry = Retry(100, ErrorClass.TRANSIENT, "http_503", "text")
    ended = Told(claim(starts=2, age_ms=7_000), "pack", fail("bad_total"))

    metrics.exchanged([told(retry), ended], [b"OK", b"OK"], [], {})

    found = read(metrics)
    assert found[("streamworker_job_end_to_end_seconds_count", "lane=normal", "task=pack")] == 1
    total = found[("streamworker_job_end_to_end_seconds_sum", "lane=normal", "task=pack")]
    assert total == pytest.approx(7.0 + 10.2 - 9.9)


def test_a_skip_is_a_success_that_is_counted_apart(metrics: Metrics) -> None:
    metrics.exchanged([told(Success(b"{}", Reason.SKIPPED)), told(Success())], [b"OK", b"OK"], [], {})

    found = read(metrics)
    assert found[("streamworker_job_skips_total", "task=pack")] == 1
    assert found[("streamworker_job_skips_total", "task=ship")] == 0


def test_work_that_was_found_done_is_counted_by_where(metrics: Metrics) -> None:
    reasons = (Reason.DUPLICATE, Reason.EFFECT_COMMITTED, Reason.EFFECT_COMMITTED, Reason.RETURNED)

    metrics.exchanged([told(Success(b"", reason)) for reason in reasons], [b"OK"] * 4, [], {})

    found = read(metrics)
    assert found[("streamworker_duplicates_total", "stage=handler", "task=pack")] == 1
    assert found[("streamworker_duplicates_total", "stage=effect", "task=pack")] == 2
    assert found[("streamworker_duplicates_total", "stage=effect", "task=ship")] == 0


def test_locks_are_counted_by_what_they_are_about(metrics: Metrics) -> None:
    for number in range(300):
        metrics.locked(f"order:{number}", "won", 0.01)
        metrics.locked(f"{number}", "contended", 0.3)
    metrics.locked("order:7", "lost", 2.0)

    found = read(metrics)
    acquires = "streamworker_lock_acquires_total"
    assert found[(acquires, "lock=order", "result=won")] == 300
    assert found[(acquires, "lock=order", "result=lost")] == 1
    assert found[(acquires, "lock=other", "result=contended")] == 300
    assert len([key for key in found if key[0] == acquires]) == 2 * 4
    assert found[("streamworker_lock_held_seconds_sum", "lock=order")] == 2.0
    assert found[("streamworker_lock_wait_seconds_count", "lock=order")] == 300


def test_kinds_of_locks_are_bounded() -> None:
    names = LockNames()

    labels = {names.label(f"{chr(97 + one)}{chr(97 + two)}:7") for one in range(20) for two in range(20)}

    assert len(labels) == MAX_LOCKS + 1
    assert "other" in labels


def test_calls_of_scripts_are_timed(metrics: Metrics) -> None:
    metrics.answered("exchange", 0.002)
    metrics.answered("promote", 0.2)

    found = read(metrics)
    assert found[("streamworker_redis_call_duration_seconds_count", "script=exchange")] == 1
    assert found[("streamworker_redis_call_duration_seconds_sum", "script=promote")] == 0.2


def test_claims_tell_what_they_found(metrics: Metrics) -> None:
    metrics.exchanged([], [], [], {"priority": 0, "normal": 3})
    metrics.refused("normal", "conflict", 2)
    metrics.refused("normal", "bad_record", 1)

    found = read(metrics)
    assert found[("streamworker_claims_total", "lane=normal", "result=won")] == 3
    assert found[("streamworker_claims_total", "lane=normal", "result=empty")] == 0
    assert found[("streamworker_claims_total", "lane=priority", "result=empty")] == 1
    assert found[("streamworker_claims_total", "lane=normal", "result=conflict")] == 2
    assert found[("streamworker_claims_total", "lane=normal", "result=missing")] == 0


def test_limits_tell_how_often_a_job_passed_them_or_had_to_wait(metrics: Metrics) -> None:
    gates = "3 rate:task:pack|5,1000,5 entity:order:7 concurrency:user:a=b|2|concurrency:user@pack"
    begun = [Told(claim(gates=gates), "pack", None), Told(claim(), "pack", None)]

    metrics.exchanged([], [], begun, {})
    metrics.parked("concurrency:user:b", 3)
    metrics.parked("concurrency:#digest", 1)
    metrics.parked("entity:order:7", 5)

    found = {key: value for key, value in read(metrics).items() if "limiter_decisions" in key[0]}
    assert found == {
        ("streamworker_limiter_decisions_total", f"decision={decision}", f"limiter={limiter}"): count
        for decision, limiter, count in [
            ("passed", "rate:task:pack", 1),
            ("waited", "rate:task:pack", 0),
            ("passed", "concurrency:user", 1),
            ("waited", "concurrency:user", 3),
            ("passed", "concurrency:other", 0),
            ("waited", "concurrency:other", 1),
        ]
    }


def test_the_words_of_a_verdict_are_told_apart(metrics: Metrics) -> None:
    flight = Flight(cast(Call, None), [], [], None, None, False, 0, 0.0)

    tell(
        [metrics],
        flight,
        [],
        [],
        {},
        ["normal", "priority~", "normal=conflict=2", "g:concurrency:user:a=b=parked=4"],
    )

    found = read(metrics)
    assert found[("streamworker_claims_total", "lane=normal", "result=conflict")] == 2
    assert metrics.waited["concurrency:user"] == 4


def test_many_limits_are_remembered_for_a_while() -> None:
    limiters = Limiters(["rate:user:"])

    labels = {limiters.label(f"rate:user:{number}|5,1000,5") for number in range(REMEMBERED + 10)}

    assert labels == {"rate:user"}
    assert len(limiters._words) < REMEMBERED


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


def test_no_exception_is_made_to_know_its_code() -> None:
    """What a half-made instance of somebody else's type does nobody knows: one took a whole process down."""
    made = []

    class Trap(Exception):
        def __new__(cls, *args: object) -> Trap:
            made.append(cls)
            return super().__new__(cls, *args)

    class OwnTrap(Trap, TransientError):
        code = "own_trap_code"

    codes = Codes()

    assert codes.label("trap") == "trap"
    assert codes.label("own_trap_code") == "own_trap_code"
    assert codes.label("own_trap") == "other"
    assert not made


@pytest.mark.parametrize(
    "error",
    [
        *(TimeoutError("x"), ConnectionResetError("x"), ValueError("x"), httpx.ConnectTimeout("x")),
        *(httpx.UnsupportedProtocol("x"), asyncpg.SerializationError("x"), asyncpg.UniqueViolationError("x")),
        *(TransientError("x"), PersistentError("x"), RetryAfter(1), Cancel("x")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_code_by_type_is_that_of_an_error_which_says_no_more(error: BaseException) -> None:
    assert code_of_type(type(error)) == classify(error).code


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
    metrics.tell(
        Status(
            1.0,
            lag=0.02,
            busy={"normal": 5},
            longest={"normal": 7.5},
            errors={"loading": 2},
            recovered=3,
            promoted=4,
        )
    )

    found = read(metrics)
    assert found[("streamworker_worker_slots", "lane=normal", "state=capacity")] == 28
    assert found[("streamworker_worker_slots", "lane=normal", "state=in_use")] == 5
    assert found[("streamworker_worker_slots", "lane=normal", "state=reserved")] == 4
    assert found[("streamworker_worker_longest_running_seconds", "lane=normal")] == 7.5
    assert found[("streamworker_worker_longest_running_seconds", "lane=priority")] == 0
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
    text = page(metrics)

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


@pytest.mark.parametrize("apart", ["\u2028", "\x85", "\x0b", "\x1c", "\r", "\n", '"', "\\"])
def test_what_some_take_for_the_end_of_a_line_survives_the_merge(apart: str) -> None:
    limiter = f"rate:user{apart}:"
    metrics = Metrics(tasks=["t"], lanes=["normal"], slots={"normal": (1, 0)}, gates=[limiter])
    text = Page({Scope.WORKER: WorkerNumbers(metrics, "1")}).text()

    found = {family.name: family for family in text_string_to_metric_families(merge({"1": text}))}

    labels = {one.labels["limiter"] for one in found["streamworker_limiter_decisions"].samples}
    assert labels == {limiter.rstrip(":")}


def test_braces_and_spaces_in_a_label_survive_the_merge() -> None:
    text = '# HELP m_total x\n# TYPE m_total counter\nm_total{task="a {b} c"} 1.0\nm_total{} 2.0\n'

    (family,) = text_string_to_metric_families(merge({"3": text}))

    assert [(each.labels, each.value) for each in family.samples] == [
        ({"proc": "3", "task": "a {b} c"}, 1.0),
        ({"proc": "3"}, 2.0),
    ]


def test_every_metric_of_a_worker_is_told_with_its_labels(metrics: Metrics) -> None:
    retry = Retry(100, ErrorClass.TRANSIENT, "http_503", "text")
    settled = [told(Success()), told(retry), told(fail("bad_total"))]
    metrics.exchanged(settled, [b"OK"] * 3, settled, {"normal": 1})
    metrics.called("carrier", "ok", 0.1)
    metrics.locked("order:7", "won", 0.1)
    metrics.locked("order:7", "held", 0.1)
    metrics.answered("exchange", 0.01)
    metrics.cached("hit")
    metrics.tell(Status(1.0, breakers={"carrier": "open"}))

    found = {family.name: family for family in text_string_to_metric_families(page(metrics))}

    for spec in of_scope(Scope.WORKER):
        family = found[spec.full_name]
        assert family.type == spec.kind, spec.name
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        assert labels == set(spec.labels), spec.name
        for label, values in spec.values.items():
            assert {sample.labels[label] for sample in family.samples} <= set(values), spec.name
