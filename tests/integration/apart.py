"""What tests of child processes share: the app in this process and in workers of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from streamworker import App
from tests.apps import apart_jobs
from tests.integration.history import Journal, Observer
from tests.processes import WorkerProcess


@dataclass(frozen=True, slots=True)
class Bench:
    """One test's app, its eyes, and the file that lets `patient` handlers go."""

    app: App
    observer: Observer
    journal: Journal
    go: Path
    start: Callable[..., WorkerProcess]

    def let_go(self) -> None:
        self.go.touch()


def start_worker(url: str, namespace: str) -> Callable[..., WorkerProcess]:
    """Makes workers of the app in processes of their own."""
    env = {name: os.environ[name] for name in ("APART_JOURNAL", "APART_GO")}

    def make(*arguments: str) -> WorkerProcess:
        return WorkerProcess("apart_jobs:app", *arguments, redis_url=url, namespace=namespace, env=env)

    return make


def alive(pid: int) -> bool:
    """Whether the process runs: one that is dead and not waited for does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def children_of(pid: int) -> set[int]:
    """Processes that this one started and that run."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(words[1]) == pid and words[0] != "Z":
                    found.add(int(entry.name))
    return found


@asynccontextmanager
async def bench_of(
    url: str, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    """The app on this server under this namespace."""
    monkeypatch.setenv("APART_JOURNAL", str(folder / "journal"))
    monkeypatch.setenv("APART_GO", str(folder / "go"))
    app = apart_jobs.app
    monkeypatch.setattr(app, "settings", app.settings)
    monkeypatch.setattr(app, "_source", app._source)
    app.use_settings(replace(app.settings, namespace=namespace, redis_url=url))
    with Observer(url, namespace) as observer:
        async with app:
            journal = Journal(folder / "journal")
            yield Bench(app, observer, journal, folder / "go", start_worker(url, namespace))
