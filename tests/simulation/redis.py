"""The one real server: runs what arrives, by the simulation's clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamworker.store import lua
from streamworker.store.connection import Argument, NoScript, ReplyError, SyncLink
from streamworker.store.keys import GROUP, STREAM_SUFFIX, Keys
from streamworker.store.lua import Script
from tests.integration.stateful.bench import AGE, TICK, compose

#: ms since the epoch at which every simulation begins.
START_MS = 1_700_000_000_000


class RealRedis:
    """A namespace on a real server that lives by a clock of its own.

    The server measures the idle times of pending entries. Before each sweep they are set to what they would
    be by the virtual clock, a little too old at most: the record's lease decides, never they (D6).
    """

    def __init__(
        self, url: str, namespace: str, lanes: tuple[str, ...], *, folder: Path | None = None
    ) -> None:
        """`folder` holds other scripts than the package's, for runs that change them."""
        self.keys = Keys(namespace)
        self.link = SyncLink(url, timeout=300.0)  # real seconds, on a machine that may be very busy
        self._streams = [self.keys.stream(lane, kind) for lane in lanes for kind in STREAM_SUFFIX]
        self._by_sha = {lua.load(name).sha: lua.load(name) for name in lua.names()}
        self._by_text = {script.text: script for script in self._by_sha.values()}
        self._folder = folder
        self._known: set[str] = set()
        self._aged_ms = 0
        #: How far the server's clock is from the virtual one, in ms.
        self.offset_ms = 0
        self.calls = 0

    def begin(self) -> None:
        """Empty it, for the next history."""
        self.link.call("FLUSHDB")
        self.forget_scripts()
        self._aged_ms = 0
        self.offset_ms = 0
        self.calls = 0

    def forget_scripts(self) -> None:
        """As SCRIPT FLUSH does, for those who send them; the real server need not compile them again."""
        self._known.clear()

    def clock_ms(self, now: float) -> int:
        """The server's clock at this virtual time."""
        return START_MS + round(now * 1000) + self.offset_ms

    def call(self, *arguments: Argument) -> Any:
        """One command as it is, of the simulation itself."""
        return self.link.call(*arguments)

    def named(self, arguments: tuple[Argument, ...]) -> Script | None:
        """The script that a command runs; None: it is a plain command."""
        if arguments[0] == "EVALSHA":
            return self._by_sha.get(str(arguments[1]))
        return self._by_text.get(str(arguments[1])) if arguments[0] == "EVAL" else None

    def execute(self, now: float, arguments: tuple[Argument, ...]) -> Any:
        """What the server answers at this virtual time. Raises ReplyError."""
        self.calls += 1
        script = self.named(arguments)
        if script is None:
            return self._plain(now, arguments)
        argv = arguments[4:]
        if script.bindings[:1] == ("clock",) and argv[:1] == ("",):
            argv = (str(self.clock_ms(now)), *argv[1:])
        if arguments[0] == "EVALSHA" and script.sha not in self._known:
            raise NoScript("NOSCRIPT No matching script.")
        self._known.add(script.sha)
        if script.name == "recover":
            self._age(now)
        sent = script if self._folder is None else compose(self._folder, script.name)
        try:
            return self.link.call("EVALSHA", sent.sha, 1, arguments[3], *argv)
        except NoScript:
            return self.link.call("EVAL", sent.text, 1, arguments[3], *argv)

    def _plain(self, now: float, arguments: tuple[Argument, ...]) -> Any:
        if arguments[0] == "SCAN":  # in an order that is the same each time
            return [b"0", sorted(self.link.call("KEYS", arguments[3]))]
        if arguments[0] == "TIME":
            seconds, ms = divmod(self.clock_ms(now), 1000)
            return [str(seconds).encode(), str(ms * 1000).encode()]
        return self.link.call(*arguments)

    def _age(self, now: float) -> None:
        ticks = int(now * 1000) // TICK * TICK
        passed, self._aged_ms = ticks - self._aged_ms, ticks
        if passed > 0:
            self.link.call("EVAL", AGE, len(self._streams), *self._streams, passed, TICK)

    def destroy_group(self, pick: int) -> str:
        """A group that is gone (R9): everything is delivered again; the stream's name."""
        stream = self._streams[pick % len(self._streams)]
        try:
            self.link.call("XGROUP", "DESTROY", stream, GROUP)
        except ReplyError as error:  # no such stream yet
            if "no such key" not in str(error) and "requires the key" not in str(error):
                raise
        return stream

    def close(self) -> None:
        self.link.close()
