"""`run --reload`: the newest code runs, whatever was saved in between."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from streamworker.store.keys import Keys
from tests.processes import WorkerProcess
from tests.servers import BenchServer
from tests.unit.test_cli import in_shell
from tests.waiting import wait_until

CODE = """
from streamworker import App, Context
print("version {version}", flush=True)
app = App("shop")
@app.task
async def add(ctx: Context) -> None: ...
"""


@pytest.fixture
def worker(
    valkey: BenchServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerProcess]:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    write(tmp_path, CODE.format(version=1))
    with WorkerProcess(
        "shop_app:app",
        "--reload",
        "--concurrency",
        "3",
        redis_url=valkey.url,
        namespace=namespace,
        cwd=tmp_path,
    ) as process:
        process.wait_for_log("reload: watching")
        process.wait_for_log("3 slots")
        yield process
        process.terminate()
        process.wait()


def write(folder: Path, code: str) -> None:
    (folder / "shop_app.py").write_text(code)


def workers(valkey: BenchServer, namespace: str) -> list[str]:
    with redis.Redis.from_url(valkey.url, protocol=2) as client:
        return [key.decode() for key in client.scan_iter(f"{Keys(namespace).tag}:worker:*")]


def test_a_change_starts_the_new_code_and_ends_the_old_worker(
    worker: WorkerProcess, valkey: BenchServer, namespace: str, tmp_path: Path
) -> None:
    (before,) = workers(valkey, namespace)

    write(tmp_path, CODE.format(version=2))

    worker.wait_for_log("reload: shop_app.py changed, starting again")
    worker.wait_for_log("version 2")
    wait_until(
        lambda: len(now := workers(valkey, namespace)) == 1 and now != [before],
        what="only the new worker is there",
    )


def test_a_change_within_the_same_second_is_seen(worker: WorkerProcess, tmp_path: Path) -> None:
    """Bytecode is taken for a file's own by its size and the second of its change."""
    path = tmp_path / "shop_app.py"
    before = path.stat()
    changed = tmp_path / "next"
    changed.write_text(CODE.format(version=2))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed.stat().st_size == before.st_size

    changed.replace(path)

    worker.wait_for_log("version 2")


def test_files_that_are_no_code_change_nothing(worker: WorkerProcess, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "__pycache__").mkdir(exist_ok=True)
    (tmp_path / "__pycache__" / "x.py").write_text("nothing")

    write(tmp_path, CODE.format(version=2))  # what is seen after them

    worker.wait_for_log("version 2")
    assert worker.log().count("starting again") == 1
    assert "notes.txt" not in worker.log()


def test_code_that_does_not_load_is_waited_for(worker: WorkerProcess, tmp_path: Path) -> None:
    write(tmp_path, "this is no Python")
    worker.wait_for_log("reload: the worker ended with 1; it starts again with the next change")

    write(tmp_path, CODE.format(version=3))

    worker.wait_for_log("version 3")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_worker_and_then_us(
    number: signal.Signals, worker: WorkerProcess, valkey: BenchServer, namespace: str
) -> None:
    os.kill(worker.pid, number)

    assert worker.wait() == 0
    assert workers(valkey, namespace) == []


def test_a_signal_while_nothing_runs_ends_with_the_workers_code(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    write(tmp_path, "this is no Python")
    worker.wait_for_log("it starts again with the next change")

    worker.terminate()

    assert worker.wait() == 1


def test_the_worker_ends_when_we_are_killed(
    worker: WorkerProcess, valkey: BenchServer, namespace: str
) -> None:
    worker.kill()

    wait_until(lambda: workers(valkey, namespace) == [], what="the worker has said good-bye")


def test_several_processes_are_refused() -> None:
    done = in_shell("run", "shop_app:app", "--reload", "--processes", "2")

    assert done.returncode == 2
    assert done.stderr == "error: --reload is for development, with one process: leave out --processes\n"


def test_without_watchfiles_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "watchfiles.py").write_text("raise ModuleNotFoundError('gone', name='watchfiles')")

    done = in_shell("run", "shop_app:app", "--reload", PYTHONPATH=str(tmp_path))

    assert done.returncode == 2
    assert done.stderr == "error: --reload needs watchfiles: pip install 'streamworker[reload]'\n"
