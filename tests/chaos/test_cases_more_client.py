"""More faults of producers and connections, beyond the list of cases."""

from __future__ import annotations

import asyncio
import socket
import threading
import warnings
from pathlib import Path
from typing import Any, NoReturn

import pytest
import redis

from streamworker import App, Client, ConnectionLost, Context, ServerUnsuitable, SyncClient
from streamworker.flow.cache import Cache
from streamworker.settings import read
from streamworker.store.connection import Argument, Link, SyncLink, Told
from tests.integration.serving import serving
from tests.servers import BenchServer
from tests.waiting import wait_until, wait_until_async


def connections(server: BenchServer, name: str) -> int:
    """Connections to the server that have this name."""
    with redis.Redis.from_url(server.url) as client:
        return sum(one["name"] == name for one in client.client_list())


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def named(server: BenchServer, name: str) -> str:
    return f"{server.url}?client_name={name}"


# --- loops that come and go ------------------------------------------------------------------------------


def test_a_loop_for_each_call_leaves_no_connections_behind(valkey: BenchServer, namespace: str) -> None:
    """`asyncio.run(client.enqueue(...))` in a view that has no loop: each left a socket and a loop behind."""
    client = Client(named(valkey, namespace), app="cases", namespace=namespace)
    files = 0

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for number in range(12):
            asyncio.run(client.enqueue("work", {"n": number}))
            files = files or open_files()

    assert open_files() <= files
    wait_until(lambda: connections(valkey, namespace) <= 1, what="the server has one connection at most")
    asyncio.run(client.close())


def test_a_cache_that_each_call_reads_in_a_loop_of_its_own_leaves_no_connections(
    valkey: BenchServer, namespace: str
) -> None:
    cache = Cache(named(valkey, namespace))
    cache.attach(read("cases", redis_url=valkey.url, namespace=namespace))

    for _ in range(8):
        assert cache.get_sync("answer", lambda: 42) == 42

    wait_until(lambda: connections(valkey, namespace) <= 1, what="the server has one connection at most")
    asyncio.run(cache.close())


# --- what a URL may say ----------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [" {url}", "{url}\n"])
async def test_white_space_around_a_url_does_not_matter(
    valkey: BenchServer, namespace: str, url: str
) -> None:
    """Secrets that are files end with a line's end."""
    with SyncClient(url.format(url=valkey.url), app="cases", namespace=namespace) as client:
        assert (await asyncio.to_thread(client.enqueue, "work", {})).id


@pytest.mark.parametrize(
    "option",
    [
        "protocol=3",
        "decode_responses=true",
        "socket_timeout=0.01",
        "retry_on_timeout=yes",
        "max_connections=1",
        "timeout=3",
        "single_connection_client=true",
        "health_check_interval=1",
    ],
)
async def test_options_of_the_url_change_no_shape_and_no_limit(
    valkey: BenchServer, namespace: str, option: str
) -> None:
    """R25: with `?protocol=3` a worker died of the first job that woke it, since replies were dicts."""
    app = App("cases", redis_url=f"{valkey.url}?{option}", namespace=namespace, lease="1s")

    @app.task
    async def add(ctx: Context, a: int, b: int) -> int:
        return a + b

    async with app, serving(app) as worker:
        with redis.Redis.from_url(valkey.url) as client:
            await wait_until_async(
                lambda: any(one["cmd"] == "xreadgroup" for one in client.client_list()),
                what="the worker's blocking read",
            )
        job = await add.enqueue(1, 2)
        assert await job.result(5) == 3
    assert SyncLink(app.settings.redis_url).call("PING") == b"PONG"
    assert worker.started.is_set()


@pytest.mark.parametrize("option", ["colour=blue", "ssl_cert_reqs=perhaps"])
async def test_an_option_that_is_none_is_said_in_one_line(option: str) -> None:
    url = f"{'rediss' if option.startswith('ssl') else 'redis'}://me:s3cret@127.0.0.1:1/0?{option}"
    async with Client(url, app="cases") as client:
        with pytest.raises(ServerUnsuitable) as refused:
            await client.enqueue("work", {})

    assert option.partition("=")[0] in str(refused.value) or "perhaps" in str(refused.value)
    assert "s3cret" not in str(refused.value)


