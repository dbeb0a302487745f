"""What mypy says of calls: wrong arguments are errors, results have the handler's type."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from mypy import api

REPOSITORY = Path(__file__).parents[2]
SNIPPET = Path(__file__).with_name("calls.txt")
_SAID = re.compile(r"^[^:]+:(?P<line>\d+): (?P<kind>error|note): (?P<text>.*?)(?:  \[(?P<code>[\w-]+)\])?$")
_REVEALED = re.compile(r'Revealed type is "(.*)"$')


def wanted() -> dict[int, str]:
    """What each line of the snippet says of itself."""
    marks = {}
    for number, line in enumerate(SNIPPET.read_text().splitlines(), 1):
        if number > 2 and (mark := re.search(r"# ([ET]): (.+)$", line)):
            marks[number] = f"{mark[1]}: {mark[2]}"
    return marks


def said(output: str) -> dict[int, str]:
    """What mypy says of each line, in the same form; explanations that follow an error are left out."""
    found: dict[int, set[str]] = defaultdict(set)
    for line in output.splitlines():
        match = _SAID.match(line)
        if match is None:
            continue
        number = int(match["line"])
        if match["kind"] == "error":
            found[number].add(f"E {match['code']}")
        elif revealed := _REVEALED.match(match["text"]):
            found[number].add("T " + revealed[1].replace("builtins.", ""))
    return {
        number: f"{min(marks)[0]}: " + ", ".join(sorted(mark[2:] for mark in marks))
        for number, marks in found.items()
    }


def test_wrong_calls_are_type_errors_and_right_ones_are_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue: typed (ParamSpec), so that a wrong argument is a type error."""
    copy = tmp_path / "calls.py"
    copy.write_text(SNIPPET.read_text())
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("MYPYPATH", str(REPOSITORY))

    output, problems, _ = api.run(
        [
            *("--config-file", str(REPOSITORY / "pyproject.toml")),
            *("--cache-dir", str(REPOSITORY / ".mypy_cache")),  # what `make lint` has worked out already
            str(copy),
        ]
    )

    assert problems == ""
    assert said(output) == wanted()
