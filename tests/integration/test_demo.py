"""The demo as users run it: it balances, and nothing of it stays behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import REPOSITORY
from tests.waiting import wait_until

#: Marks the demo's processes, so that they are found again.
MARK = "DEMO_UNDER_TEST"
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")


class Demo:
    """One demo in a process of its own, with a folder for all that it writes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        env = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWORKER_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "streamworker", "demo", *arguments],
            cwd=REPOSITORY,
            # Settings of whoever runs it must not matter: nothing listens there.
            env={
                **env,
                MARK: self.mark,
                "TMPDIR": str(folder),
                "STREAMWORKER_REDIS_URL": "redis://127.0.0.1:1/0",
                "STREAMWORKER_LEASE": "77",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def alive(self) -> list[int]:
        """The demo's processes: marked, or at home in its folder (the server writes over its environment)."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    marked = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
                    home = (entry / "cwd").readlink()
                except OSError:  # gone meanwhile, or not ours
                    continue
                if marked or home.is_relative_to(self.folder):
                    found.append(int(entry.name))
        return found

    def wait_for(self, text: str) -> None:
        """Read its progress until it says `text`."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line:
                return
        pytest.fail(f"the demo ended before it said {text!r}")


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[Demo]:
    one = Demo(folder, *arguments)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate()
        if sys.platform.startswith("linux"):
            for pid in one.alive():
                os.kill(pid, signal.SIGKILL)


def test_every_job_is_accounted_for(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "6", "--json") as one:
        out, progress = one.process.communicate(timeout=60)

        account = json.loads(out)
        assert list(account) == [
            *("accepted", "succeeded", "dead_lettered", "pending", "double_outcomes"),
            *("jobs_per_second", "kills", "balanced"),
        ]
        assert account["balanced"] is True, progress
        assert one.process.returncode == 0
        assert account["accepted"] == account["succeeded"] + account["dead_lettered"] > 1000
        assert (account["pending"], account["double_outcomes"]) == (0, 0)
        # The demo's own, and the first start of the job that kills its worker: later ones take a child only.
        assert account["kills"] >= 2
        assert account["dead_lettered"] >= 10
        assert "killed by the demo" in progress
        assert "killed by the job that it ran" in progress
        if sys.platform.startswith("linux"):
            assert one.alive() == []
        assert list(tmp_path.iterdir()) == []


def test_people_get_a_table_for_each_lane_and_task_and_the_account(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "2") as one:
        out, _ = one.process.communicate(timeout=60)

        assert one.process.returncode == 0
        for row in (
            "priority update_shipment",
            "normal   charge_payment",
            "normal   crash",
            "normal   send_email",
        ):
            assert row in out
        assert "throughput " in out
        assert "0 pending; 0 outcomes recorded twice" in out
        assert out.rstrip().endswith("it balances")
        assert "\x1b" not in out


@linux_only
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_stopped_takes_everything_along(tmp_path: Path, how: int, code: int) -> None:
    with demo(tmp_path, "--seconds", "20") as one:
        one.wait_for("enqueuing")
        assert len(one.alive()) == 4  # itself, the server, two workers

        one.process.send_signal(how)
        out, rest = one.process.communicate(timeout=30)

        assert one.process.returncode == code
        assert out == ""
        assert "Traceback" not in rest
        assert one.alive() == []
        assert list(tmp_path.iterdir()) == []


@linux_only
def test_a_demo_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "20") as one:
        one.wait_for("enqueuing")
        assert len(one.alive()) == 4

        one.process.kill()
        one.process.wait()

        wait_until(lambda: not one.alive(), what="server and workers have ended")
