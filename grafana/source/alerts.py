"""The alerts of Prometheus as alerts of Grafana, for those whose Grafana tells people.

The recording rules stay in Prometheus: the queries here ask for their series.
"""

from __future__ import annotations

import re
from typing import Any

#: As docker-compose.yml and provisioning/datasources call it.
SOURCE_UID = "streamworker-prometheus"
FOLDER = "streamworker"
#: Seconds that a query looks back; the rules' own windows are in the queries.
RANGE = 600
#: How Prometheus says where a value goes in a text, and how Grafana does.
_VALUE = re.compile(r"{{\s*\$value\b")


def provisioned(rules: dict[str, Any]) -> dict[str, Any]:
    """What Grafana reads from provisioning/alerting."""
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": "streamworker",
                "folder": FOLDER,
                "interval": "1m",
                "rules": [_alert(rule) for rule in alerts],
            }
        ],
    }


def _alert(rule: dict[str, Any]) -> dict[str, Any]:
    """A query whose series are the alerts, and a threshold that each passes: the condition is in PromQL."""
    return {
        "uid": _uid(rule["alert"]),
        "title": rule["alert"],
        "condition": "firing",
        "for": rule.get("for", "0s"),
        "noDataState": "OK",  # a query without series is an alert that is silent
        "execErrState": "Error",
        "labels": rule["labels"],
        "annotations": {
            name: _VALUE.sub("{{ $values.query.Value", text) for name, text in rule["annotations"].items()
        },
        "data": [
            _node("query", SOURCE_UID, {"expr": rule["expr"], "instant": True, "range": False}),
            _node(
                "firing",
                "__expr__",
                {
                    "type": "threshold",
                    "expression": "present",
                    "conditions": [{"evaluator": {"type": "gt", "params": [0]}}],
                },
            ),
            _node("present", "__expr__", {"type": "math", "expression": "is_number($query)"}),
        ],
    }


def _node(name: str, source: str, model: dict[str, Any]) -> dict[str, Any]:
    return {
        "refId": name,
        "relativeTimeRange": {"from": RANGE, "to": 0},
        "datasourceUid": source,
        "model": {"refId": name, **model},
    }


def _uid(alert: str) -> str:
    """Grafana bears 40 characters."""
    return "sw" + re.sub(r"(?=[A-Z])", "-", alert.removeprefix("Streamworker")).lower()
