"""What a breaker is declared as, how its line is read, and what a worker tells of calls."""

from __future__ import annotations

import asyncio

import pytest

from streamworker import Breaker, ConfigurationError, Dependency, DurationError
from streamworker.core.breaker import BreakerState, read_standings
from streamworker.core.gates import breaker_of
from streamworker.flow.dependency import Result
from streamworker.worker.calls import Calls

GATE = breaker_of("carrier")


def test_the_figures_are_those_that_the_scripts_take() -> None:
    assert Breaker().figures == "50,20,10000,10000,3,60000"
    chosen = Breaker(failed=0.25, calls=5, window="1m", open_for=0.5, probes=1, ramp=0)
    assert chosen.figures == "25,5,60000,500,1,0"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"failed": 0}, "share from 0.01 to 1"),
        ({"failed": 50}, "share from 0.01 to 1"),
        ({"failed": True}, "share from 0.01 to 1"),
        ({"calls": 0}, "calls= is a whole number"),
        ({"probes": 1.5}, "probes= is a whole number"),
        ({"window": 0}, "window= must be"),
        ({"open_for": "10ms"}, "open_for= must be"),
    ],
)
def test_what_makes_no_breaker_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Breaker(**options)  # type: ignore[arg-type]


def test_a_ramp_is_a_duration() -> None:
    with pytest.raises(DurationError, match="a breaker's ramp"):
        Breaker(ramp="slowly")


def test_a_dependency_has_a_breaker_unless_it_says_none() -> None:
    assert Dependency().breaker == Breaker()
    assert Dependency(breaker=None).breaker is None
    with pytest.raises(ConfigurationError, match=r"Breaker\(\.\.\.\), or None"):
        Dependency(breaker=False)  # type: ignore[arg-type]


def test_the_lines_of_breakers_are_read() -> None:
    found = read_standings(
        f"{GATE} open 1000 11000 2 0 0 0 - 6 of 10 calls failed\n"
        "breaker:dependency:mail closed 1000 0 0 0 5 60000 ada@host they said so\n"
        "breaker:dependency:bank closing 1000 0 0 0 5 60000 - 3 calls went well"
    )

    carrier, mail, bank = found.values()
    assert (carrier.dependency, carrier.state, carrier.until) == ("carrier", BreakerState.OPEN, 11_000)
    assert (carrier.by, carrier.reason) == (None, "6 of 10 calls failed")
    assert (mail.by, mail.state, mail.until, mail.reason) == ("ada@host", "closed", None, "they said so")
    assert bank.until == 61_000, "the end of its ramp"
    assert read_standings("") == {}


async def test_calls_are_told_once_and_by_gate() -> None:
    calls = Calls({"carrier": GATE}, lambda: None)
    for result in (Result.OK, Result.OK, Result.TIMEOUT, Result.ERROR):
        calls.count("carrier", result)
    calls.count("mail", Result.ERROR)  # it has no breaker

    assert calls.take() == f"{GATE} 2 1 1"
    assert calls.take() == ""
    calls.close()


async def test_calls_of_a_job_that_runs_on_are_told_by_time() -> None:
    heard = asyncio.Event()
    calls = Calls({"carrier": GATE}, heard.set)
    calls.count("carrier", Result.OK)

    async with asyncio.timeout(5):
        await heard.wait()
    assert calls.due
    calls.take()
    assert not calls.due
