"""Which claims a worker holds, and what it offers back to Redis."""

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
from streamworker.worker.running import Running, Stop
from streamworker.worker.session import Entry, Session

LANES = {"normal": Lane()}
HELD: Entry = ("normal", "a", "1-0")
NEW: Entry = ("normal", "a", "2-0")


def running(entry: Entry, *, fence: int = 7) -> Running:
    lane, kind, name = entry
    return Running(Claim(f"job of {name}", fence, 1, 1, 0, 0, lane, kind, name, 0, None, None, b""))


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


def test_of_two_claims_of_a_job_the_older_is_lost_and_takes_nothing_along() -> None:
    """D6: the heartbeat asks for the newer one only, so nobody else tells the older one's handler."""
    holdings = Holdings(LANES)
    older, newer = running(HELD), running(HELD, fence=8)
    holdings.take(older, 0.0)
    holdings.take(newer, 1.0)
    job = newer.claim.job_id

    assert (older.stopping, newer.stopping) == (Stop.LOST, None)
    assert (holdings.of_fence(job, 7), holdings.of_fence(job, 8)) == (None, newer), "D1"
    holdings.let_go(older)
    assert holdings.by_job == {job: newer}
    holdings.let_go(newer)
    assert holdings.by_job == {}


def test_a_job_that_was_to_run_alone_and_did_not_holds_up_nobody() -> None:
    """Its claim came late, and was lost by then: while it counts as alone, nothing else is claimed."""
    holdings = Holdings(LANES)
    suspect = running(("normal", "q", "1-0"))
    holdings.take(suspect, 0.0)
    assert holdings.alone is suspect

    holdings.let_go(suspect)

    assert holdings.alone is None


async def test_what_a_lost_claim_wrote_makes_cached_values_old_all_the_same() -> None:
    stale: list[set[str]] = []
    pump = Pump(
        Settings("test"), LANES, 4, cast(Session, SimpleNamespace(keys=Keys("test"))), start=lambda _: True
    )
    pump.on_stale = stale.append
    lost = running(HELD)
    pump.holdings.take(lost, 0.0)
    lost.tell(Stop.LOST, 0.0)
    lost.stale = {"price:1"}

    pump.ended(lost)

    assert stale == [{"price:1"}]
    assert pump.holdings.by_job == {}


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
