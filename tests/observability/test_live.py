"""A live fleet, mirror and relay under load, a real Prometheus, and what dashboards and alerts make of it.

All windows are scaled: minutes are seconds. The alerts are those of the committed file otherwise.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping

import pytest
import yaml

from streamworker.telemetry.catalogue import CATALOGUE, Kind, Spec
from tests.observability.files import DASHBOARDS, REPOSITORY, alerts, dashboard, queries
from tests.observability.monitor import Monitor, chosen
from tests.observability.promtool import needs_prometheus
from tests.observability.stage import PATIENCE, Stage
from tests.waiting import wait_until

pytestmark = needs_prometheus


def samples(spec: Spec) -> list[str]:
    """The names of a metric's samples."""
    parts = ("_bucket", "_sum", "_count") if spec.kind is Kind.HISTOGRAM else ("",)
    return [spec.sample + part for part in parts]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("live")) as one:
        yield one


def missing(monitor: Monitor, wanted: Mapping[str, str]) -> dict[str, str]:
    """Ask again and again until each query has an answer, or time is up; what has none."""
    left = dict(wanted)

    def look() -> bool:
        for name, query in list(left.items()):
            if any(float(each["value"][1]) == float(each["value"][1]) for each in monitor.ask(query)):
                del left[name]
        return not left

    with contextlib.suppress(AssertionError):
        wait_until(look, timeout=PATIENCE, what="all queries have an answer")
    return left


def test_each_metric_of_the_catalogue_is_there(stage: Stage) -> None:
    wanted = {name: name for spec in CATALOGUE for name in samples(spec)}

    left = missing(stage.monitor, wanted)

    assert not left, "without data: " + "; ".join(sorted(left))


#: Panels that are empty on a calm day: they show only what is not zero, and nothing of these has happened.
RARE = {"Replayed", "Recovered from dead workers", "Errors of the mirror"}
#: The panel that is empty as long as no alert fires.
ALERTING = "Which alert"


def test_each_panel_has_data(stage: Stage) -> None:
    wanted = {
        f"{path.stem}: {title} {number}": chosen(query).removesuffix(" > 0" if title in RARE else "")
        for path in DASHBOARDS
        for number, (title, query) in enumerate(queries(dashboard(path)))
        if title != ALERTING
    }

    assert len(wanted) > 50
    left = missing(stage.monitor, wanted)

    assert not left, "without data: " + "; ".join(sorted(left))


def test_annotations_are_understood(stage: Stage) -> None:
    for path in DASHBOARDS:
        for mark in dashboard(path)["annotations"]["list"]:
            if "expr" in mark:
                stage.monitor.ask(chosen(mark["expr"]))  # raises what Prometheus says


def test_each_variable_has_values(stage: Stage) -> None:
    for path in DASHBOARDS:
        for variable in dashboard(path)["templating"]["list"]:
            if variable["type"] != "query":
                continue
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            values = stage.monitor.get(f"label/{found[2]}/values", **{"match[]": chosen(found[1])})
            assert values, f"{path.stem}: {variable['name']}"


def test_what_workers_are_added_for_is_known(stage: Stage) -> None:
    manifest = yaml.safe_load((REPOSITORY / "deploy" / "kubernetes" / "scaledobject.yaml").read_text())
    (trigger,) = manifest["spec"]["triggers"]

    (found,) = stage.monitor.ask(trigger["metadata"]["query"])

    assert float(found["value"][1]) < float(trigger["metadata"]["threshold"])


def test_redis_refuses_nothing_on_a_calm_day(stage: Stage) -> None:
    refused = stage.monitor.ask('streamworker_redis_errors_total{kind="reply"} > 0')

    assert [each["metric"]["kind"] for each in refused] == []


STORM = (
    "StreamworkerRetrySpike",
    "StreamworkerMeanAttemptRising",
    "StreamworkerRetriesFollowDependency",
    "StreamworkerLaneOverTarget",
    "StreamworkerDepthUpThroughputFlat",
    "StreamworkerPriorityDiluted",
    "StreamworkerTerminalFailures",
    "StreamworkerDeadLetterSurge",
    "StreamworkerGateGrows",
    "StreamworkerBacklogGrowsWhileDraining",
)
#: What is done, and which alerts it fires, in this order: after the last nobody tells anything.
FAULTS: dict[str, tuple[Callable[[Stage], None], tuple[str, ...]]] = {
    "repeated deliveries": (Stage.repeat_deliveries, ("StreamworkerClaimConflicts",)),
    "no mirror": (Stage.stop_mirror, ("StreamworkerMirrorLag",)),
    "a spoilt request": (Stage.spoil_request, ("StreamworkerOutboxRefused",)),
    "no relay": (Stage.stop_relay, ("StreamworkerOutboxStuck",)),
    "storm": (Stage.storm, STORM),
    "a lost worker": (Stage.lose_worker, ("StreamworkerWorkerMissing",)),
    "no workers": (Stage.lose_all_workers, ("StreamworkerNoMetrics",)),
}


def test_each_alert_has_a_fault() -> None:
    assert {alert for _, fired in FAULTS.values() for alert in fired} == alerts().keys()


def alerts_shown(stage: Stage) -> set[str]:
    """What the dashboard for who is on call names."""
    (query,) = (
        query for path in DASHBOARDS for title, query in queries(dashboard(path)) if title == ALERTING
    )
    return {f"Streamworker{each['metric']['alert']}" for each in stage.monitor.ask(chosen(query))}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fires_its_alerts(stage: Stage, fault: str) -> None:
    strike, named = FAULTS[fault]
    wanted = set(named)

    def firing() -> set[str]:
        return wanted & stage.monitor.firing()

    try:
        wait_until(lambda: not firing(), timeout=PATIENCE, what=f"all is quiet before {fault}")
    except AssertionError:
        pytest.fail(f"{sorted(firing())} fire before {fault}")
    seen: set[str] = set()
    shown: set[str] = set()

    strike(stage)

    def all_seen() -> bool:
        seen.update(firing())
        shown.update(wanted & alerts_shown(stage))
        return seen == shown == wanted

    try:
        wait_until(all_seen, timeout=PATIENCE, what=f"{fault} is noticed")
    except AssertionError:
        pytest.fail(f"{fault} does not fire {sorted(wanted - seen)}, or does not show {sorted(seen - shown)}")
