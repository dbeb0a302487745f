"""How a runner begins, ends and reports claims, each once; without Redis."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import pytest

from streamworker import App, Context
from streamworker.core.job import Claim, encode_envelope
from streamworker.core.outcome import Fail, Release, Success
from streamworker.core.states import Reason
from streamworker.effects.transaction import EffectCommitted
from streamworker.worker import runner as module
from streamworker.worker.runner import UNRESPONSIVE_AFTER, Runner
from streamworker.worker.running import Running, Stop


class Bench:
    """A runner with what it tells."""

    def __init__(self, app: App) -> None:
        self.ended: list[Running] = []
        self.freed: list[tuple[Running, bool]] = []  # and whether it had its outcome by then
        self.over = asyncio.Event()
        self.runner = Runner(app, threads=2, ended=self._ended, freed=self._freed)

    def _ended(self, running: Running) -> None:
        self.ended.append(running)
        self.over.set()

    def _freed(self, running: Running) -> None:
        self.freed.append((running, running.outcome is not None))

    async def outcome(self) -> Any:
        """Of the only claim."""
        async with asyncio.timeout(5):
            await self.over.wait()
        (running,) = self.ended
        return running.outcome


def claim_of(task: str, *, deadline_in_ms: int | None = None, bury: bool = False) -> Running:
    envelope = encode_envelope(task, b"{}")
    claim = Claim("job-1", 7, 1, 1, 0, 0, "normal", "a", "1-0", 0, deadline_in_ms, None, envelope)
    claim.bury = bury
    return Running(claim)


@pytest.fixture
def app() -> App:
    return App("runner")


@pytest.fixture
async def bench(app: App) -> AsyncIterator[Bench]:
    bench = Bench(app)
    yield bench
    bench.runner.close()


async def test_a_handler_that_was_told_to_end_before_its_first_step_never_runs(
    app: App, bench: Bench
) -> None:
    """Its claim may be another's by then."""
    ran: list[str] = []

    @app.task
    async def work(ctx: Context) -> None:
        ran.append(ctx.job_id)

    running = claim_of("work")
    assert bench.runner.start(running)
    running.tell(Stop.LOST, 0.0)

    assert await bench.outcome() == Release(Reason.SHUTDOWN)
    assert ran == []


async def test_what_is_settled_over_its_head_is_reported_once(app: App, bench: Bench) -> None:
    go = asyncio.Event()

    @app.task
    async def deaf(ctx: Context) -> None:
        try:
            await go.wait()
        except asyncio.CancelledError:
            await go.wait()

    running = claim_of("deaf")
    bench.runner.start(running)
    await asyncio.sleep(0)
    running.tell(Stop.CANCELLED, 0.0)
    marked: list[Running] = []
    bench.runner.sweep([running], UNRESPONSIVE_AFTER, marked.append)
    settled = await bench.outcome()
    assert isinstance(settled, Fail)
    assert settled.code == "cancelled"
    assert bench.freed == [], "its slot stays taken"

    go.set()
    assert running.handler is not None
    await running.handler

    assert (bench.ended, running.outcome) == ([running], settled)
    assert bench.freed == [(running, True)]


async def test_what_has_its_outcome_is_not_looked_after_any_more(
    app: App, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis may take long to hear of it: no limit passes meanwhile, and no start is marked."""

    @app.task
    async def work(ctx: Context) -> None: ...

    running, marked = claim_of("work"), list[Running]()
    bench.runner.start(running)
    await bench.outcome()

    for now in (running.stop_at + 1, running.stop_at + 1 + UNRESPONSIVE_AFTER):
        bench.runner.sweep([running], now, marked.append)

    assert (marked, running.stopping) == ([], None)
    assert "ignores its cancellation" not in caplog.text


async def test_a_deadline_that_comes_before_the_time_limit_is_what_ends_it(app: App, bench: Bench) -> None:
    """D9: not only once the heartbeat hears of it."""

    @app.task(timeout="5m")
    async def work(ctx: Context) -> None:
        await asyncio.Event().wait()

    running = claim_of("work", deadline_in_ms=1000)
    bench.runner.start(running)
    await asyncio.sleep(0)
    bench.runner.sweep([running], asyncio.get_running_loop().time() + 1, lambda _: None)

    outcome = await bench.outcome()
    assert isinstance(outcome, Fail)
    assert outcome.code == "expired"


async def test_a_plain_function_that_returns_a_coroutine_keeps_its_slot_to_the_end(
    app: App, bench: Bench
) -> None:
    """Its thread is free before: with its slot another job would be one too many."""
    go, waits = asyncio.Event(), threading.Event()

    @app.task
    def plain(ctx: Context) -> Any:
        async def rest() -> None:
            waits.set()
            await go.wait()

        return rest()

    bench.runner.start(claim_of("plain"))
    assert await asyncio.to_thread(waits.wait, 5)
    assert bench.freed == []
    go.set()

    assert await bench.outcome() == Success()
    assert len(bench.freed) == 1


async def test_an_effect_that_a_task_group_found_committed_is_the_jobs_success(
    app: App, bench: Bench
) -> None:
    @app.task
    async def work(ctx: Context) -> None:
        found = BaseExceptionGroup("of a part", [EffectCommitted(b"1")])
        raise BaseExceptionGroup("of the handler", [ValueError("beside it"), found])

    bench.runner.start(claim_of("work"))

    assert await bench.outcome() == Success(b"1", Reason.EFFECT_COMMITTED)


async def test_a_look_for_an_effect_that_fails_leaves_the_job_to_the_next(
    app: App, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D14: whatever is wrong here, nobody knows yet whether the job had its effect."""

    async def broken(*_: object) -> NoReturn:
        raise LookupError("a fault of ours")

    monkeypatch.setattr(module, "look", broken)
    bench.runner.start(claim_of("work", bury=True))

    assert await bench.outcome() == Release(Reason.SHUTDOWN)


async def test_a_look_for_an_effect_that_was_stopped_before_it_began_is_not_made(
    app: App, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []

    async def look(*what: object) -> Any:
        looked.append(what)
        return Success(), None

    monkeypatch.setattr(module, "look", look)
    running = claim_of("work", bury=True)
    bench.runner.start(running)
    running.tell(Stop.LOST, 0.0)

    assert await bench.outcome() == Release(Reason.SHUTDOWN)
    assert looked == []
