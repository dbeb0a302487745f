"""What is done to gates: pauses, limits, their timers, floods of one tenant; and the locks of handlers."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from streamworker.store import scripts
from tests.integration.stateful.bench import LANES
from tests.integration.stateful.machine import LIVENESS, Protocol, nth, some
from tests.integration.stateful.producers import Producers
from tests.model import locking
from tests.model.job import Request

#: What can be paused. A lane is paused until somebody resumes it: what opens by itself opens by a ramp.
SCOPES = ("lane:normal", "lane:priority", "task:add", "task:mail", "tenant:acme", "dependency:x")
#: What limits are set to: less than declared, more, and as declared again.
FIGURES = {"concurrency:c": ("1", "2", "3", ""), "concurrency:d": ("1", "3", "")}
#: What producers may, and what becomes of those who come too often.
THROTTLED = ("lane:normal", "tenant:acme")
THROTTLES = ("1,5000,2 reject", "2,5000,1 backlog", "1,1000,1 reject", "")
#: Jobs of one tenant that come at once: more than may stand in a lane's streams (D15).
FLOOD = 18


class GateMoves(Producers, Protocol):
    """Operators, keepers and tenants at gates; locks."""

    @rule(
        what=st.sampled_from(("pause", "pause", "resume", "limit", "throttle")),
        scope=st.sampled_from(SCOPES),
        limit=st.sampled_from(sorted(FIGURES)),
        pick=some,
    )
    def operator_moves_gates(self, what: str, scope: str, limit: str, pick: int) -> None:
        if what == "throttle":
            self.tune("throttle", nth(THROTTLED, pick), nth(THROTTLES, pick // len(THROTTLED)))
        elif what == "limit":
            figures = nth(FIGURES[limit], pick)
            self.tune("limit" if figures else "reset", limit, figures)
        elif what == "pause":
            self.tune("pause", scope, "" if pick % 2 or scope.startswith("lane:") else "5000")
        else:
            self.tune("resume", scope, "0" if pick % 2 or scope.startswith("lane:") else "10000")

    @rule(limit=st.integers(1, 5), ms=st.sampled_from((0, 1_000, 5_000)))
    def gates_are_woken(self, limit: int, ms: int) -> None:
        """After a time; not all timers need be served at once."""
        self.bench.pass_time(ms)
        self.wake("keeper", limit)

    @rule(
        lane=st.sampled_from(LANES),
        kind=st.sampled_from("001"),
        worker=some,
        what=st.sampled_from(("gates", "flood", "events", "events")),
        window=st.sampled_from(("collect", "latest")),
    )
    def crowd_comes(self, lane: str, kind: str, worker: int, what: str, window: str) -> None:
        """Several jobs of the same gates, and a worker that takes what it may; or a flood of one tenant.

        Or events of one window, in two calls, each under a key of its own.
        """
        if what == "events":
            for count in (1 + worker % 2, 1 + worker % 3):
                self.arrive([self._event(lane, window, kind, n) for n in range(count)])
            return
        if what == "flood" and len(self.requests) < FLOOD:  # what is compared after each step has its price
            self.arrive([Request("", lane, tenant="acme")] * FLOOD)
            return
        self.arrive([Request("", lane, gates=kind)] * 3)
        hand = nth(self.hands, worker)
        asked = self.ask(hand, LANES, 3, quarantine=LANES)
        self.hear(hand, asked, self.exchange(asked))

    def _event(self, lane: str, window: str, kind: str, n: int) -> Request:
        """The next one; some carry an item that another one has too."""
        number = len(self.requests) + n
        items = ('"x"', str(number)) if kind == "1" else (str(number),)
        return Request("", lane, key=f"event:{number}", fingerprint="same", window=window, items=items)

    @rule(
        what=st.sampled_from(("acquire", "acquire", "extend", "release", "runs out")),
        name=st.sampled_from(("a", "b")),
        holder=st.sampled_from(("j1:7", "j1:8", "j2:9")),
        floor=st.sampled_from((0, 0, 2**52)),
    )
    def handler_locks(self, what: str, name: str, holder: str, floor: int) -> None:
        """A call may be sent twice, and by one whose lock has run out."""
        model, clock = self.model, self.bench.clock
        match what:
            case "acquire":
                ttl = {"ttl_ms": LIVENESS, "floor": floor}
                call = scripts.lock_acquire(clock=clock, name=name, holder=holder, **ttl)
                word, token = self.run(call)
                expected = locking.acquire(model, name, holder, floor)
                self.confirm(expected, (word.decode(), int(token) if word == b"OK" else None))
            case "extend":
                reply = self.run(scripts.lock_extend(name=name, holder=holder, ttl_ms=LIVENESS))
                self.confirm(locking.extend(model, name, holder), reply.decode())
            case "release":
                reply = self.run(scripts.lock_release(name=name, holder=holder))
                self.confirm(locking.release(model, name, holder), reply.decode())
            case _:
                self.bench.redis("DEL", self.bench.keys.lock(name))
                model.locks.pop(name, None)
                self.confirm()
