"""`ctx.cache`: one load for all, nothing older than its time, and no job that fails for its sake."""

from __future__ import annotations

import asyncio
import contextvars
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from streamworker import App, Cache, ConfigurationError, Context, InvalidArgument
from streamworker.flow import cache as cache_module
from streamworker.flow.locks import key_of
from streamworker.store import scripts
from streamworker.store.keys import Keys
from tests.integration.serving import serving
from tests.servers import BenchServer, ServerFactory, async_client
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")


#: Jobs that run while the cache comes to harm.
JOBS = int(os.environ.get("CACHE_JOBS", "200"))
#: Longer than a machine under load lets an answer wait: a cache that is late is left alone for a second.
PATIENCE = "5s"


class Source:
    """Where values come from; counts how often it is asked."""

    def __init__(self) -> None:
        self.value = 1
        self.loads = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def load(self) -> int:
        self.loads += 1
        value = self.value
        await self.goes_on.wait()
        return value


@pytest.fixture
async def app(server: BenchServer, namespace: str) -> AsyncIterator[App]:
    async with App(
        "cached", redis_url=server.url, namespace=namespace, lease="1s", cache=Cache(patience=PATIENCE)
    ) as app:
        results: Counter[str] = Counter()
        app.cache.told = lambda result: results.update([result])
        app.cache.results = results  # type: ignore[attr-defined]
        yield app


@pytest.fixture
async def other(server: BenchServer, namespace: str) -> AsyncIterator[App]:
    """The same app in another process, as far as Redis can tell."""
    async with App(
        "cached", redis_url=server.url, namespace=namespace, lease="1s", cache=Cache(patience=PATIENCE)
    ) as app:
        yield app


def results(app: App) -> dict[str, int]:
    return dict(app.cache.results)  # type: ignore[attr-defined]


async def redis(app: App, *command: Any) -> Any:
    return await app.queue().caller.command(*command)


async def test_a_value_is_loaded_once_and_believed_for_its_time(app: App) -> None:
    source = Source()

    assert [await app.cache.get("k", source.load) for _ in range(3)] == [1, 1, 1]

    assert source.loads == 1
    assert results(app) == {"miss": 1, "hit": 2}
    ttl = await redis(app, "PTTL", Keys(app.settings.namespace).cache("k"))
    assert 0.9 * 300_000 - 5000 < ttl <= 300_000


async def test_times_to_live_are_spread(app: App) -> None:
    for number in range(20):
        await app.cache.get(f"k{number}", Source().load, ttl=1000)
    keys = Keys(app.settings.namespace)
    ttls = [await redis(app, "PTTL", keys.cache(f"k{number}")) for number in range(20)]

    assert max(ttls) - min(ttls) > 10_000


async def test_an_entry_whose_time_is_over_is_loaded_again(app: App) -> None:
    source = Source()
    await app.cache.get("k", source.load, ttl="20ms")
    name = Keys(app.settings.namespace).cache("k")

    async def gone() -> bool:
        return not await redis(app, "EXISTS", name)

    await wait_until_async(gone, what="its time is over")
    source.value = 2
    assert await app.cache.get("k", source.load) == 2


async def test_many_readers_load_once(app: App, other: App) -> None:
    source = Source()
    source.goes_on.clear()
    reading = [
        asyncio.create_task(each.cache.get("k", source.load)) for each in (app, other) for _ in range(50)
    ]
    await wait_until_async(lambda: source.loads == 1, what="one loads")
    source.goes_on.set()

    assert await asyncio.gather(*reading) == [1] * 100
    assert source.loads == 1


async def test_readers_share_no_object(app: App) -> None:
    async def load() -> list[int]:
        await asyncio.sleep(0)
        return [1]

    first, second = await asyncio.gather(app.cache.get("k", load), app.cache.get("k", load))
    first.append(2)

    assert second == [1]
    assert await app.cache.get("k", load) == [1]


async def test_a_load_that_fails_fails_for_its_own_reader_alone(app: App, other: App) -> None:
    async def broken() -> int:
        raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        await app.cache.get("k", broken)

    assert await other.cache.get("k", Source().load) == 1
    assert "waited" not in results(app), "the next one loads at once"


async def test_what_was_read_before_an_invalidation_is_not_kept_after_it(app: App) -> None:
    source = Source()
    source.goes_on.clear()
    reading = asyncio.create_task(app.cache.get("k", source.load))
    await wait_until_async(lambda: source.loads == 1, what="it loads")
    source.value = 2

    assert await app.cache.invalidate("k") == []
    source.goes_on.set()

    assert await reading == 1, "it began before the change"
    assert await app.cache.get("k", source.load) == 2


