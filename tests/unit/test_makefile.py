"""The long forms of the tests: what the Makefile makes larger is what it runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import REPOSITORY

#: `target: export NAME := value`, and the recipe's `$(PY) -m pytest … paths`.
EXPORT = re.compile(r"^([a-z-]+): export ([A-Z_]+) :?= ", re.MULTILINE)
RECIPE = re.compile(r"^([a-z-]+): venv.*\n\t\$\(PY\) -m pytest ((?:.*\\\n)*.*)$", re.MULTILINE)


def _makefile() -> str:
    return (REPOSITORY / "Makefile").read_text()


def _exports() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for target, name in EXPORT.findall(_makefile()):
        found[target].append(name)
    return found


def _paths() -> dict[str, list[str]]:
    return {target: re.findall(r"tests/[\w/.]*", words) for target, words in RECIPE.findall(_makefile())}


def _sources(path: str) -> Iterator[Path]:
    """The files of a path; of a test also the modules beside it, which may read its figures."""
    found = REPOSITORY / path
    if found.is_dir():
        yield from found.rglob("*.py")
        return
    yield found
    yield from (each for each in found.parent.glob("*.py") if not each.name.startswith("test_"))


@pytest.mark.parametrize(
    ("target", "name"), [(target, one) for target, of in _exports().items() for one in of]
)
def test_what_is_made_larger_is_run(target: str, name: str) -> None:
    sources = (file for path in _paths()[target] for file in _sources(path))

    assert any(f'"{name}"' in file.read_text() for file in sources), f"no test of {target} reads {name}"
