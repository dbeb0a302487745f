"""Exit code 2 where nothing but another command line or another setting helps; 1 where it failed."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamworker.cli.main import command_line
from streamworker.worker.own_loop import maker

#: Nothing listens there: what is wrong with the line is found before anybody asks.
NOWHERE = ("--app", "x", "--redis-url", "redis://127.0.0.1:1/0")
SHOP = """
from streamworker import App
app = App("shop", redis_url="redis://127.0.0.1:1/0")
number = 7
"""


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("STREAMWORKER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STREAMWORKER_LOG_FORMAT", "text")  # `run` sets it for what it starts
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("exit_shop", "exit_broken", "exit_retry"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "exit_shop.py").write_text(SHOP)
    (tmp_path / "exit_broken.py").write_text("1 / 0\n")
    (tmp_path / "exit_retry.py").write_text(f"{SHOP}\n@app.task(timeout='5x')\nasync def pack(ctx): ...\n")


def refused(*arguments: str, code: int) -> str:
    result = CliRunner().invoke(command_line(arguments[0]), list(arguments))
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    line = result.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run exit_shop:app --grace 5x", "grace: '5x' is no duration"),
        ("run exit_shop:app --grace -5 --processes 2", "grace: '-5' is no duration"),
        ("run exit_shop:app --lanes priorty", "is no lane of this app"),
        ("run exit_shop:app --lanes ,", "at least one lane"),
        ("run exit_shop:app --concurrency 0", "--concurrency"),
        ("run exit_shop:app --burst --processes 2", "leave out --processes"),
        ("run exit_shop:app --burst --reload", "leave out --reload"),
        ("run exit_shop:ap", "has no 'ap'"),
        ("run exit_shop:number", "is no App"),
        ("run exit_shpo:app", "did you mean exit_shop"),
        ("run exit_retry:app", "'5x' is no duration"),
        ("lua show clam", "did you mean claim?"),
        ("enqueue add [1]", "must be a JSON object"),
        ("enqueue add {", "no valid JSON"),
        ("enqueue add {} --delay 5x", "'5x' is no duration"),
        ("enqueue add {} --key=", "key ''"),
        ('enqueue add {"n":18446744073709551616}', "beyond 64 bits"),
        ("jobs show x", "a job id is a UUIDv7"),
        ("jobs cancel x", "a job id is a UUIDv7"),
        ("explain x", "a job id is a UUIDv7"),
        ("dlq list --older 5x", "'5x' is no duration"),
        ("dlq show x", "a job id is a UUIDv7"),
        ("dlq replay --task add --rate 0", "rate 0"),
        ("gates nonsense", "is none of"),
        ("pause lanes:normal", "lane:NAME"),
        ("pause lane:normal --for 5x", "'5x' is no duration"),
        ("resume lane:normal --over 5x", "'5x' is no duration"),
        ("limits set rate:task:pack 5", "is no rate"),
        ("throttle lane:normal --rate 5", "is no rate"),
        ("slots backlog --weight 2", "is served by no worker"),
        ("breakers open Carrier!", "dependency name"),
        ("purge Not!A!Lane --count 1", "lane name"),
        ("lanes --redis-url nonsense://", "nonsense"),
        ("jobs list --app my/shop", "use 1 to 48 letters"),
        ("mirror run --dsn mysql://x", "must begin with postgresql://"),
    ],
)
def test_what_another_command_line_mends_ends_with_2(line: str, said: str) -> None:
    words = line.split()
    # What is said twice holds as it was said last.
    where = () if words[0] in ("run", "lua") else NOWHERE

    assert said in refused(words[0], *words[1:2], *where, *words[2:], code=2)


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("LEASE", "5x", "lanes"),
        ("LEASE", "1ms", "lanes"),
        ("LEASE", "5x", "run exit_shop:app"),
        ("LANES", "priority weight=x", "run exit_shop:app"),
        ("DLQ_MAX_AGE", "-1s", "lanes"),
        ("DLQ_MAX_COUNT", "many", "lanes"),
        ("NAMESPACE", "my/shop", "lanes"),
        ("REDIS_URL", "nonsense://", "lanes"),
        ("METRICS_PORT", "http", "exporter"),
        ("METRICS_PORT", "http", "run exit_shop:app"),
        ("METRICS_PORT", "70000", "run exit_shop:app --processes 2"),
        ("METRICS_PORT", "http", "mirror run --dsn postgresql://127.0.0.1:1/x"),
        ("WORKERS_EXPECTED", "many", "exporter"),
        ("LOG_FORMAT", "xml", "mirror run --dsn postgresql://127.0.0.1:1/x"),
        ("LOG_FORMAT", "xml", "run exit_shop:app"),
        ("LOOP", "twisted", "run exit_shop:app"),
    ],
)
def test_what_another_setting_mends_ends_with_2(
    variable: str, value: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"NAMESPACE": "x", "REDIS_URL": "redis://127.0.0.1:1/0", variable: value}
    for name, given in settings.items():
        monkeypatch.setenv(f"STREAMWORKER_{name}", given)

    assert refused(*line.split(), code=2)


@pytest.mark.parametrize("end", ["\n", "\r\n", " "])
def test_the_end_of_a_line_does_not_belong_to_a_setting(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an --env-file or a secret has it."""
    monkeypatch.setenv("STREAMWORKER_LOG_FORMAT", f"text{end}")

    assert "no module 'exit_nowhere'" in refused("run", "exit_nowhere:app", code=2)


def test_nor_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMWORKER_LOOP", "asyncio\n")

    assert maker() is asyncio.new_event_loop


def test_what_may_work_the_next_time_ends_with_1() -> None:
    assert "Redis" in refused("lanes", *NOWHERE, code=1)
    assert "ZeroDivisionError" in refused("run", "exit_broken:app", code=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        assert "no metrics on" in refused("exporter", *NOWHERE, "--metrics-port", port, code=1)