async def test_who_reads_after_an_invalidation_is_not_told_what_was_read_before_it(app: App) -> None:
    """Readers of one process share a load that is under way; one that began too early is no answer."""
    source = Source()
    source.goes_on.clear()
    early = asyncio.create_task(app.cache.get("k", source.load))
    await wait_until_async(lambda: source.loads == 1, what="the old value is read")
    source.value = 2
    assert await app.cache.invalidate("k") == []

    late = asyncio.create_task(app.cache.get("k", source.load))
    await asyncio.sleep(0)
    source.goes_on.set()

    assert (await early, await late) == (1, 2)


async def test_a_slow_load_is_kept_too(app: App, other: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right to load outlives its time while its holder loads: what is slow is what has to be kept."""
    monkeypatch.setattr(cache_module, "HOLD", 0.15)
    source = Source()
    source.goes_on.clear()
    reading = [asyncio.create_task(app.cache.get("k", source.load)) for _ in range(5)]
    await asyncio.sleep(0.4)
    source.goes_on.set()

    assert [await each for each in reading] == [1] * 5
    assert await other.cache.get("k", source.load) == 1
    assert source.loads == 1


async def test_a_reader_that_goes_before_it_loads_holds_up_no_other(
    app: App, other: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its question is answered all the same, and the right to load would be nobody's for ten seconds."""
    await app.cache.get("else", Source().load)  # connected, and the scripts are known
    caller = app.cache._home().caller
    run, answered = caller.run, asyncio.Event()

    async def late(call: scripts.Call) -> Any:
        await run(call)
        answered.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(caller, "run", late)
    reading = asyncio.create_task(app.cache.get("k", Source().load))
    await answered.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)

    async with asyncio.timeout(2):
        assert await other.cache.get("k", Source().load) == 1


async def test_an_entry_of_an_older_version_will_not_do(app: App) -> None:
    source = Source()
    await app.cache.get("k", source.load, version=6)
    source.value = 7

    assert await app.cache.get("k", source.load, version=6) == 1
    assert await app.cache.get("k", source.load, version=7) == 7
    assert await app.cache.get("k", source.load, version=6) == 7


async def test_a_fresh_read_loads_and_keeps_for_the_others(app: App) -> None:
    source = Source()
    await app.cache.get("k", source.load)
    source.value = 2

    assert await app.cache.get("k", source.load, fresh=True) == 2
    assert await app.cache.get("k", source.load) == 2
    assert source.loads == 2


@pytest.mark.parametrize("poison", [b"junk", b"0 00000000\n7", b"", b"1 zz\n{}", b"99 0\n" + b"x" * 500])
async def test_what_is_no_entry_is_loaded_over(app: App, poison: bytes) -> None:
    source = Source()
    await redis(app, "SET", Keys(app.settings.namespace).cache("k"), poison, "EX", "60")

    assert await app.cache.get("k", source.load) == 1
    assert await app.cache.get("k", source.load) == 1
    assert source.loads == 1


async def test_an_entry_of_another_key_is_none(app: App) -> None:
    keys = Keys(app.settings.namespace)
    await app.cache.get("a", Source().load)
    await redis(app, "COPY", keys.cache("a"), keys.cache("b"))
    source = Source()
    source.value = 2

    assert await app.cache.get("b", source.load) == 2


async def test_a_value_looks_the_same_whether_it_was_kept_or_not(app: App) -> None:
    assert await app.cache.get("k", lambda: (1, 2)) == [1, 2]
    with pytest.raises(InvalidArgument, match="nothing that JSON holds"):
        await app.cache.get("other", lambda: {1, 2})


async def test_a_cache_that_is_away_costs_no_value(namespace: str, valkey: BenchServer) -> None:
    cache = Cache("redis://127.0.0.1:1", patience="50ms")
    async with App("cached", redis_url=valkey.url, namespace=namespace, cache=cache):
        source = Source()
        before = time.monotonic()
        assert [await cache.get("k", source.load) for _ in range(100)] == [1] * 100

        assert source.loads == 100
        assert time.monotonic() - before < 5, "it is left alone for a while"
        failed: list[str] = []
        cache.told = failed.append
        assert await cache.invalidate("k", "l") == ["k", "l"]
        assert failed == ["invalidation_failed"] * 2


async def test_a_handler_invalidates_once_its_outcome_is_recorded(app: App) -> None:
    source = Source()
    release = asyncio.Event()

    @app.task
    async def change(ctx: Context) -> int:
        source.value = 2
        ctx.invalidate("k")
        await release.wait()
        return int(await ctx.cache.get("k", source.load))

    assert await app.cache.get("k", source.load) == 1
    async with serving(app):
        job = await change.enqueue()
        await wait_until_async(lambda: source.value == 2, what="it has begun")
        assert await app.cache.get("k", source.load) == 1, "not before the outcome"
        release.set()
        assert await job.result(10) == 1

        async def is_new() -> bool:
            return bool(await app.cache.get("k", source.load) == 2)

        await wait_until_async(is_new, what="the new value is there")


