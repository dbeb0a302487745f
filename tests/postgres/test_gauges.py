"""What a mirror says of itself."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from streamworker.postgres.gauges import BEHIND, KINDS, Gauges, State, page
from streamworker.postgres.log import Lag
from streamworker.telemetry.catalogue import Scope, of_scope


def test_all_metrics_of_a_mirror_are_told() -> None:
    gauges = Gauges(lag=Lag(1, 2.0, 3))
    gauges.batch(0.1)
    gauges.count("row", 2)
    found = {family.name: family for family in text_string_to_metric_families(page(gauges))}

    for spec in of_scope(Scope.MIRROR):
        labels = {name for sample in found[spec.full_name].samples for name in sample.labels} - {"le"}
        assert labels == set(spec.labels), spec.name
    values = {sample.labels["kind"]: sample.value for sample in found["streamworker_mirror_errors"].samples}
    assert values["row"] == 2
    assert set(values) == set(KINDS)


def test_it_is_ready_while_it_mirrors_or_stands_by_and_is_not_far_behind() -> None:
    gauges = Gauges()
    assert not gauges.ready()[0], "nothing is known yet"

    gauges.enter(State.MIRRORING)
    gauges.lag = Lag(5, BEHIND - 1, 0)
    assert gauges.ready()[0]
    gauges.lag = Lag(5, BEHIND + 1, 0)
    assert gauges.ready() == (False, gauges.ready()[1])
    assert gauges.ready()[1]["status"] == "behind"

    gauges.enter(State.STANDBY)
    assert gauges.ready()[0], "it is the writer that is behind"
    gauges.enter(State.POSTGRES_AWAY, "connection refused")
    assert not gauges.ready()[0]
    assert gauges.ready()[1]["problem"] == "connection refused"
