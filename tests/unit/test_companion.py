"""What runs beside a worker: it begins again when it dies, and when the workers have new code."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from streamworker.cli.companion import Companion
from tests.waiting import wait_until

REAPING = """
import asyncio, os, subprocess
from types import SimpleNamespace
from streamworker.worker.supervisor import Supervisor

async def main():
    process = subprocess.Popen(["/bin/sh", "-c", "exit 3"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    beside = SimpleNamespace(pid=process.pid, renew=print)
    Supervisor(["worker"], processes=1, grace=1.0, beside=[beside])._reap()
    print(process.wait())

asyncio.run(main())
"""


def born(told: Path) -> list[str]:
    """Their pids, in order."""
    return told.read_text().split() if told.exists() else []


def test_a_companion_begins_again_with_the_workers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = tmp_path / "born"
    caplog.set_level(logging.INFO, "streamworker.companion")
    with Companion("mirror", ["/bin/sh", "-c", f"echo $$ >> {told}; exec sleep 60"]) as mirror:
        wait_until(lambda: len(born(told)) == 1, what="it runs")

        mirror.renew()

        wait_until(lambda: len(born(told)) == 2, what="another runs")
    assert [record.getMessage() for record in caplog.records] == ["the mirror begins again, with the workers"]


def test_a_companion_that_waits_after_a_death_does_not_wait_any_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = tmp_path / "born"
    monkeypatch.setattr("streamworker.cli.companion.RESPAWN_FIRST", 30.0)
    command = ["/bin/sh", "-c", f"echo $$ >> {told}; exit 1"]
    with Companion("relay", command) as relay:
        wait_until(
            lambda: "the relay ended with 1; it is started again in 30 s" in caplog.text, what="it died"
        )

        relay.renew()

        wait_until(lambda: len(born(told)) == 2, what="another runs")


def test_a_wrong_setting_is_an_error_and_not_tried_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with Companion("mirror", ["/bin/sh", "-c", "exit 2"]):
        wait_until(lambda: bool(caplog.records), what="it is told of")

    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage() == (
        "the mirror ended with 2, since a setting is wrong: see what it said; it is started again in 30 s"
    )


def test_a_supervisor_leaves_its_end_to_whoever_waits_for_it() -> None:
    """In a process of its own, since all its children are looked at."""
    done = subprocess.run([sys.executable, "-c", REAPING], capture_output=True, text=True, check=True)

    assert (done.stdout.split(), done.stderr) == (["3"], "")
