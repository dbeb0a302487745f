"""The servers that the tests run against: real ones, one of each kind a session, started on demand.

`valkey` and `redis8` come as wheels and are always there: without them tests fail. `redis7` is Debian's
`redis-server`, used when that very version is on the PATH and skipped otherwise.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff

from streamworker.embedded import EmbeddedServer, find_redis, find_system_redis, find_valkey

KINDS = ("valkey", "redis8", "redis7")
#: Narrows the kinds, such as `valkey` or `valkey,redis7`.
SELECTION_VARIABLE = "STREAMWORKER_TEST_SERVERS"
#: Lets tests stop expiry and freeze the server from inside.
_TEST_SETTINGS = {"enable-debug-command": "local"}


class ServerAbsent(Exception):
    """A server that tests may do without is not on this machine."""


class BenchServer(EmbeddedServer):
    """An embedded server that knows which kind it is."""

    def __init__(
        self,
        kind: str,
        *,
        appendonly: bool = False,
        config: Mapping[str, str] | None = None,
        start_timeout: float = 20.0,
    ) -> None:
        """Prepare a server of one of `KINDS`; raises ServerAbsent, or EmbeddedServerMissing for a wheel."""
        super().__init__(
            binary_of(kind),
            appendonly=appendonly,
            config={**_TEST_SETTINGS, **(config or {})},
            start_timeout=start_timeout,
        )
        self.kind = kind


class ServerFactory(Protocol):
    """Starts a server that belongs to one test alone."""

    def __call__(
        self, kind: str = "valkey", *, appendonly: bool = False, config: Mapping[str, str] | None = None
    ) -> EmbeddedServer:
        """Return a running server; it stops with the test."""


class ServerPool:
    """The session's servers by kind."""

    def __init__(self) -> None:
        self._servers: dict[str, BenchServer] = {}

    def get(self, kind: str) -> BenchServer:
        """Return the running server of this kind, started by the first call."""
        server = self._servers.get(kind)
        if server is None:
            server = BenchServer(kind)
            server.start()
            self._servers[kind] = server
        return server

    def empty(self) -> None:
        """Remove all data: what many tests leave until it expires, each look over all keys goes through."""
        for server in self._servers.values():
            with redis.Redis.from_url(server.url, protocol=2, socket_timeout=10) as client:
                client.flushall()

    def stop(self) -> None:
        """Stop them all."""
        while self._servers:
            self._servers.popitem()[1].stop()


def selected_kinds() -> tuple[str, ...]:
    """Return the kinds that this run uses, all of them unless the environment narrows them."""
    wanted = [kind.strip() for kind in os.environ.get(SELECTION_VARIABLE, "").split(",") if kind.strip()]
    unknown = [kind for kind in wanted if kind not in KINDS]
    if unknown:
        raise ValueError(f"{SELECTION_VARIABLE} names {', '.join(unknown)}; known are {', '.join(KINDS)}")
    return tuple(wanted) or KINDS


def binary_of(kind: str) -> Path:
    """Return the program of one kind of server."""
    match kind:
        case "valkey":
            return find_valkey()
        case "redis8":
            return find_redis()
        case "redis7":
            return _debian_redis()
    raise ValueError(f"no kind of server is called {kind!r}; known are {', '.join(KINDS)}")


def _debian_redis() -> Path:
    binary = find_system_redis()
    if binary is None:
        raise ServerAbsent("no redis-server on the PATH")
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    if re.search(r"\bv=7\.0\.", version) is None:
        raise ServerAbsent(f"the redis-server on the PATH is not a 7.0: {version.strip()}")
    return binary


def async_client(url: str) -> AsyncRedis:
    """Return a client as streamworker makes them: RESP2, bytes, no retries of its own (R16, R25, R26)."""
    return AsyncRedis.from_url(
        url, protocol=2, decode_responses=False, retry=AsyncRetry(NoBackoff(), 0), socket_timeout=10
    )


def leaked_keys(url: str, namespace: str) -> list[str]:
    """Return the keys of a namespace that have no TTL and are no live state by the catalogue."""
    from streamworker.store.keys import is_live_state

    leaked = []
    with redis.Redis.from_url(url, protocol=2, socket_timeout=10) as client:
        for pattern in (f"{{{namespace}}}*", f"{{{namespace}:*"):
            for raw in client.scan_iter(match=pattern, count=1000):
                key = raw.decode("utf-8", "backslashreplace")
                if not is_live_state(key) and client.ttl(raw) == -1:
                    leaked.append(key)
    return sorted(leaked)
