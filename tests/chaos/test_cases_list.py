"""The list of the cases names exactly the tests that say they show one."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: Cases there are: so many were collected, and none may fall out of the list.
COUNT = 52


def listed() -> tuple[dict[str, set[str]], set[str]]:
    """The tests of each case by the list, and the cases that wait for a part that is not built."""
    tests: dict[str, set[str]] = {}
    waiting: set[str] = set()
    for line in (TESTS / "chaos" / "README.md").read_text().splitlines():
        if row := re.fullmatch(r"\| (B\d\d) \| ([^|]+) \| ([^|]+) \|", line):
            case, _, cell = row.groups()
            assert case not in tests, f"{case} is listed twice"
            tests[case] = set(re.findall(r"`([^`]+::[^`]+)`", cell))
            if cell.startswith("waits for "):
                waiting.add(case)
    return tests, waiting


def told() -> dict[str, set[str]]:
    """The tests whose docstring names a case."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for case in re.findall(r"\bB\d\d\b", ast.get_docstring(node) or ""):
                    found[case].add(f"{path.relative_to(TESTS)}::{node.name}")
    return found


def test_every_case_is_listed_with_exactly_the_tests_that_show_it() -> None:
    tests, waiting = listed()

    assert len(tests) == COUNT
    assert {case for case, named in tests.items() if not named} == waiting
    assert {case: sorted(named) for case, named in tests.items() if named} == {
        case: sorted(named) for case, named in told().items()
    }
