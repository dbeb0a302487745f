"""Enqueues over bounds and into windows in sequences that nobody thought of: every disposition, predicted.

Small enough to be its own model: what a lane takes, tokens, windows and keys in plain Python. After each call
the invariants of all scripts hold; in the end each item that was taken has been worked on exactly once, and
each key leads to the job that has its item. `STREAMWORKER_STATEFUL_EXAMPLES` sets the number of sequences.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamworker.core.outcome import Success
from streamworker.store import scripts
from tests.lua.driver import Shard, job
from tests.lua.merging import WINDOW, event, items_of

EXAMPLES = int(os.environ.get("STREAMWORKER_STATEFUL_EXAMPLES", "200")) // 4
LIMIT, BACKLOG, FULL = 3, 2, 4
ACTIONS = (
    "plain",
    "plain",
    "ask",
    "delay",
    "event",
    "event",
    "event",
    "latest",
    "again",
    "work",
    "drain",
    "time",
)
_numbers = itertools.count(1)


@dataclass(slots=True)
class Window:
    """One that is open: the job, when it ends, and what it has."""

    job_id: str
    until: int
    items: list[str]


@dataclass(slots=True)
class Story:
    """One sequence, and what it should have come to."""

    shard: Shard
    names: int = 0
    waits: list[str] = field(default_factory=list)
    backlog: list[str] = field(default_factory=list)
    due: dict[str, int] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    #: Jobs that wait in the backlog when their window is over.
    deferred: set[str] = field(default_factory=set)
    tokens: int = 4
    filled_at: int = 0
    #: Of each event that was taken: the job that answers for it, and what that is to work on.
    went_to: dict[str, str] = field(default_factory=dict)
    content: dict[str, list[str]] = field(default_factory=dict)
    sent: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        bounds = f"depth normal {LIMIT} backlog\nbacklog normal {BACKLOG} reject"
        self.shard.declare(admission=bounds, drain="1000,1000,1000")
        self.shard.tune("throttle", "tenant:acme", f"4,{WINDOW},4 reject")
        self.filled_at = self.shard.now

    def step(self, action: str, pick: int) -> None:
        match action:
            case "plain" | "ask" | "delay":
                self.enqueue(action, tenant="acme" if pick % 3 == 0 else "")
            case "event" | "latest":
                self.happen(action, 1 + pick % 3)
            case "again" if self.sent:
                self.send_again(*self.sent[pick % len(self.sent)])
            case "work":
                self.work(1 + pick % 3)
            case "drain":
                room = 1 + pick % 4
                expected = max(0, min(len(self.backlog), room - len(self.waits)))
                assert self.shard.drain(("normal", room))[0] == expected
                for _ in range(expected):
                    self.waits.append(self.backlog.pop(0))
            case "time":
                self.pass_time((100, WINDOW // 4, WINDOW)[pick % 3])

    def name(self) -> str:
        self.names += 1
        return f"j{self.names}"

    def enqueue(self, action: str, tenant: str) -> None:
        """A plain job, one that asks for the backlog, or one with a delay."""
        name = self.name()
        delay = WINDOW if action == "delay" else 0
        expected = self.door(name, tenant, asks=action == "ask", delay=delay)
        backlog = "asked" if action == "ask" else ""
        (reply,) = self.shard.enqueue(job(name, tenant=tenant, delay_ms=delay, backlog=backlog))
        assert reply.split(" ")[0] == expected, (reply, expected, self)

    def door(self, name: str, tenant: str, *, asks: bool, delay: int) -> str:
        """What becomes of a new job by the bounds."""
        if tenant:
            self.fill()
            if self.tokens < 1:
                return "REJECTED"
            self.tokens -= 1
        if delay:
            self.due[name] = self.shard.now + delay
            return "SCHEDULED"
        if asks or len(self.waits) >= LIMIT:
            if len(self.backlog) >= BACKLOG:
                return "REJECTED"
            self.backlog.append(name)
            return "DEFERRED"
        self.waits.append(name)
        return "ACCEPTED"

    def fill(self) -> None:
        """Four tokens a window, in whole ones: time moves in quarters of it, and by less."""
        gained = (self.shard.now - self.filled_at) * 4 // WINDOW
        self.tokens = min(4, self.tokens + gained)
        self.filled_at = self.shard.now if self.tokens == 4 else self.filled_at + gained * WINDOW // 4

    def happen(self, mode: str, count: int) -> None:
        """Events of one call; each has a key of its own."""
        names = [self.name() for _ in range(count)]
        mode = "collect" if mode == "event" else mode
        before = len(self.waits), len(self.backlog)
        expected = [self.merge(name, mode, *before) for name in names]
        assert self.shard.coalesce(*(self.make(name, mode) for name in names)) == expected
        self.sent += [(name, mode) for name in names if name in self.went_to]

    def make(self, name: str, mode: str, job_id: str = "") -> scripts.NewJob:
        return event(
            job_id or name,
            mode,
            name,
            user=int(mode == "latest"),
            limit=FULL,
            key_id=f"add::{name}",
            fingerprint="f",
        )

    def merge(self, name: str, mode: str, depth: int, backlog: int) -> str:
        """What waits in the lane and its backlog before the call. Who opens a window is a new job."""
        now = self.shard.now
        window = self.windows.get(mode)
        if window is None or window.until <= now:
            if depth >= LIMIT:
                if backlog >= BACKLOG:
                    return "REJECTED 1000 backlog_full"
                self.deferred.add(name)
            self.windows[mode] = Window(name, now + WINDOW, [name])
            self.went_to[name], self.content[name] = name, [name]
            self.due[name] = now + WINDOW
            return f"SCHEDULED {now + WINDOW}"
        window.items.append(name)
        self.went_to[name] = window.job_id
        self.content[window.job_id] = window.items if mode == "collect" else [name]
        if len(window.items) == FULL:
            del self.windows[mode], self.due[window.job_id]
            self.place_of(window.job_id).append(window.job_id)
        return f"COALESCED {window.job_id}"

    def place_of(self, name: str) -> list[str]:
        """Where a job goes when its window is over."""
        return self.backlog if name in self.deferred else self.waits

    def send_again(self, name: str, mode: str) -> None:
        """The same request is answered the same; another with its key is a duplicate."""
        (reply,) = self.shard.coalesce(self.make(name, mode, job_id=self.name()))
        word, job_id, _ = reply.split(" ")
        assert (word, job_id) == ("DUPLICATE", self.went_to[name])
        (reply,) = self.shard.coalesce(self.make(name, mode))
        assert reply.split(" ")[0] in ("SCHEDULED", "COALESCED")

    def pass_time(self, ms: int) -> None:
        self.shard.elapse(ms)
        self.shard.promote()
        for name, due in sorted(self.due.items(), key=lambda one: one[1]):
            if due <= self.shard.now:
                del self.due[name]
                self.place_of(name).append(name)

    def work(self, count: int) -> None:
        for claim in self.shard.claim(limit=count):
            assert claim.job_id in self.waits, self
            self.waits.remove(claim.job_id)
            if claim.job_id in self.content:
                assert items_of(claim.envelope) == self.content.pop(claim.job_id)
            assert self.shard.settle(claim, Success()) == "OK"

    def end(self) -> None:
        """All that was taken is worked on, and every key leads to its job."""
        for _ in range(3):
            self.pass_time(WINDOW)
            self.work(100)
            while self.backlog:
                self.step("drain", 3)
                self.work(100)
        assert [*self.waits, *self.backlog, *self.due, *self.content] == []
        now = self.shard.look()
        assert not [name for name in now.hashes if name.startswith("merged_keys:")]
        for name, job_id in self.went_to.items():
            assert now.strings[f"key:add::{name}"].decode() == f"{job_id} f succeeded"


@settings(
    max_examples=max(5, EXAMPLES),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 40)), min_size=4, max_size=30))
@example(steps=[("plain", 0)] * 4 + [("event", 1), ("event", 2)])  # full in a call that opens the next window
def test_every_disposition_is_as_the_rules_say_in_any_sequence(
    valkey_shard: Shard, steps: list[tuple[str, int]]
) -> None:
    shard = Shard(
        valkey_shard.link, f"{valkey_shard.keys.namespace}-{next(_numbers)}", folder=valkey_shard.folder
    )
    try:
        shard.session()
        story = Story(shard)
        for action, pick in steps:
            story.step(action, pick)
        story.end()
    finally:
        shard.clear()
