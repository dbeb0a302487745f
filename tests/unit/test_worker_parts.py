"""What a worker does beside its jobs, without Redis: outcomes, sessions, heartbeats, suspects."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from streamworker.core.errors import ConnectionLost
from streamworker.core.job import Claim
from streamworker.core.outcome import Success
from streamworker.settings import Settings
from streamworker.store import lua, scripts
from streamworker.store.connection import ReplyError, SyncLink
from streamworker.store.keys import Keys
from streamworker.worker import renewal as module
from streamworker.worker.flight import Flight
from streamworker.worker.heartbeat import Answer, Heartbeat
from streamworker.worker.holdings import Holdings
from streamworker.worker.pump import Pump
from streamworker.worker.quarantine import Quarantine, with_struck
from streamworker.worker.renewal import Renewal
from streamworker.worker.running import Running
from streamworker.worker.session import Entry, Session
from streamworker.worker.unsent import REFUSALS, Unsent

BAD_ROW = ReplyError("ERR a row cannot be read, on @user_script:7.")


def ended(number: int) -> Running:
    claim = Claim(f"job-{number}", number, 1, 1, 0, 0, "normal", "a", f"{number}-0", 0, None, None, b"")
    return Running(claim, outcome=Success())


class Desk:
    """Rows that are sent to a script which cannot read that of one job."""

    def __init__(self, jobs: list[Running], poison: Running) -> None:
        self.holdings = Holdings(["normal"])
        for job in jobs:
            self.holdings.take(job, 0.0)
        self.unsent = Unsent(self.holdings)
        self.unsent.ended += jobs
        self.poison = poison
        self.calls: list[list[Running]] = []

    def send(self) -> None:
        settled, marked = self.unsent.take()
        self.calls.append(settled)
        call = cast(scripts.Call, SimpleNamespace(script=lua.load("exchange")))
        flight = Flight(call, settled, marked, None, None, False, 0, 0.0)
        if self.poison in settled:
            self.unsent.put_back(flight)
            self.unsent.refused(flight, BAD_ROW)
        else:
            self.unsent.accepted()
            for job in settled:
                self.holdings.let_go(job)


def test_a_row_that_is_refused_is_found_among_others_and_given_up_after_its_third_time_alone() -> None:
    jobs = [ended(number) for number in range(1, 9)]
    desk = Desk(jobs, jobs[5])

    while desk.unsent:
        desk.send()
        assert len(desk.calls) < 50

    assert desk.calls.count([jobs[5]]) == REFUSALS
    assert desk.holdings.by_job == {}
    assert desk.holdings.unknown([job.place for job in jobs]) == [
        job.place for job in jobs if job is not jobs[5]
    ]


def test_calls_grow_again_once_they_pass() -> None:
    jobs = [ended(number) for number in range(1, 9)]
    desk = Desk(jobs, jobs[0])
    while desk.unsent:
        desk.send()

    later = [ended(number) for number in range(10, 40)]
    desk.unsent.ended += later
    before = len(desk.calls)
    while desk.unsent:
        desk.send()

    assert len(desk.calls) - before < 4


def test_what_was_not_answered_goes_again_before_all_others() -> None:
    jobs = [ended(number) for number in range(1, 4)]
    desk = Desk(jobs, ended(0))
    settled, marked = desk.unsent.take()
    late = ended(4)
    desk.unsent.ended.append(late)

    desk.unsent.put_back(Flight(cast(Any, None), settled, marked, None, None, False, 0, 0.0))

    assert desk.unsent.take()[0] == [*jobs, late]


class Fickle:
    """A session that fails in these ways before it is renewed."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def renew(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    async def pending(self) -> list[Entry]:
        return []


