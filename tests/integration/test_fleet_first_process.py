"""As process 1 of a container, which a PID namespace stands in for: signals, orphans, shells (R47)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.integration.cli_desk import Desk
from tests.processes import APPS, REPOSITORY
from tests.servers import BenchServer
from tests.waiting import wait_until

#: The command line with a reaper that looks more often: nobody wants to wait for half a minute.
PROGRAM = """
from streamworker.worker import first_process
first_process.LOOK_EVERY, first_process.UNCLAIMED_AFTER = 0.05, 0.1
from streamworker.cli.main import main
main()
"""


def namespaces_are_allowed() -> bool:
    unshare = shutil.which("unshare")
    if sys.platform != "linux" or unshare is None:
        return False
    done = subprocess.run([unshare, "-pf", "--mount-proc", "true"], capture_output=True, check=False)
    return done.returncode == 0


pytestmark = pytest.mark.skipif(
    not namespaces_are_allowed(), reason="PID namespaces need Linux, util-linux and root"
)


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


class Container:
    """A command as process 1 of a PID namespace; a context manager that leaves nothing behind."""

    def __init__(self, desk: Desk, *command: str) -> None:
        self._command = ["unshare", "-pf", "--kill-child", "--mount-proc", *command]
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STREAMWORKER_")},
            "PYTHONPATH": str(REPOSITORY),
            "STREAMWORKER_REDIS_URL": desk.url,
            "STREAMWORKER_NAMESPACE": desk.namespace,
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed on leaving

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            cwd=APPS,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        if kind is not None:
            print(self.log())
        self._log.close()

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def wait_for_log(self, text: str, times: int = 1) -> None:
        wait_until(
            lambda: self.log().count(text) >= times or self._process.poll() is not None,
            timeout=40,
            what=f"{text!r} is in the log",
        )
        assert self.log().count(text) >= times, self.log()

    @property
    def first(self) -> int:
        """Process 1, as it is called out here."""
        pid = self._process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def children(self) -> set[int]:
        """Of process 1, dead or alive."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text()
                except OSError:
                    continue
                if int(stat.rpartition(")")[2].split()[1]) == self.first:
                    found.add(int(entry.name))
        return found

    def stop(self) -> tuple[int, float]:
        """SIGTERM to process 1: its exit code, and how many seconds it took."""
        began = time.monotonic()
        os.kill(self.first, signal.SIGTERM)
        code = self._process.wait(30)
        return code, time.monotonic() - began


def worker(*arguments: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, "run", "fleet_app:app", *arguments]


def test_process_one_ends_when_it_is_told(desk: Desk) -> None:
    """B29, R47: as process 1 it has handlers of its own: it hears SIGTERM and ends with 0."""
    with Container(desk, *worker()) as container:
        container.wait_for_log(" slots, lanes ")

        code, seconds = container.stop()

    assert code == 0
    assert seconds < 2.0  # without a handler it would not end at all


def test_process_one_hears_a_signal_before_it_serves(desk: Desk, tmp_path: Path) -> None:
    """B29: also while the app is still being imported."""
    held = tmp_path / "held.py"
    held.write_text("import time, sys\nprint('importing', file=sys.stderr, flush=True)\ntime.sleep(60)\n")
    command = ["env", f"PYTHONPATH={REPOSITORY}:{tmp_path}", *worker()]
    command[command.index("fleet_app:app")] = "held:app"
    with Container(desk, *command) as container:
        container.wait_for_log("importing")

        code, seconds = container.stop()

    assert code == 0
    assert seconds < 30


@pytest.mark.parametrize(
    ("command", "expected"), [(("mirror", "run", "--of", "held:app"), 0), (("doctor", "held:app"), 143)]
)
def test_any_command_as_process_one_can_be_stopped(
    desk: Desk, tmp_path: Path, command: tuple[str, ...], expected: int
) -> None:
    """One that serves ends as it always does when it is told; what another was to do was not done."""
    held = tmp_path / "held.py"
    held.write_text("import time, sys\nprint('importing', file=sys.stderr, flush=True)\ntime.sleep(60)\n")
    path = f"PYTHONPATH={REPOSITORY}:{tmp_path}"
    with Container(desk, "env", path, sys.executable, "-m", "streamworker", *command) as container:
        container.wait_for_log("importing")

        code, seconds = container.stop()

    assert code == expected
    assert seconds < 30


@pytest.mark.parametrize("processes", [1, 2])
def test_process_one_reaps_the_orphans(desk: Desk, processes: int) -> None:
    with Container(desk, *worker("--processes", str(processes))) as container:
        container.wait_for_log(" slots, lanes ", processes)
        own = container.children()
        job_id = desk.call("enqueue", "orphan", "{}").stdout.strip()
        adopted = wait_until(lambda: container.children() - own, what="the orphan is a child of process 1")

        wait_until(lambda: not adopted & container.children(), what="the orphan was reaped")

        wait_until(lambda: desk.status(job_id) == "succeeded", what="the job has succeeded")
        assert container.stop()[0] == 0


def test_a_shell_as_process_one_is_warned_of(desk: Desk) -> None:
    """B29: a shell that does not exec passes nothing on: the worker says so when it starts."""
    command = f"{sys.executable} -m streamworker run fleet_app:app; exit $?"
    with Container(desk, "sh", "-c", command) as container:
        container.wait_for_log("which does not pass SIGTERM on")
        container.wait_for_log(" slots, lanes ")

        (own,) = container.children()
        os.kill(own, signal.SIGTERM)
        assert container._process.wait(30) == 0
