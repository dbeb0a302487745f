"""`streamworker dashboards`: what Grafana and Prometheus need, out of the installed package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import Json
from streamworker.cli.output import counted, emit_json, say

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Get the dashboards for Grafana and the alerts for Prometheus.",
)

#: A number with a name behind it, as rules have their thresholds.
THRESHOLD = re.compile(r"(?P<value>\d+(?:\.\d+)?)(?P<rest>  # (?P<name>[a-z_]+))$", re.MULTILINE)
#: Where the runbook is as long as nobody says so: docker-compose.yml lets Grafana itself serve it.
RUNBOOK = "/public/streamworker/runbook-backlog.md"
#: What is exported, by its place in the repository and by that in DIR.
_PARTS = {
    "grafana/dashboards": "grafana/dashboards",
    "grafana/provisioning": "grafana/provisioning",
    "prometheus/streamworker.rules.yml": "prometheus/streamworker.rules.yml",
    "docs/how-to/runbook-backlog.md": "runbook-backlog.md",
}


def with_thresholds(text: str, values: Mapping[str, float]) -> str:
    """The rules with other thresholds."""

    def change(found: re.Match[str]) -> str:
        value = values.get(found["name"])
        return found.group() if value is None else f"{value:.15g}{found['rest']}"

    return THRESHOLD.sub(change, text)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; it is made if need be.")],
    runbook: Annotated[
        str, typer.Option("--runbook", metavar="URL", help="Where panels and alerts find the runbook.")
    ] = RUNBOOK,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=NUMBER", help="Another threshold for the alerts; repeat it."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that were changed.")] = False,
    as_json: Json = False,
) -> None:
    """Write the dashboards, their provisioning, the alert rules and the runbook.

    When files are there already with another text, nothing is written, unless it is forced.

    Example: streamworker dashboards export monitoring --set ready_jobs=500
    """
    texts = _texts()
    values = _read_changes(changes or [], "".join(texts.values()))
    wanted = {
        folder / name: with_thresholds(text, values).replace(RUNBOOK, runbook) for name, text in texts.items()
    }
    old = {path: path.read_text(encoding="utf-8") for path in wanted if path.exists()}
    changed = [path for path, text in old.items() if text != wanted[path]]
    if changed and not force:
        raise CommandFailed(
            f"{changed[0]} has another text; --force overwrites {counted(len(changed), 'file')}"
        )
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if as_json:
        emit_json({"files": [str(path) for path in wanted]})
        return
    for path in wanted:
        print(path)
    say("read docs/how-to/dashboards-and-alerts.md for where they go")


def _texts() -> dict[str, str]:
    """What is exported, by its place in DIR. A wheel has it inside, a checkout beside the package."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "observability"
    root = inside if inside.is_dir() else package.parent
    texts = {}
    for source, target in _PARTS.items():
        start = root / source
        for path in sorted(start.rglob("*") if start.is_dir() else [start]):
            if path.is_file():
                texts[str(Path(target) / path.relative_to(start))] = path.read_text(encoding="utf-8")
    return texts


def _read_changes(changes: list[str], rules: str) -> dict[str, float]:
    known = {found["name"]: found["value"] for found in THRESHOLD.finditer(rules)}
    values = {}
    for each in changes:
        name, _, number = each.partition("=")
        if name not in known:
            there = ", ".join(f"{name}={value}" for name, value in known.items())
            raise CommandFailed(f"no threshold is called {name!r}; there are: {there}", code=2)
        if not re.fullmatch(r"\d+(\.\d+)?", number):
            raise CommandFailed(f"--set {each}: {number!r} is no positive number", code=2)
        values[name] = float(number)
    return values
