"""Connections to Redis: one write path, replies in the order of the calls.

redis-py connects (TLS, ACL, unix sockets); the socket is then read and written here, so that a call is
one `write` and a reply one callback, with nothing re-sent behind our back (R16). A lost reply is reported
as `ConnectionLost`: whether the server executed the call is then unknown, and the caller decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import hiredis

from streamworker.core.errors import ConnectionLost, ServerUnsuitable, StreamworkerError
from streamworker.store.dialling import dial, dial_blocking
from streamworker.store.handshake import no_connection, redact
from streamworker.store.lua import Script
from streamworker.store.replies import REPLY_KINDS as REPLY_KINDS
from streamworker.store.replies import NoScript as NoScript
from streamworker.store.replies import ReplyError as ReplyError
from streamworker.store.replies import count, reply_error

Argument = str | bytes | int

#: Seconds without an answer after which a connection counts as lost. Never None: a frozen server would
#: hang the caller for ever (R17).
REPLY_TIMEOUT = 5.0


class WrongLoop(StreamworkerError):
    """A connection was used outside of the event loop that it was made in (R27)."""


#: What a fork inherited and must neither use nor close; kept, so that nothing closes it in passing.
_OF_THE_PARENT: list[object] = []


def _end_without_loop(transport: Any) -> None:
    """Close the socket of a transport whose loop is closed, and can close nothing any more."""
    raw = getattr(getattr(transport, "_ssl_protocol", None), "_transport", transport)
    with contextlib.suppress(Exception):
        raw._call_connection_lost(None)


class _Replies(asyncio.Protocol):
    """Reads replies and hands each to the call that waits longest."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._reader = hiredis.Reader(replyError=reply_error)

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._link._waiting
        good = False
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                _, waiter = waiting.popleft()
                if isinstance(reply, Exception):
                    count(self._link.errors, reply)
                else:
                    good = True
                if not isinstance(waiter, asyncio.Future):
                    self._tell(waiter, reply)
                    continue
                if waiter.done():  # the caller was cancelled: its reply is read and dropped (R19)
                    continue
                if isinstance(reply, Exception):
                    waiter.set_exception(reply)
                else:
                    waiter.set_result(reply)
            if good:
                self._link.last_reply = time.monotonic()
        except Exception as error:  # not Redis at the other end, or an answer nobody asked for
            self._link._break(ConnectionLost(f"unreadable answer: {error}"))

    def _tell(self, told: Told, reply: Any) -> None:
        try:
            told(reply)
        except Exception as error:  # a fault of the caller, not of the connection
            context = {"message": "a reply could not be taken", "exception": error, "protocol": self}
            asyncio.get_running_loop().call_exception_handler(context)

    def connection_lost(self, error: Exception | None) -> None:
        self._link._break(no_connection(self._link.url, error or ConnectionError("closed by the server")))


#: Is given the reply to a call, or the error that it ended with.
Told = Callable[[Any], None]


