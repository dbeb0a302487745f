"""The committed files of dashboards and alerts, as their readers see them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
DASHBOARDS = sorted((REPOSITORY / "grafana" / "dashboards").glob("*.json"))
RULES = REPOSITORY / "prometheus" / "streamworker.rules.yml"
RULE_TESTS = REPOSITORY / "prometheus" / "streamworker.rules.test.yml"
RUNBOOK = REPOSITORY / "docs" / "how-to" / "runbook-backlog.md"

Json = dict[str, Any]

#: What a query may be about: our metrics, and what Prometheus says of its alerts.
_METRIC = re.compile(r"\b(?<![:$])(streamworker_[a-z_]+|ALERTS)\b(?!:)")
_RECORDED = re.compile(r"\b[a-z]+:streamworker_[a-z_]+:[a-z0-9]+\b")


def dashboard(path: Path) -> Json:
    """One dashboard."""
    loaded: Json = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def panels(board: Json) -> list[Json]:
    """Its panels, without headings."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(board: Json) -> Iterator[tuple[str, str]]:
    """Each query of its panels, with the panel's title."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def rules() -> Json:
    """The rules of Prometheus."""
    loaded: Json = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return loaded


def alerts() -> dict[str, Json]:
    """The alerts by name."""
    return {rule["alert"]: rule for group in rules()["groups"] for rule in group["rules"] if "alert" in rule}


def metrics_in(query: str) -> set[str]:
    """The names of metrics in a query; recorded series are not among them."""
    return set(_METRIC.findall(_RECORDED.sub("", query)))
