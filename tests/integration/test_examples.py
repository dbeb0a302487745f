"""Every example runs: the README's, the tutorial's, those of the how-to pages, and the folder `examples/`.

The text itself is run. Files are the Python blocks that begin with `# name.py`; console blocks are commands
with what they print. In what is expected, `…` stands for anything.
"""

from __future__ import annotations

import ast
import asyncio
import logging
import os
import re
import subprocess
import sys
import types
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from streamworker import App, Context, Retry, TransientError
from streamworker.telemetry import tracing
from tests.integration.serving import serving
from tests.processes import PYTHONPATH, REPOSITORY, WorkerProcess
from tests.servers import BenchServer, ServerFactory, async_client
from tests.waiting import wait_until

DOCS = REPOSITORY / "docs"
EXAMPLES = REPOSITORY / "examples"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
#: Seconds that a command of a page may take until it prints what the page says.
PATIENCE = 30.0


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def write_files(page: Path, folder: Path) -> list[str]:
    """Write the files that a page shows; returns their names."""
    names = []
    for body in blocks(page, "python"):
        if named := FILE.match(body):
            (folder / named[1]).write_text(body, encoding="utf-8")
            names.append(named[1])
    return names


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page and what it prints, as far as the page says."""

    line: str
    expected: str


def commands(page: Path) -> list[Command]:
    found = []
    for body in blocks(page, "console"):
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            line, _, expected = part.partition("\n")
            found.append(Command(line, expected))
    return found


def matches(expected: str, printed: str) -> bool:
    """Whether the lines are as expected: `…` stands for anything, and space for any space."""
    words = [re.escape(word).replace("…", ".*?") for word in expected.split()]
    return re.fullmatch(r"\s+".join(words) if words else ".*", printed.strip(), re.DOTALL) is not None


class Terminal:
    """Runs the commands of a page as a reader would, with workers in the background; a context manager."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._env = env
        self._stack = ExitStack()
        self._variables: dict[str, str] = {}
        self._bin = folder / "bin"
        self.worker: WorkerProcess | None = None

    def __enter__(self) -> Self:
        self._bin.mkdir()
        for name, module in (("streamworker", "-m streamworker "), ("python", "")):
            script = self._bin / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module}"$@"\n')
            script.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, command: Command) -> None:
        """Run one command; fails if it prints something else than the page says."""
        words = command.line.split()
        if words[:2] == ["streamworker", "run"]:
            self.worker = self._stack.enter_context(
                WorkerProcess(
                    words[2],
                    *words[3:],
                    redis_url=self._env["STREAMWORKER_REDIS_URL"],
                    cwd=self._folder,
                    env={
                        name: value for name, value in self._env.items() if name.startswith("STREAMWORKER_")
                    },
                )
            )
            self.worker.wait_for_log("slots, lanes")
        elif words[0] == "export":
            name, _, value = words[1].partition("=")
            if name != "STREAMWORKER_REDIS_URL":  # the reader's server has its own port
                self._env[name] = value
        elif words[:2] == ["kill", "-9"]:
            assert self.worker is not None
            self.worker.kill()
        elif assigned := re.fullmatch(r"(\w+)=\$\((.*)\)", command.line):
            self._variables[assigned[1]] = self._output(assigned[2]).strip()
        else:
            self._repeat(command)

    def _repeat(self, command: Command) -> None:
        printed = ""

        def as_shown() -> bool:
            nonlocal printed
            printed = self._output(command.line)
            return matches(command.expected, printed)

        try:
            wait_until(as_shown, timeout=PATIENCE, what="it prints what the page says")
        except AssertionError:
            raise AssertionError(f"`{command.line}` keeps printing:\n{printed}") from None

    def once(self, command: Command) -> None:
        """Run a command that must not be run twice."""
        printed = self._output(command.line)
        assert matches(command.expected, printed), f"`{command.line}` printed:\n{printed}"

    def _output(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self._folder,
            env={**self._env, **self._variables, "PATH": f"{self._bin}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"`{line}` failed: {done.stderr}"
        return done.stdout


def environment(server: BenchServer) -> dict[str, str]:
    """What the reader's shell has: no settings of ours but where Redis is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWORKER_")}
    return {
        **kept,
        "PYTHONPATH": PYTHONPATH,
        "STREAMWORKER_REDIS_URL": server.url,
        "COLUMNS": "200",
    }


def test_the_readme_example_runs(valkey: BenchServer, namespace: str, tmp_path: Path) -> None:
    page = REPOSITORY / "README.md"
    env = environment(valkey) | {"STREAMWORKER_NAMESPACE": namespace}
    shown = [
        command for command in commands(page) if command.line.startswith(("streamworker run", "python "))
    ]

    assert write_files(page, tmp_path) == ["shop.py", "enqueue.py", "test_shop.py"]
    assert [command.line for command in shown] == [
        "streamworker run shop:app --concurrency 32",
        "python enqueue.py",
    ]
    with Terminal(tmp_path, env) as terminal:
        terminal.run(shown[0])
        terminal.once(shown[1])


def test_the_tutorial_runs_with_a_worker_killed(valkey: BenchServer, namespace: str, tmp_path: Path) -> None:
    page = DOCS / "tutorial" / "first-jobs.md"
    assert write_files(page, tmp_path) == ["server.py", "shop.py", "enqueue.py"]
    shown = [command for command in commands(page) if not command.line.startswith(("pip ", "python server"))]
    once = ("python ", "streamworker dlq discard", "streamworker dlq replay")
    killed = 0

    with Terminal(tmp_path, environment(valkey)) as terminal:
        for command in shown:
            if command.line == "export STREAMWORKER_NAMESPACE=shop":  # other tests use this server as well
                command = Command(f"export STREAMWORKER_NAMESPACE={namespace}", "")
            if command.line.startswith(once):
                terminal.once(command)
            else:
                terminal.run(command)
            killed += command.line.startswith("kill -9")

    assert killed == 1


def test_the_tutorials_server_prints_its_url(tmp_path: Path) -> None:
    page = DOCS / "tutorial" / "first-jobs.md"
    write_files(page, tmp_path)
    (shown,) = [command for command in commands(page) if command.line == "python server.py"]

    done = subprocess.run(
        [sys.executable, "server.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        input="\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )

    assert matches(shown.expected, done.stdout)


#: What each program of `examples/` prints, with a worker of the app behind it.
PROGRAMS = {
    ("shop:app", "enqueue.py"): """\
shipment: {'shipment_id': 7, 'status': 'sent'}
the same once more: DUPLICATE True
unknown carrier: unknown_carrier
e-mails: 1000
report: 351
status: succeeded
""",
    ("errors:app", "errors.py"): """\
transient: worked at attempt 3
always_down: failed: transient, connection_error
persistent: failed: persistent, no_customer
bug: failed: unknown, zero_division_error
limited: worked at attempt 2
snoozing: worked at attempt 1
skipped: {'skipped': 'paid already'}
withdrawn: failed: persistent, cancelled
""",
    ("keys:app", "keys.py"): """\
ACCEPTED DUPLICATE True
{'charged': 1999, 'idempotency_key': 'order:7:charge'}
DUPLICATE
conflict with the first job: True
['CONFLICT', 'ACCEPTED']
""",
    ("shop:app", "traffic.py --orders 3"): "3 orders\n",
}


@pytest.mark.parametrize(("app", "program"), PROGRAMS, ids=[program for _, program in PROGRAMS])
def test_a_program_of_the_examples_runs(
    app: str, program: str, valkey: BenchServer, namespace: str, no_leaks: None
) -> None:
    with WorkerProcess(app, redis_url=valkey.url, namespace=namespace, cwd=EXAMPLES) as worker:
        worker.wait_for_log("slots, lanes")
        done = subprocess.run(
            [sys.executable, *program.split()],
            cwd=EXAMPLES,
            env=environment(valkey) | {"STREAMWORKER_NAMESPACE": namespace},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert done.stdout == PROGRAMS[app, program], done.stderr
        assert done.returncode == 0


def test_every_example_is_run_by_a_test() -> None:
    run = {program.split()[0] for _, program in PROGRAMS} | {
        f"{app.partition(':')[0]}.py" for app, _ in PROGRAMS
    }

    assert {path.name for path in EXAMPLES.glob("*.py")} == run


# --- how-to pages ----------------------------------------------------------------------------------------


def needs_postgres(page: Path) -> bool:
    """Whether the page says so: then tests/effects runs it."""
    return "<!-- test: postgres -->" in page.read_text(encoding="utf-8")


def pages_with_snippets() -> list[Path]:
    """The pages whose Python blocks are no files: they are run one after another in one namespace."""
    return [
        page
        for page in sorted((DOCS / "how-to").glob("*.md"))
        if any(not FILE.match(body) for body in blocks(page, "python")) and not needs_postgres(page)
    ]


def shop_of(namespace: str) -> App:
    """What the page on producers without code needs somebody else to run."""
    app = App("shop", namespace=namespace)

    @app.task
    async def update_shipment(ctx: Context, shipment_id: int, status: str) -> str:
        return f"shipment {shipment_id} is {status}"

    return app


@pytest.mark.parametrize("page", pages_with_snippets(), ids=lambda page: page.stem)
async def test_the_snippets_of_a_page_run(
    page: Path, valkey: BenchServer, namespace: str, no_leaks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMWORKER_REDIS_URL", valkey.url)
    monkeypatch.setenv("STREAMWORKER_NAMESPACE", namespace)
    monkeypatch.setenv("STREAMWORKER_LEASE", "2s")  # cancelled handlers hear of it with the heartbeat
    module = types.ModuleType("snippets")
    names: dict[str, Any] = module.__dict__
    async with AsyncExitStack() as stack:
        moves = logging.getLogger("streamworker.transitions")
        # What a page turns on is not to stay on for later tests.
        stack.callback(moves.setLevel, moves.level)
        stack.callback(tracing.disable)
        worked_for: App | None = None
        if page.stem == "producers-without-code":
            worked_for = await stack.enter_async_context(shop_of(namespace))
            await stack.enter_async_context(serving(worked_for))
        for body in blocks(page, "python"):
            # Statement by statement, so that a page's app has a worker before a job is awaited.
            for statement in ast.parse(body).body:
                code = compile(
                    ast.Module([statement], []), str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                )
                result = eval(code, names)
                if result is not None:
                    await result
                if worked_for is None and isinstance(app := names.get("app"), App):
                    worked_for = await stack.enter_async_context(app)
                    await stack.enter_async_context(serving(app))

    assert worked_for is not None, "the page has no app, so nothing of it was run"


def test_the_test_files_of_the_page_on_testing_pass(tmp_path: Path) -> None:
    names = write_files(DOCS / "how-to" / "test-your-handlers.md", tmp_path)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:valkey", "-p", "no:cacheprovider", *names],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b3 passed", done.stdout)


def run_test_files(folder: Path, *names: str) -> int:
    """Run these test files with pytest, as a reader would; returns how many tests passed. None may fail."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:valkey", "-p", "no:cacheprovider", *names],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("STREAMWORKER_")}
        | {"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"\b(\d+) passed", done.stdout)
    assert passed, done.stdout
    return int(passed[1])


@pytest.mark.parametrize("where", ["memory", "server"])
def test_the_test_example_of_the_readme_passes_in_memory_and_on_a_server(
    where: str, valkey: BenchServer, tmp_path: Path
) -> None:
    write_files(REPOSITORY / "README.md", tmp_path)
    written = tmp_path / "test_shop.py"
    text = written.read_text(encoding="utf-8")
    assert text.count("harness(app)") == 1
    if where == "server":
        written.write_text(text.replace("harness(app)", f'harness(app, redis_url="{valkey.url}")'))

    assert run_test_files(tmp_path, "test_shop.py") == 1


@pytest.mark.parametrize("where", ["memory", "server"])
def test_the_test_files_of_the_page_on_apps_pass_in_memory_and_on_a_server(
    where: str, tmp_path: Path
) -> None:
    names = write_files(DOCS / "how-to" / "test-your-app.md", tmp_path)
    tests = [name for name in names if name.startswith("test_")]
    if where == "server":
        for name in tests:
            text = (tmp_path / name).read_text(encoding="utf-8")
            text = text.replace("harness(app)", "harness(app, redis_url=redis_url)")
            written = re.sub(r"(async def test_\w+)\(\)", r"\1(redis_url: str)", text)
            (tmp_path / name).write_text(written, encoding="utf-8")

    assert run_test_files(tmp_path, *tests) == 6


async def test_the_redis_user_of_the_page_on_deploying_may_do_all_that_is_needed(
    own_valkey: ServerFactory, namespace: str
) -> None:
    page = DOCS / "how-to" / "deploy-and-shut-down.md"
    (rule,) = [line for body in blocks(page, "text") for line in body.splitlines() if "SETUSER" in line]
    server = own_valkey()
    app = App("shop", redis_url=f"redis://shop:secret@127.0.0.1:{server.port}/0", lease="1s")

    @app.task(retry=Retry.schedule("50ms"), key="order:{order}")
    async def charge(ctx: Context, order: int) -> int:
        if ctx.attempt == 1:
            raise TransientError("no answer")
        await asyncio.sleep(0.5)  # some heartbeats and sweeps
        return order

    client: Any = async_client(server.url)
    async with client as admin, app:
        await admin.execute_command(*rule.split())
        async with serving(app):
            job = await charge.options(delay="50ms").enqueue(7)
            assert await job.result(timeout="10s") == 7
            assert not await job.cancel()

        assert await admin.execute_command("ACL", "LOG") == []