async def _renewed(renewal: Renewal) -> None:
    renewal.begin()
    task = renewal._syncing
    assert task is not None
    await task


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the attempts that were waited for."""
    found: list[int] = []

    def backoff(attempt: int) -> float:
        found.append(attempt)
        return 0.0

    monkeypatch.setattr(module, "backoff", backoff)
    return found


async def test_a_session_comes_again_whatever_went_wrong(pauses: list[int]) -> None:
    """An error that nobody thought of would leave the worker without one for ever."""
    session = Fickle(ConnectionLost("away"), LookupError("a fault of ours"))
    heard: list[list[Entry]] = []
    renewal = Renewal(cast(Session, session), heard.append)

    await _renewed(renewal)

    assert (renewal.ready, heard, pauses) == (True, [[]], [2, 3])


async def test_a_session_that_works_lets_the_next_failure_wait_for_nothing(pauses: list[int]) -> None:
    session = Fickle()
    renewal = Renewal(cast(Session, session), lambda _: None)
    await _renewed(renewal)
    renewal.works()

    await _renewed(renewal)
    assert pauses == []
    await _renewed(renewal)
    assert pauses == [2], "but one that never worked does"


class Deaf:
    """A connection that leads to a server which is no primary any more."""

    def __init__(self) -> None:
        self.closed = 0

    def script(self, *_: object) -> NoReturn:
        raise ReplyError("READONLY You can't write against a read only replica.")

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def beating() -> SimpleNamespace:
    """A pump that holds nothing, as a heartbeat sees it, and a heartbeat of it."""

    async def away(*_: object) -> NoReturn:
        raise ConnectionLost("away")

    session = SimpleNamespace(link=SimpleNamespace(script=away), worker="w")
    standing = SimpleNamespace(out_of_touch=lambda: None, heard=lambda *_: None)
    return SimpleNamespace(session=session, standing=standing, holdings=Holdings(["normal"]))


async def test_a_worker_is_out_of_touch_after_a_lease_and_not_after_a_beat(beating: SimpleNamespace) -> None:
    """D10: one lost beat ends no handler; and each beat asks anew where the primary is (R42)."""
    out = asyncio.Event()
    beating.standing.out_of_touch = out.set
    heartbeat = Heartbeat(Settings("x", lease=0.3), cast(Pump, beating), on_session_lost=lambda: None)
    link = Deaf()
    heartbeat._link = cast(SyncLink, link)
    began = time.monotonic()

    heartbeat.start()
    async with asyncio.timeout(5):
        await out.wait()
    took = time.monotonic() - began
    beats = link.closed
    heartbeat.stop()
    await asyncio.to_thread(heartbeat._thread.join, 5)

    assert took >= 0.3
    assert beats > 1


async def test_a_worker_that_has_said_good_bye_has_lost_no_session(beating: SimpleNamespace) -> None:
    """A beat that was under way finds its key gone, and would begin another one."""
    lost: list[None] = []
    heartbeat = Heartbeat(Settings("x"), cast(Pump, beating), on_session_lost=lambda: lost.append(None))
    gone = Answer(False, set(), {})

    heartbeat._tell({}, gone)
    await asyncio.sleep(0)
    assert len(lost) == 1
    heartbeat.stop()
    heartbeat._tell({}, gone)
    await asyncio.sleep(0)
    assert len(lost) == 1


async def test_of_two_lanes_with_suspects_neither_waits_for_all_of_the_other() -> None:
    """D22: one at a time, in turn."""
    left, read = {"priority": 2, "normal": 2}, list[str]()

    async def ready() -> None: ...

    async def run_apart(lane: str) -> bool:
        read.append(lane)
        left[lane] -= 1
        return left[lane] > 0

    children = SimpleNamespace(ready=ready)
    quarantine = Quarantine(
        cast(Pump, SimpleNamespace(run_apart=run_apart)), cast(Any, None), cast(Any, children), [], Keys("x")
    )

    await quarantine._apart(deque(left))

    assert read == ["priority", "normal"] * 2


async def test_a_suspect_that_somebody_runs_is_waited_for_by_nobody() -> None:
    """Who claims nothing else until it can be had would do so again and again."""
    pending = 0

    async def command(*words: Any) -> Any:
        return {"XLEN": 1, "XPENDING": [pending], "GET": None}[words[0]]

    assert await with_struck(command, Keys("x"), ["normal"]) == ["normal"]
    pending = 1
    assert await with_struck(command, Keys("x"), ["normal"]) == []
