"""What a worker has not told Redis yet, and a session that is kept up whatever happens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from streamworker.core.errors import ConnectionLost
from streamworker.core.job import Claim
from streamworker.core.outcome import Success
from streamworker.store import lua, scripts
from streamworker.store.connection import ReplyError
from streamworker.worker import renewal as module
from streamworker.worker.flight import Flight
from streamworker.worker.holdings import Holdings
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
