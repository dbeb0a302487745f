"""The page on metrics says what there is."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from streamworker.core.outcome import Success
from streamworker.telemetry.exposition import PREFIX, Page
from streamworker.telemetry.labels import MAX_CODES, MAX_TASKS
from streamworker.telemetry.metrics import Metrics
from streamworker.telemetry.status import SILENCE_BORNE, STALLED_AFTER
from tests.unit.documentation import section, text_of
from tests.unit.test_telemetry_metrics import Told, claim, fail


def test_the_table_of_metrics_is_what_a_scrape_gives() -> None:
    metrics = Metrics(
        tasks=["pack"],
        lanes=["normal"],
        slots={"normal": (1, 0)},
        codes=["timeout"],
        dependencies=["carrier"],
    )
    metrics.called("carrier", "ok", 0.1)
    settled = [Told(claim(), "pack", outcome) for outcome in (Success(), fail("timeout"))]
    metrics.exchanged(settled, [b"OK", b"OK"], [Told(claim(), "pack", None)], {"normal": 1})
    metrics.lag.observe(0.1)
    found = {}
    for family in text_string_to_metric_families(Page(metrics, "1").text()):
        if family.name.startswith(PREFIX):
            labels = {name for sample in family.samples for name in sample.labels} - {"le"}
            found[family.name.removeprefix(PREFIX)] = (family.type, labels)

    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| ([\w, ]*)\|", section(text_of("reference/metrics.md"), "## Metrics"), re.M
    )

    described = {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in rows}
    assert described == found


def test_the_figures_on_the_page_are_those_of_the_code() -> None:
    text = text_of("reference/metrics.md")

    assert f"has not come round for {STALLED_AFTER:g} s" in text
    assert f"(at least {SILENCE_BORNE:g} s)" in text
    assert f"{MAX_TASKS} at most" in text
    assert f"{MAX_CODES} at most" in text
