"""The dashboards are what their code makes, are valid, and ask for metrics that there are."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from grafana.source.files import contents
from streamworker.telemetry.catalogue import CATALOGUE
from tests.observability.files import DASHBOARDS, RUNBOOK, dashboard, metrics_in, panels, queries
from tests.observability.schema import UNITS, complaints
from tests.unit.test_docs import anchors

EACH = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
#: What Prometheus tells of itself.
ITS_OWN = {"ALERTS"}


def samples() -> dict[str, set[str]]:
    """The samples of the catalogue with the labels that they have."""
    found: dict[str, set[str]] = {}
    for spec in CATALOGUE:
        if spec.kind == "histogram":
            for part in ("_bucket", "_sum", "_count"):
                found[spec.sample + part] = {*spec.labels, "job", "le"}
        else:
            found[spec.sample] = {*spec.labels, "job"}
    return found


def test_what_is_committed_is_what_the_code_makes() -> None:
    for path, text in contents():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make dashboards`"


def test_there_are_four_and_nothing_else() -> None:
    assert {path.stem for path in DASHBOARDS} == {
        "streamworker-overview",
        "streamworker-lane",
        "streamworker-retries",
        "streamworker-dead-letters",
    }


@EACH
def test_it_fits_the_schema_of_grafana(path: Path) -> None:
    assert complaints(dashboard(path)) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schemaVersion": "41"}, "'41' is no int"),
        ({"graphTooltip": 7}, "7 is no DashboardCursorSync"),
        ({"tagz": ["x"]}, "dashboard.tagz: the schema does not know it"),
        ({"panels": [{"type": "stat", "gridPos": {"x": 0, "y": "0", "w": 1, "h": 1}}]}, "'0' is no int"),
        (
            {"panels": [{"type": "stat", "fieldConfig": {"defaults": {"unit": 3}, "overrides": []}}]},
            "3 is no str",
        ),
        (
            {"panels": [{"type": "stat", "options": {"colorMode": "loud"}, "targets": []}]},
            "'loud' is no BigValueColorMode",
        ),
    ],
)
def test_the_schema_notices_what_does_not_fit(change: dict[str, object], complaint: str) -> None:
    assert any(complaint in each for each in complaints({**dashboard(DASHBOARDS[0]), **change}))


@EACH
def test_no_panels_overlap_and_all_are_inside(path: Path) -> None:
    places = [panel["gridPos"] for panel in dashboard(path)["panels"]]

    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, f"{one} and {other} overlap"


@EACH
def test_numbers_and_names_of_panels_are_unique(path: Path) -> None:
    board = dashboard(path)

    ids = [panel["id"] for panel in board["panels"]]
    titles = [panel["title"] for panel in board["panels"]]

    assert len(set(ids)) == len(ids)
    assert len(set(titles)) == len(titles)


@EACH
def test_each_panel_says_what_it_shows_and_what_to_do_when_it_is_red(path: Path) -> None:
    steps = anchors(RUNBOOK)

    for panel in panels(dashboard(path)):
        defaults = panel["fieldConfig"]["defaults"]
        what, _, todo = panel["description"].partition("\n\n**When it is red:** ")
        assert len(what) > 10, panel["title"]
        assert len(todo) > 10, panel["title"]
        assert defaults["unit"] in UNITS, panel["title"]
        colours = [step["color"] for step in defaults["thresholds"]["steps"]]
        values = [step["value"] for step in defaults["thresholds"]["steps"][1:]]
        assert sorted(colours) == ["green", "red", "yellow"], panel["title"]
        assert values == sorted(values), panel["title"]
        (link,) = panel["links"]
        page, _, anchor = link["url"].partition("#")
        assert page == "${runbook}"
        assert anchor in steps, f"{panel['title']} leads to #{anchor}, which the runbook has not"


@EACH
def test_it_has_its_variables_and_asks_by_them(path: Path) -> None:
    board = dashboard(path)
    known = samples()

    names = [variable["name"] for variable in board["templating"]["list"]]

    assert names[:4] == ["datasource", "job", "lane", "task"]
    for title, query in queries(board):
        for metric, selector in re.findall(r"(streamworker_\w+){([^}]*)}", query):
            assert 'job=~"$job"' in selector, title
            asked = set(re.findall(r"(\w+)=", selector))
            assert {"lane", "task"} & known[metric] <= asked, f"{title} does not ask for the chosen"
        assert query.count("streamworker_") == len(re.findall(r"streamworker_\w+{", query)), title
        assert "$__interval" not in query, f"{title}: $__rate_interval is never too short for a rate"


@EACH
def test_it_asks_for_metrics_and_labels_of_the_catalogue(path: Path) -> None:
    known = samples()
    board = dashboard(path)
    asked = [*queries(board)]
    asked += [(each["name"], each["expr"]) for each in board["annotations"]["list"] if "expr" in each]
    asked += [
        (each["name"], each["query"]["query"])
        for each in board["templating"]["list"]
        if each["type"] == "query"
    ]

    for title, query in asked:
        for metric in metrics_in(query) - ITS_OWN:
            assert metric in known, f"{title} asks for {metric}, which is not in the catalogue"
        for metric, selector in re.findall(r"(streamworker_\w+){([^}]*)}", query):
            labels = set(re.findall(r"(\w+)=", selector))
            assert labels <= known[metric], f"{title}: {metric} has no label {labels - known[metric]}"


def test_all_of_the_catalogue_that_dashboards_are_for_is_on_one() -> None:
    shown = {
        metric for path in DASHBOARDS for _, query in queries(dashboard(path)) for metric in metrics_in(query)
    }
    shown |= {"streamworker_build_info"}  # the variable of jobs

    for spec in CATALOGUE:
        parts = {spec.sample, *(spec.sample + part for part in ("_bucket", "_sum", "_count"))}
        assert parts & shown or spec.name in BEHIND, f"{spec.sample} is on no dashboard"


#: Metrics that are behind others, or alerts: no panel has them.
BEHIND = {
    "collector_last_success_timestamp_seconds",
    "keeper_promoted",
    "keeper_recovered",
    "mirror_log_bytes",
}
