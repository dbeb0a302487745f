"""The command line without a server: wrong usage, bad input, safe output, and a quick start."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from typer.testing import CliRunner, Result

from streamworker import __version__
from streamworker.cli import output
from streamworker.cli.edge import CommandFailed, message_of
from streamworker.cli.enqueue import read_arguments
from streamworker.cli.main import command_line
from streamworker.cli.target import load_app
from streamworker.store import lua

REPOSITORY = Path(__file__).parents[2]
#: What `--help` may cost.
LIMIT_SECONDS = 0.4


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("STREAMWORKER_"):
            monkeypatch.delenv(name)


def call(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(command_line(), list(arguments))
    assert result.exit_code == code, result.output
    return result


def refused(*arguments: str, code: int = 1) -> str:
    """The one line of a command that fails, without `error: `."""
    result = call(*arguments, code=code)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def in_shell(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamworker", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=False,
    )


# --- usage -----------------------------------------------------------------------------------------------


def test_the_version_is_printed() -> None:
    assert call("--version").stdout == f"streamworker {__version__}\n"


def test_help_names_every_command() -> None:
    shown = call("--help").stdout

    for name in ("run", "enqueue", "jobs", "dlq", "lanes", "workers", "doctor", "lua", "demo"):
        assert re.search(rf"^  {name} ", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("shell", "more"),
    [
        ("bash", {"COMP_WORDS": "streamworker jobs sh", "COMP_CWORD": "2"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "streamworker jobs sh"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "streamworker jobs sh", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_the_shell_completes_commands(shell: str, more: dict[str, str]) -> None:
    done = in_shell(_STREAMWORKER_COMPLETE=f"complete_{shell}", **more)

    assert done.returncode == 0, done.stderr
    assert "show" in done.stdout
    assert "cancel" not in done.stdout


def test_the_shell_completes_options_and_choices() -> None:
    option = in_shell(
        _STREAMWORKER_COMPLETE="complete_bash", COMP_WORDS="streamworker jobs list --sta", COMP_CWORD="3"
    )
    choice = in_shell(
        _STREAMWORKER_COMPLETE="complete_bash", COMP_WORDS="streamworker jobs list --status q", COMP_CWORD="4"
    )

    assert option.stdout.split() == ["--status"]
    assert choice.stdout.split() == ["queued"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_is_shown(shell: str) -> None:
    shown = call("--show-completion", shell).stdout

    assert "_STREAMWORKER_COMPLETE=complete_" in shown


def test_no_command_shows_help_and_is_wrong_usage() -> None:
    result = call(code=2)

    assert result.stdout == ""
    assert "Commands:" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(["lnes"], "lanes"), (["jobs", "shw", "x"], "show"), (["dlq", "repaly"], "replay")],
)
def test_an_unknown_command_suggests_the_nearest(arguments: list[str], hint: str) -> None:
    assert f"Did you mean '{hint}'?" in refused(*arguments, code=2)


def test_a_wrong_option_says_where_to_look() -> None:
    assert refused("run", "--foo", code=2) == "No such option: --foo; see `streamworker run --help`"


@pytest.mark.parametrize(
    "arguments",
    [
        ["lanes"],
        ["workers"],
        ["enqueue", "add"],
        ["jobs", "show", "x"],
        ["jobs", "cancel", "x"],
        ["dlq", "list"],
        ["dlq", "show", "x"],
        ["dlq", "replay", "x"],
        ["dlq", "discard", "x"],
    ],
)
def test_a_command_without_an_app_says_how_to_name_one(arguments: list[str]) -> None:
    expected = "which app? Name it with --app NAME, or set STREAMWORKER_NAMESPACE"

    assert refused(*arguments, code=2) == expected


def test_an_impossible_app_name_is_refused() -> None:
    assert refused("lanes", "--app", "my shop", code=2).startswith("app 'my shop': use 1 to 48 letters")


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_dead_letters_must_be_named_one_way(verb: str) -> None:
    assert "which dead letters?" in refused("dlq", verb, "--app", "x", code=2)
    assert "one of them" in refused("dlq", verb, "an-id", "--task", "add", "--app", "x", code=2)


def test_a_password_in_a_bad_url_is_not_printed() -> None:
    url = "redis://user:s3cret@host:port/0"

    line = refused("lanes", "--app", "x", "--redis-url", url, code=2)

    assert "s3cret" not in line
    assert "redis://host:port/db" in line


# --- arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": }', "at line 1, column 7"),
        ('{"a": 1,\n "b": tru}', "at line 2, column 7"),
        ("", "at line 1, column 1"),
        ("[1]", "must be a JSON object of names and values, not an array"),
        ("7", "not a number"),
        ('"x"', "not a text"),
        ("null", "not null"),
        ("true", "not true or false"),
        ('{"a": NaN}', "JSON has no form for NaN"),
        ('{"a": -Infinity}', "no form for -Infinity"),
        ('{"a": 1, "b": 2, "a": 1}', "has the name 'a' twice in one object"),
        ('{"a": [{"": 1, "": 2}]}', "has the name '' twice"),
        ('{"a": ' + "9" * 5_000 + "}", "an integer beyond 64 bits"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_arguments_are_refused_with_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        read_arguments(text)

    assert said in str(failed.value)


def test_arguments_are_taken_exactly() -> None:
    assert read_arguments('{"n": 9007199254740993, "t": "ü\\u0000", "l": [1.5, null]}') == {
        "n": 9007199254740993,
        "t": "ü\0",
        "l": [1.5, None],
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", '{"n": 18446744073709551616}'], "args.n: is an integer beyond 64 bits"),
        (["add", "{}", "--delay", "5x"], "delay: '5x' is no duration"),
        (["add", "{}", "--delay", "10s", "--deadline", "5s"], "not after the delay"),
        (["add", "{}", "--lane", "My Lane"], "lane name 'My Lane'"),
        (["add", "{}", "--key", ""], "key ''"),
        (["a b", "{}"], "task name 'a b'"),
        (["add", '{"s": "\udcff"}'], "lone surrogate"),
    ],
)
def test_what_cannot_be_enqueued_is_refused_before_anything_is_sent(arguments: list[str], said: str) -> None:
    # Nothing listens at port 1: had anything been sent, the error would be another.
    where = ("--app", "x", "--redis-url", "redis://127.0.0.1:1/0")
    assert said in refused("enqueue", *arguments, *where, code=2)


# --- finding the app -------------------------------------------------------------------------------------

SHOP = """
from streamworker import App
app = App("shop")
other = App("other")
number = 7
"""
REFUSED = """
from streamworker import App
app = App("shop")
@app.task(retries=3)
async def pack(ctx): ...
"""


#: The last frame that is not ours is that of a generated `__init__`.
GENERATED = """
from streamworker import App, Dependency
app = App("shop", dependencies={"bank": Dependency(timeout=0)})
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "cli_shop.py").write_text(SHOP)
    (tmp_path / "cli_broken.py").write_text("x = 1\ny = 1 / 0\n")
    (tmp_path / "cli_typo.py").write_text("x = (\n")
    (tmp_path / "cli_needs.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "cli_refused.py").write_text(REFUSED)
    (tmp_path / "cli_generated.py").write_text(GENERATED)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("cli_shpo:app", "; did you mean cli_shop?"),
        ("nothing_like_it:app", "no module 'nothing_like_it' in"),
        ("cli_shop", "does not say which app; it has: cli_shop:app, cli_shop:other"),
        ("cli_shop:", "does not say which app"),
        ("cli_shop:ap", "has no 'ap'; it has: cli_shop:app, cli_shop:other"),
        ("cli_shop:number", "is no App but a int; it has: cli_shop:app"),
        ("cli_shop.py:app", "is a file; name the module: cli_shop:app"),
        ("./cli_shop:app", "is a file; name the module: cli_shop:app"),
        ("shop/tasks:app", "is a file; name the module: shop.tasks:app"),
        (":app", "names no app; name it as MODULE:APP"),
        ("cli_broken:app", "ZeroDivisionError: division by zero"),
        ("cli_broken:app", "cli_broken.py, line 2"),
        ("cli_refused:app", "ConfigurationError: a task has no option retries=; did you mean retry=?"),
        ("cli_refused:app", "cli_refused.py, line 4)"),
        ("cli_generated:app", "cli_generated.py, line 3)"),
        ("cli_typo:app", "SyntaxError: '(' was never closed"),
        ("cli_needs:app", "No module named 'not_installed_anywhere'"),
    ],
)
@pytest.mark.usefixtures("workplace")
def test_an_app_that_cannot_be_loaded_says_why(target: str, said: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        load_app(target)

    assert said in str(failed.value)


@pytest.mark.usefixtures("workplace")
def test_the_app_is_found_from_the_working_directory() -> None:
    assert load_app("cli_shop:other").name == "other"


@pytest.mark.usefixtures("workplace")
def test_a_mirror_without_its_library_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be started again and again beside the worker."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    line = refused("run", "cli_shop:app", "--with-mirror", code=2)

    assert line == "--with-mirror needs asyncpg: pip install 'streamworker[postgres]'"


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("No module named 'asyncpg'", name="asyncpg")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "streamworker.telemetry.tracing", raising=False)

    assert message_of(missing) == "asyncpg is not installed: pip install 'streamworker[postgres]'"
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'streamworker\[otel\]'"):
        importlib.import_module("streamworker.telemetry.tracing")


