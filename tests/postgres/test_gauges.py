"""What a mirror says of itself."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from streamworker.postgres.gauges import BEHIND, KINDS, Gauges, State, page
from streamworker.postgres.log import Lag
from tests.unit.documentation import section, text_of

PREFIX = "streamworker_mirror_"


def test_the_table_of_the_mirrors_metrics_is_what_a_scrape_gives() -> None:
    gauges = Gauges(lag=Lag(1, 2.0, 3))
    gauges.batch(0.1)
    found = {}
    for family in text_string_to_metric_families(page(gauges)):
        if family.name.startswith(PREFIX):
            labels = {name for sample in family.samples for name in sample.labels} - {"le"}
            found[family.name.removeprefix(PREFIX)] = (family.type, labels)

    text = section(text_of("reference/metrics.md"), "## Metrics of the mirror")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*)\|(.*)", text, re.M)

    assert {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels, _ in rows} == found
    described = next(told for name, _, _, told in rows if name == "errors")
    assert set(KINDS) <= set(re.findall(r"`(\w+)`", described))


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
