"""Worker processes under test: started as users start them, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import wait_until

REPOSITORY = Path(__file__).parent.parent
#: The applications that workers run in tests.
APPS = REPOSITORY / "tests" / "apps"

#: Where Python looks for modules in processes that tests start.
PYTHONPATH = os.pathsep.join((str(REPOSITORY / "tests" / "start"), str(REPOSITORY)))

#: Every process of the running test, so that a failure can show their logs.
started_processes: list[WorkerProcess] = []


class WorkerProcess:
    """`python -m streamworker run module:app …` in a process of its own; a context manager.

    Entering starts it, leaving kills it with everything that it started. Its output goes to a log, whose tail
    is shown when the test fails.
    """

    def __init__(
        self,
        app: str,
        *arguments: str,
        redis_url: str,
        namespace: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path = APPS,
        command: str = "run",
    ) -> None:
        """Prepare a worker of `app` (`module:app`, found from `cwd`); `env` adds to the environment.

        Settings of the surrounding environment (`STREAMWORKER_*`) do not reach it.
        """
        self.app = app
        self._argv = [sys.executable, "-m", "streamworker", command, app, *arguments]
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("STREAMWORKER_")
        }
        self._env = {
            **inherited,
            "PYTHONPATH": PYTHONPATH,
            "PYTHONUNBUFFERED": "1",
            "STREAMWORKER_REDIS_URL": redis_url,
            **({} if namespace is None else {"STREAMWORKER_NAMESPACE": namespace}),
            **(env or {}),
        }
        self._cwd = cwd
        self._log_path: Path | None = None
        self._final_log = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        descriptor, name = tempfile.mkstemp(prefix="streamworker-worker-", suffix=".log")
        self._log_path = Path(name)
        with open(descriptor, "wb") as output:
            self._process = subprocess.Popen(
                self._argv,
                cwd=self._cwd,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started_processes.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The group outlives its leader: children of a worker that was killed are still in it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._started().wait()
        self._final_log = self.log()
        if self._log_path is not None:
            self._log_path.unlink(missing_ok=True)
            self._log_path = None

    @property
    def pid(self) -> int:
        """Process id of the worker, which is also its process group."""
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        """Exit code, minus the signal's number if a signal ended it, None while it runs."""
        return self._started().poll()

    def kill(self) -> None:
        """Kill the worker (SIGKILL), not its children, and return when it is dead."""
        self._started().kill()
        self._started().wait()

    def terminate(self) -> None:
        """Ask the worker to stop (SIGTERM)."""
        self._started().terminate()

    def pause(self) -> None:
        """Freeze the worker (SIGSTOP) and return when it is frozen."""
        self._started().send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a frozen worker go on (SIGCONT)."""
        self._started().send_signal(signal.SIGCONT)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for the worker's end and return its exit code; fails after `timeout` seconds with its log."""
        try:
            return self._started().wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"worker {self.app} still runs after {timeout:g} s; its log ends with:\n{self.log_tail()}"
            ) from None

    def log(self) -> str:
        """Return what the worker has printed so far, both streams."""
        if self._log_path is None:
            return self._final_log
        return self._log_path.read_text(errors="replace")

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log().splitlines()[-lines:])

    def wait_for_log(self, text: str, *, timeout: float = 15.0) -> None:
        """Wait until the worker has printed `text`; fails at once if it ends without."""

        def printed() -> bool:
            ended = self.returncode is not None
            if text in self.log():
                return True
            if ended:
                raise AssertionError(
                    f"worker {self.app} ended with {self.returncode} before it printed {text!r}; "
                    f"its log ends with:\n{self.log_tail()}"
                )
            return False

        wait_until(printed, timeout=timeout, what=f"worker {self.app} prints {text!r}")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise AssertionError(f"worker {self.app} was not started: use it as a context manager")
        return self._process
