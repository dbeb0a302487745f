"""The settings, the Python API and the commands are described as they are."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import streamworker
from streamworker.cli.main import command_line
from streamworker.declaring import make_task
from tests.unit.documentation import FENCE, REPOSITORY, check_generated, first_column, section, text_of

#: Between the processes of the demo, of a fleet, and of a shell that completes; no settings.
INTERNAL_VARIABLES = {"STREAMWORKER_DEMO_LEASHED", "STREAMWORKER_FLEET", "STREAMWORKER_COMPLETE"}


def test_every_environment_variable_is_described() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "streamworker").rglob("*.py"))
    used = set(re.findall(r"STREAMWORKER_[A-Z_]+[A-Z]", code))
    used |= {f"STREAMWORKER_{name}" for name in re.findall(r"given\(\"(\w+)\"", code)}
    used -= INTERNAL_VARIABLES

    described = first_column(section(text_of("reference/settings.md"), "## Environment"))

    assert {name for name in described if name.startswith("STREAMWORKER_")} == used


def test_the_options_of_a_task_are_all_described() -> None:
    options = inspect.signature(make_task).parameters
    described = first_column(section(text_of("reference/settings.md"), "## Per task"))

    assert set(described) == {name for name in options if name not in ("app", "handler")}


def test_the_extras_are_all_described() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    described = first_column(section(text_of("reference/settings.md"), "## Extras"))

    # What only those who work on streamworker need.
    assert sorted(described) == sorted(set(project["optional-dependencies"]) - {"dev", "pictures"})


def stubs() -> dict[str, ast.ClassDef]:
    tree = [ast.parse(body) for language, body in FENCE.findall(text_of("reference/api.md")) if language]
    return {node.name: node for module in tree for node in module.body if isinstance(node, ast.ClassDef)}


def shape(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[tuple[str, str, str]]:
    """Name, kind and default of each parameter of a stub."""
    scope: dict[str, Any] = {}
    plain = ast.unparse(function).replace("async def", "def", 1)
    lines = [line for line in plain.splitlines() if not line.startswith("@")]
    # Defaults become their own text; annotations are not looked at.
    tree = ast.parse("\n".join(lines))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    arguments = definition.args
    for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        each.annotation = None
    for each in filter(None, [arguments.vararg, arguments.kwarg]):
        each.annotation = None
    definition.returns = None
    arguments.defaults = [ast.Constant(ast.unparse(default)) for default in arguments.defaults]
    arguments.kw_defaults = [
        None if default is None else ast.Constant(ast.unparse(default)) for default in arguments.kw_defaults
    ]
    exec(compile(ast.fix_missing_locations(tree), "api.md", "exec"), scope)
    return [
        (name, parameter.kind.name, "" if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(scope[definition.name]).parameters.items()
    ]


def real_shape(function: Any) -> list[tuple[str, str, str]]:
    return [
        (
            name,
            parameter.kind.name,
            "" if parameter.default is inspect.Parameter.empty else shown_default(parameter.default),
        )
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def shown_default(value: object) -> str:
    plain = (streamworker.Options(), streamworker.Breaker())
    return f"{type(value).__name__}()" if value in plain else repr(value)


METHODS = [
    (class_name, node.name)
    for class_name, class_node in stubs().items()
    for node in class_node.body
    if (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list)
    or (isinstance(node, ast.FunctionDef) and ast.unparse(node.decorator_list[0]) == "classmethod")
]


@pytest.mark.parametrize(("class_name", "method"), METHODS)
def test_a_described_signature_is_the_real_one(class_name: str, method: str) -> None:
    node = next(
        each
        for each in stubs()[class_name].body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == method
    )
    function = inspect.getattr_static(getattr(streamworker, class_name), method)
    function = function.__func__ if isinstance(function, classmethod) else function

    assert shape(node) == real_shape(function)
    assert isinstance(node, ast.AsyncFunctionDef) == inspect.iscoroutinefunction(function)


def test_every_public_name_is_described() -> None:
    text = text_of("reference/api.md")

    described = (
        set(stubs())
        | set(re.findall(r"`([A-Z]\w+)`", text))
        | set(re.findall(r"`streamworker\.(\w+)`", text))
    )

    assert set(streamworker.__all__) - described == set()
    assert set(stubs()) - set(streamworker.__all__) == set()


@pytest.mark.parametrize("class_name", ["Context", "JobView", "Job", "App", "Task"])
def test_the_described_attributes_are_there(class_name: str) -> None:
    described = [each.target for each in stubs()[class_name].body if isinstance(each, ast.AnnAssign)]
    cls = getattr(streamworker, class_name)
    set_in_init = set(re.findall(r"self\.(\w+)\b.*? = ", inspect.getsource(cls)))
    there = set(getattr(cls, "__dataclass_fields__", ())) | set(getattr(cls, "__slots__", ())) | set_in_init

    assert described
    assert {ast.unparse(target) for target in described} - there == set()


def test_the_described_facts_of_an_error_are_its_attributes() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| .* \| (.*)\|$", section(text_of("reference/api.md"), "## Errors"), re.M
    )
    errors = {
        name
        for name in streamworker.__all__
        if isinstance(cls := getattr(streamworker, name), type) and issubclass(cls, Exception)
    }
    raised = {"TransientError", "PersistentError", "RetryAfter", "Cancel", "StreamworkerError"}

    assert {name for name, _ in rows} == errors - raised
    for name, facts in rows:
        source = inspect.getsource(getattr(streamworker, name))
        assert set(re.findall(r"`(\w+)`", facts)) == set(re.findall(r"self\.(\w+) = ", source)), name


# --- commands --------------------------------------------------------------------------------------------


def leaves(command: Any, path: tuple[str, ...] = ("streamworker",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands that do something, those that have others below them as well."""
    children = getattr(command, "commands", {})
    if not children or (command.invoke_without_command and len(path) > 1):
        yield path, command
    for name, child in children.items():
        yield from leaves(child, (*path, name))


def command_section(path: tuple[str, ...], command: Any) -> str:
    """A command as its help says."""
    positional = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    usage = [
        " ".join(path),
        *(each.metavar if each.required else optional(each.metavar) for each in positional),
    ]
    text = [f"### {' '.join(path[1:])}", "", "```text", *[" ".join([*usage, "[OPTIONS]"])], "```", ""]
    text += [" ".join(part.split()) + "\n" for part in command.help.split("\n\n")]
    text += ["| | |", "| --- | --- |"]
    text += [f"| `{each.metavar}` | {each.help} |" for each in positional]
    text += [f"| `{written(each)}` | {each.help or ''} |" for each in options]
    return "\n".join(text)


def optional(metavar: str) -> str:
    return metavar if metavar.startswith("[") else f"[{metavar}]"


def written(option: Any) -> str:
    names = ", ".join(option.opts)
    if option.is_flag:
        return "` / `".join((names, *option.secondary_opts))
    return f"{names} {option.metavar or option.name.upper()}".replace("|", "\\|")


def test_every_command_is_described_as_its_help_says() -> None:
    text = "\n\n".join(command_section(*leaf) for leaf in leaves(typer.main.get_command(command_line())))

    check_generated("reference/cli.md", "commands", text)
