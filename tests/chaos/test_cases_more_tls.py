"""More faults of connections, beyond the list of cases: encrypted ones, to a proxy that ends TLS."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from streamworker import App, Client, ConnectionLost, Context, Retry, SyncClient
from streamworker.telemetry.http import stop_accepting
from tests.integration.serving import serving
from tests.servers import BenchServer

ONCE = Retry.never()
#: Seconds that a claim lives.
LEASE = 0.6


class TlsProxy:
    """Ends TLS in front of a server, as a host's does, in a thread with a loop of its own."""

    def __init__(self, port: int, certificate: Path) -> None:
        self._upstream = port
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate)
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls-proxy")
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut_all(self) -> None:
        """Reset all connections; new ones are welcome."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return int(self._server.sockets[0].getsockname()[1])

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _shut_down(self) -> None:
        await stop_accepting(self._server)
        await self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # Also those that never came to the end of their handshake, which no stream knows.
        for transport in list(vars(self._loop)["_transports"].values()):
            transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection("127.0.0.1", self._upstream)
        ends = {writer, ahead}
        self._writers |= ends
        with suppress(asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, ahead), self._pass(behind, writer))
        self._writers -= ends

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ssl.SSLError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of localhost, signed by itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    made = tmp_path_factory.mktemp("tls") / "localhost.pem"
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    files = ("-keyout", made, "-out", made.with_suffix(".crt"))
    subprocess.run([openssl, "req", "-x509", *kind, *names, *files], check=True, capture_output=True)
    with made.open("a") as both:
        both.write(made.with_suffix(".crt").read_text())
    return made


@pytest.fixture
def proxy(valkey: BenchServer, certificate: Path) -> Iterator[TlsProxy]:
    with TlsProxy(valkey.port, certificate) as proxy:
        yield proxy


def url_of(proxy: TlsProxy, certificate: Path, host: str = "localhost") -> str:
    return f"rediss://{host}:{proxy.port}/0?ssl_ca_certs={certificate.with_suffix('.crt')}"


async def test_encrypted_connections_carry_all_that_others_do(
    proxy: TlsProxy, certificate: Path, namespace: str
) -> None:
    """Jobs of many sizes, the heartbeat of a long one, a cut in the middle, and a producer without a loop."""
    url = url_of(proxy, certificate)
    async with App("cases", redis_url=url, namespace=namespace, lease=LEASE) as app:

        @app.task(retry=ONCE)
        async def echo(ctx: Context, text: str) -> str:
            return text

        @app.task(retry=ONCE)
        async def long(ctx: Context) -> int:
            await asyncio.sleep(0.5 * LEASE)
            proxy.cut_all()
            await asyncio.sleep(LEASE)
            return ctx.attempt

        with SyncClient(url, app="cases", namespace=namespace) as client:
            async with serving(app):
                texts = ["x" * size for size in (0, 1, 1000, 200_000)]
                jobs = await app.enqueue_many(echo.call(text) for text in texts)
                assert [await job.result(10) for job in jobs] == texts

                job = await long.enqueue()
                other = await asyncio.to_thread(client.enqueue, "echo", {"text": "y" * 100_000})
                assert len(await asyncio.to_thread(other.result, 10)) == 100_000
                assert await job.result(10) == 1
                assert await (await echo.enqueue("after the cut")).result(10) == "after the cut"
        record = await app.queue().record(job.id)

    assert (record.starts, record.strikes) == (1, 0)


def test_a_loop_for_each_call_leaves_no_encrypted_connections_behind(
    proxy: TlsProxy, certificate: Path, namespace: str
) -> None:
    client = Client(url_of(proxy, certificate), app="cases", namespace=namespace)

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for number in range(4):
            asyncio.run(client.enqueue("echo", {"text": str(number)}))
    asyncio.run(client.close())


@pytest.mark.parametrize(
    ("query", "scheme"),
    [("", "rediss"), ("?ssl_ca_certs=/nowhere.crt", "rediss"), ("", "redis")],
    ids=["unknown issuer", "no such file", "not encrypted"],
)
async def test_an_encrypted_connection_that_cannot_be_is_said_in_one_line(
    proxy: TlsProxy, query: str, scheme: str
) -> None:
    url = f"{scheme}://me:s3cret@localhost:{proxy.port}/0{query}"
    with SyncClient(url, app="cases") as client:
        client._queue.caller.patience = 0.1
        with pytest.raises(ConnectionLost) as lost:
            await asyncio.to_thread(client.enqueue, "echo", {})

    assert "s3cret" not in str(lost.value)
    assert "\n" not in str(lost.value)
