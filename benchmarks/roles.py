"""A process that plays a role of a contender: the worker, a producer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from benchmarks.environments import HERE, Environment
from benchmarks.processors import pinned

#: Lines of other output that an error message ends with.
TAIL = 15


class Failed(Exception):
    """A contender ended or fell silent instead of reporting; the message ends with what it printed."""


class Role:
    """Starts at once; leaving the context kills it with its children."""

    def __init__(self, environment: Environment, role: str, *options: str, processor: int | None) -> None:
        self._name = f"{environment.contender.label} {role}"
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._reports: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._ended = False
        with pinned(processor):
            self._process = subprocess.Popen(
                environment.command(role, *options),
                cwd=HERE.parent,
                env=environment.variables(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # its children can be killed with it
            )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, _, rest = line.partition(" ")
            with self._changed:
                if kind in {"FIGURES", "WARM"}:
                    self._reports[kind] = json.loads(rest)
                    self._changed.notify_all()
                else:
                    self._tail.append(line)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, seconds: float, kind: str = "FIGURES") -> dict[str, Any]:
        """Its report. Raises Failed if it ends or lets the time pass without one."""
        with self._changed:
            self._changed.wait_for(lambda: kind in self._reports or self._ended, timeout=seconds)
            if kind in self._reports:
                return self._reports[kind]
            what = "ended" if self._ended else f"said nothing for {seconds:.0f} s"
            raise Failed(f"{self._name} {what}\n{''.join(self._tail)}".rstrip())

    def go(self) -> None:
        """Tell a pacer that the worker is warm."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self, seconds: float = 5) -> None:
        """Let it end by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reading.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
