"""The proxy loses what it was told to lose and nothing else."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.proxy import Proxy
from tests.resp import Frames
from tests.servers import BenchServer, async_client
from tests.waiting import wait_until, wait_until_async


@pytest.fixture
def proxy(valkey: BenchServer) -> Iterator[Proxy]:
    with Proxy(valkey.port) as running:
        yield running


def client(url: str, *, timeout: float = 5.0) -> redis.Redis:
    return redis.Redis.from_url(url, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=timeout)


def test_it_passes_requests_and_replies_of_every_size(proxy: Proxy, namespace: str) -> None:
    with client(proxy.url) as through:
        pipeline = through.pipeline(transaction=True)
        pipeline.set(namespace, b"x" * 1_000_000)
        pipeline.get(namespace)
        pipeline.lrange("nothing", 0, -1)
        pipeline.eval("return {1, {false, 'two'}, redis.status_reply('fine')}", 0)

        assert pipeline.execute() == [True, b"x" * 1_000_000, [], [1, [None, b"two"], b"fine"]]


def test_a_dropped_reply_leaves_the_request_carried_out_once(
    proxy: Proxy, valkey: BenchServer, namespace: str
) -> None:
    rule = proxy.drop_next_reply(b"INCR")
    with client(proxy.url) as through, client(valkey.url) as direct:
        with pytest.raises(redis.ConnectionError):
            through.incr(namespace)

        rule.wait()
        assert direct.get(namespace) == b"1"
        assert through.incr(namespace) == 2


def test_of_pipelined_requests_exactly_the_matching_reply_is_lost(
    proxy: Proxy, valkey: BenchServer, namespace: str
) -> None:
    proxy.drop_next_reply(lambda request: b"third" in request)
    requests = b"".join(
        f"INCR {namespace}\r\nECHO {word}\r\n".encode() for word in ("one", "two", "third", "four")
    )

    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as connection:
        connection.sendall(requests)
        received = b""
        while chunk := connection.recv(4096):
            received += chunk

    assert received == b":1\r\n$3\r\none\r\n:2\r\n$3\r\ntwo\r\n:3\r\n"
    with client(valkey.url) as direct:
        assert direct.get(namespace) == b"4"


def test_a_rule_happens_once_and_only_to_what_it_matches(proxy: Proxy, namespace: str) -> None:
    rule = proxy.drop_next_reply(b"INCR")
    with client(proxy.url) as through:
        through.set(namespace, 1)
        assert not rule.happened
        with pytest.raises(redis.ConnectionError):
            through.incr(namespace)

        assert [through.incr(namespace) for _ in range(3)] == [3, 4, 5]


def test_a_forgotten_rule_never_happens(proxy: Proxy, namespace: str) -> None:
    rule = proxy.drop_next_reply(b"INCR")
    proxy.forget()
    with client(proxy.url) as through:
        assert through.incr(namespace) == 1

    assert not rule.happened


def test_a_dropped_request_never_reaches_the_server(
    proxy: Proxy, valkey: BenchServer, namespace: str
) -> None:
    rule = proxy.drop_next_request(b"INCR")
    with client(proxy.url) as through, client(valkey.url) as direct:
        with pytest.raises(redis.ConnectionError):
            through.incr(namespace)

        assert rule.happened
        assert direct.get(namespace) is None


def test_a_held_request_is_carried_out_after_its_sender_left(
    proxy: Proxy, valkey: BenchServer, namespace: str
) -> None:
    rule = proxy.hold_next_request(b"INCR")
    with client(valkey.url) as direct:
        with client(proxy.url, timeout=0.05) as through, pytest.raises(redis.TimeoutError):
            through.incr(namespace)
        rule.wait()
        assert direct.get(namespace) is None

        rule.release()

        wait_until(lambda: direct.get(namespace) == b"1", what="the late request is carried out")


def test_cut_all_resets_open_connections_and_takes_new_ones(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(64) == b"+PONG\r\n"
        assert proxy.open_connections == 1

        proxy.cut_all()

        with pytest.raises(ConnectionResetError):
            connection.recv(64)
    with client(proxy.url) as through:
        assert through.ping()
        assert proxy.accepted_connections == 2


def test_cut_all_ends_a_blocked_read(proxy: Proxy, valkey: BenchServer, namespace: str) -> None:
    errors: list[Exception] = []

    def read() -> None:
        with client(proxy.url, timeout=30) as through:
            try:
                through.blpop([namespace], timeout=20)
            except redis.ConnectionError as error:
                errors.append(error)

    reader = threading.Thread(target=read)
    with client(valkey.url) as direct:
        reader.start()
        wait_until(lambda: direct.info("clients")["blocked_clients"] == 1, what="the reader blocks")
        proxy.cut_all()
        reader.join(5)

    assert not reader.is_alive()
    assert len(errors) == 1


def test_a_black_hole_takes_connections_and_answers_after_it_is_restored(
    proxy: Proxy, valkey: BenchServer, namespace: str
) -> None:
    with client(proxy.url, timeout=0.05) as known, client(valkey.url) as direct:
        known.ping()
        proxy.black_hole()
        with pytest.raises(redis.TimeoutError):
            known.incr(namespace)
        with client(proxy.url, timeout=0.05) as newcomer, pytest.raises(redis.TimeoutError):
            newcomer.ping()
        assert direct.get(namespace) is None

        proxy.restore()

        assert known.ping()
        wait_until(lambda: direct.get(namespace) == b"1", what="what was sent into the black hole arrives")


def test_refusing_is_a_refused_connection_and_keeps_the_port(proxy: Proxy) -> None:
    port = proxy.port
    proxy.refuse()
    with client(proxy.url) as through:
        with pytest.raises(redis.ConnectionError, match="refused"):
            through.ping()

        proxy.restore()

        assert proxy.port == port
        assert through.ping()


def test_a_dead_server_looks_dead_through_the_proxy() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Proxy(unused.getsockname()[1]) as proxy, client(proxy.url) as through:
            with pytest.raises(redis.ConnectionError):
                through.ping()
            wait_until(lambda: proxy.open_connections == 0, what="no connection is left")


def test_a_delay_holds_replies_back_without_slowing_the_pipeline(proxy: Proxy) -> None:
    proxy.delay(0.1)
    with client(proxy.url) as through:
        pipeline = through.pipeline(transaction=False)
        for _ in range(20):
            pipeline.ping()
        through.ping()

        began = time.monotonic()
        pipeline.execute()
        took = time.monotonic() - began

    assert 0.1 <= took < 1.0


async def test_faults_work_from_inside_a_loop(proxy: Proxy, namespace: str) -> None:
    async with async_client(proxy.url) as through:
        await through.ping()
        rule = proxy.drop_next_reply(b"INCR")
        with pytest.raises(redis.ConnectionError):
            await through.incr(namespace)
        await wait_until_async(lambda: rule.happened, what="the reply is lost")

        results = await asyncio.gather(*(_incr(through, namespace) for _ in range(50)))

        assert sorted(results) == list(range(2, 52))


async def _incr(through: AsyncRedis, key: str) -> int:
    return int(await through.incr(key))


def test_a_stream_is_cut_into_frames_wherever_its_pieces_end() -> None:
    values = [b"+OK\r\n", b"-ERR no\r\n", b":1\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"$4\r\na\r\nb\r\n"]
    values += [b"*2\r\n$1\r\nx\r\n*2\r\n:1\r\n$0\r\n\r\n", b"PING\r\n", b"%1\r\n+a\r\n:1\r\n"]
    stream = b"".join(values)

    for size in range(1, len(stream) + 1):
        frames = Frames()
        cut = [frame for at in range(0, len(stream), size) for frame in frames.feed(stream[at : at + size])]
        assert cut == values


@given(st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=4), max_size=5), st.integers(1, 30))
def test_any_requests_are_cut_as_they_were_put_together(requests: list[list[bytes]], size: int) -> None:
    encoded = [
        b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
        for words in requests
    ]
    stream = b"".join(encoded)
    frames = Frames()

    assert [f for at in range(0, len(stream), size) for f in frames.feed(stream[at : at + size])] == encoded
