"""Cases of what travels: values that JSON cannot hold, numbers to the last bit, megabytes, dates."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from streamworker import (
    App,
    Client,
    Context,
    InvalidArgument,
    PayloadTooLarge,
    PersistentError,
    Retry,
    SerializationError,
    SyncClient,
    TransientError,
)
from streamworker.store.events import decode
from tests.integration.history import Observer
from tests.integration.serving import failure, serving
from tests.servers import BenchServer

LIMIT = 262_144
MEGABYTES = "x" * 10_000_000


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


# --- what cannot travel ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), r"args\.value\.in\[1\]"),
        ({1, 2}, r"args\.value\.in\[1\]"),
        (b"bytes", r"args\.value\.in\[1\]"),
        ("\ud83d", r"args\.value\.in\[1\]"),
        (circle(), r"args\.value\.in\[1\]"),
        (deep(2_000), r"args\.value\.in\[1\]"),
        ({3: "three"}, r"args\.value\.in\[1\]"),
        (datetime(2026, 10, 25, tzinfo=UTC), r"args\.value\.in\[1\]"),
        (timedelta(1), r"args\.value\.in\[1\]"),
        (1j, r"args\.value\.in\[1\]"),
        (iter([]), r"args\.value\.in\[1\]"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_cannot_travel_is_refused_with_its_path_by_every_producer(
    app: App, client: Client, server: BenchServer, namespace: str, observer: Observer, value: Any, path: str
) -> None:
    """B47: by tasks, by both clients and in batches, before Redis hears of it."""

    @app.task
    async def take(ctx: Context, value: Any) -> None: ...

    nested = {"in": [1, value]}
    refused: list[str] = []
    with SyncClient(server.url, app="cases", namespace=namespace) as sync:
        await client.enqueue("known", {})  # the only thing that Redis hears of
        before = observer.stats()
        for enqueue in (
            lambda: take.enqueue(nested),
            lambda: app.enqueue_many([take.call(1), take.call(nested)]),
            lambda: client.enqueue("take", {"value": nested}),
        ):
            with pytest.raises(SerializationError, match=path) as error:
                await enqueue()
            refused.append(error.value.path)
        with pytest.raises(SerializationError, match=path):
            sync.enqueue("take", {"value": nested})

    assert observer.stats() == before
    assert observer.redis.xlen(observer.keys.stream("normal")) == 1


# --- numbers ---------------------------------------------------------------------------------------------

NUMBERS: list[Any] = [
    *(2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)),
    *(0.1, -0.0, 1e-400, 5e-324, 1.7976931348623157e308, 1 / 3, 1e22, 123456789012345680.0),
]


async def test_numbers_come_back_to_the_last_bit(app: App, observer: Observer) -> None:
    """B51: as arguments and as results, over a retry; the envelope is what was enqueued, byte for byte."""
    seen: list[Any] = []

    @app.task(retry=Retry.schedule("1ms", unknown=["1ms"]))
    async def echo(ctx: Context, numbers: list[Any], empty: dict[str, Any]) -> Any:
        seen.append((numbers, empty))
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        return {"numbers": numbers, "empty": [empty, []]}

    call = echo.call(NUMBERS, {"a": [], "b": {}})
    (job,) = await app.enqueue_many([call])
    ((_, fields),) = observer.redis.xrange(observer.keys.stream("normal"))
    assert fields[b"env"] == call.job.envelope
    async with serving(app):
        result = await job.result(10)

    assert [bits(one) for one in result["numbers"]] == [bits(one) for one in NUMBERS]
    assert result["empty"] == [{"a": [], "b": {}}, []]
    assert len(seen) == 2
    for numbers, empty in seen:
        assert [bits(one) for one in numbers] == [bits(one) for one in NUMBERS]
        assert empty == {"a": [], "b": {}}


def bits(number: Any) -> Any:
    return struct.pack(">d", number) if isinstance(number, float) else number


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**30, 2**63], ids=str)
async def test_numbers_that_others_would_bend_are_refused(
    app: App, client: Client, observer: Observer, number: float
) -> None:
    """B51: as arguments in the producer, as results as the handler's error, with the path of the value."""

    @app.task
    async def give(ctx: Context) -> Any:
        return {"total": [number]}

    with pytest.raises(SerializationError, match=r"args\.n"):
        await client.enqueue("give", {"n": number})
    async with serving(app):
        failed = await failure(await give.enqueue())

    assert failed.error_class == "persistent"
    assert "result.total[0]" in failed.error
    assert observer.leftovers() == []


# --- megabytes -------------------------------------------------------------------------------------------


