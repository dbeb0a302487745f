"""The six rules that `App("x")` alone keeps, with no option set.

At most 4 attempts; only errors that may pass are retried; a key on every write; a lock only where asked; no
cache in any decision; every transition recorded.
"""

from __future__ import annotations

import ast
import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

import streamworker
from streamworker import (
    App,
    Context,
    JobFailed,
    PersistentError,
    Retry,
    RetryAfter,
    Status,
    Task,
    TransientError,
)
from streamworker.core.job import Claim
from streamworker.core.outcome import Fail
from streamworker.core.outcome import Retry as RetryOutcome
from streamworker.core.retry import decide_recovery
from streamworker.store.keys import CATALOGUE
from streamworker.worker.outcomes import raised
from tests.integration.history import Observer
from tests.integration.serving import serving
from tests.servers import BenchServer
from tests.waiting import wait_until_async

PACKAGE = Path(streamworker.__file__).parent
#: Milliseconds: 30 s, 2 min, 10 min, each spread by 10 % at most.
STEPS = (30_000, 120_000, 600_000)
UNKNOWN_STEPS = (120_000, 600_000)


@pytest.fixture
def task() -> Task[..., Any]:
    """A task of `App("x")` that declares nothing."""

    async def any_task(ctx: Context) -> None: ...

    return App("x").task(any_task)


def claim(attempt: int) -> Claim:
    return Claim(
        job_id="018f3f2e-0000-7000-8000-000000000000",
        fence=attempt,
        attempt=attempt,
        starts=attempt,
        strikes=0,
        epoch=0,
        lane="normal",
        kind="a",
        entry="1-0",
        age_ms=0,
        deadline_in_ms=None,
        unknown_age_ms=None,
        envelope=b"",
    )


def delays(task: Task[..., Any], error: BaseException) -> list[int]:
    """The delays before each retry of a job whose handler always raises this, until it fails for good."""
    found: list[int] = []
    for attempt in range(1, 100):
        outcome = raised(error, claim(attempt), task)
        if isinstance(outcome, Fail):
            return found
        assert isinstance(outcome, RetryOutcome)
        found.append(outcome.delay_ms)
    raise AssertionError(f"{error!r} is retried for ever")


def http(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://carrier.test")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


def spread(steps: tuple[int, ...], found: list[int]) -> bool:
    return len(steps) == len(found) and all(
        0.9 * step <= delay <= 1.1 * step for step, delay in zip(steps, found, strict=True)
    )


# --- 1: at most 4 attempts -------------------------------------------------------------------------------


def test_a_job_gets_4_attempts_after_30_s_2_min_and_10_min(task: Task[..., Any]) -> None:
    """DESIGN 4: the default policy, with small jitter that is the same on every replay."""
    found = delays(task, TransientError("no"))

    assert task.policy.retry.attempts == 4
    assert spread(STEPS, found)
    assert found == delays(task, TransientError("no"))
    assert found != list(STEPS)  # jobs that failed together do not come back together


def test_no_error_gets_more_than_4(task: Task[..., Any]) -> None:
    """DESIGN 4: one counter for all error classes."""
    errors: list[BaseException] = [
        *(TransientError(), RetryAfter(1), PersistentError(), ValueError(), TimeoutError(), OSError()),
        *(KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError(), MemoryError(), StopIteration()),
        *(http(status) for status in range(400, 600)),
        ExceptionGroup("several", [TransientError(), TimeoutError()]),
    ]
    assert max(len(delays(task, error)) + 1 for error in errors) == 4


# --- 2: only what may pass is retried ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        TransientError("busy"),
        TimeoutError(),
        ConnectionResetError(),
        ConnectionRefusedError(),
        socket.gaierror(socket.EAI_AGAIN, "try again"),
        http(429),
        http(502),
        http(503),
        http(504),
        httpx.ReadTimeout("slow"),
        httpx.ConnectError("down"),
        requests.exceptions.ConnectTimeout(),
        requests.exceptions.ConnectionError(),
    ],
    ids=lambda error: (
        f"{type(error).__name__}:{getattr(getattr(error, 'response', None), 'status_code', '')}"
    ),
)
def test_what_may_pass_is_retried(task: Task[..., Any], error: Exception) -> None:
    """DESIGN 4, transient: timeouts, connection errors, 429, 502, 503, 504."""
    assert spread(STEPS, delays(task, error))


@pytest.mark.parametrize(
    "error", [ValueError("what"), KeyError("k"), ZeroDivisionError(), AssertionError(), http(500), http(418)]
)
def test_what_is_unknown_is_retried_twice(task: Task[..., Any], error: Exception) -> None:
    """DESIGN 4, unknown: 2 retries, at 2 min and 10 min."""
    assert spread(UNKNOWN_STEPS, delays(task, error))


@pytest.mark.parametrize(
    "error", [PersistentError("no"), *(http(status) for status in (400, 401, 403, 404, 409, 410, 422))]
)
def test_what_will_not_pass_is_never_retried(task: Task[..., Any], error: Exception) -> None:
    """DESIGN 4, persistent: failed at once."""
    assert delays(task, error) == []


