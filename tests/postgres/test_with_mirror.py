"""`run --with-mirror`: the mirror lives and dies with its worker or fleet."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.postgres.stage import PATIENCE, Stage
from tests.processes import WorkerProcess
from tests.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.timeout(PATIENCE * 2)


def mirror_pid(worker: WorkerProcess) -> int:
    """Of the newest mirror that said it mirrors."""
    worker.wait_for_log("mirroring")
    return int(re.findall(r"mirror \S+?-(\d+)-\w+: mirroring", worker.log())[-1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_it_mirrors_what_the_workers_do_and_ends_with_them(stage: Stage, processes: str) -> None:
    worker = stage.process("run", "mirror_jobs:app", "--with-mirror", "--processes", processes)
    pid = mirror_pid(worker)

    await stage.enqueue(40)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="all is over and mirrored")
    if processes == "2":  # new code is for the mirror as well
        os.kill(worker.pid, signal.SIGHUP)
        wait_until(lambda: mirror_pid(worker) != pid, timeout=PATIENCE, what="another mirror")
        assert "the mirror begins again" in worker.log()
        worker.wait_for_log("rolling restart is done", timeout=PATIENCE)
        assert not alive(pid)
        pid = mirror_pid(worker)
        os.kill(pid, signal.SIGKILL)
        worker.wait_for_log("the mirror ended with -9", timeout=PATIENCE)
    worker.terminate()

    assert worker.wait() == 0
    wait_until(lambda: not alive(pid), what="the mirror has ended")
    assert await stage.differences() == []


async def test_a_mirror_that_dies_is_started_again_and_the_worker_goes_on(stage: Stage) -> None:
    worker = stage.process("run", "mirror_jobs:app", "--with-mirror")
    first = mirror_pid(worker)

    os.kill(first, signal.SIGKILL)
    await stage.enqueue(40)
    await wait_until_async(stage.settled, timeout=PATIENCE, what="all is over and mirrored")

    assert mirror_pid(worker) != first
    assert worker.returncode is None


async def test_it_does_not_outlive_a_worker_that_was_killed(stage: Stage) -> None:
    worker = stage.process("run", "mirror_jobs:app", "--with-mirror")
    pid = mirror_pid(worker)

    worker.kill()

    wait_until(lambda: not alive(pid), timeout=20, what="the mirror has ended")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_without_a_postgres_it_refuses_and_says_what_is_missing(stage: Stage, processes: str) -> None:
    more = ("--with-mirror", "--processes", processes)
    worker = stage.process("run", "mirror_jobs:app", *more, STREAMWORKER_POSTGRES_DSN="")

    assert worker.wait() == 2
    assert "--with-mirror needs Postgres: set STREAMWORKER_POSTGRES_DSN" in worker.log()
