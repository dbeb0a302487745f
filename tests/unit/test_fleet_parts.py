"""Parts of a fleet that need no process: pauses, suspects, the reaper's patience."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from streamworker import App, Worker
from streamworker.core.job import Claim
from streamworker.core.outcome import Success
from streamworker.worker import first_process, process, stall
from streamworker.worker.brood import GROWN_UP, Place
from streamworker.worker.first_process import Reaper, dead_children, shell_above
from streamworker.worker.leash import Leash
from streamworker.worker.running import Running
from tests.waiting import wait_until_async


def test_the_pause_doubles_while_children_die_young() -> None:
    place = Place(1)

    assert [place.backoff(1.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert place.backoff(GROWN_UP) == 0.5
    assert place.backoff(1.0) == 1


def test_a_child_takes_its_leash_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    ours, theirs = socket.socketpair()
    monkeypatch.setenv("STREAMWORKER_FLEET", f"{theirs.detach()}:/run/2.sock")

    leash = Leash.inherited()

    assert leash is not None
    assert leash.path == Path("/run/2.sock")
    assert Leash.inherited() is None
    leash.say_up()
    assert ours.recv(10) == b"up\n"
    leash._socket.close()
    ours.close()


async def test_a_worker_that_is_starting_is_alive_and_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "BEAT_EVERY", 0.01)
    worker = Worker(App("starting"))
    async with process.surroundings(worker, metrics_port=0, metrics_host=None):
        assert worker.telling is not None
        health = worker.telling.health
        first = health._last.at

        await wait_until_async(lambda: health._last.at > first, what="the loop was seen again")

        assert health.alive()[0]
        ready, facts = health.ready()
        assert (ready, facts["redis"]) == (False, "no session")


def running(job_id: str, *, handler: bool = True, thread: bool = False, ended: float = 0.0) -> Running:
    claim = Claim(job_id, 1, 1, 1, 0, 0, "normal", "a", "1-0", 0, None, None, b"")
    one = Running(claim, task_name="pack", ended=ended)
    one.handler = cast(Any, object()) if handler else None
    one.thread = cast(Any, object()) if thread else None
    one.outcome = Success() if ended else None
    return one


def test_suspects_are_coroutines_that_ran_while_the_loop_stood_still() -> None:
    held = [
        running("open"),
        running("not-begun", handler=False),
        running("in-thread", thread=True),
        running("over-before", ended=9.0),
        running("just-over", ended=11.0),
    ]

    found = stall.suspects([*held, held[0]], 10.0)

    assert [each.claim.job_id for each in found] == ["just-over", "open"]
    assert stall.describe(found) == "running: pack (just-over), pack (open)"
    assert stall.describe([running(str(number)) for number in range(7)]).endswith("and 2 more")
    assert "no coroutine job" in stall.describe([])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_dead_child_is_left_to_who_started_it_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_process, "UNCLAIMED_AFTER", 10.0)  # two looks
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    reaped: list[int] = []
    reaper = Reaper()

    assert child.pid in {pid for pid, _ in dead_children()}
    for _ in range(2):
        reaper.look(reaped.append)
    assert child.pid not in reaped
    reaper.look(reaped.append)
    assert child.pid in reaped

    assert child.wait() == 0
    reaped.clear()
    for _ in range(4):
        reaper.look(reaped.append)
    assert child.pid not in reaped


@pytest.mark.parametrize(
    ("parent", "name", "found"), [(1, "sh", "sh"), (1, "python3", None), (7, "sh", None)]
)
def test_only_a_shell_that_is_process_one_and_our_parent_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parent: int, name: str, found: str | None
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text(f"{name}\n")
    monkeypatch.setattr(os, "getppid", lambda: parent)

    assert shell_above(tmp_path) == found
