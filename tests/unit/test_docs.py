"""The documentation holds together: links and rules lead somewhere, code compiles, commands exist."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from streamworker.cli.main import command_line
from tests.unit.documentation import FENCE, PAGES, REPOSITORY, page_id, text_of


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as renderers of Markdown make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.replace("`", "").replace("\\", "").lower())
        found.add(slug.strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_link_leads_to_a_page_and_heading_that_exists(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))

    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), f"{page_id(page)} links to {target}, which is not there"
        assert linked.is_relative_to(REPOSITORY)
        if anchor:
            assert anchor in anchors(linked), f"{page_id(page)} links to {target}: no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [REPOSITORY / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                waiting.append((page.parent / target).resolve())

    assert sorted(page_id(page) for page in PAGES if page not in reached) == []


def sources() -> Iterator[Path]:
    for folder, pattern in (
        ("streamworker", "*.py"),
        ("tests", "*.py"),
        ("examples", "*.py"),
        ("lua", "*.lua"),
        ("docs", "*.md"),
    ):
        yield from (REPOSITORY / folder).rglob(pattern)
    for name in ("README.md", "CONTRIBUTING.md", "Makefile", "Dockerfile", "docker-compose.yml"):
        yield REPOSITORY / name


@pytest.mark.parametrize(
    ("letter", "last", "page"), [("R", 60, "reliability-rules.md"), ("D", 23, "design-rules.md")]
)
def test_every_rule_that_is_cited_can_be_looked_up(letter: str, last: int, page: str) -> None:
    text = text_of(f"explanation/{page}")
    numbers = [int(number) for number in re.findall(rf"^### {letter}(\d+) \S", text, re.MULTILINE)]
    cited = {
        (int(number), path)
        for path in sources()
        for number in re.findall(
            rf"(?<![\w./-]){letter}(\d{{1,2}})(?![\w])", path.read_text(encoding="utf-8")
        )
    }

    assert numbers == list(range(1, last + 1))
    assert {(number, page_id(path)) for number, path in cited if number not in numbers} == set()


def test_every_decision_that_is_cited_is_there_and_listed() -> None:
    pages = {path.name[:4]: path.name for path in (REPOSITORY / "docs" / "decisions").glob("[0-9]*.md")}
    cited = {
        (number, page_id(path))
        for path in sources()
        for number in re.findall(r"decisions?[/ ](\d{4})", path.read_text(encoding="utf-8"))
    }

    assert {(number, path) for number, path in cited if number not in pages} == set()
    assert sorted(pages) == [f"{number:04d}" for number in range(1, len(pages) + 1)]
    assert set(re.findall(r"\]\((\d[\w-]+\.md)\)", text_of("decisions/README.md"))) == set(pages.values())


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_python_in_the_text_compiles(page: Path) -> None:
    for language, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            compile(body, page_id(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        assert language, f"{page_id(page)} has a block without a language:\n{body[:200]}"


def commands(page: Path) -> Iterator[list[str]]:
    """The `streamworker …` commands in the console blocks of a page."""
    for language, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if language != "console":
            continue
        for line in re.sub(r"\\\n\s*", " ", body).splitlines():
            found = re.match(r"\$ (?:[A-Z_]+=\S+ )*streamworker (.*)", line)
            if found:
                yield shlex.split(found[1], comments=True)


@functools.cache
def whole() -> Any:
    """The command with all that are below it."""
    return typer.main.get_command(command_line())


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    """The command that these words name, and the words that are its arguments."""
    command = whole()
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"streamworker has no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_in_the_text_can_be_parsed(page: Path) -> None:
    for words in commands(page):
        command, arguments = resolve(words)
        if "--help" not in arguments:
            command.make_context(command.name, arguments)  # raises a usage error for what it does not take


def test_commands_are_found_in_the_text() -> None:
    found = {words[0] for page in PAGES for words in commands(page)}

    assert {"run", "enqueue", "jobs", "dlq", "workers", "demo"} <= found


def test_every_make_target_in_the_text_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):.*##", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    used = {
        target
        for page in PAGES
        for language, body in FENCE.findall(page.read_text(encoding="utf-8"))
        if language == "console"
        for target in re.findall(r"^\$ (?:[A-Z]+=\S+ )*make ([a-z]+)", body, re.MULTILINE)
    }

    assert "demo" in used
    assert used - targets == set()