class Link:
    """One connection in one event loop, used by many: calls are answered in the order they were sent.

    In a forked child it counts as not connected, and `connect` makes one of the child's own. Another event
    loop of the same process is refused with WrongLoop, until `connect` is called there (R27).
    """

    def __init__(self, url: str, *, timeout: float = REPLY_TIMEOUT) -> None:
        self.url = url
        self.timeout = timeout
        self.last_reply = 0.0  # monotonic seconds of the last reply that was no error; for readiness (R42)
        self.errors: dict[str, int] = {}  # lost connections and error replies by kind, since the start
        self._waiting: deque[tuple[float, asyncio.Future[Any] | Told]] = deque()
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Link {redact(self.url)} {'up' if self.connected else 'down'}>"

    @property
    def connected(self) -> bool:
        return self._transport is not None and self._pid == os.getpid()

    @property
    def in_flight(self) -> int:
        """Calls that were sent and not answered."""
        return len(self._waiting)

    async def connect(self) -> None:
        """Connect anew; what there is stays until then. Raises ConnectionLost, or ServerUnsuitable."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._pid != os.getpid():
            self.abort()
            self._loop, self._pid = loop, os.getpid()
        try:
            connection = await dial(self.url, self.timeout)
        except ServerUnsuitable:
            raise
        except Exception as error:  # it may fail in any way: redis-py reads files, and looks up names
            count(self.errors, error)
            raise no_connection(self.url, error) from None
        if self._transport is not None:  # its end is no news any more
            self._transport.set_protocol(asyncio.Protocol())
        self.abort()
        # redis-py did the handshake; from here on the socket is ours alone.
        transport = cast(asyncio.Transport, connection._writer.transport)
        transport.set_protocol(_Replies(self))
        self._connection = connection
        self._transport = transport
        self.last_reply = time.monotonic()

    def send(self, *arguments: Argument) -> asyncio.Future[Any]:
        """Write one command now; the future gets its reply, a ReplyError or ConnectionLost.

        Raises ConnectionLost when there is no connection, or only the parent process has it, and WrongLoop in
        another event loop: then nothing was sent.
        """
        future: asyncio.Future[Any] = self._usable().create_future()
        self._put(future, arguments)
        return future

    def post(self, told: Told, *arguments: Argument) -> None:
        """As `send`, with no turn of the loop between the reply and who waits for it.

        `told` is given the reply or the error, once; a lost connection in a turn of its own, so never before
        this returns.
        """
        self._usable()
        self._put(told, arguments)

    def _usable(self) -> asyncio.AbstractEventLoop:
        """The loop of the connection, if it can be used here and now."""
        if self._transport is None or self._loop is None:
            raise ConnectionLost(f"not connected to {redact(self.url)}")
        if self._pid != os.getpid():
            raise ConnectionLost(
                "this connection belongs to the parent process (R27): connect anew after a fork"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoop(
                f"the connection to {redact(self.url)} belongs to another event loop (R27): use it there only"
            )
        return self._loop

    def _put(self, waiter: asyncio.Future[Any] | Told, arguments: tuple[Argument, ...]) -> None:
        loop = cast(asyncio.AbstractEventLoop, self._loop)
        data = hiredis.pack_command(cast(Any, arguments))  # first: who has sent nothing must not wait in line
        self._waiting.append((loop.time(), waiter))
        cast(asyncio.Transport, self._transport).write(data)
        if self._watch is None:
            self._watch = loop.call_later(self.timeout, self._check_age)

    async def call(self, *arguments: Argument) -> Any:
        """Send one command and await its reply."""
        return await self.send(*arguments)

    def send_script(self, script: Script, tag: str, *argv: Argument) -> asyncio.Future[Any]:
        """Send one script by its digest; a NOSCRIPT reply is the caller's to handle."""
        return self.send("EVALSHA", script.sha, 1, tag, *argv)

    async def script(self, script: Script, tag: str, *argv: Argument) -> Any:
        """Run one script, loading it when the server does not know it (R29).

        A Redis error names the Lua file and line that it came from.
        """
        try:
            try:
                return await self.send_script(script, tag, *argv)
            except NoScript:
                return await self.send("EVAL", script.text, 1, tag, *argv)
        except ReplyError as error:
            raise ReplyError(script.locate(str(error))) from None

    def abort(self) -> None:
        """Drop the connection; calls without a reply get ConnectionLost."""
        self._fail(ConnectionLost(f"connection to {redact(self.url)} was closed"))

    async def close(self) -> None:
        self.abort()

    def _check_age(self) -> None:
        self._watch = None
        if not self._waiting or self._loop is None:
            return
        age = self._loop.time() - self._waiting[0][0]
        if age >= self.timeout:
            self._break(ConnectionLost(f"no answer from {redact(self.url)} for {age:.1f} s"))
        else:
            self._watch = self._loop.call_later(self.timeout - age + 0.001, self._check_age)

    def _break(self, error: Exception) -> None:
        """The connection broke, without our doing."""
        if self._transport is not None:
            count(self.errors, error)
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._pid != os.getpid():
            # A fork shares the selector with its parent: to close here would deafen the parent's loop.
            _OF_THE_PARENT.append((self._transport, self._watch))
            self._transport = self._watch = None
            self._waiting = deque()
            return
        transport, self._transport = self._transport, None
        if transport is not None:
            # A transport that is never told its connection is lost would warn; its loop may be closed.
            with contextlib.suppress(AttributeError, RuntimeError):
                transport.abort()
            with contextlib.suppress(AttributeError):
                self._connection._reader = self._connection._writer = None
            if self._loop is not None and self._loop.is_closed():
                _end_without_loop(transport)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        waiting = list(self._waiting)
        self._waiting.clear()  # a reply that was read with others already belongs to nobody now
        for _, waiter in waiting:
            if not isinstance(waiter, asyncio.Future):
                with contextlib.suppress(RuntimeError):  # its loop may be closed
                    cast(asyncio.AbstractEventLoop, self._loop).call_soon(waiter, error)
            elif not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # retrieved: a caller that is gone makes no noise


