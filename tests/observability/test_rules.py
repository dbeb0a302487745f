"""The alerts fire when they should, are silent on near misses, and notice a threshold that was changed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana.source.alerts import provisioned
from streamworker.cli.dashboards import THRESHOLD, with_thresholds
from streamworker.telemetry.catalogue import CATALOGUE
from tests.observability.files import RULE_TESTS, RULES, RUNBOOK, alerts, metrics_in, rules
from tests.observability.promtool import needs_promtool, promtool
from tests.unit.test_docs import anchors

#: Alerts whose threshold is somewhere else, with no number of taste in the rule.
UNTHRESHOLDED = {"StreamworkerLaneOverTarget", "StreamworkerWorkerMissing"}
#: By how much a threshold is moved.
MOVED = 1.5


def thresholds() -> dict[str, str]:
    """Each named threshold with its alert."""
    found = {}
    for name, rule in alerts().items():
        for each in THRESHOLD.finditer(rule["expr"]):
            found[each["name"]] = name
    return found


def cases() -> list[dict[str, Any]]:
    """The tests of promtool."""
    loaded: list[dict[str, Any]] = yaml.safe_load(RULE_TESTS.read_text(encoding="utf-8"))["tests"]
    return loaded


def moves() -> list[tuple[str, float]]:
    """What is moved where: each threshold to one side, and with STREAMWORKER_MUTANTS=all to both."""
    both = os.environ.get("STREAMWORKER_MUTANTS") == "all"
    factors = (MOVED, 1 / MOVED)
    return [
        (name, factor)
        for place, name in enumerate(thresholds())
        for factor in (factors if both else (factors[place % 2],))
    ]


@needs_promtool
def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    checked = promtool("check", "rules", RULES, cwd=tmp_path)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "SUCCESS" in checked.stdout


@needs_promtool
def test_each_alert_fires_and_is_silent_on_its_near_miss() -> None:
    tested = promtool("test", "rules", RULE_TESTS.name, cwd=RULE_TESTS.parent)

    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_promtool
@pytest.mark.parametrize(("name", "factor"), moves())
def test_a_threshold_that_was_moved_is_noticed(name: str, factor: float, tmp_path: Path) -> None:
    alert = thresholds()[name]
    text = RULES.read_text(encoding="utf-8")
    before = next(float(each["value"]) for each in THRESHOLD.finditer(text) if each["name"] == name)
    mutant = yaml.safe_load(with_thresholds(text, {name: before * factor}))
    for group in mutant["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule.get("alert", alert) == alert]
    (tmp_path / RULES.name).write_text(yaml.safe_dump(mutant))
    mine = [case for case in cases() if case["name"].startswith(alert + ":")]
    tests = {"rule_files": [RULES.name], "evaluation_interval": "1m", "tests": mine}
    (tmp_path / RULE_TESTS.name).write_text(yaml.safe_dump(tests))

    tested = promtool("test", "rules", RULE_TESTS.name, cwd=tmp_path)

    assert "FAILED" in tested.stdout + tested.stderr, (
        f"{name}: {before * factor:g} instead of {before:g} passes"
    )


def test_each_alert_has_tests_of_both_kinds() -> None:
    for name in alerts():
        mine = [case for case in cases() if case["name"].startswith(name + ":")]
        looks = [look for case in mine for look in case["promql_expr_test"]]
        assert any(look.get("exp_samples") for look in looks), f"{name} never fires"
        quiet = [
            case
            for case in mine
            if any(not look.get("exp_samples") for look in case["promql_expr_test"])
            or len(case["input_series"]) > 1
        ]
        assert quiet, f"{name} has no near miss"


def test_each_number_of_taste_has_a_name() -> None:
    assert alerts().keys() - set(thresholds().values()) == UNTHRESHOLDED
    names = [each["name"] for each in THRESHOLD.finditer(RULES.read_text(encoding="utf-8"))]
    assert len(set(names)) == len(names)


def test_each_alert_says_what_is_wrong_what_to_do_and_where_to_read_on() -> None:
    steps = anchors(RUNBOOK)

    for name, rule in alerts().items():
        said = rule["annotations"]
        assert set(said) == {"summary", "description", "runbook_url"}, name
        page, _, anchor = said["runbook_url"].partition("#")
        assert page.endswith(RUNBOOK.name), name
        assert anchor in steps, f"{name} leads to #{anchor}, which the runbook has not"
        assert rule["labels"]["severity"] in {"warning", "critical"}, name
        # A text that names a label which the alert has not would have a hole in it.
        has = {
            label
            for case in cases()
            for look in case["promql_expr_test"]
            for sample in look.get("exp_samples") or ()
            if f'alertname="{name}"' in sample["labels"]
            for label in re.findall(r"(\w+)=", sample["labels"])
        }
        named = set(re.findall(r"\$labels\.(\w+)", said["summary"] + said["description"]))
        assert named <= has, name


def test_rules_ask_for_metrics_of_the_catalogue() -> None:
    known = {
        spec.sample + part
        for spec in CATALOGUE
        for part in (("_bucket", "_sum", "_count") if spec.kind == "histogram" else ("",))
    }

    for group in rules()["groups"]:
        for rule in group["rules"]:
            for metric in metrics_in(rule["expr"]):
                assert metric in known, f"{rule.get('alert', rule.get('record'))} asks for {metric}"


def test_rules_know_only_recorded_series_that_are_recorded() -> None:
    recorded = {rule["record"] for group in rules()["groups"] for rule in group["rules"] if "record" in rule}

    for group in rules()["groups"]:
        for rule in group["rules"]:
            used = set(re.findall(r"\b[a-z]+:streamworker_[a-z_]+:[a-z0-9]+", rule["expr"]))
            assert used <= recorded


def test_grafana_has_the_same_alerts_as_prometheus() -> None:
    (group,) = provisioned(rules())["groups"]

    assert [rule["title"] for rule in group["rules"]] == list(alerts())
    for rule in group["rules"]:
        ours = alerts()[rule["title"]]
        query, firing, present = rule["data"]
        assert query["model"]["expr"] == ours["expr"]
        assert firing["refId"] == rule["condition"]
        assert firing["model"]["expression"] == present["refId"]
        assert rule["for"] == ours.get("for", "0s")
        assert rule["labels"] == ours["labels"]
        assert not re.search(r"\$value\b", str(rule["annotations"])), "Grafana calls it $values"
    assert len({rule["uid"] for rule in group["rules"]}) == len(group["rules"])
    assert all(len(rule["uid"]) <= 40 for rule in group["rules"])
