"""A real Prometheus that scrapes each second, with rules whose minutes are seconds."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from streamworker.cli.dashboards import with_thresholds
from tests.integration.test_fleet import free_port
from tests.observability.files import RULES
from tests.waiting import wait_until

#: How much shorter than written all times are.
SCALE = 60
#: Thresholds that are times themselves.
THRESHOLDS = {"mirror_lag_seconds": 2.0, "outbox_lag_seconds": 2.0, "collector_silent_seconds": 5.0}
_UNITS = {"s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(?<![\w.$])(\d+)([smh])\b")


def scaled(query: str) -> str:
    """A query that looks back in seconds where it looked back in minutes."""

    def shorter(found: re.Match[str]) -> str:
        return f"{max(1000, int(found[1]) * _UNITS[found[2]] * 1000 // SCALE)}ms"

    return _DURATION.sub(shorter, query)


def chosen(query: str) -> str:
    """A panel's query with all chosen, and windows scaled."""
    for name, value in (("$job", "shop"), ("$lane", ".+"), ("$task", ".+")):
        query = query.replace(name, value)
    query = scaled(query.replace("$__range:1m]", "$__range:1s]").replace(":15s]", ":1s]"))
    return query.replace("$__rate_interval", "6s").replace("$__range", "60s")


def scaled_rules() -> dict[str, Any]:
    """The rules, scaled: an alert fires once its expression is true."""
    rules: dict[str, Any] = yaml.safe_load(with_thresholds(RULES.read_text(encoding="utf-8"), THRESHOLDS))
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["expr"] = scaled(rule["expr"])
            rule.pop("for", None)
    return rules


class Monitor:
    """A Prometheus of its own. A context manager."""

    def __init__(self, folder: Path, targets: Iterable[int]) -> None:
        self._folder = folder
        self._targets = [f"127.0.0.1:{port}" for port in targets]
        self._port = free_port()

    def __enter__(self) -> Self:
        (self._folder / "rules.yml").write_text(yaml.safe_dump(scaled_rules()))
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "shop", "static_configs": [{"targets": self._targets}]}],
        }
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = open(self._folder / "prometheus.log", "wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={self._folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--log.level=warn",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        wait_until(self._ready, timeout=60, what="Prometheus is ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        if error is not None:
            print((self._folder / "prometheus.log").read_text(errors="replace")[-4000:])

    def _ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text(errors="replace")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **parameters: str | list[str]) -> Any:
        """The data of an answer of the API; fails with what Prometheus says."""
        words = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/api/v1/{path}?{words}", timeout=30
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            with refused:
                raise AssertionError(f"{path} {parameters}: {refused.read().decode()}") from None

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        found: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return found

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        return {each["metric"]["alertname"] for each in self.ask('ALERTS{alertstate="firing"}')}