class Opens(Protocol):
    """Makes links. `Link` itself does; tests have others, such as one to a server in memory."""

    def __call__(self, url: str, *, timeout: float = REPLY_TIMEOUT) -> Link:
        """A link that is not connected yet."""


class SyncLink:
    """One blocking connection for a thread, with the same promises as `Link`.

    After a fork the child connects anew when it first calls: the parent's socket stays the parent's (R27).
    """

    def __init__(self, url: str, *, timeout: float = REPLY_TIMEOUT) -> None:
        self.url = url
        self.timeout = timeout
        self.last_reply = 0.0  # as in `Link`
        self.errors: dict[str, int] = {}
        self._pid = os.getpid()
        self._connection: Any = None
        self._reader = hiredis.Reader(replyError=reply_error)

    def __repr__(self) -> str:
        return f"<SyncLink {redact(self.url)}>"

    def call(self, *arguments: Argument) -> Any:
        """Send one command and wait for its reply. Raises ConnectionLost or ReplyError."""
        try:
            reply = self._exchange(hiredis.pack_command(cast(Any, arguments)))
        except (OSError, hiredis.HiredisError) as error:  # the latter: not Redis at the other end
            self.close()
            count(self.errors, error)
            raise no_connection(self.url, error) from None
        if isinstance(reply, Exception):
            count(self.errors, reply)
            raise reply
        self.last_reply = time.monotonic()
        return reply

    def _exchange(self, command: bytes) -> Any:
        if self._pid != os.getpid():
            _OF_THE_PARENT.append(self._connection)
            self._connection = None
        if self._connection is None:
            self._connect()
        socket = self._connection._sock
        socket.sendall(command)
        while (reply := self._reader.gets()) is False:
            data = socket.recv(65536)
            if not data:
                raise ConnectionResetError("closed by the server")
            self._reader.feed(data)
        return reply

    def _connect(self) -> None:
        self._pid = os.getpid()
        try:
            connection = dial_blocking(self.url, self.timeout)
        except ServerUnsuitable:
            raise
        except Exception as error:
            count(self.errors, error)
            raise no_connection(self.url, error) from None
        # redis-py did the handshake; from here on the socket is ours alone.
        self._connection = connection
        self._reader = hiredis.Reader(replyError=reply_error)

    def script(self, script: Script, tag: str, *argv: Argument) -> Any:
        """Run one script, loading it when the server does not know it (R29)."""
        try:
            try:
                return self.call("EVALSHA", script.sha, 1, tag, *argv)
            except NoScript:
                return self.call("EVAL", script.text, 1, tag, *argv)
        except ReplyError as error:
            raise ReplyError(script.locate(str(error))) from None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._pid == os.getpid():
            with contextlib.suppress(Exception):
                connection.disconnect()
