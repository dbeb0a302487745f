"""Cached values across processes and their deaths."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading

import pytest

from streamworker import App, Client
from streamworker.store.keys import Keys
from tests.processes import REPOSITORY, WorkerProcess
from tests.servers import BenchServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")

READERS, PROCESSES = 200, 4


def test_two_hundred_readers_of_an_expired_key_load_it_once(valkey: BenchServer, namespace: str) -> None:
    env = {**os.environ, "STREAMWORKER_REDIS_URL": valkey.url, "STREAMWORKER_NAMESPACE": namespace}
    readers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.apps.fleet_cache", str(READERS // PROCESSES), "k"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=env,
        )
        for _ in range(PROCESSES)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    asyncio.run(_expire("k", valkey, namespace))
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("go\n")
        reader.stdin.flush()
    lines = [line for reader in readers for line in reader.communicate(timeout=60)[0].splitlines()]

    assert lines.count("loaded") == 1
    assert lines.count(f"values new {READERS // PROCESSES}") == PROCESSES


async def _expire(key: str, server: BenchServer, namespace: str) -> None:
    """It was there, and its time is over."""
    async with App("cached", redis_url=server.url, namespace=namespace) as app:
        await app.cache.get(key, lambda: "old", ttl="1ms")
        name = Keys(namespace).cache(key)

        async def gone() -> bool:
            return not await app.queue().caller.command("EXISTS", name)

        await wait_until_async(gone, what="its time is over")


async def test_a_worker_killed_before_it_invalidates_leaves_an_old_value_for_its_time(
    valkey: BenchServer, namespace: str
) -> None:
    """The invalidation waits for a cache that does not answer; the worker is killed meanwhile."""
    async with (
        App("cached", redis_url=valkey.url, namespace=namespace) as app,
        Client(valkey.url, app="killed_cache", namespace=namespace) as client,
    ):
        with _DeafServer() as deaf:
            env = {"CACHE_PORT": str(deaf.port)}
            with WorkerProcess(
                "killed_cache:app", redis_url=valkey.url, namespace=namespace, env=env
            ) as worker:
                worker.wait_for_log("slots, lanes")
                assert await app.cache.get("k", lambda: "old", ttl="5s") == "old"
                job = await client.enqueue("change", {"key": "k"})
                assert await client.result(job.id, timeout=20) == "new"
                worker.kill()

        assert await app.cache.get("k", lambda: "new") == "old"
        assert 0 < await app.queue().caller.command("PTTL", Keys(namespace).cache("k")) <= 5000

        async def is_new() -> bool:
            return bool(await app.cache.get("k", lambda: "new") == "new")

        await wait_until_async(is_new, timeout=10, what="the old value's time is over")


class _DeafServer:
    """Takes connections and never answers; a context manager."""

    def __enter__(self) -> _DeafServer:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def _accept(self) -> None:
        try:
            while True:
                self._held.append(self._socket.accept()[0])
        except OSError:
            return

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        for held in self._held:
            held.close()
