"""Sends scripts to a real server, looks at everything after each, and compares it with the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any

import hiredis
import redis
from redis.exceptions import NoScriptError, RedisError

from streamworker.store import lua
from streamworker.store.connection import Argument
from streamworker.store.keys import GROUP, Keys
from streamworker.store.scripts import Call
from tests.model import letting_in
from tests.model.comparing import adopt, differences
from tests.model.gates import Before
from tests.model.history import History
from tests.model.seen import LOOK, Seen, parse
from tests.model.shard import KINDS, Shard

LANES = ("normal", "priority")
#: ms that a claim lives without a heartbeat.
LEASE = 30_000
#: Where the clock of each example begins, in ms.
START = 1_700_000_000_000
#: ms for which keys live that are to live on.
LASTING = 3_600_000
#: The clock moves in these steps, in ms, so that real time spent between two steps changes no comparison.
TICK = 1_000

#: Lets the pending entries grow older by ARGV[1] ms without a change of hands. Real time is rounded off.
AGE = """
for _, stream in ipairs(KEYS) do
  local pending = redis.pcall('XPENDING', stream, 'workers', '-', '+', 10000)
  if not pending.err then
    for _, one in ipairs(pending) do
      if #redis.call('XRANGE', stream, one[1], one[1]) > 0 then
        local idle = one[3] - one[3] % ARGV[2] + ARGV[1]
        redis.call('XCLAIM', stream, 'workers', one[2], 0, one[1], 'IDLE', idle, 'JUSTID')
      end
    end
  end
end
return 0
"""

compose = cache(lua.compose)


class Wire:
    """One connection that sends several commands at once and gives errors back as values."""

    def __init__(self, url: str) -> None:
        pool = redis.ConnectionPool.from_url(url, protocol=2, socket_timeout=20)
        connection: Any = pool.make_connection()
        connection.connect()
        self._connection = connection
        self._texts: dict[str, str] = {}

    def send(self, *commands: Sequence[Argument]) -> list[Any]:
        """The replies in order. Scripts are sent as EVAL with their text, and travel as EVALSHA."""
        self._write([self._digested(one) for one in commands])
        replies = [self._reply() for _ in commands]
        for position, (command, reply) in enumerate(zip(commands, replies, strict=True)):
            if isinstance(reply, NoScriptError):  # load it, and send all that followed again
                self._write([tuple(command)])
                return [*replies[:position], self._reply(), *self.send(*commands[position + 1 :])]
        return replies

    def _digested(self, command: Sequence[Argument]) -> tuple[Argument, ...]:
        if command[0] != "EVAL":
            return tuple(command)
        text = str(command[1])
        if text not in self._texts:
            self._texts[text] = sha1(text.encode(), usedforsecurity=False).hexdigest()
        return ("EVALSHA", self._texts[text], *command[2:])

    def _write(self, commands: Sequence[Any]) -> None:
        self._connection.send_packed_command([b"".join(hiredis.pack_command(one) for one in commands)])

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except RedisError as error:
            return error

    def close(self) -> None:
        self._connection.disconnect()


class Bench:
    """One namespace, its model, and the last look at it."""

    def __init__(
        self,
        wire: Wire,
        namespace: str,
        *,
        folder: Path | None = None,
        told: Counter[str] | None = None,
    ) -> None:
        """`folder` holds other scripts than the package's, for tests that change them.

        `told`: where answers to producers are counted, by their disposition.
        """
        self.wire = wire
        self.keys = Keys(namespace)
        self.model = Shard(LANES, now=START, lease_ms=LEASE)
        self.history = History()
        self.seen = Seen()
        #: How gates stood at the last comparison; None: nothing was called since.
        self.before: Before | None = None
        self.told: Counter[str] = Counter() if told is None else told
        self._folder = folder
        self._prefix = f"{self.keys.tag}:"

    @property
    def clock(self) -> str:
        return str(self.model.now)

    def run(self, call: Call, *, look: bool = True) -> Any:
        """A script's reply. Raises RedisError with the Lua file and line.

        `seen` has what it left behind, unless that is left to the `look` after the next call.
        """
        if self.before is None:  # since the last comparison
            self.before = Before.of(self.model.jobs, self.seen.kept.zsets)
        script = call.script if self._folder is None else compose(self._folder, call.script.name)
        command = ("EVAL", script.text, 1, self.keys.tag, *call.argv)
        (reply,) = self._look_after(command) if look else self.wire.send(command)
        if isinstance(reply, RedisError):
            raise type(reply)(f"{script.name}: {script.locate(str(reply))}")
        return reply

    def redis(self, *command: Argument) -> Any:
        """A command that some client sends past the scripts."""
        (reply,) = self._look_after(command)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def keep(self, *prefixes: str) -> None:
        """Let keys live on: real time passes otherwise than the clock of an example."""
        names = [name for name in self.seen.ttls if name.startswith(prefixes)]
        if names:
            self.wire.send(*(("PEXPIRE", self._prefix + name, LASTING) for name in names))

    def ripe(self, lane: str, kind: str) -> set[str]:
        """The pending entries of a stream that have been idle for a lease by now."""
        (pending,) = self.wire.send(("XPENDING", self.keys.stream(lane, kind), GROUP, "-", "+", 10_000))
        if isinstance(pending, RedisError):  # no stream or no group
            return set()
        return {one[0].decode() for one in pending if one[2] >= LEASE}

    def pass_time(self, ms: int) -> None:
        """For the clock, and for the idle times of what is pending, which never fall."""
        self.model.now += ms
        if ms < 0:
            self.model.gates.clock_was_put_back(self.model.now)
        if ms > 0 and any(stream.pending for stream in self.model.streams.values()):
            streams = [self.keys.stream(lane, kind) for lane in LANES for kind in KINDS]
            (reply,) = self.wire.send(("EVAL", AGE, len(streams), *streams, ms, TICK))
            assert reply == 0, reply

    def confirm(self, expected: object, reply: object) -> None:
        """The reply, the log and everything that is stored are as the model says."""
        wrong = list(self.history.read(self.seen.lines))
        if expected != reply:
            wrong.append(f"reply: expected {expected}, found {reply}")
        wrong += adopt(self.model, self.seen)
        wrong += differences(self.model, self.seen)
        if self.before is not None:
            wrong += letting_in.wrong(self.model, self.before, self.seen)
            self.before = None
        assert not wrong, "\n".join(["", *wrong])
        self.model.moves.clear()
        self.seen.lines.clear()

    def _look_after(self, command: Sequence[Argument]) -> list[Any]:
        look = ("EVAL", LOOK, 0, self._prefix, self.seen.read_to)
        *replies, seen = self.wire.send(command, look)
        if isinstance(seen, RedisError):
            raise seen
        self.seen = parse(seen, self._prefix, self.seen.read_to)
        return replies

    def clear(self) -> None:
        """Remove the namespace."""
        if self.seen.ttls:
            self.wire.send(("UNLINK", *(self._prefix + name for name in self.seen.ttls)))
