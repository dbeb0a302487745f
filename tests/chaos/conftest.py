"""What the cases share: a server of each kind, shared or of one's own, and eyes on it."""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from streamworker import App, Client, Worker
from streamworker.embedded import EmbeddedServer
from streamworker.store.connection import SyncLink
from streamworker.worker import worker as worker_module
from streamworker.worker.parts import Parts
from tests.chaos.scale import SCALE
from tests.integration.history import Observer
from tests.lua.driver import Shard
from tests.servers import BenchServer, ServerAbsent, ServerFactory, ServerPool, binary_of, selected_kinds

#: Seconds that a claim lives in the cases: what takes a minute or an hour in the reports is told by this.
LEASE = 1.0
#: Between two sweeps (D6).
SWEEP = LEASE / 6

#: Whether cases run on every kind of server; what the scripts do is tested on each of them in tests/lua.
EVERY_KIND = SCALE > 1 or bool(os.environ.get("STREAMWORKER_CASES_EVERY_KIND"))

#: Makes a server of the kind that the test runs on.
OwnServer = Callable[..., EmbeddedServer]


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, server_pool: ServerPool) -> BenchServer:
    """A running server of the kind whose turn it is. Shared: do not kill, flush or configure it."""
    return server_pool.get(request.param)


@pytest.fixture
def shard(server: BenchServer, namespace: str) -> Iterator[Shard]:
    """An empty shard on each kind of server, with a clock that only the test moves."""
    link = SyncLink(server.url)
    shard = Shard(link, namespace)
    yield shard
    shard.clear()
    link.close()


@pytest.fixture
def observer(server: BenchServer, namespace: str) -> Iterator[Observer]:
    """The test's own eyes; takes away what it left queued."""
    with Observer(server.url, namespace) as observer:
        yield observer
        for key in observer.redis.keys(f"{observer.keys.tag}*"):
            observer.redis.unlink(key)


@pytest.fixture
async def app(server: BenchServer, namespace: str) -> AsyncIterator[App]:
    """An app on each kind of server, with a short lease and no tasks yet."""
    async with App("cases", redis_url=server.url, namespace=namespace, lease=LEASE) as app:
        yield app


@pytest.fixture
async def client(server: BenchServer, namespace: str) -> AsyncIterator[Client]:
    """A producer without the tasks' code."""
    async with Client(server.url, app="cases", namespace=namespace) as client:
        yield client


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The server of a case: another kind from case to case, and each in the long form.

    `kind` is that which a bench starts.
    """
    kinds = [kind for kind in selected_kinds() if _is_here(kind)]
    turn = zlib.crc32(metafunc.function.__name__.encode()) % len(kinds)
    chosen = kinds if EVERY_KIND else [kinds[turn]]
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", chosen)
    if "server" in metafunc.fixturenames:
        metafunc.parametrize("server", chosen, indirect=True, scope="session")
    if "own_server" in metafunc.fixturenames:
        metafunc.parametrize("own_server", chosen, indirect=True)


def _is_here(kind: str) -> bool:
    try:
        binary_of(kind)
    except ServerAbsent:
        return False
    return True


@pytest.fixture
def own_server(request: pytest.FixtureRequest, own_valkey: ServerFactory) -> OwnServer:
    """Makes servers for this test alone, to be killed, filled, paused or flushed."""

    def make(*, appendonly: bool = False, config: dict[str, str] | None = None) -> EmbeddedServer:
        return own_valkey(request.param, appendonly=appendonly, config=config)

    return make


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Parts]:
    """What each worker that begins in this process is made of, in order."""
    found: list[Parts] = []

    class Seen(Parts):
        def __init__(self, worker: Worker) -> None:
            super().__init__(worker)
            found.append(self)

    monkeypatch.setattr(worker_module, "Parts", Seen)
    return found