@pytest.mark.parametrize("how", ["thread", "process"])
async def test_plain_functions_read_and_invalidate_too(valkey: BenchServer, namespace: str, how: str) -> None:
    from tests.apps import cache_jobs

    async with App("cache_jobs", redis_url=valkey.url, namespace=namespace, lease="1s") as app:
        task = cache_jobs.register(app, how)
        keys = Keys(namespace)

        async def gone() -> bool:
            return not await redis(app, "EXISTS", keys.cache(key_of("k")))

        async with serving(app):
            assert await (await task.enqueue("k")).result(20) == "loaded k"
            await wait_until_async(gone, what="the value is forgotten")


async def test_jobs_end_the_same_while_the_cache_is_flushed_and_poisoned(
    own_valkey: ServerFactory, valkey: BenchServer, namespace: str
) -> None:
    """`CACHE_JOBS=2000` in the long form."""
    apart = own_valkey()
    cache = Cache(apart.url, ttl="5s", patience="100ms")
    async with App("cached", redis_url=valkey.url, namespace=namespace, cache=cache) as app:

        @app.task
        async def price(ctx: Context, sku: int) -> int:
            async def load() -> int:
                return sku * 10

            found = await ctx.cache.get(f"price:{sku}", load)
            ctx.invalidate(f"price:{sku}")
            return int(found)

        async with serving(app), async_client(apart.url) as redis:
            made = await app.enqueue_many(price.call(number % 20) for number in range(JOBS))
            over = asyncio.Event()
            harm = asyncio.create_task(_harm(redis, Keys(namespace), over))
            try:
                ends = await asyncio.gather(*(job.result(60 + JOBS // 10) for job in made))
            finally:
                over.set()
                await harm
        assert ends == [number % 20 * 10 for number in range(JOBS)]


async def _harm(redis: Any, keys: Keys, over: asyncio.Event) -> None:
    # Told, not cancelled: redis-py's `asyncio.wait_for` can swallow a cancellation before Python 3.12.
    while not over.is_set():
        await redis.flushall()
        for sku in range(20):
            await redis.set(keys.cache(f"price:{sku}"), b"0 00000000\n99999", ex=60)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["itself", "another version", "a group", "a thread", "over another", "fresh"])
async def test_a_load_that_asks_for_its_own_key_is_refused(app: App, how: str) -> None:
    """It waited for itself, until the time limit of its job."""
    get, calls = app.cache.get, 0

    async def load() -> Any:
        nonlocal calls
        calls += 1
        assert calls < 5, "a circle"
        match how:
            case "another version":
                return await get("k", load, version=1)
            case "a group":
                async with asyncio.TaskGroup() as group:
                    return await group.create_task(get("k", load))
            case "over another":
                return await get("l", lambda: get("k", load))
            case "fresh":
                return await get("k", load, fresh=True)
        return await get("k", load)

    def in_a_thread() -> Any:
        return app.cache.get_sync("k", in_a_thread)

    with pytest.raises((ConfigurationError, ExceptionGroup)) as refused:
        async with asyncio.timeout(5):
            await get("k", in_a_thread if how == "a thread" else load)
    assert "asks for it again ('k' > " in repr(refused.value)
    assert await get("k", lambda: 1) == 1, "the next reader is not held up"


async def test_loads_that_ask_for_each_others_keys_are_refused(app: App) -> None:
    """Each began for itself, so neither is a part of the other."""
    began = asyncio.Barrier(2)

    def load(other: str) -> Callable[[], Coroutine[Any, Any, Any]]:
        async def load() -> Any:
            await began.wait()
            return await app.cache.get(other, lambda: 1)

        return load

    async with asyncio.timeout(5):
        read = await asyncio.gather(
            app.cache.get("a", load("b")), app.cache.get("b", load("a")), return_exceptions=True
        )

    assert [type(one) for one in read].count(ConfigurationError) == 1
    assert 1 in read, "the other one goes on"


async def test_a_read_that_is_collected_as_garbage_makes_no_noise(app: App) -> None:
    """As that of a handler that was given up: it ends wherever that happens, in another context."""

    async def load() -> None:
        await asyncio.Event().wait()

    reading = app.cache.get("k", load, fresh=True)
    contextvars.copy_context().run(reading.send, None)  # into Redis's answer, in a context of its own

    reading.close()


async def test_what_a_load_leaves_behind_may_ask_for_its_key_later(app: App) -> None:
    later: list[asyncio.Task[int]] = []
    goes_on = asyncio.Event()

    async def again() -> int:
        await goes_on.wait()
        return await app.cache.get("k", lambda: 2, version=1)

    async def load() -> int:
        later.append(asyncio.create_task(again()))
        return 1

    assert await app.cache.get("k", load) == 1
    goes_on.set()

    assert await later[0] == 2
