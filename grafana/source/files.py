"""Which files there are, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

from grafana.source import dead_letters, lanes, overview, retries
from grafana.source.alerts import provisioned

FOLDER = Path(__file__).parents[1]
RULES = FOLDER.parent / "prometheus" / "streamworker.rules.yml"
BOARDS = (overview.BOARD, lanes.BOARD, retries.BOARD, dead_letters.BOARD)


class _Dumper(yaml.SafeDumper):
    """Queries of several lines are written as such, with the names of their thresholds at the ends."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def contents() -> Iterator[tuple[Path, str]]:
    """Each generated file with its text."""
    for board in BOARDS:
        yield FOLDER / "dashboards" / f"{board.uid}.json", json.dumps(board.render(), indent=2) + "\n"
    alerts = provisioned(yaml.safe_load(RULES.read_text()))
    text = yaml.dump(alerts, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    yield (
        FOLDER / "provisioning" / "alerting" / "streamworker.yml",
        f"# Made from prometheus/{RULES.name} by `make dashboards`.\n{text}",
    )


def write() -> list[Path]:
    """Write those that have changed, and say which."""
    written = []
    for path, text in contents():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            written.append(path)
    return written
