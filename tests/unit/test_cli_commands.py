"""Every command: help with an example that can be typed, and JSON wherever it prints data."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from streamworker.cli import hints
from streamworker.cli.main import command_line
from tests.unit.test_docs import resolve

#: Commands without --json, and why.
NO_JSON = {
    "run": "runs until it is stopped; its logs are JSON with --log-format json",
    "exporter": "runs until it is stopped",
    "mirror run": "runs until it is stopped",
    "outbox relay": "runs until it is stopped",
    "mirror sql": "prints a script for psql",
    "dlq export": "prints lines of JSON already",
}


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All that can be called, groups that do something by themselves included."""
    command = command or typer.main.get_command(command_line())
    children = getattr(command, "commands", {})
    if path and (not children or command.invoke_without_command):
        yield " ".join(path), command
    for name, child in children.items():
        yield from commands(child, (*path, name))


ALL = dict(commands())


def examples(help_text: str) -> list[str]:
    """The commands in the paragraphs that begin with `Example:`."""
    found = re.findall(r"^Example: (streamworker .+?)(?:\n\n|\Z)", help_text, re.MULTILINE | re.DOTALL)
    return [" ".join(text.split()) for text in found]


def test_there_are_commands() -> None:
    assert {"run", "limits", "limits set", "runbook backlog", "dlq replay"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_a_command_has_help_with_an_example_that_can_be_typed(name: str) -> None:
    shown = CliRunner().invoke(command_line(name.split()[0]), [*name.split(), "--help"])
    (text,) = examples(ALL[name].help or "") or [""]

    assert shown.exit_code == 0
    assert "Example: streamworker" in shown.stdout, f"{name} --help has no example"
    command, arguments = resolve(shlex.split(text)[1:])
    assert command.name in (ALL[name].name, None), f"the example of {name} calls {command.name}"
    command.make_context(command.name, arguments)


@pytest.mark.parametrize("name", ALL)
def test_a_command_has_help_for_each_option(name: str) -> None:
    silent = [each.name for each in ALL[name].params if not each.help and not each.hidden]

    assert silent == []


@pytest.mark.parametrize("name", ALL)
def test_a_command_prints_json_unless_there_is_a_reason(name: str) -> None:
    options = {option for each in ALL[name].params for option in each.opts}

    assert ("--json" in options) == (name not in NO_JSON), NO_JSON.get(name, "it has no --json")


@pytest.mark.parametrize("name", ALL)
def test_a_command_that_a_hint_names_is_completed_if_it_takes_the_option(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STREAMWORKER_NAMESPACE", raising=False)
    takes = any("--app" in parameter.opts for parameter in ALL[name].params)

    hints.remember("shop", None)

    more = " --app shop" if takes else ""
    assert hints.copyable(f"see: streamworker {name} A") == f"see: streamworker {name} A{more}"
    assert hints.copyable(f"`streamworker {name}`, or else") == f"`streamworker {name}{more}`, or else"
    hints.forget()


def test_a_hint_has_what_the_environment_does_not_say_and_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAMWORKER_NAMESPACE", "shop")
    monkeypatch.delenv("STREAMWORKER_REDIS_URL", raising=False)

    def after(namespace: str, url: str | None) -> str:
        hints.remember(namespace, url)
        return hints.copyable("see: streamworker top").removeprefix("see: streamworker top")

    assert after("shop", None) == ""
    assert after("shop", "redis://r:1/0") == " --redis-url redis://r:1/0"
    assert after("bar", "redis://:secret@r:1/0") == " --app bar --redis-url URL"
    assert after("bar", "redis+sentinel://r/s?sentinel_password=secret") == " --app bar --redis-url URL"
    assert hints.copyable("see `streamworker top --help`") == "see `streamworker top --help`"
    hints.forget()
