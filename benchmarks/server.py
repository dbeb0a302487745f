"""The Redis or Valkey server of one measurement, and its own counters."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from benchmarks.environments import Unavailable
from benchmarks.inside import cpu
from benchmarks.processors import pinned
from streamworker.embedded import (
    EmbeddedServer,
    EmbeddedServerError,
    find_redis,
    find_system_redis,
    find_valkey,
)


class Kind(StrEnum):
    """Which server: `redis7` is the redis-server on the PATH, the others are wheels."""

    REDIS7 = "redis7"
    REDIS8 = "redis8"
    VALKEY = "valkey"


class Aof(StrEnum):
    """Whether the server keeps its data on disk."""

    OFF = "off"
    EVERYSEC = "everysec"


#: Commands of the harness itself.
_OWN = {"info", "config|resetstat"}


def default_kind() -> Kind:
    return Kind.VALKEY if find_system_redis() is None else Kind.REDIS7


def find(kind: Kind) -> Path:
    """The binary of a kind. Raises Unavailable."""
    try:
        if kind is Kind.REDIS8:
            return find_redis()
        if kind is Kind.VALKEY:
            return find_valkey()
    except EmbeddedServerError as error:
        raise Unavailable(str(error)) from None
    binary = find_system_redis()
    if binary is None:
        raise Unavailable("no redis-server on the PATH: install one, or choose --server valkey or redis8")
    return binary


class Server:
    """A fresh server, pinned to a processor; a context manager."""

    def __init__(self, kind: Kind, aof: Aof, processor: int | None) -> None:
        self._processor = processor
        self._server = EmbeddedServer(find(kind), appendonly=aof is Aof.EVERYSEC)

    def __enter__(self) -> Self:
        with pinned(self._processor):
            self._server.start()
        self.url, self.pid = self._server.url, self._server.pid
        self._redis = redis.Redis.from_url(self.url, protocol=2, decode_responses=True, socket_timeout=30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redis.close()
        self._server.stop()

    def version(self) -> str:
        facts = self._info("server")
        if "valkey_version" in facts:
            return f"valkey {facts['valkey_version']}"
        return f"redis {facts['redis_version']}"

    def memory(self) -> int:
        """Bytes that the data and the server itself take."""
        return int(self._info("memory")["used_memory"])

    def cpu(self) -> float:
        """Processor seconds so far."""
        return cpu.of_process(self.pid)

    def reset(self) -> None:
        """Begin counting anew."""
        self._redis.config_resetstat()

    def reads(self) -> int:
        """Reads from sockets since `reset`: about one for each round trip."""
        return int(self._info("stats")["total_reads_processed"])

    def commands(self) -> dict[str, tuple[int, int]]:
        """Calls and microseconds per command since `reset`, those made by scripts included."""
        found = {
            name.removeprefix("cmdstat_"): (int(of["calls"]), int(of["usec"]))
            for name, of in self._info("commandstats").items()
        }
        return {name: counts for name, counts in found.items() if name not in _OWN}

    def _info(self, section: str) -> dict[str, Any]:
        facts: dict[str, Any] = self._redis.info(section)
        return facts