def test_a_killed_process_counts_as_an_unknown_error(task: Task[..., Any]) -> None:
    """DESIGN 4: process killed before it could hand back: unknown; the third attempt is the last."""
    fates = [
        decide_recovery(
            task.policy.retry, job_id="j", status=Status.PROCESSING, attempt=attempt, strikes=attempt - 1
        )
        for attempt in (1, 2, 3)
    ]

    assert [getattr(fate, "retry", False) for fate in fates] == [True, True, False]


# --- 3 and 6: a key on every write, every transition recorded ----------------------------------------------


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    async with App("x", redis_url=valkey.url, namespace=namespace) as app:
        yield app


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


async def live_to_the_end(job: Any, observer: Observer) -> JobFailed:
    """Follow a job through all its retries, letting each be due at once: the policy waits for minutes."""
    schedule = observer.keys.schedule

    def waits_for_a_retry() -> bool:
        return (observer.redis.zscore(schedule, job.id) or 0) > 1

    ending = asyncio.ensure_future(job.result(30))
    while not ending.done():
        await wait_until_async(lambda: ending.done() or waits_for_a_retry(), what="it waits, or is over")
        observer.redis.zadd(schedule, {job.id: 1}, xx=True)
    with pytest.raises(JobFailed) as failed:
        await ending
    return failed.value


@pytest.mark.usefixtures("no_leaks")
async def test_each_attempt_has_the_key_and_each_move_is_in_the_log(app: App, observer: Observer) -> None:
    """D11: attempts and replays keep the key, else it is the job id; DESIGN 3: versions are consecutive."""
    keys: dict[str, list[tuple[int, str]]] = {}

    @app.task
    async def pay(ctx: Context) -> None:
        keys.setdefault(ctx.job_id, []).append((ctx.attempt, ctx.key))
        raise TransientError("the bank is closed")

    async with serving(app):
        given, plain = await pay.options(key="invoice:7").enqueue(), await pay.enqueue()
        ends = await asyncio.gather(live_to_the_end(given, observer), live_to_the_end(plain, observer))

    assert keys[given.id] == [(attempt, "invoice:7") for attempt in (1, 2, 3, 4)]
    assert keys[plain.id] == [(attempt, plain.id) for attempt in (1, 2, 3, 4)]
    assert [end.code for end in ends] == ["transient", "transient"]
    for job in (given, plain):
        edges = observer.transitions(job.id)
        assert [edge.version for edge in edges] == list(range(1, len(edges) + 1))
        assert [str(edge.to_status) for edge in edges] == [
            "queued",
            *("claimed", "processing", "retry_scheduled") * 3,
            *("claimed", "processing", "failed_terminal"),
        ]
        assert observer.record(job.id).version == len(edges)
        assert observer.dead_letters()[job.id]["version"] == str(len(edges))


# --- 4: a lock only where asked ---------------------------------------------------------------------------


@pytest.mark.usefixtures("no_leaks")
async def test_jobs_with_the_same_arguments_run_side_by_side(app: App, observer: Observer) -> None:
    """DESIGN 9: a lock last, and only where it is asked for: two jobs of one task and argument meet here."""
    meeting = asyncio.Barrier(2)

    @app.task(retry=Retry.never(), timeout="5s")
    async def meet(ctx: Context, shipment_id: int) -> None:
        await meeting.wait()

    async with serving(app):
        jobs = [await meet.enqueue(7), await meet.enqueue(7)]
        await asyncio.gather(*(job.result(8) for job in jobs))

    kinds = {spec.pattern.partition(":")[0] for spec in CATALOGUE}
    used = {
        key.decode()[len(observer.keys.tag) + 1 :] for key in observer.redis.keys(f"{observer.keys.tag}:*")
    }
    assert {name.partition(":")[0] for name in used} <= kinds
    assert not {name for name in used if "lock" in name or "gate" in name}


# --- 5: no cache in any decision --------------------------------------------------------------------------


def imports_of(path: Path) -> Iterator[str]:
    """Every module, and every name of a module, that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("layer", ["core", "store"])
def test_no_decision_reads_a_cache(layer: str) -> None:
    """DESIGN 9: a cache never decides a job's fate: `core` and `store` cannot import it, nor keep their own.

    The text of the Lua files is kept once it is read; it does not change while a process lives. Names of the
    parts of a line of the log are taken apart once, and so is a URL of sentinels, with whom to ask first.
    """
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in (PACKAGE / layer).rglob("*.py")
        for name in imports_of(path)
        if "cache" in name.lower() or name.startswith("streamworker.flow")
    }

    assert found <= {
        "store/lua.py: functools.cache",
        "store/events.py: functools.lru_cache",
        "store/sentinels.py: functools.lru_cache",
    }


def test_the_same_facts_always_give_the_same_decision(task: Task[..., Any]) -> None:
    """DESIGN 1: Python decides, by pure functions: same job, same attempt, same error, same next run."""
    other = App("x").task(name="any_task")(task.handler)

    for error in (TransientError("a"), ValueError("b"), RetryAfter(5), http(503)):
        outcomes = {raised(error, claim(2), each) for each in (task, other, task)}
        assert len(outcomes) == 1
