"""`streamworker dashboards export`: what Grafana and Prometheus need, with other thresholds if wanted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import yaml

from tests.observability.files import DASHBOARDS, REPOSITORY, RULES, RUNBOOK, alerts, dashboard
from tests.observability.promtool import needs_promtool, promtool


def export(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamworker", "dashboards", "export", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_writes_what_is_committed(tmp_path: Path) -> None:
    done = export(tmp_path / "new" / "folder", "--json")

    assert done.returncode == 0, done.stderr
    written = [Path(name) for name in json.loads(done.stdout)["files"]]
    assert {path.name for path in written if path.suffix == ".json"} == {path.name for path in DASHBOARDS}
    for path in written:
        place = path.relative_to(tmp_path / "new" / "folder")
        source = RUNBOOK if path.name == RUNBOOK.name else REPOSITORY / place
        assert path.read_text() == source.read_text()


def test_it_prints_what_the_page_says(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "dashboards-and-alerts.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("$ streamworker dashboards export monitoring\n")
    shown = rest.partition("```")[0]

    done = export(tmp_path / "monitoring")

    assert done.stdout.replace(f"{tmp_path}/", "") == shown


def test_the_page_lists_the_alerts_and_dashboards() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "dashboards-and-alerts.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^\| `(Streamworker\w+)` \|", page, re.MULTILINE)) == alerts().keys()
    titles = {dashboard(path)["title"].removeprefix("streamworker: ") for path in DASHBOARDS}
    assert {f"*{title}*" for title in titles} <= set(re.findall(r"^\| (\*[^*]+\*) \|", page, re.MULTILINE))


@needs_promtool
def test_a_threshold_is_set_wherever_it_stands(tmp_path: Path) -> None:
    done = export(tmp_path, "--set", "ready_jobs=750", "--set", "failure_share=0.5")

    assert done.returncode == 0, done.stderr
    rules = tmp_path / "prometheus" / RULES.name
    assert promtool("check", "rules", rules, cwd=tmp_path).returncode == 0
    for path in (rules, tmp_path / "grafana" / "provisioning" / "alerting" / "streamworker.yml"):
        text = path.read_text()
        assert '{lane!="backlog"} > 750  # ready_jobs' in text
        assert "> 0.5  # failure_share" in text
        assert "> 10  # failures" in text
        yaml.safe_load(text)


def test_panels_and_alerts_lead_to_the_runbook_that_is_named(tmp_path: Path) -> None:
    done = export(tmp_path, "--runbook", "https://wiki.example.com/queue")

    assert done.returncode == 0, done.stderr
    rules = (tmp_path / "prometheus" / RULES.name).read_text()
    assert rules.count("runbook_url: https://wiki.example.com/queue#") == len(alerts())
    for path in (tmp_path / "grafana" / "dashboards").glob("*.json"):
        variables = json.loads(path.read_text())["templating"]["list"]
        (runbook,) = (each for each in variables if each["name"] == "runbook")
        assert runbook["query"] == runbook["current"]["value"] == "https://wiki.example.com/queue"


def test_files_that_were_changed_are_not_overwritten(tmp_path: Path) -> None:
    assert export(tmp_path).returncode == 0
    rules = tmp_path / "prometheus" / RULES.name
    rules.write_text("mine")

    again = export(tmp_path)

    assert again.returncode == 1
    assert "--force" in again.stderr
    assert rules.read_text() == "mine"
    assert export(tmp_path, "--force").returncode == 0
    assert rules.read_text() == RULES.read_text()


def test_an_unknown_threshold_names_those_that_there_are(tmp_path: Path) -> None:
    done = export(tmp_path, "--set", "redy_jobs=1")

    assert done.returncode == 2
    assert "ready_jobs=100" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert export(tmp_path, "--set", "ready_jobs=many").returncode == 2
