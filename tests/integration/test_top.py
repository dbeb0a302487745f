"""`top`: what it shows is what is there, and what it says of rates is what happened between two looks."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, ClassVar, Self
from unittest.mock import Mock

import pytest
from rich.console import Console

from streamworker.cli.top import _live, picture
from streamworker.core.errors import ConnectionLost
from streamworker.core.outcome import Success
from streamworker.ops import top
from streamworker.settings import Settings
from streamworker.store.queue import Queue
from tests.integration.cli_desk import Desk
from tests.processes import PYTHONPATH
from tests.servers import BenchServer

HOSTILE = "\x1b]0;owned\x07"


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


async def frames(desk: Desk, between: int, done: int) -> tuple[top.Frame, top.Frame]:
    """A first picture, and one after `between` more jobs came and `done` were done."""
    queue = Queue(Settings(desk.namespace, desk.url))
    try:
        before, drain = await top.look(queue)
        for _ in range(between):
            desk.put()
        for claim in desk.claim(done):
            desk.settle(claim, Success(b""))
        now, drain = await top.look(queue)
        return top.frame(None, before, drain), top.frame(before, now, drain)
    finally:
        await queue.close()


def test_lanes_are_counted_by_state(desk: Desk) -> None:
    desk.dead()
    for _ in range(3):
        desk.put(gates="0 entity:order:7")
    desk.put(lane="priority")
    desk.put(lane="priority", delay="1h")
    desk.claim(9)

    found = desk.json("top", "--every", "0.2")

    normal, priority = found["lanes"]
    assert (normal["ready"], normal["parked"], normal["in_flight"]) == (0, 2, 1)
    assert (priority["ready"], priority["scheduled"]) == (1, 1)
    assert priority["oldest_age_seconds"] >= 0
    assert found["gates"] == [{"gate": "entity:order:7", "waiting": 2}]
    assert (found["workers"], found["dead_letters"]["total"]) == (1, 1)


def test_rates_are_what_came_and_went(desk: Desk) -> None:
    for _ in range(10):
        desk.put()

    first, second = asyncio.run(frames(desk, between=4, done=10))

    row = next(each for each in second.lanes if each.lane == "normal")
    assert first.lanes[0].came_in is None
    assert row.came_in is not None
    assert row.went_out is not None
    assert row.went_out / row.came_in == pytest.approx(10 / 4)
    assert row.empty_in == pytest.approx(4 / (row.went_out - row.came_in))


def test_a_lane_that_fills_has_no_end(desk: Desk) -> None:
    _, second = asyncio.run(frames(desk, between=5, done=1))

    assert second.lanes[0].empty_in is None


def test_one_picture_is_text(desk: Desk) -> None:
    desk.put()
    desk.put(gates=f"0 entity:order:{HOSTILE}")
    desk.put(gates=f"0 entity:order:{HOSTILE}")
    desk.claim(9)

    shown = desk.call("top", "--once", "--every", "0.2").stdout

    assert "in/s" in shown
    assert "normal" in shown
    assert "1 wait at entity:order:\\x1b]0;owned\\x07" in shown
    assert "\x1b" not in shown


def test_in_a_narrow_terminal_no_column_is_cut(desk: Desk) -> None:
    _, second = asyncio.run(frames(desk, between=5, done=1))
    narrow = Console(width=72, file=io.StringIO(), record=True)

    narrow.print(picture(second, desk.namespace, tight=True))

    shown = narrow.export_text()
    assert "…" not in shown
    for name in ("lane", "ready", "parked", "sched", "running", "oldest", "in/s", "out/s", "empty in"):
        assert name in shown


def test_without_a_terminal_it_wants_to_know_what_to_print(desk: Desk) -> None:
    assert "--once" in desk.refused("top", code=2)


def test_at_a_terminal_it_goes_on_until_it_is_stopped(desk: Desk) -> None:
    desk.put()
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "streamworker", "top", "--every", "0.2"],
        env={**os.environ, **desk.env, "PYTHONPATH": PYTHONPATH, "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    seen, until = b"", time.monotonic() + 30
    try:
        while seen.count(b"1 worker") + seen.count(b"0 workers") < 2 and time.monotonic() < until:
            if select.select([master], [], [], 0.1)[0]:
                seen += os.read(master, 65_536)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert b"out/s" in seen
    assert b"Traceback" not in seen


class _Shown:
    """Stands in for the picture that rich shows."""

    all: ClassVar[list[Any]] = []

    def __init__(self, **options: Any) -> None:
        self.all.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, shown: Any, *, refresh: bool) -> None:
        self.all.append(shown)


async def test_the_live_picture_outlasts_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at most while something is wrong, and ended with the first reply that did not come."""
    looks = Mock(side_effect=[(1, 1), ConnectionLost("no connection"), (2, 2), asyncio.CancelledError])

    async def look(queue: object) -> object:
        return looks()

    monkeypatch.setattr("rich.live.Live", _Shown)
    monkeypatch.setattr(top, "look", look)
    monkeypatch.setattr(top, "frame", lambda before, now, drain: f"{before}, {now}")
    monkeypatch.setattr("streamworker.cli.top.picture", lambda frame, *_, **__: frame)

    with pytest.raises(asyncio.CancelledError):
        await _live(Settings("shop", "redis://127.0.0.1:1/0"), 0)

    first, away, last = _Shown.all
    assert (first, last) == ("None, 1", "1, 2")
    assert away.renderables[0].plain == "no connection; looking again"
    assert away.renderables[1] == first, "what was seen last stays"


async def test_without_a_first_look_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.live.Live", _Shown)

    with pytest.raises(ConnectionLost):
        await _live(Settings("shop", "redis://127.0.0.1:1/0"), 0)
