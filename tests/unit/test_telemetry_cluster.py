"""What Redis knows, as metrics: which labels, folded how, and nothing of another one's election."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from streamworker.core.gates import Gate, GateKind, Gates
from streamworker.core.lane import Pressure
from streamworker.ops.snapshot import LaneLook, Snapshot
from streamworker.outbox.depth import Depth
from streamworker.postgres.log import Lag
from streamworker.telemetry.catalogue import Scope, of_scope
from streamworker.telemetry.cluster import ClusterNumbers
from streamworker.telemetry.exposition import Page
from streamworker.telemetry.labels import Codes, gate_label

SEEN = Snapshot(
    at=1_700_000_000.5,
    tasks=frozenset({"pack"}),
    gates=frozenset({"entity:order:", "rate:dependency:carrier"}),
    lanes={"normal": LaneLook(7.5, None, 30.0, Pressure.OVER, paused=True)},
    jobs={("normal", "pack", "ready"): 3, ("normal", "made_up", "ready"): 4, ("lost", "pack", "dead"): 5},
    enqueued={("normal", "pack"): 10, ("normal", "made_up"): 4, ("normal", "as_well"): 2},
    admissions={
        ("normal", "accepted", ""): 9,
        ("normal", "deferred", "lane_full"): 4,
        ("lost", "rejected", "x"): 1,
    },
    drained={"pack": 3, "made_up": 1},
    draining=True,
    recovered={("normal", "pack"): 1},
    contended={("normal", "pack"): 6, ("normal", "made_up"): 2},
    dead_lettered={("pack", "timeout"): 2, ("pack", "order_7"): 1, ("pack", "order_8"): 1},
    replayed={"pack": 6},
    waiting={"entity:order:7": 2, "entity:order:8": 1, "entity:else:9": 4, "pause:tenant:acme": 8},
    buckets={"dependency:carrier": (1.5, 20)},
    workers=2,
    lag=Lag(4, 2.5, 100),
)


def told(snapshot: Snapshot | None, *, expected: int | None = 3) -> dict[tuple[str, ...], float]:
    """Every sample: name without prefix, and sorted label values."""
    numbers = ClusterNumbers(codes=Codes(["timeout"]), expected=expected)
    numbers.snapshot = snapshot
    return {
        (
            sample.name.removeprefix("streamworker_"),
            *(v for _, v in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(Page({Scope.CLUSTER: numbers}).text())
        for sample in family.samples
        if sample.name.startswith("streamworker_")
    }


def test_jobs_are_told_by_lane_task_and_state_and_what_nobody_registered_is_other() -> None:
    found = told(SEEN)

    assert found["queue_jobs", "normal", "ready", "pack"] == 3
    assert found["queue_jobs", "normal", "parked", "pack"] == 0
    assert found["queue_jobs", "normal", "ready", "other"] == 4
    assert found["queue_enqueued_total", "normal", "other"] == 6
    assert found["queue_orphans_recovered_total", "normal", "pack"] == 1
    assert found["queue_contended_total", "normal", "pack"] == 6
    assert found["queue_contended_total", "normal", "other"] == 2
    assert {key[1] for key in found if key[0] == "queue_enqueued_total"} == {"normal"}


def test_what_admission_decided_and_what_was_drained_is_told() -> None:
    found = told(SEEN)

    assert found["queue_admissions_total", "accepted", "normal", ""] == 9
    assert found["queue_admissions_total", "deferred", "normal", "lane_full"] == 4
    assert found["queue_admissions_total", "rejected", "other", "x"] == 1
    assert found["queue_backlog_drained_total", "pack"] == 3
    assert found["queue_backlog_drained_total", "other"] == 1
    assert found["queue_backlog_drain_active",] == 1


def test_codes_that_were_made_up_are_other() -> None:
    found = told(SEEN)

    assert found["queue_dead_lettered_total", "timeout", "pack"] == 2
    assert found["queue_dead_lettered_total", "other", "pack"] == 0, "they are old"
    assert found["queue_replayed_total", "pack"] == 6


def others(numbers: ClusterNumbers, dead: dict[tuple[str, str], int]) -> dict[str, float]:
    """Dead letters of `pack` by code, once this is seen."""
    numbers.snapshot = replace(SEEN, dead_lettered=dead)
    found = text_string_to_metric_families(Page({Scope.CLUSTER: numbers}).text())
    return {
        sample.labels["error_code"]: sample.value
        for family in found
        if family.name == "streamworker_queue_dead_lettered"
        for sample in family.samples
        if sample.labels["task"] == "pack"
    }


def test_old_letters_do_not_pass_for_a_surge_when_somebody_looks_who_knows_other_codes() -> None:
    """After a deploy nobody has imported yet what a handler imports when it runs."""
    codes = Codes(["timeout"])
    numbers = ClusterNumbers(codes=codes, expected=None)

    assert others(numbers, {("pack", "card_gone"): 500, ("pack", "n_1"): 7}) == {"timeout": 0, "other": 0}
    assert others(numbers, {("pack", "card_gone"): 501, ("pack", "n_1"): 7, ("pack", "n_2"): 1})["other"] == 2
    codes._labels["card_gone"] = "card_gone"  # its module is loaded
    now = others(numbers, {("pack", "card_gone"): 502, ("pack", "n_1"): 9, ("pack", "n_2"): 1})
    assert now == {"timeout": 0, "other": 4, "card_gone": 502}, "it counts on, and never back"
    folded = others(numbers, {("pack", "card_gone"): 502, ("pack", "other"): 11})
    assert folded["other"] == 5, "one more, and those that were folded are not new"
    numbers.snapshot = None
    assert others(numbers, {("pack", "n_1"): 100})["other"] == 0, "another one looked meanwhile"


def test_a_count_that_went_below_zero_is_told_as_none() -> None:
    found = told(replace(SEEN, jobs={("normal", "pack", "ready"): -1}))

    assert found["queue_jobs", "normal", "ready", "pack"] == 0


def test_lanes_gates_buckets_and_workers_are_told() -> None:
    found = told(SEEN)

    assert found["queue_oldest_job_age_seconds", "normal"] == 7.5
    assert found["queue_oldest_parked_age_seconds", "normal"] == 0
    assert found["lane_target_age_seconds", "normal"] == 30
    assert found["lane_pressure", "normal"] == 2
    assert found["queue_paused", "normal"] == 1
    assert found["gate_waiting", "entity:order"] == 3
    assert found["gate_waiting", "entity:other"] == 4
    assert found["gate_waiting", "pause:tenant"] == 8
    assert found["gate_waiting", "rate:dependency:carrier"] == 0
    assert found["token_bucket_tokens", "dependency:carrier"] == 1.5
    assert found["token_bucket_capacity", "dependency:carrier"] == 20
    assert (found["workers_registered",], found["workers_expected",]) == (2, 3)
    assert found["collector_last_success_timestamp_seconds",] == 1_700_000_000.5
    assert (found["mirror_lag_seconds",], found["mirror_lag_events",]) == (2.5, 4)


def test_who_was_not_elected_tells_nothing() -> None:
    assert told(None) == {}


def test_what_is_not_known_is_not_told() -> None:
    found = told(replace(SEEN, lag=None), expected=None)

    assert not any(key[0].startswith(("mirror_", "workers_expected")) for key in found)


def test_every_metric_of_the_cluster_is_told_with_its_labels() -> None:
    numbers = ClusterNumbers(codes=Codes(["timeout"]), expected=3)
    numbers.snapshot = SEEN
    numbers.outbox = Depth(pending=2, lag_seconds=1.5)
    text = Page({Scope.CLUSTER: numbers}).text()
    found = {family.name: family for family in text_string_to_metric_families(text)}

    for spec in of_scope(Scope.CLUSTER):
        assert found[spec.full_name].type == spec.kind
        assert {name for one in found[spec.full_name].samples for name in one.labels} == set(spec.labels)


def test_a_gate_is_told_by_what_it_is_about() -> None:
    gates = Gates(
        "ship",
        ("order_id", "user"),
        [
            Gate(GateKind.ENTITY, "order:{order_id}"),
            Gate(GateKind.RATE, "tenant", "1,1000,1"),
            Gate(GateKind.CONCURRENCY, "task", "5"),
            Gate(GateKind.CONCURRENCY, "{user}", "5"),
            Gate(GateKind.PAUSE, "dependency:carrier"),
        ],
    )
    about = gates.about()
    names = gates.words({"order_id": 7, "user": "ann"}, tenant="acme", lane="normal")

    labels = {gate_label(word.partition("|")[0], about) for word in names}

    assert labels == {
        "entity:order",
        "rate:tenant",
        "concurrency:task:ship",
        "concurrency:user",
        "pause:dependency:carrier",
    }
    assert gate_label("entity:#digest", about) == "entity:other"
    assert gate_label("pause:task:whatever", about) == "pause:task"
