"""fakeredis, with its differences from a real server mended here and nowhere else (R51).

- An error that `redis.pcall` catches reached the script as a Python object: it is a string.
- XREADGROUP of a stream that is not there has its own error: it is NOGROUP, as for a missing group (R9).
- Replies came as redis-py rewrites them, errors without their first word: both are as a server sends them.
- A blocking command would stop the event loop that it waits in: it is refused, `memory.py` has its own.
- It reads the machine's clock. No script asks it for the time: links pass the test's clock along
  (`links.py`), and what expires is aged when that clock is moved.

What stays different is not used by the harness: INFO, CONFIG and MEMORY are missing, XAUTOCLAIM looks at more
than COUNT x 10 entries, `cjson` differs. Before version 2.41, XREADGROUP inside a script lacked one level of
nesting: those versions are refused.

Imported only once fakeredis is known to be there.
"""

from __future__ import annotations

from typing import Any

from fakeredis import FakeRedisConnection, FakeServer, FakeStrictRedis
from fakeredis._helpers import SimpleError
from fakeredis._msgs import XGROUP_KEY_NOT_FOUND_MSG
from fakeredis._socket import FakeSocket
from redis.exceptions import NoScriptError, ResponseError

from streamworker.store.connection import Argument, NoScript, ReplyError

_BLOCKING = frozenset({"BLPOP", "BRPOP", "BLMOVE", "XREAD", "XREADGROUP"})


class _Socket(FakeSocket):
    def _lua_redis_call(self, lua_runtime: Any, expected_globals: set[Any], op: bytes, *args: Any) -> Any:
        try:
            return super()._lua_redis_call(lua_runtime, expected_globals, op, *args)
        except SimpleError as error:
            if op.upper() == b"XREADGROUP" and error.value == XGROUP_KEY_NOT_FOUND_MSG:
                raise SimpleError("NOGROUP No such key or consumer group in XREADGROUP") from None
            raise

    def _lua_redis_pcall(self, lua_runtime: Any, expected_globals: set[Any], op: bytes, *args: Any) -> Any:
        try:
            return self._lua_redis_call(lua_runtime, expected_globals, op, *args)
        except Exception as error:
            return lua_runtime.table_from({b"err": str(error).encode()})


class _Connection(FakeRedisConnection):
    def _connect(self) -> FakeSocket:
        assert self._server is not None
        return _Socket(
            self._server,
            client_class=self._client_class,
            db=self.db,
            lua_modules=self._lua_modules,
            client_info=self._client_info,
        )


class Fake:
    """One server's data. Calls are answered at once; threads take turns."""

    def __init__(self) -> None:
        server = FakeServer(version=(7, 2), server_type="redis")
        self._client: Any = FakeStrictRedis(server=server, protocol=2, connection_class=_Connection)
        self._client.response_callbacks.clear()

    def call(self, *arguments: Argument) -> Any:
        """One command and its reply, as a server sends it. Raises ReplyError."""
        if arguments[0] in _BLOCKING and (arguments[0][:1] == "B" or "BLOCK" in arguments):
            raise ReplyError(f"ERR {arguments[0]} would block this event loop")
        try:
            return self._client.execute_command(*arguments)
        except NoScriptError as error:
            raise NoScript(f"NOSCRIPT {error}") from None
        except ResponseError as error:
            text = str(error)
            # redis-py takes ERR off; what begins with another word in capitals has kept it.
            known = text.partition(" ")[0]
            raise ReplyError(text if known.isupper() else f"ERR {text}") from None

    def close(self) -> None:
        """Let the data go."""
        self._client.close()