def test_an_error_of_postgres_says_what_it_means() -> None:
    """Commands ask it in many places; each may be the first to find no schema there."""
    error = asyncpg.UndefinedTableError('relation "streamworker.jobs" does not exist')

    assert message_of(error).endswith("bring the schema up to date: streamworker mirror migrate")


@pytest.mark.usefixtures("workplace")
def test_run_refuses_a_lane_that_the_app_does_not_have() -> None:
    line = refused("run", "cli_shop:app", "--lanes", "priorty", code=2)

    assert line == "lane 'priorty': is no lane of this app; it has: priority, normal"


# --- scripts ---------------------------------------------------------------------------------------------


def test_lua_show_prints_what_is_sent() -> None:
    assert call("lua", "show", "claim").stdout == lua.load("claim").text


def test_lua_show_as_json() -> None:
    shown = json.loads(call("lua", "show", "cancel", "--json").stdout)

    assert shown == {
        "name": "cancel",
        "sha": lua.load("cancel").sha,
        "bindings": ["clock", "actor", "retention_ms"],
        "rows": "id epoch",
        "text": lua.load("cancel").text,
    }


def test_lua_show_suggests_the_nearest_script() -> None:
    assert refused("lua", "show", "clam", code=2) == "no script is called 'clam'; did you mean claim?"


