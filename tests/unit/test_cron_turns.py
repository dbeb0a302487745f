"""What one worker does for the crons of its app."""

from __future__ import annotations

import asyncio

import pytest

from streamworker import App, Context
from streamworker.core.cron import Cron
from streamworker.store.placing import restoring
from streamworker.worker import crons as turns
from streamworker.worker.crons import Crons, _Answer

TICK = 1_767_225_600_000


async def sweep(ctx: Context) -> None: ...


async def report(ctx: Context) -> None: ...


def crons_of(namespace: str) -> tuple[Crons, dict[str, Cron]]:
    app = App("shop", redis_url="redis://nowhere", namespace=namespace)
    for handler in (sweep, report):
        app.cron("* * * * * *")(handler)
    return Crons(app, "w"), app.crons


async def test_a_tick_has_another_id_in_each_namespace() -> None:
    """One Postgres may hold the mirrors of many, and its jobs are told apart by id alone."""
    ids = set()
    for namespace in ("a", "b"):
        crons, declared = crons_of(namespace)
        ids.add((await crons._job(declared["sweep"], TICK)).job_id)

    assert len(ids) == 2


async def test_a_cron_that_cannot_be_asked_for_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one for whose task a lane's `accept` raises: it is first in line at every tick."""
    monkeypatch.setattr(turns, "STAND_BACK_MS", (0, 0))
    crons, _ = crons_of("a")
    asked = asyncio.Event()

    async def ask(cron: Cron, tick: int | None) -> _Answer:
        crons._set_clock(TICK)
        if tick is not None and cron.name == "sweep":
            raise ZeroDivisionError("accept")
        if tick is not None:
            asked.set()
        return _Answer("OK", TICK - 1000, 0, cron.schedule.text)

    monkeypatch.setattr(crons, "_ask", ask)
    running = asyncio.create_task(crons.run())
    try:
        async with asyncio.timeout(5):
            await asked.wait()
    finally:
        crons.stop()
        await running

    assert "ZeroDivisionError" in caplog.text


def test_a_clock_that_is_put_back_stops_no_cron() -> None:
    """As when the address leads to another server: workers that are up go by its clock, as new ones do."""
    crons, declared = crons_of("a")
    crons._turns = [turns._Turn(cron, TICK + 3_600_000, 0) for cron in declared.values()]

    crons._set_clock(TICK + 3_599_500)
    crons._set_clock(TICK + 3_599_400)
    assert {turn.tick for turn in crons._turns} == {TICK + 3_600_000}, "some ms are the way of a reply"

    crons._set_clock(TICK)
    assert {turn.tick for turn in crons._turns} == {TICK + 1_000}


async def test_crons_that_have_to_wait_say_so_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each cron asks again each second while Redis is being restored, which may take an hour."""
    monkeypatch.setattr(turns, "STAND_BACK_MS", (0, 0))
    monkeypatch.setattr(turns, "AGAIN_AFTER_MS", 20)
    monkeypatch.setattr(turns, "backoff", lambda _: 0.0)
    crons, _ = crons_of("a")
    asked, refused = asyncio.Event(), 0

    async def ask(cron: Cron, tick: int | None) -> _Answer:
        nonlocal refused
        crons._set_clock(TICK)
        if tick is not None and refused < 9:
            refused += 1
            raise restoring()
        if tick is not None:
            asked.set()
        return _Answer("OK", TICK - 1000, 0, cron.schedule.text)

    monkeypatch.setattr(crons, "_ask", ask)
    running = asyncio.create_task(crons.run())
    try:
        async with asyncio.timeout(5):
            await asked.wait()
    finally:
        crons.stop()
        await running

    assert caplog.text.count("being restored") == 1
