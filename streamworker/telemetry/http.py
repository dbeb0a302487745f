"""A small HTTP server for probes and scrapes: GET only, bounded in all respects, no framework."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from streamworker.core.errors import ConfigurationError

log = logging.getLogger("streamworker.telemetry")

#: Bytes that a request may have, and seconds until it must be there, and answered.
MAX_REQUEST = 8192
PATIENCE = 5.0
#: Connections at a time; more are closed at once.
MAX_CONNECTIONS = 64
#: Turns of the loop from a connection to the first step of its task, and one more.
_STEPS_OF_ACCEPTING = 5
_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route answers."""

    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"


def json_answer(ok: bool, facts: Mapping[str, Any]) -> Answer:
    """200 or 503, with facts."""
    return Answer(200 if ok else 503, json.dumps(facts) + "\n", "application/json")


Route = Callable[[], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a TCP port, or a unix socket."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    def __str__(self) -> str:
        return str(self.path) if self.path else f"{self.host}:{self.port}"


class HttpServer:
    """Serves a few paths in the running loop."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = dict(routes)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def open(self, address: Address) -> int:
        """Listen, and return the port. Raises ConfigurationError when the address cannot be had."""
        try:
            if address.path is not None:
                self._server = await asyncio.start_unix_server(
                    self._accept, path=address.path, limit=MAX_REQUEST
                )
                return 0
            self._server = await asyncio.start_server(
                self._accept, address.host, address.port, limit=MAX_REQUEST
            )
        except OSError as error:
            reason = error.strerror or str(error)
            remedy = "choose another port or host" if address.path is None else "set TMPDIR to another folder"
            raise ConfigurationError(f"no metrics on {address}: {reason}; {remedy}") from None
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and drop what is open."""
        if self._server is not None:
            await stop_accepting(self._server)
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await asyncio.sleep(0)  # their sockets are closed in the loop's next turn

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if len(self._open) <= MAX_CONNECTIONS:
                async with asyncio.timeout(PATIENCE):
                    writer.write(await self._answer(reader))
                    writer.close()
                    await writer.wait_closed()
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            pass  # too slow, gone, or we are closing
        except Exception:
            log.exception("a probe or scrape was not answered")
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        asked = await _asked(reader)
        if isinstance(asked, Answer):
            return _encoded(asked)
        method, path = asked
        if method not in _METHODS:
            return _encoded(Answer(405, f"only {' and '.join(_METHODS)}\n"))
        return _encoded(await self._routed(path), bare=method == "HEAD")

    async def _routed(self, path: str) -> Answer:
        route = self._routes.get(path)
        if route is None:
            return Answer(404, f"there are: {', '.join(self._routes)}\n")
        try:
            return await route()
        except Exception:
            log.exception("%s failed", path)
            return Answer(500, "this failed; the log says why\n")


async def _asked(reader: asyncio.StreamReader) -> tuple[str, str] | Answer:
    """Method and path of a request, or what to say of one that is none. Raises ConnectionError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return Answer(431, "the request is too large\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            raise ConnectionError("gone without a word") from None
        return Answer(400, "this is no HTTP request\n")
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return Answer(400, "this is no HTTP request\n")
    return words[0], words[1].partition("?")[0]


async def stop_accepting(server: asyncio.Server) -> None:
    """Close a server when the task of each connection that it accepted has begun.

    A connection that is accepted in the turn of the loop in which its server closes is never closed: Python
    3.11 fails an assertion then, and forgets it.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
    for _ in range(_STEPS_OF_ACCEPTING):
        await asyncio.sleep(0)
    server.close()


def _encoded(answer: Answer, *, bare: bool = False) -> bytes:
    """As it is sent; `bare` without its body, which its length is of all the same (RFC 9110, 9.3.2)."""
    body = answer.body.encode()
    status = HTTPStatus(answer.status)
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *([f"Allow: {', '.join(_METHODS)}"] if answer.status == 405 else []),
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + (b"" if bare else body)


async def fetch(path: Path, route: str, *, timeout: float) -> Answer:
    """Ask a server on a unix socket. Raises OSError or TimeoutError (which is one)."""
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_unix_connection(path, limit=MAX_REQUEST)
        try:
            writer.write(f"GET {route} HTTP/1.1\r\nHost: worker\r\n\r\n".encode())
            raw = await reader.read(-1)
        finally:
            writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    try:
        return Answer(int(head.split(b" ", 2)[1]), body.decode())
    except (IndexError, ValueError):
        raise ConnectionError(f"{path} gave no answer") from None


class ServerThread:
    """An HTTP server in a thread and loop of its own: it answers while the worker's loop is stalled."""

    def __init__(self, routes: Mapping[str, Route], address: Address) -> None:
        self._server = HttpServer(routes)
        self._address = address
        self.port = 0
        self._listening: Future[int] = Future()
        self._loop = asyncio.new_event_loop()
        self._leave = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="streamworker-http", daemon=True)

    def start(self) -> None:
        """Listen, on `port`. Raises ConfigurationError when the address cannot be had."""
        self._thread.start()
        self.port = self._listening.result()

    def _run(self) -> None:
        async def main() -> None:
            try:
                self._listening.set_result(await self._server.open(self._address))
            except BaseException as error:
                self._listening.set_exception(error)
                return
            await self._leave.wait()
            await self._server.close()

        try:
            self._loop.run_until_complete(main())
        finally:
            self._loop.close()

    def stop(self) -> None:
        """Stop listening, and return when it has ended."""
        with contextlib.suppress(RuntimeError):  # closed already: it never listened
            self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(PATIENCE)