def test_lua_list_has_every_script() -> None:
    listed = json.loads(call("lua", "list", "--json").stdout)

    assert [row["name"] for row in listed] == list(lua.names())
    assert set(listed[0]) == {"name", "sha", "bindings", "rows"}
    shown = call("lua", "list").stdout
    for name in lua.names():
        assert re.search(rf"^{name} +\d+ ", shown, re.MULTILINE)


# --- safe output -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x9b31m", r"\x9b31m"),
        ("\x07\x7f\0", r"\x07\x7f\x00"),
        ("abc\u202edef", r"abc\u202edef"),
        ("\udc80", r"\udc80"),
        ("[bold]markup[/bold]", "[bold]markup[/bold]"),
        ("Grüße 漢字 🎉", "Grüße 漢字 🎉"),
    ],
)
def test_control_characters_are_made_visible(hostile: str, shown: str) -> None:
    assert output.clean(hostile) == shown


def test_line_breaks_may_stay_and_nothing_else() -> None:
    assert output.clean("one\ntwo\x1b[2J", lines=True) == "one\ntwo\\x1b[2J"


def test_a_cell_has_one_line_of_bounded_length() -> None:
    assert output.short("first\nsecond") == "first"
    assert output.short("x" * 500) == "x" * (output.CELL - 1) + "…"


