"""One call of a dependency: its time limits, and what it counts as."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import httpx
import pytest

from streamworker import (
    App,
    Cancel,
    ConfigurationError,
    ConnectionLost,
    Context,
    Dependency,
    DependencyTimeout,
    LockBusy,
    LockLost,
    TransientError,
)
from streamworker.core.classify import classify
from streamworker.core.states import ErrorClass
from streamworker.flow.dependency import Dependencies, DependencyCall, Result, blamed, result_of


class Desk:
    """The dependencies of an app, and what they told."""

    def __init__(self, **limits: Any) -> None:
        self.told: list[tuple[str, Result]] = []
        self.seconds: list[float] = []
        self._dependencies = Dependencies({"carrier": Dependency(**limits)}, self._tell)

    def _tell(self, name: str, result: Result, seconds: float) -> None:
        self.told.append((name, result))
        self.seconds.append(seconds)

    def call(self, name: str = "carrier") -> DependencyCall:
        return self._dependencies.call(name)


def http_error(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://carrier.example")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


async def test_a_call_that_ends_in_time_is_ok() -> None:
    desk = Desk(timeout=5, connect_timeout=1)

    async with desk.call() as call:
        assert 4 < call.timeout <= 5
        assert call.connect_timeout == 1
        assert await call.connect(asyncio.sleep(0, "connected")) == "connected"

    assert desk.told == [("carrier", Result.OK)]
    assert 0 <= desk.seconds[0] < 5


async def test_a_call_beyond_its_time_is_interrupted() -> None:
    desk = Desk(timeout=0.01, connect_timeout=0.01)
    never = asyncio.Event()

    with pytest.raises(DependencyTimeout, match=r"carrier did not end within 0\.01 s") as late:
        async with desk.call():
            await never.wait()

    assert (late.value.dependency, late.value.seconds, late.value.phase) == ("carrier", 0.01, "total")
    assert desk.told == [("carrier", Result.TIMEOUT)]


async def test_connecting_has_a_time_limit_of_its_own() -> None:
    desk = Desk(timeout=60, connect_timeout=0.01)
    never = asyncio.Event()

    with pytest.raises(DependencyTimeout, match=r"not connected within 0\.01 s") as late:
        async with desk.call() as call:
            await call.connect(never.wait())

    assert late.value.phase == "connect"
    assert desk.told == [("carrier", Result.TIMEOUT)]


async def test_connecting_never_takes_longer_than_the_whole_call() -> None:
    desk = Desk(timeout=1, connect_timeout=1)

    async with desk.call() as call:
        await asyncio.sleep(0)

        assert call.connect_timeout == pytest.approx(call.timeout, abs=0.1)
        assert call.connect_timeout < 1


def test_each_time_limit_has_its_own_code_and_is_retried() -> None:
    """DESIGN 4."""
    found = {phase: classify(DependencyTimeout("carrier", 1, phase=phase)) for phase in ("connect", "total")}

    assert {phase: verdict.code for phase, verdict in found.items()} == {
        "connect": "dependency_connect_timeout",
        "total": "dependency_timeout",
    }
    assert {verdict.error_class for verdict in found.values()} == {ErrorClass.TRANSIENT}


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, Result.OK),
        (Cancel("not needed any more"), Result.OK),
        (http_error(404), Result.OK),
        (http_error(503), Result.ERROR),
        (http_error(500), Result.ERROR),
        (httpx.ReadTimeout("slow"), Result.TIMEOUT),
        (TimeoutError(), Result.TIMEOUT),
        (httpx.ConnectError("refused"), Result.ERROR),
        (ConnectionResetError(), Result.ERROR),
        (TransientError("busy"), Result.ERROR),
        (ValueError("no JSON"), Result.ERROR),
        (DependencyTimeout("carrier", 1, phase="total"), Result.TIMEOUT),
        (DependencyTimeout("bank", 1, phase="total"), None),
        (LockBusy("order:7", 1), None),
        (ConnectionLost("Redis is away"), None),
        (ExceptionGroup("tasks", [http_error(404), http_error(404)]), Result.OK),
        (
            ExceptionGroup("two", [http_error(404), ExceptionGroup("one", [TimeoutError()])]),
            Result.TIMEOUT,
        ),
        (ExceptionGroup("tasks", [LockLost("order:7")]), None),
    ],
)
def test_how_a_block_ends_says_how_the_call_went(error: Exception | None, result: Result | None) -> None:
    assert result_of(error, "carrier") is result


async def test_one_dependency_is_not_blamed_for_another_that_is_called_within_it() -> None:
    """Its breaker would hold back jobs that have nothing to do with the sick one."""
    told: list[tuple[str, Result]] = []
    known = Dependencies(
        {"carrier": Dependency(), "bank": Dependency()}, lambda name, result, _: told.append((name, result))
    )

    with pytest.raises(ConnectionResetError) as error:
        async with known.call("carrier"), known.call("bank"):
            raise ConnectionResetError

    assert told == [("bank", Result.ERROR)]
    assert blamed(error.value) == "bank"


async def test_what_a_block_raises_passes_through_and_is_counted() -> None:
    desk = Desk()

    with pytest.raises(ConnectionResetError):
        async with desk.call():
            raise ConnectionResetError

    assert desk.told == [("carrier", Result.ERROR)]


async def test_an_error_that_a_library_made_of_the_interruption_counts_as_a_time_out() -> None:
    desk = Desk(timeout=0.01, connect_timeout=0.01)
    never = asyncio.Event()

    async def library() -> None:
        try:
            await never.wait()
        except BaseException as error:
            raise ValueError("wrapped") from error

    with pytest.raises(ValueError, match="wrapped"):
        async with desk.call():
            await library()

    assert desk.told == [("carrier", Result.TIMEOUT)]


async def test_an_interruption_that_a_library_swallows_counts_as_a_time_out() -> None:
    """A fallback instead of the answer says nothing good of the dependency: its breaker would stay closed."""
    desk = Desk(timeout=0.01, connect_timeout=0.01)

    async with desk.call():
        try:
            await asyncio.Event().wait()
        except BaseException:
            fallback = True

    assert fallback
    assert desk.told == [("carrier", Result.TIMEOUT)]


async def test_a_handler_that_is_cancelled_from_outside_counts_nothing() -> None:
    """A shutdown says nothing of the dependency."""
    desk = Desk()
    inside, never = asyncio.Event(), asyncio.Event()

    async def handler() -> None:
        async with desk.call():
            inside.set()
            await never.wait()

    task = asyncio.create_task(handler())
    await inside.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert desk.told == []


async def test_calls_may_stand_within_each_other() -> None:
    outer, inner = Desk(), Desk(timeout=0.01, connect_timeout=0.01)

    with pytest.raises(DependencyTimeout):
        async with outer.call(), inner.call():
            await anyio.sleep_forever()

    assert inner.told == outer.told == [("carrier", Result.TIMEOUT)]


def test_a_handler_in_a_thread_gets_figures_and_is_counted() -> None:
    desk = Desk(timeout=5, connect_timeout=1)

    with desk.call() as call:
        assert 4 < call.timeout <= 5
    with pytest.raises(TimeoutError), desk.call():
        raise TimeoutError

    assert desk.told == [("carrier", Result.OK), ("carrier", Result.TIMEOUT)]


def test_a_name_that_the_app_does_not_declare_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'mail' is no dependency of the app; it has: carrier"):
        Desk().call("mail")


async def test_a_context_that_a_test_made_has_default_limits() -> None:
    app = App("shop", dependencies={"carrier": Dependency(timeout=1, connect_timeout=1)})
    seen: list[float] = []

    @app.task
    async def book(ctx: Context) -> None:
        async with ctx.dependency("carrier") as call:
            seen.append(round(call.timeout))

    await book(Context("j", "book", "k", 1, 1, "normal", None, "c"))

    assert seen == [30]
