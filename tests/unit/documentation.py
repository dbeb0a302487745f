"""Reads the documentation for its tests, and writes the blocks that are made from the code.

Blocks between `<!-- generated: name -->` and `<!-- end -->` are such. After a change of the code,
`UPDATE_DOCS=1 pytest tests/unit -k docs` writes them anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
LUA = REPOSITORY / "lua"
PAGES = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page_id(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    level = heading.split(" ")[0]
    start = text.index(f"\n{heading}\n") + len(heading) + 2
    following = re.compile(rf"^#{{1,{len(level)}}} ", re.MULTILINE).search(text, start)
    return text[start : following.start() if following else None]


def first_column(text: str) -> list[str]:
    """What stands in code marks in the first column of the tables of a text."""
    rows = re.findall(r"^\| (`[^|]*?) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def check_generated(page: str, name: str, expected: str) -> None:
    """Compare a generated block, or write it when UPDATE_DOCS is set."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    block = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    assert block.search(text), f"docs/{page} has no generated block {name}"
    fresh = block.sub(lambda found: f"{found[1]}\n{expected.strip()}\n\n{found[2]}", text)
    if os.environ.get("UPDATE_DOCS") == "1":
        path.write_text(fresh, encoding="utf-8")
    else:
        assert text == fresh, f"docs/{page} is out of date: UPDATE_DOCS=1 pytest tests/unit -k docs"