def test_markup_in_a_table_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["id", "#n"], [("[red]x[/red]", 3), (None, "")])

    printed = capsys.readouterr().out
    assert "[red]x[/red]" in printed
    assert "\x1b" not in printed
    assert printed.splitlines()[-1].split() == ["-", "-"]


def test_json_is_ascii_whatever_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_json({"error": "\x1b]0;title\x07 \x9b \u202e ü"})

    printed = capsys.readouterr().out
    assert printed.isascii()
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", printed)
    assert json.loads(printed)["error"] == "\x1b]0;title\x07 \x9b \u202e ü"


# --- the shell -------------------------------------------------------------------------------------------


def test_no_traceback_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError(f"something nobody thought of\nwhile loading {name}")

    monkeypatch.setattr(lua, "load", broken)

    line = refused("lua", "show", "claim")
    assert line.startswith("RuntimeError: something nobody thought of\\nwhile loading claim")
    assert "STREAMWORKER_DEBUG=1" in line

    monkeypatch.setenv("STREAMWORKER_DEBUG", "1")
    assert "Traceback (most recent call last)" in call("lua", "show", "claim", code=1).stderr


@pytest.mark.parametrize("debug", ["", "1"])
def test_an_unforeseen_error_shows_no_password_and_runs_no_escape(
    monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("redis://user:hunter2@host \x1b[2J\x9b2J")

    monkeypatch.setattr(lua, "load", broken)
    monkeypatch.setenv("STREAMWORKER_DEBUG", debug)

    said = call("lua", "show", "claim", code=1).stderr

    assert r"redis://user:***@host \x1b[2J\x9b2J" in said
    assert ("Traceback" in said) == bool(debug)
    assert not any(char in said for char in "\x1b\x9b")
    assert "hunter2" not in said


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lua, "load", interrupted)

    assert call("lua", "show", "claim", code=130).output == ""


@pytest.mark.parametrize("arguments", [("lua", "show", "claim"), ("lua", "list", "--json"), ("--version",)])
def test_a_broken_pipe_is_quiet(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "streamworker", *arguments],
            cwd=REPOSITORY,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)

    assert done.stderr == ""
    assert done.returncode == 1


def test_a_terminal_without_unicode_gets_escapes_instead_of_an_error() -> None:
    done = in_shell("lua", "list", PYTHONIOENCODING="ascii")

    assert done.returncode == 0, done.stderr
    assert "claim" in done.stdout


def test_python_m_is_the_command() -> None:
    assert in_shell("--version").stdout == f"streamworker {__version__}\n"


def test_a_command_imports_no_other() -> None:
    """A worker is ready sooner."""
    program = (
        "import sys\n"
        "from streamworker.cli.main import main\n"
        "sys.argv = ['streamworker', 'run', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )

    assert "streamworker run" in done.stdout
    loaded = {name for name in done.stderr.split() if name.startswith("streamworker.cli.")}
    assert loaded <= {
        f"streamworker.cli.{name}" for name in ("main", "edge", "hints", "output", "run", "options")
    }


def test_help_is_quick_and_imports_neither_worker_nor_redis() -> None:
    program = (
        "import sys, time; began = time.process_time()\n"
        "from streamworker.cli.main import main\n"
        "sys.argv = ['streamworker', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "taken = time.process_time() - began\n"
        "print(taken, *sys.modules, file=sys.stderr)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def look() -> tuple[float, set[str]]:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=REPOSITORY, env=environment,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        seconds, *modules = done.stderr.split()
        return float(seconds), set(modules)

    looks = [look() for _ in range(5)]

    loaded = looks[0][1]
    assert not {"redis", "rich", "streamworker.worker", "streamworker.demo.driver"} & loaded
    assert min(seconds for seconds, _ in looks) < LIMIT_SECONDS
