"""A TCP proxy in front of a server that loses, delays and cuts on command.

It runs in a thread with a loop of its own, so that tests without a loop and tests with one use it alike, and
a test that blocks its loop does not slow the network down. It knows where requests and replies begin, so that
it loses exactly the reply it was told to, however many requests share the connection. RESP2 request and reply
only: no pub/sub.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from enum import StrEnum
from types import TracebackType
from typing import Any, Self, TypeVar

from streamworker.telemetry.http import stop_accepting
from tests.resp import Frames

HOST = "127.0.0.1"
T = TypeVar("T")
#: What picks a request: a part of its bytes, or a function of them.
Match = bytes | Callable[[bytes], bool]


class Fault(StrEnum):
    """What happens to the request that a rule matches."""

    LOSE_REPLY = "lose_reply"
    LOSE_REQUEST = "lose_request"
    HOLD_REQUEST = "hold_request"


class Rule:
    """A fault that waits for its request, happens once, and can be waited for."""

    def __init__(self, fault: Fault, match: Match, release_on: asyncio.AbstractEventLoop) -> None:
        self.fault = fault
        self._match = match
        self._loop = release_on
        self._happened = threading.Event()
        self._released = asyncio.Event()

    @property
    def happened(self) -> bool:
        """Whether the request or reply was lost, or is (or was) held."""
        return self._happened.is_set()

    def wait(self, timeout: float = 10.0) -> None:
        """Wait until it happened; fails after `timeout` seconds. Blocks: in a loop, poll `happened`."""
        assert self._happened.wait(timeout), f"no request came for {self.fault} of {self._match!r}"

    def release(self) -> None:
        """Let a held request go on to the server, whether or not its sender is still there."""
        self._loop.call_soon_threadsafe(self._released.set)

    def _matches(self, request: bytes) -> bool:
        return self._match in request if isinstance(self._match, bytes) else self._match(request)


class Proxy:
    """A proxy in front of the server on `upstream_port` of the loopback address; a context manager.

    Its faults can be used from any thread and have taken effect when the call returns.
    """

    def __init__(self, upstream_port: int) -> None:
        """Prepare a proxy; nothing listens before `start`."""
        self._upstream_port = upstream_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-proxy", daemon=True)
        # Bound but never listening, it keeps the port ours while we refuse connections.
        self._reservation: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._rules: list[Rule] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._delay_seconds = 0.0
        self._accepted = 0

    def start(self) -> Self:
        """Listen on a free port."""
        self._reservation = _bound(0)
        self._thread.start()
        self._do(self._listen())
        return self

    def stop(self) -> None:
        """Cut all connections and end the thread."""
        self._do(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._reservation is not None:
            self._reservation.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        assert self._reservation is not None, "the proxy was not started: use it as a context manager"
        port: int = self._reservation.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The server's URL through this proxy."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._pairs)

    @property
    def accepted_connections(self) -> int:
        """How many connections were ever accepted."""
        return self._accepted

    def drop_next_reply(self, match: Match) -> Rule:
        """Lose the reply of the next request that matches, and close its connection.

        The server has carried the request out by then. Replies before it arrive, and requests that were sent
        right behind it are carried out.
        """
        return self._add_rule(Fault.LOSE_REPLY, match)

    def drop_next_request(self, match: Match) -> Rule:
        """Cut the connection of the next request that matches before the server sees it."""
        return self._add_rule(Fault.LOSE_REQUEST, match)

    def hold_next_request(self, match: Match) -> Rule:
        """Hold the next request that matches, and what follows it on its connection, until `Rule.release`.

        It reaches the server even if its sender has gone by then: a late execution.
        """
        return self._add_rule(Fault.HOLD_REQUEST, match)

    def forget(self) -> None:
        """Take back the rules that still wait for their request."""

        async def clear() -> None:
            self._rules.clear()

        self._do(clear())

    def cut_all(self) -> None:
        """Reset all open connections; new ones are welcome."""

        async def cut() -> None:
            for pair in list(self._pairs):
                pair.cut()

        self._do(cut())

    def black_hole(self) -> None:
        """Pass nothing on, in neither direction, and keep connections open and accept new ones.

        What was sent meanwhile arrives after `restore`, as it would with TCP.
        """
        self._do(self._set_flowing(flowing=False))

    def delay(self, seconds: float) -> None:
        """Hold back each reply for `seconds`; requests that follow do not wait for it."""
        self._delay_seconds = seconds

    def refuse(self) -> None:
        """Refuse new connections, as a port without a listener does; open ones stay."""
        self._do(self._stop_listening())

    def restore(self) -> None:
        """End `black_hole`, `delay` and `refuse`; rules that still wait are kept."""
        self._delay_seconds = 0.0
        self._do(self._set_flowing(flowing=True))
        self._do(self._listen())

    def _do(self, step: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(10)

    def _add_rule(self, fault: Fault, match: Match) -> Rule:
        async def add() -> Rule:
            rule = Rule(fault, match, self._loop)
            self._rules.append(rule)
            return rule

        return self._do(add())

    async def _set_flowing(self, *, flowing: bool) -> None:
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, sock=_bound(self.port))

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await stop_accepting(listener)

    async def _shut_down(self) -> None:
        await self._stop_listening()
        for pair in list(self._pairs):
            pair.cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted += 1
        client = _End(reader, writer)
        try:
            server = _End(*await asyncio.open_connection(HOST, self._upstream_port))
        except (OSError, asyncio.CancelledError):  # `stop` cancels as well
            client.reset()
            return
        pair = _Pair(self, client, server)
        self._pairs.add(pair)
        try:
            # A connection that `stop` cancels has ended; asyncio would report it as an error of ours.
            with contextlib.suppress(asyncio.CancelledError):
                await pair.run()
        finally:
            pair.close()
            self._pairs.discard(pair)

    def take_rule(self, request: bytes) -> Rule | None:
        """Return the oldest rule that this request matches, which is then used up."""
        for rule in self._rules:
            if rule._matches(request):
                self._rules.remove(rule)
                return rule
        return None


class _End:
    """One side of a proxied connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError:
            # The receiver has gone; what the other side sent still counts as carried out.
            pass

    def reset(self) -> None:
        """Close with RST, so that the peer sees an error and no orderly end."""
        connection = self.writer.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class _Pair:
    """A client's connection and the one to the server that serves it."""

    def __init__(self, proxy: Proxy, client: _End, server: _End) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        # One for each request that was passed on and has no reply yet: the rule on its reply, if any.
        self._awaited: deque[Rule | None] = deque()
        self._replies: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        steps = (self._pass_requests(), self._take_replies(), self._pass_replies())
        self._tasks = [asyncio.ensure_future(step) for step in steps]
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Close both ends, also when `run` was cancelled before it ran."""
        for end in (self._client, self._server):
            end.writer.close()

    def cut(self) -> None:
        """Reset both ends."""
        for end in (self._client, self._server):
            end.reset()
        self._cancel()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _pass_requests(self) -> None:
        frames = Frames()
        while chunk := await _read(self._client.reader):
            for request in frames.feed(chunk):
                await self._pass_request(request)
        # An orderly end: the server sees it after all requests, and its last replies are still passed on.
        await self._proxy._flowing.wait()
        if self._server.writer.can_write_eof() and not self._server.writer.is_closing():
            self._server.writer.write_eof()

    async def _pass_request(self, request: bytes) -> None:
        rule = self._proxy.take_rule(request)
        if rule is not None and rule.fault is Fault.LOSE_REQUEST:
            self.cut()
            rule._happened.set()
            await asyncio.sleep(0)
        if rule is not None and rule.fault is Fault.HOLD_REQUEST:
            rule._happened.set()
            await rule._released.wait()
        await self._proxy._flowing.wait()
        self._awaited.append(rule if rule is not None and rule.fault is Fault.LOSE_REPLY else None)
        await self._server.send(request)

    async def _take_replies(self) -> None:
        frames = Frames()
        now = asyncio.get_running_loop().time
        while chunk := await _read(self._server.reader):
            for reply in frames.feed(chunk):
                # A server may speak unasked before it closes, such as at its limit of clients.
                rule = self._awaited.popleft() if self._awaited else None
                if rule is not None:
                    await self._lose(rule)
                self._replies.put_nowait((now() + self._proxy._delay_seconds, reply))
        self._replies.put_nowait((now(), b""))

    async def _lose(self, rule: Rule) -> None:
        # An orderly end, unlike `cut`: a reset could take earlier replies and later requests with it.
        await self._replies.join()
        self._cancel()
        rule._happened.set()
        await asyncio.sleep(0)

    async def _pass_replies(self) -> None:
        while True:
            due, reply = await self._replies.get()
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            await self._proxy._flowing.wait()
            if not reply:
                break
            await self._client.send(reply)
            self._replies.task_done()
        self._client.writer.close()
        self._tasks[0].cancel()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return the next bytes, empty at the end, however it came."""
    try:
        return await reader.read(65_536)
    except OSError:
        return b""


def _bound(port: int) -> socket.socket:
    """Return a socket bound to a port, which another socket of ours may share."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound
