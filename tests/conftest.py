"""Fixtures for everybody: servers, clients, namespaces, the leak check and the logs of failed workers."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import AsyncIterator, Generator, Iterator, Mapping

import hypothesis
import pytest
from redis.asyncio import Redis

from streamworker.embedded import EmbeddedServer
from tests.processes import started_processes
from tests.servers import (
    BenchServer,
    ServerAbsent,
    ServerFactory,
    ServerPool,
    async_client,
    leaked_keys,
    selected_kinds,
)

_namespace_numbers = itertools.count(1)
# How long an example takes says more of the machine than of the code; a test that hangs has pytest-timeout.
# `make test` tries the same examples each time, `make soak-properties` more, and others each time.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.register_profile("others", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("STREAMWORKER_PROPERTIES", "same"))
# A shell has what it runs in the background ignore Ctrl-C, and what tests start would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: What takes longest begins first, so that no process of `make test` is left alone with it at the end.
_LONGEST = (
    *("simulation/test_simulation.py", "integration/test_stateful.py", "postgres/test_mirror.py"),
    *("integration/test_incident.py", "lua/test_mutations.py", "crash_points/test_crash_points.py"),
    *("effects/test_deaths.py", "postgres/test_loss.py", "integration/test_fleet.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((place for place, name in enumerate(_LONGEST) if path.endswith(name)), len(_LONGEST))

    items.sort(key=rank)


@pytest.fixture(scope="session")
def server_pool() -> Iterator[ServerPool]:
    """The session's servers; use `server` or `valkey`."""
    pool = ServerPool()
    yield pool
    pool.stop()


@pytest.fixture(scope="module", autouse=True)
def _emptied_servers(server_pool: ServerPool) -> None:
    """Each file of tests finds the shared servers empty."""
    server_pool.empty()


@pytest.fixture(scope="session", params=selected_kinds())
def server(request: pytest.FixtureRequest, server_pool: ServerPool) -> BenchServer:
    """A running server, each kind in turn. Shared: do not kill, flush or configure it (see `own_valkey`)."""
    try:
        return server_pool.get(request.param)
    except ServerAbsent as absent:
        pytest.skip(f"{request.param}: {absent}")


@pytest.fixture(scope="session")
def valkey(server_pool: ServerPool) -> BenchServer:
    """A running Valkey, shared like `server`, for tests that take too long to repeat on every kind."""
    return server_pool.get("valkey")


@pytest.fixture
def own_valkey() -> Iterator[ServerFactory]:
    """Makes servers for this test alone, to be killed, filled, paused or flushed."""
    servers: list[BenchServer] = []

    def make(
        kind: str = "valkey", *, appendonly: bool = False, config: Mapping[str, str] | None = None
    ) -> EmbeddedServer:
        # With `everysec` a killed server may lose what it acknowledged in the last two seconds.
        kept = {"appendfsync": "always"} if appendonly else {}
        one = BenchServer(kind, appendonly=appendonly, config={**kept, **(config or {})})
        servers.append(one)
        return one.start()

    yield make
    for one in servers:
        one.stop()


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test of this session uses."""
    return f"t{next(_namespace_numbers)}"


@pytest.fixture
async def redis_client(server: BenchServer) -> AsyncIterator[Redis]:
    """A client of `server`: RESP2, bytes, no retries."""
    async with async_client(server.url) as client:
        yield client


@pytest.fixture
def no_leaks(request: pytest.FixtureRequest, namespace: str) -> Iterator[None]:
    """Fails the test if it leaves a key in its namespace that has no TTL and is no live state.

    Looks at the servers that the test asked for by fixture: `server` and `valkey`.
    """
    used: list[BenchServer] = [
        request.getfixturevalue(name) for name in ("server", "valkey") if name in request.fixturenames
    ]
    if not used:
        pytest.fail("no_leaks needs the fixture `server` or `valkey` to know where to look")
    yield
    for one in used:
        leaked = leaked_keys(one.url, namespace)
        assert not leaked, f"keys without a TTL that are no live state, on {one.kind}: {leaked}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the workers of a failed test printed."""
    report = yield
    if report.failed:
        for process in started_processes:
            report.sections.append((f"log of worker {process.app} (pid {process.pid})", process.log_tail()))
    if call.when == "teardown":
        started_processes.clear()
    return report
