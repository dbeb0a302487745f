"""The binding lines of a script are its contract: loader and typed wrappers hold to them."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamworker.store import lua, scripts
from streamworker.store.keys import BACKLOG_SUFFIX, CATALOGUE, GROUP, STREAM_SUFFIX, Keys

SCRIPTS = Path(__file__).parents[2] / "lua"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copied = tmp_path / "lua"
    shutil.copytree(SCRIPTS, copied)
    return copied


def test_every_script_has_a_typed_wrapper() -> None:
    files = {path.relative_to(SCRIPTS).with_suffix("").as_posix() for path in SCRIPTS.rglob("*.lua")}
    assert set(lua.names()) == {name for name in files if not name.startswith("fragments/")}
    for name in lua.names():
        assert callable(getattr(scripts, name.replace("/", "_")))


def wrapper(name: str, *parameters: str) -> Callable[..., scripts.Call]:
    """A wrapper of that script with these parameters."""

    def call(**_: object) -> scripts.Call:
        return scripts.Call(lua.load(name), ())

    call.__name__ = name
    signature = inspect.Signature(
        [inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    )
    setattr(call, "__signature__", signature)  # noqa: B010 - functions declare no such attribute
    return call


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        pytest.param("elect", ("role", "owner", "ttl_ms"), id="another name"),
        pytest.param("elect", ("worker", "role", "ttl_ms"), id="another order"),
        pytest.param("elect", ("role", "worker"), id="one too few"),
        pytest.param("elect", ("role", "worker", "ttl_ms", "force"), id="one too many"),
        pytest.param("elect", ("role", "worker", "ttl_ms", "rows"), id="rows that the script has not"),
        pytest.param("forget", ("worker", "leave"), id="no rows though the script has them"),
    ],
)
def test_a_wrapper_that_does_not_fit_its_script_is_refused(name: str, parameters: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=rf"scripts\.{name} takes .* but lua/{name}\.lua binds"):
        scripts.bound(wrapper(name, *parameters))


def test_a_wrapper_that_fits_is_taken() -> None:
    fits = wrapper("elect", "role", "worker", "ttl_ms")

    assert scripts.bound(fits) is fits


def test_a_wrapper_without_script_is_refused() -> None:
    with pytest.raises(KeyError, match="no Lua script 'unheard_of'; there are: cache/ask, cache/keep"):
        scripts.bound(wrapper("unheard_of"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("local tag = KEYS[1]\nlocal a = ARGV[2]\n", r"broken\.lua:2: ARGV\[2\] is bound out of order"),
        ("local tag = KEYS[1]\nlocal a = ARGV[1]\nlocal b = ARGV[1]\n", "out of order"),
        ("local key = KEYS[1]\n", "must bind KEYS"),
        ("local tag = KEYS[1]\nlocal other = KEYS[2]\n", "must bind KEYS"),
        ("local tag = KEYS[1]\n-- include: broken.lua\n", "includes itself"),
    ],
)
def test_a_script_whose_bindings_are_wrong_is_refused(folder: Path, text: str, message: str) -> None:
    (folder / "broken.lua").write_text(text)

    with pytest.raises(ValueError, match=message):
        lua.compose(folder, "broken")


def test_every_line_knows_where_it_came_from() -> None:
    for name in lua.names():
        script = lua.load(name)
        lines = script.text.splitlines()
        assert len(lines) == len(script.origin)
        for line, (file, number) in zip(lines, script.origin, strict=True):
            assert (SCRIPTS / file).read_text().splitlines()[number - 1] == line


@pytest.mark.parametrize("name", lua.names())
def test_a_script_is_within_the_limits_of_lua(name: str) -> None:
    """At most 200 local variables in a function, and 60 of other functions that it uses."""
    refused = refusal_of(lua.load(name))

    assert refused == ""


def test_what_passes_a_limit_is_named_by_its_file(folder: Path) -> None:
    names = [f"v{i}" for i in range(61)]
    declared = "\n".join(f"local {name} = 1" for name in names)
    used = "\n".join(f"  tag = {name}" for name in names)
    (folder / "wide.lua").write_text(
        f"local tag = KEYS[1]\n-- include: fragments/base.lua\n{declared}\nlocal function f()\n{used}\nend\n"
    )

    refused = refusal_of(lua.compose(folder, "wide"))

    assert refused.startswith("lua/wide.lua:")
    assert "function at lua/wide.lua:64 has more than 60 upvalues" in refused


def refusal_of(script: lua.Script) -> str:
    """What Lua says to a script that it cannot compile; '' for one that it can."""
    lua51 = importlib.import_module("lupa.lua51")
    compile_text = lua51.LuaRuntime().eval(
        "function(text) return select(2, loadstring(text, '@user_script')) end"
    )
    return script.locate(compile_text(script.text) or "")


@pytest.mark.parametrize("name", lua.names())
def test_a_script_says_what_it_does_and_what_it_answers(name: str) -> None:
    text = (SCRIPTS / f"{name}.lua").read_text()

    assert text.startswith(f"-- {name}: ")
    assert re.search(r"^-- Replies", text, re.MULTILINE)
    bindings = re.findall(r"^local \w+ *= (?:KEYS|ARGV)\[\d+\](.*)$", text, re.MULTILINE)
    assert all(re.match(r" +-- \S", comment) for comment in bindings), "each argument is explained"


def test_the_scripts_name_the_keys_that_the_catalogue_lists() -> None:
    keys = Keys("n")
    text = "\n".join(path.read_text() for path in SCRIPTS.rglob("*.lua"))
    suffixes = dict(re.findall(r"(\w) = '(:?\w*)'", re.search(r"SUFFIX = \{(.+?)\}", text).group(1)))  # type: ignore[union-attr]

    assert suffixes == STREAM_SUFFIX | {"b": BACKLOG_SUFFIX}
    named = set(re.findall(r"tag \.\. ':(\w+)", text))
    of_shard = {spec.pattern.partition(":")[0].partition("<")[0] for spec in CATALOGUE}
    assert named == of_shard
    assert set(re.findall(r"'workers'|\"workers\"", text)) == {f"'{GROUP}'"}
    assert keys.stream("normal", "r") == "{n:0}:lane:normal:ready"


def test_no_script_touches_user_data_or_blocks() -> None:
    """Payloads are opaque (R34); BLOCK errors in a script (R37); `server.` is Valkey's alone (R50)."""
    for path in SCRIPTS.rglob("*.lua"):
        code = re.sub(r"--[^\n]*", "", path.read_text())
        for word in ("cjson", "cmsgpack", "BLOCK", "MAXLEN", "MINID", "server."):
            assert word not in code, f"{path.name} uses {word}"