async def test_ten_megabytes_are_refused_or_cut_and_break_no_connection(
    app: App, client: Client, server: BenchServer, namespace: str, observer: Observer
) -> None:
    """B49: too large a payload is refused in the producer, a result is the job's error, a message is cut."""

    @app.task(retry=Retry.schedule("1ms", unknown=["1ms"]))
    async def roar(ctx: Context) -> None:
        raise RuntimeError(MEGABYTES)

    @app.task
    async def refuse(ctx: Context) -> None:
        raise PersistentError(MEGABYTES, code="refused")

    @app.task
    async def group(ctx: Context) -> None:
        raise ExceptionGroup("all", [PersistentError(MEGABYTES) for _ in range(4)])

    @app.task
    async def give(ctx: Context, size: int) -> str:
        return "x" * size

    with SyncClient(server.url, app="cases", namespace=namespace) as sync:
        await client.enqueue("give", {"size": 1})
        sync.enqueue("give", {"size": 1})
        connections = observer.redis.info("stats")["total_connections_received"]
        with pytest.raises(PayloadTooLarge) as large:
            await client.enqueue("give", {"size": MEGABYTES})
        with pytest.raises(PayloadTooLarge):
            sync.enqueue("give", {"size": MEGABYTES})
        with pytest.raises(PayloadTooLarge):
            await app.enqueue_many([give.call(MEGABYTES)])  # type: ignore[arg-type]
        for key in ("k" * 10_000, "k" * 513):
            with pytest.raises(InvalidArgument):
                await client.enqueue("give", {"size": 1}, key=key)
        assert observer.redis.info("stats")["total_connections_received"] == connections
    assert large.value.limit == LIMIT

    async with serving(app):
        jobs = [await task.enqueue() for task in (roar, refuse, group)]
        ends = [await failure(job) for job in jobs]
        too_large = await failure(await give.enqueue(10_000_000))
        fits = await (await give.enqueue(LIMIT - 2)).result(5)
        errors = sum(app.queue().caller.link.errors.values())

    assert len(fits) == LIMIT - 2
    assert too_large.code == "payload_too_large"
    for end in ends:
        assert len(end.error.encode()) <= 8_192
        assert "cut" in end.error
    for letter in observer.dead_letters().values():
        assert len(letter["error"].encode()) <= 8_192
    assert errors == 0
    assert observer.leftovers() == []
    log = observer.redis.memory_usage(observer.keys.events, samples=0)
    assert log < 50_000, "the log has no error texts"


@pytest.mark.parametrize("ends", ["results", "retries"])
async def test_large_outcomes_that_come_at_once_travel_in_several_calls(
    app: App, observer: Observer, ends: str
) -> None:
    """B49, R46: no call carries much more than a megabyte, or everybody else would wait for it."""
    count, large = 12, "x" * 250_000
    all_here = asyncio.Barrier(count)

    @app.task(retry=Retry.schedule("1s", unknown=["1s"]))
    async def work(ctx: Context, payload: str) -> str:
        await all_here.wait()
        if ends == "retries" and ctx.attempt == 1:
            raise TransientError("once more")
        return payload

    async with serving(app, concurrency=count, lanes=["normal"]):
        jobs = [await work.enqueue(large) for _ in range(count)]
        results = await asyncio.gather(*(job.result(20) for job in jobs))

    assert results == [large] * count
    ended = [
        sum(edge.to_status in ("succeeded", "retry_scheduled") for edge in decode(fields))
        for _, fields in observer.redis.xrange(observer.keys.events)
    ]
    assert sum(ended) == count * (2 if ends == "retries" else 1)
    assert max(ended) <= 4
    assert observer.leftovers() == []


@pytest.mark.parametrize("what", ["nested group", "leaves the process", "text of another type"])
async def test_an_error_that_cannot_be_told_still_ends_its_job(
    app: App, observer: Observer, what: str
) -> None:
    """B49: whatever the exception does when it is looked at, the job has an outcome and the slot is free."""

    class Leaving(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    class Odd(Exception):
        def __str__(self) -> str:
            return 5  # type: ignore[return-value]  # noqa: PLE0307

    @app.task(retry=Retry.never())
    async def fail(ctx: Context) -> None:
        error: Exception = ValueError("deep down")
        for _ in range(3_000):
            error = ExceptionGroup("g", [error])
        raise {"nested group": error, "leaves the process": Leaving(), "text of another type": Odd()}[what]

    @app.task
    async def after(ctx: Context) -> str:
        return "there is a slot"

    async with serving(app, concurrency=1):
        failed = await failure(await fail.enqueue())
        assert await (await after.enqueue()).result(5) == "there is a slot"

    assert failed.error_class == "unknown"
    assert observer.leftovers() == []


# --- dates -----------------------------------------------------------------------------------------------


async def test_a_date_is_no_delay_and_no_argument_and_crashes_nobody(
    app: App, client: Client, server: BenchServer, namespace: str, observer: Observer
) -> None:
    """B53: naive, aware or at an hour that comes twice: refused in the producer; due times are Redis's."""

    @app.task
    async def take(ctx: Context, value: Any = None) -> str:
        return json.dumps(value)

    naive = datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001 - that is the fault
    twice = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris"))
    for when in (naive, twice, twice.date(), twice.time(), "2026-10-25T02:30:00+01:00"):
        for option in ({"delay": when}, {"deadline": when}):
            with pytest.raises(ValueError, match=r"delay|deadline"):
                await client.enqueue("take", {}, **option)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=r"delay|deadline"):
                take.options(**option)  # type: ignore[arg-type]
        if not isinstance(when, str):
            with pytest.raises(SerializationError, match=r"args\.value"):
                await client.enqueue("take", {"value": when})
    assert observer.redis.keys(f"{observer.keys.tag}:job:*") == []

    with SyncClient(server.url, app="cases", namespace=namespace) as sync:
        # A time to come is told as what is left until then, which no clock of ours can bend.
        later = sync.enqueue("take", {"value": twice.isoformat()}, delay=timedelta(milliseconds=50))
    async with serving(app):
        assert await client.result(later.id, timeout=5) == json.dumps(twice.isoformat())
