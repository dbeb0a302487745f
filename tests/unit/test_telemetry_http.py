"""The endpoint: what it answers, what it refuses, and that it answers while the worker's loop is stalled."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from streamworker.core.errors import ConfigurationError
from streamworker.settings import read_endpoint
from streamworker.telemetry import http
from streamworker.telemetry.http import Address, Answer, HttpServer, ServerThread, fetch, json_answer
from streamworker.telemetry.status import Health, Status
from tests.waiting import wait_until_async


async def hello() -> Answer:
    return json_answer(True, {"hello": "world"})


async def broken() -> Answer:
    raise RuntimeError("secret detail")


@asynccontextmanager
async def listening() -> AsyncIterator[int]:
    server = HttpServer({"/hello": hello, "/broken": broken})
    port = await server.open(Address("127.0.0.1", 0))
    try:
        yield port
    finally:
        await server.close()


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            return await reader.read(-1)
    finally:
        writer.close()


async def test_who_asks_for_the_head_gets_no_body() -> None:
    """As load balancers do, and `curl -I`."""
    async with listening() as port:
        whole = await ask(port, b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await ask(port, b"HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        missing = await ask(port, b"HEAD /none HTTP/1.1\r\nHost: x\r\n\r\n")

    assert head == whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    assert missing.startswith(b"HTTP/1.1 404 ")
    assert missing.endswith(b"\r\n\r\n")


async def test_a_known_path_is_answered_with_its_length_and_type() -> None:
    async with listening() as port:
        head, _, body = (await ask(port, b"GET /hello?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")).partition(
            b"\r\n\r\n"
        )

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: application/json" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body) == {"hello": "world"}


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /else HTTP/1.1\r\n\r\n", 404),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    ],
)
async def test_what_is_no_plain_get_is_refused(request_bytes: bytes, status: int) -> None:
    async with listening() as port:
        answer = await ask(port, request_bytes)

    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_route_that_fails_shows_nothing_of_the_error() -> None:
    async with listening() as port:
        answer = await ask(port, b"GET /broken HTTP/1.0\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in answer


async def test_who_sends_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.05)
    async with listening() as port:
        assert await ask(port, b"GET /hel") == b""


async def test_too_many_connections_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    async with listening() as port:
        open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        try:
            assert await ask(port, b"") == b""
        finally:
            for _, writer in open_ones:
                writer.close()


def left_open(loop: asyncio.AbstractEventLoop) -> list[str]:
    """The transports of a loop that nobody closed."""
    return [repr(one) for one in vars(loop)["_transports"].values() if not one.is_closing()]


@pytest.mark.parametrize("turns", range(6))
async def test_who_connects_while_we_close_is_let_go(turns: int) -> None:
    server = HttpServer({"/hello": hello})
    port = await server.open(Address("127.0.0.1", 0))
    with socket.create_connection(("127.0.0.1", port)) as late:
        for _ in range(turns):
            await asyncio.sleep(0)

        await server.close()

        assert left_open(asyncio.get_running_loop()) == []
        late.settimeout(10)
        with suppress(ConnectionResetError):
            assert late.recv(1) == b""


async def test_who_does_not_read_its_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.2)
    asked = asyncio.Event()

    async def large() -> Answer:
        asked.set()
        return Answer(200, "x" * 20_000_000)

    server = HttpServer({"/large": large})
    port = await server.open(Address("127.0.0.1", 0))
    with socket.create_connection(("127.0.0.1", port)) as deaf:
        deaf.sendall(b"GET /large HTTP/1.1\r\n\r\n")

        await asyncio.wait_for(asked.wait(), 10)
        await wait_until_async(lambda: not server._open, what="it was given up")

        assert left_open(asyncio.get_running_loop()) == []
    await server.close()


async def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port}: .*choose another port"):
            await HttpServer({}).open(Address("127.0.0.1", port))
        with pytest.raises(ConfigurationError):
            ServerThread({}, Address("127.0.0.1", port)).start()


async def test_a_unix_socket_can_be_asked(tmp_path: Path) -> None:
    path = tmp_path / "1.sock"
    server = HttpServer({"/hello": hello})
    await server.open(Address(path=path))
    try:
        assert await fetch(path, "/hello", timeout=5) == Answer(200, '{"hello": "world"}\n')
    finally:
        await server.close()
    with pytest.raises(OSError, match=r"\d"):
        await fetch(tmp_path / "2.sock", "/hello", timeout=5)


def get(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())


async def test_a_stalled_loop_is_told_by_the_thread_that_answers() -> None:
    health = Health(time.monotonic, lease=30, slots=8, stalled_after=0.2)

    async def healthz() -> Answer:
        return json_answer(*health.alive())

    server = ServerThread({"/healthz": healthz}, Address("127.0.0.1", 0))
    server.start()
    try:
        health.tell(Status(time.monotonic()))
        assert get(server.port, "/healthz")[0] == 200  # this blocks our loop, and is answered
        time.sleep(0.25)  # noqa: ASYNC251 - the stall itself
        status, facts = get(server.port, "/healthz")
        assert (status, facts["status"]) == (503, "stalled")
        health.tell(Status(time.monotonic()))
        assert get(server.port, "/healthz")[0] == 200
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("status", "ready", "redis"),
    [
        (Status(100, session=True, heard=99), True, "ok"),
        (Status(100, session=True, heard=71), True, "ok"),
        (Status(100, session=True, heard=69), False, "silent"),
        (Status(100, session=True), False, "silent"),
        (Status(100, session=False, heard=99), False, "no session"),
        (Status(100, session=True, heard=99, claiming=False), False, "ok"),
        (Status(89, session=True, heard=99), False, "ok"),  # the loop is stalled
    ],
)
def test_ready_is_who_claims_and_has_heard_of_redis(status: Status, ready: bool, redis: str) -> None:
    health = Health(lambda: 100.0, lease=30, slots=8)
    health.tell(status)

    answer, facts = health.ready()

    assert (answer, facts["redis"]) == (ready, redis)
    assert facts["slots"] == {"capacity": 8, "in_use": 0}


def test_who_does_not_know_whether_redis_keeps_its_jobs_is_ready_and_degraded() -> None:
    health = Health(lambda: 100.0, lease=30, slots=8)
    health.tell(Status(100, session=True, heard=99))
    assert "degraded" not in health.ready()[1]

    health.degrade("it does not tell its maxmemory-policy")

    answer, facts = health.ready()
    assert answer
    assert facts["degraded"] == ["it does not tell its maxmemory-policy"]


def test_a_short_lease_bears_ten_seconds_of_silence() -> None:
    health = Health(lambda: 100.0, lease=1, slots=8)

    health.tell(Status(100, session=True, heard=91))
    assert health.ready()[0]
    health.tell(Status(100, session=True, heard=90))
    assert not health.ready()[0]


def test_the_endpoint_is_off_unless_asked_for() -> None:
    assert read_endpoint(environ={}) is None
    assert read_endpoint(environ={"STREAMWORKER_METRICS_PORT": ""}) is None
    found = read_endpoint(environ={"STREAMWORKER_METRICS_PORT": "9100"})
    assert found is not None
    assert (found.host, found.port) == ("127.0.0.1", 9100)
    environ = {"STREAMWORKER_METRICS_PORT": "9100", "STREAMWORKER_METRICS_HOST": "0.0.0.0"}
    found = read_endpoint(9200, environ=environ)
    assert found is not None
    assert (found.host, found.port) == ("0.0.0.0", 9200)


@pytest.mark.parametrize("port", ["http", "-1", "65536"])
def test_an_impossible_port_is_named(port: str) -> None:
    with pytest.raises(ConfigurationError, match="STREAMWORKER_METRICS_PORT"):
        read_endpoint(environ={"STREAMWORKER_METRICS_PORT": port})
