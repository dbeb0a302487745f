"""The reference says what the code does: tables made from it, and tables that are compared with it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import streamworker
from streamworker.cli.main import app
from streamworker.core import states
from streamworker.core.errors import RESERVED_CODES
from streamworker.core.states import QUIET_CODES, TRANSITIONS, Disposition, Reason, Status
from streamworker.store import lua
from streamworker.store.keys import CATALOGUE
from tests.unit.documentation import FENCE, REPOSITORY, check_generated, first_column, section, text_of

LUA = REPOSITORY / "lua"
#: Between the processes of the demo; no setting.
INTERNAL_VARIABLES = {"STREAMWORKER_DEMO_LEASHED"}


# --- states and codes ------------------------------------------------------------------------------------


def diagram() -> str:
    order = list(Status)
    edges = sorted(TRANSITIONS, key=lambda edge: (order.index(edge[0]), order.index(edge[1])))
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Status.QUEUED}: enqueue"]
    lines += [f"    {before} --> {after}" for before, after in edges]
    lines += [f"    {Status.SUCCEEDED} --> [*]", "```"]
    return "\n".join(lines)


def test_the_diagram_shows_the_table_of_transitions() -> None:
    check_generated("reference/states.md", "diagram", diagram())


def test_the_table_of_edges_is_the_table_of_transitions() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section(text_of("reference/states.md"), "## Edges"), re.M)

    assert len(rows) == len(set(rows))
    assert set(rows) == {(str(before), str(after)) for before, after in TRANSITIONS}


@pytest.mark.parametrize(("heading", "choices"), [("## Reasons", Reason), ("## Dispositions", Disposition)])
def test_every_closed_choice_is_described(heading: str, choices: type[Reason] | type[Disposition]) -> None:
    assert first_column(section(text_of("reference/states.md"), heading)) == list(choices)


def test_every_state_is_described() -> None:
    head = text_of("reference/states.md").partition("## Edges")[0]

    assert sorted(first_column(head)) == sorted(Status)


def engine_codes() -> set[str]:
    """The codes that scripts and worker write by themselves."""
    found = set(RESERVED_CODES) | set(QUIET_CODES)
    for path in LUA.rglob("*.lua"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"fail\(rec, '(\w+)'", text)) | set(re.findall(r"'code', '(\w+)'", text))
    for path in (REPOSITORY / "streamworker" / "worker").glob("*.py"):
        found |= set(re.findall(r"Fail\(\s*ErrorClass\.\w+, \"(\w+)\"", path.read_text(encoding="utf-8")))
    return found


def test_the_engines_error_codes_are_all_described() -> None:
    text = section(text_of("reference/error-codes.md"), "## Codes of the engine")

    assert set(first_column(text)) == engine_codes()
    quiet = set(re.findall(r"^\| `(\w+)` .*\| no \|$", text, re.MULTILINE))
    assert quiet == QUIET_CODES


def test_the_http_statuses_are_those_of_the_code() -> None:
    from streamworker.core import foreign

    text = section(text_of("reference/error-codes.md"), "## Codes of handlers")
    found = {
        kind: {
            int(code) for row in re.findall(rf"^\| (.*) \| {kind} \|", text, re.M) for code in statuses(row)
        }
        for kind in ("transient", "persistent")
    }

    assert found == {
        "transient": set(foreign._TRANSIENT_STATUS),
        "persistent": set(foreign._PERSISTENT_STATUS),
    }


def statuses(row: str) -> list[str]:
    return re.findall(r"`http_(\d+)`", row)


# --- keys, record, scripts -------------------------------------------------------------------------------


def keys_table() -> str:
    lines = ["| key | type | TTL | written by | holds |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{spec.pattern}` | {spec.type} | {spec.ttl} | {spec.owner} | {spec.holds} |" for spec in CATALOGUE
    ]
    return "\n".join(lines)


def test_the_table_of_keys_is_the_catalogue() -> None:
    check_generated("reference/keys.md", "keys", keys_table())


def lua_text() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(LUA.rglob("*.lua")))


def test_every_field_of_the_record_is_described() -> None:
    text = lua_text()
    written = set(re.findall(r"put\(rec, '(\w+)'", text)) | set(re.findall(r"^  +set\('(\w\w)'", text, re.M))
    written |= set(re.findall(r"HINCRBY', key, '(\w\w)'", text))
    for row in re.findall(r"local w = \{([^}]*)\}", text):
        written |= set(re.findall(r"'(\w\w)'", row))
    assert {"st", "la", "wo", "wa", "kf"} <= written, "the search for written fields finds too little"

    described = first_column(section(text_of("reference/record.md"), r"## Fields of job:\<id\>"))

    assert sorted(described) == sorted({*written, "st"})


def test_every_field_of_the_body_is_described() -> None:
    text = lua_text()
    written = set(re.findall(r"HSET', BODY \.\. \w+\.id, '(\w+)'", text))
    written |= set(re.findall(r"rec\.body = \{ '(\w+)'", text))
    assert {"env", "result"} <= written

    described = first_column(section(text_of("reference/record.md"), r"## Fields of body:\<id\>"))

    assert sorted(described) == sorted(written)


def test_every_field_of_a_dead_letter_is_described() -> None:
    letters = re.findall(r"rec\.dead = \{(.*?)\}", (LUA / "fragments" / "finish.lua").read_text(), re.DOTALL)
    written = [set(re.findall(r"(?:^|, |,\n +| )'(\w+)', ", letter)) - {"bad_record"} for letter in letters]
    assert len(written) == 2
    assert written[0] == written[1]

    described = first_column(section(text_of("reference/record.md"), "## A dead letter"))

    assert set(described) == written[0] - {"unknown"}


def script_section(name: str) -> str:
    lines = (LUA / f"{name}.lua").read_text(encoding="utf-8").splitlines()
    first_code = next(index for index, line in enumerate(lines) if line.startswith("local "))
    head = "\n".join(line.removeprefix("--").strip() for line in lines[:first_code])
    what, _, rest = head.partition("Replies")
    replies, _, more = rest.partition("\n")
    kind, replies = re.fullmatch(r"(, one per row:)?\s+(.*)", replies).groups()  # type: ignore[union-attr]
    what = what.removeprefix(f"{name}: ")
    bindings = [
        re.match(r"local (\w+)\s*=\s*((?:KEYS|ARGV)\[\d+\])\s*-- (.*)", line) for line in lines[first_code:]
    ]
    rows = "\n".join(lines).partition("-- rows: ")[2].partition("\nlocal ")[0].partition("\n-- include")[0]
    text = [f"### {name}", "", *prose(f"{what.strip()}\n{more.strip()}".strip()), ""]
    text += [f"Replies{', one per row' if kind else ''}: `{replies}`", ""]
    text += ["| | argument | |", "| --- | --- | --- |"]
    text += [f"| `{one[2]}` | `{one[1]}` | {one[3].replace('|', 'or')} |" for one in bindings if one]
    if rows:
        first, *others = rows.splitlines()
        note = " ".join(line.removeprefix("-- ") for line in others if line.startswith("-- "))
        text += [f"| rows | `{first}` | {note} |"]
    return "\n".join(text)


def prose(text: str) -> list[str]:
    """Comment lines as paragraphs; what Markdown would swallow is escaped."""
    text = text.replace("<", r"\<").replace("_", r"\_")
    text = re.sub(r"\((R\d+|D\d+)\)", rule_link, text)
    return [" ".join(part.splitlines()) + "\n" for part in text.split("\n\n") if part.strip()]


def rule_link(found: re.Match[str]) -> str:
    page = "reliability-rules" if found[1].startswith("R") else "design-rules"
    heading = re.search(rf"^### ({found[1]} .*)$", text_of(f"explanation/{page}.md"), re.MULTILINE)
    assert heading, f"{found[1]} is no rule"
    slug = re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-")
    return f"([{found[1]}](../explanation/{page}.md#{slug}))"


def test_the_scripts_are_described_as_their_heads_say() -> None:
    text = "\n\n".join(script_section(name) for name in lua.names())

    check_generated("reference/scripts.md", "scripts", text)


@pytest.mark.parametrize("name", lua.names())
def test_the_description_of_a_script_has_all_its_arguments(name: str) -> None:
    described = section(text_of("reference/scripts.md"), f"### {name}")
    script = lua.load(name)

    arguments = re.findall(r"^\| `(?:KEYS|ARGV)\[\d+\]` \| `(\w+)` \|", described, re.MULTILINE)
    assert arguments == ["tag", *script.bindings]
    assert bool(script.rows) == ("| rows |" in described)


def test_every_word_that_a_script_replies_is_explained() -> None:
    text = text_of("reference/scripts.md")
    explained = {word.split(" ")[0] for word in first_column(text.partition("<!-- generated")[0])}
    enqueue = {str(choice) for choice in states.Disposition}
    told = {"WAIT"}  # watch says it in its own words

    words = {
        word
        for name in lua.names()
        for reply in re.findall(r"^-- Replies(.*)$", (LUA / f"{name}.lua").read_text(), re.MULTILINE)
        for word in re.findall(r"\b[A-Z]{2,}(?:_[A-Z]+)*\b", reply)
    }

    assert words - enqueue - told == explained


# --- settings and API ------------------------------------------------------------------------------------


def test_every_environment_variable_is_described() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "streamworker").rglob("*.py"))
    used = set(re.findall(r"STREAMWORKER_[A-Z_]+[A-Z]", code))
    used |= {f"STREAMWORKER_{name}" for name in re.findall(r"given\(\"(\w+)\"", code)}
    used -= INTERNAL_VARIABLES

    described = first_column(section(text_of("reference/settings.md"), "## Environment"))

    assert {name for name in described if name.startswith("STREAMWORKER_")} == used


def test_the_options_of_a_task_are_all_described() -> None:
    options = inspect.signature(streamworker.App._register).parameters
    described = first_column(section(text_of("reference/settings.md"), "## Per task"))

    assert set(described) == {name for name in options if name not in ("self", "handler")}


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
    return "Options()" if isinstance(value, streamworker.Options) else repr(value)


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
    for name, child in getattr(command, "commands", {}).items():
        yield from leaves(child, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


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
        return names
    return f"{names} {option.metavar or option.name.upper()}"


def test_every_command_is_described_as_its_help_says() -> None:
    text = "\n\n".join(command_section(*leaf) for leaf in leaves(typer.main.get_command(app)))

    check_generated("reference/cli.md", "commands", text)
