"""What the cases share: a server of each kind, shared or of one's own, eyes on it, and worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from streamworker import App, Client
from streamworker.embedded import EmbeddedServer
from streamworker.store.connection import SyncLink
from tests.integration.history import Journal, Observer
from tests.lua.driver import Shard
from tests.processes import WorkerProcess
from tests.servers import BenchServer, ServerAbsent, ServerFactory, binary_of, selected_kinds

#: Seconds that a claim lives in the cases: what takes a minute or an hour in the reports is told by this.
LEASE = 1.0
#: Between two sweeps (D6).
SWEEP = LEASE / 6

#: Makes worker processes of the app `faults_jobs`; enter them.
Start = Callable[..., WorkerProcess]
#: Makes a server of the kind that the test runs on.
OwnServer = Callable[..., EmbeddedServer]


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


@pytest.fixture(params=selected_kinds())
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of server in turn, for benches, which start one of their own."""
    try:
        binary_of(request.param)
    except ServerAbsent as absent:
        pytest.skip(f"{request.param}: {absent}")
    return str(request.param)


@pytest.fixture(params=selected_kinds())
def own_server(request: pytest.FixtureRequest, own_valkey: ServerFactory) -> OwnServer:
    """Makes servers for this test alone, of each kind in turn, to be killed, filled, paused or flushed."""

    def make(*, appendonly: bool = False, config: dict[str, str] | None = None) -> EmbeddedServer:
        try:
            return own_valkey(request.param, appendonly=appendonly, config=config)
        except ServerAbsent as absent:
            pytest.skip(f"{request.param}: {absent}")

    return make


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Where the handlers of worker processes write their starts and ends."""
    return Journal(tmp_path / "journal")


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """Jobs of the task `hold` end once this file is there."""
    return tmp_path / "go"


@pytest.fixture
def start(server: BenchServer, namespace: str, journal: Journal, go: Path) -> Start:
    """Makes worker processes of the app `faults_jobs`; enter them."""

    def make(*arguments: str, url: str | None = None, lease: float = LEASE) -> WorkerProcess:
        env = {
            "FAULTS_JOURNAL": str(journal.path),
            "FAULTS_GO": str(go),
            "STREAMWORKER_LEASE": str(lease),
        }
        return WorkerProcess(
            "faults_jobs:app", *arguments, redis_url=url or server.url, namespace=namespace, env=env
        )

    return make
