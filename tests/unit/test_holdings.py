"""What a worker offers back to Redis, and what it does not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from streamworker.core.job import Claim
from streamworker.core.lanes import Lane
from streamworker.settings import Settings
from streamworker.store.connection import Told
from streamworker.store.keys import Keys
from streamworker.worker.holdings import Holdings
from streamworker.worker.pump import Pump
from streamworker.worker.running import Running
from streamworker.worker.session import Entry, Session

LANES = {"normal": Lane()}
HELD: Entry = ("normal", "a", "1-0")
NEW: Entry = ("normal", "a", "2-0")


def running(entry: Entry) -> Running:
    lane, kind, name = entry
    return Running(Claim(f"job of {name}", 7, 1, 1, 0, 0, lane, kind, name, 0, None, None, b""))


def test_a_claim_that_is_held_is_not_offered() -> None:
    holdings = Holdings(LANES)
    holdings.take(running(HELD), 0.0)

    assert holdings.unknown_pending([HELD, NEW]) == [NEW]


def test_a_claim_whose_outcome_is_acknowledged_is_nobodys() -> None:
    holdings = Holdings(LANES)
    claim = running(HELD)
    holdings.take(claim, 0.0)

    holdings.let_go(claim)

    assert holdings.unknown_pending([HELD]) == [HELD]


def test_an_abandoned_claim_is_not_offered_as_long_as_it_is_pending() -> None:
    holdings = Holdings(LANES)
    claim = running(HELD)
    holdings.take(claim, 0.0)

    holdings.abandon(claim)

    assert holdings.running() == []
    assert holdings.unknown_pending([HELD, NEW]) == [NEW]
    assert holdings.unknown_pending([NEW]) == [NEW]
    assert holdings.unknown([HELD]) == [HELD]


async def test_what_the_reader_names_late_is_not_offered_while_it_runs() -> None:
    """Its entry was found pending meanwhile, under a session before this one, and the claim was given."""
    calls: list[str] = []
    sent = asyncio.Event()

    def post(told: Told, *words: Any) -> None:
        calls.append(str(words))
        sent.set()

    async def renew() -> None: ...

    link = SimpleNamespace(post=post)
    session = SimpleNamespace(renew=renew, link=link, worker="w", number=3, keys=Keys("test"))
    pump = Pump(Settings("test"), LANES, 4, cast(Session, session), start=lambda running: True)
    await pump.renewal.open()
    pump.holdings.take(running(HELD), 0.0)

    pump.offer([HELD, NEW])
    await sent.wait()

    assert any(" ".join(NEW) in call for call in calls)
    assert not any(" ".join(HELD) in call for call in calls)
