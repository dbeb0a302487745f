"""A shard on each kind of server, and one on Valkey alone for what takes too long to repeat."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamworker.store.connection import SyncLink
from tests.lua.driver import Shard
from tests.servers import BenchServer


def _shard_on(server: BenchServer, namespace: str) -> Iterator[Shard]:
    link = SyncLink(server.url)
    shard = Shard(link, namespace)
    yield shard
    shard.clear()
    link.close()


@pytest.fixture
def shard(server: BenchServer, namespace: str) -> Iterator[Shard]:
    """An empty shard; every call through it checks the invariants."""
    yield from _shard_on(server, namespace)


@pytest.fixture
def valkey_shard(valkey: BenchServer, namespace: str) -> Iterator[Shard]:
    """An empty shard on Valkey only."""
    yield from _shard_on(valkey, namespace)