async def test_a_url_that_one_half_of_redis_py_takes_is_no_url(valkey: BenchServer) -> None:
    """The asynchronous half takes more: a worker would start, and its heartbeat never come."""
    async with Client(valkey.url.replace("redis:", "REDIS:"), app="cases") as client:
        with pytest.raises(ServerUnsuitable):
            await client.enqueue("work", {})


# --- what cannot be sent, and what is no answer ----------------------------------------------------------


@pytest.mark.parametrize("argument", ["\ud83d", None], ids=["half a surrogate pair", "None"])
async def test_what_cannot_be_sent_leaves_the_connection_in_step(valkey: BenchServer, argument: Any) -> None:
    """Who had sent nothing stood in line: it was given the next answer, and all after it were another's."""
    link = Link(valkey.url)
    await link.connect()

    for send in (link.send, lambda *words: link.post(lambda _: None, *words)):
        with pytest.raises((UnicodeEncodeError, TypeError)):
            send("ECHO", argument)

    assert await asyncio.wait_for(link.call("ECHO", "mine"), 2) == b"mine"
    await link.close()


async def test_an_enqueue_that_finds_no_memory_to_be_sent_with_is_told_so(
    valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited for it waited for ever, and so did all others of that turn."""
    async with Client(valkey.url, app="cases", namespace=namespace) as client:
        await client.enqueue("work", {})  # connected
        with monkeypatch.context() as patch:
            patch.setattr(Link, "send_script", _no_memory)
            with pytest.raises(MemoryError):
                await asyncio.wait_for(client.enqueue("work", {}), 2)

        assert (await client.enqueue("work", {})).id


def _no_memory(*_: Any) -> NoReturn:
    raise MemoryError


async def test_an_exchange_that_finds_no_memory_to_be_sent_with_is_sent_again(
    valkey: BenchServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcomes were told to nobody: their jobs were kept by heartbeats, for ever."""
    post, failing, failed = Link.post, False, 0

    def fickle(link: Link, told: Told, *arguments: Argument) -> None:
        nonlocal failed
        if failing and failed < 3:
            failed += 1
            raise MemoryError
        post(link, told, *arguments)

    monkeypatch.setattr(Link, "post", fickle)
    async with App("cases", redis_url=valkey.url, namespace=namespace, lease="1s") as app:

        @app.task
        async def work(ctx: Context) -> int:
            nonlocal failing
            failing = True
            return ctx.attempt

        async with serving(app):
            assert await (await work.enqueue()).result(10) == 1

    assert failed == 3


def _answer_with(text: bytes, times: int) -> int:
    """A port where so many connections are answered with this text; later ones are refused."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listener:
            for _ in range(times):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(text)

    threading.Thread(target=answer, daemon=True).start()
    return int(listener.getsockname()[1])


@pytest.mark.parametrize("text", [b"HTTP/1.1 502 Bad Gateway\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x16"])
async def test_whatever_answers_where_redis_was_is_a_lost_connection(text: bytes) -> None:
    """A proxy that speaks HTTP, or TLS where none is expected: the heartbeat's connection stayed broken."""
    port = _answer_with(text, 2)
    with pytest.raises(ConnectionLost):
        await Link(f"redis://127.0.0.1:{port}/0", timeout=2).connect()
    with pytest.raises(ConnectionLost):
        await asyncio.to_thread(SyncLink(f"redis://127.0.0.1:{port}/0", timeout=2).call, "PING")


def test_garbage_in_the_middle_ends_the_connection_of_a_thread_and_the_next_call_has_a_new_one(
    valkey: BenchServer,
) -> None:
    link = SyncLink(valkey.url)
    assert link.call("PING") == b"PONG"
    link._reader.feed(b"HTTP/1.1 502 Bad Gateway\r\n")

    with pytest.raises(ConnectionLost):
        link.call("PING")

    assert link.call("PING") == b"PONG"
    link.close()


@pytest.mark.parametrize("host", ["redis..internal", ".redis", "r" * 70 + ".internal"])
async def test_a_host_name_that_is_none_is_said_in_one_line(host: str) -> None:
    """It was a UnicodeError, in the words of a codec, which nobody expects of a connection."""
    url = f"redis://:s3cret@{host}:6379/0"
    for connect in (Link(url).connect, lambda: asyncio.to_thread(SyncLink(url).call, "PING")):
        with pytest.raises((ConnectionLost, ServerUnsuitable)) as refused:
            await connect()

        assert "s3cret" not in str(refused.value)
        assert "\n" not in str(refused.value)
