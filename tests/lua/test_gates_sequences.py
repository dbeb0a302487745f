"""Gates and turnstiles in sequences that nobody thought of.

After each step every invariant holds (`gate_invariants.py`); no limit is passed; and a run without further
faults ends every job. `STREAMWORKER_STATEFUL_EXAMPLES` sets the number of sequences.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import HELD, TERMINAL, ErrorClass, Reason
from streamworker.store.keys import STREAM_SUFFIX
from tests.lua.driver import LEASE, Shard, job, plan_of
from tests.lua.gate_invariants import granted, words

EXAMPLES = int(os.environ.get("STREAMWORKER_STATEFUL_EXAMPLES", "200")) // 4
LANES = ("normal", "priority")
#: Half of at least 2 calls; open for a second; one at a time may try; opens over 2 s.
BREAKER = "50,2,10000,1000,1,2000"
GATES = (
    "",
    "0 entity:e:1",
    "0 entity:e:2|strict",
    "0 concurrency:c|1",
    "0 concurrency:d|2",
    "0 rate:r|1,1000,1",
    "0 pause:dependency:x",
    "0 rate:r|1,1000,1 entity:e:1 concurrency:c|1",
    "0 pause:dependency:x entity:e:1 concurrency:c|1 concurrency:d|2",
    f"0 breaker:dependency:x|{BREAKER}",
    f"0 pause:dependency:x breaker:dependency:x|{BREAKER} rate:r|1,1000,1 entity:e:1 concurrency:c|1",
)
MOST = {"breaker:dependency:x": 1, "entity:e:1": 1, "entity:e:2": 1, "concurrency:c": 1, "concurrency:d": 2}
SCOPES = ("lane:normal", "lane:priority", "task:add", "tenant:acme", "dependency:x")
OUTCOMES: tuple[Outcome, ...] = (
    Success(),
    Retry(700, ErrorClass.TRANSIENT, "timeout", "x", "p"),
    Retry(0, ErrorClass.UNKNOWN, "value_error", "x"),
    Fail(ErrorClass.PERSISTENT, "bad", "x"),
    Release(Reason.SHUTDOWN),
    Release(Reason.SNOOZED, 300),
)
LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "", "-", Reason.RECOVERED)
ACTIONS = (
    *("enqueue",) * 4,
    *("claim",) * 4,
    *("settle",) * 4,
    *("cancel", "time", "wake", "pause", "resume", "recover", "repair", "deliver", "offer", "delay"),
    *("calls", "force"),
)
_numbers = itertools.count(1)


class Story:
    """One sequence on a shard of its own."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.held: list[Claim] = []
        self.names: list[str] = []
        self.offers: list[tuple[str, str, str]] = []
        self.raised = False
        shard.pass_hold()
        shard.session("w1")
        shard.declare(**{"breaker:dependency:x": BREAKER})
        self.claim(4, LANES)  # makes the groups, of which a reader can be given something

    def step(self, action: str, pick: int, other: int) -> None:
        shard = self.shard
        match action:
            case "enqueue" | "delay":
                name = f"j{len(self.names)}"
                self.names.append(name)
                shard.enqueue(
                    job(
                        name,
                        lane=LANES[other % 2],
                        gates=GATES[pick % len(GATES)],
                        tenant=("", "acme")[other % 3 == 0],
                        delay_ms=500 if action == "delay" else 0,
                        deadline_ms=4000 if other % 7 == 0 else 0,
                    )
                )
            case "claim":
                self.claim(1 + pick % 4, LANES if other % 2 else LANES[::-1])
            case "settle" if self.held:
                claim = self.held.pop(pick % len(self.held))
                shard.settle(claim, OUTCOMES[other % len(OUTCOMES)])
            case "cancel" if self.names:
                shard.cancel(self.names[pick % len(self.names)])
            case "time":
                shard.elapse((100, 700, 1000, 5000)[pick % 4])
                shard.promote()
            case "wake":
                shard.wake(limit=1 + pick % 5)
            case "pause":
                shard.tune("pause", SCOPES[pick % len(SCOPES)], 3000 if other % 2 else "")
            case "resume":
                shard.tune("resume", SCOPES[pick % len(SCOPES)], (0, 1000)[other % 2])
            case "calls":
                ok, errors = ((0, 3), (1, 0), (5, 1))[pick % 3]
                shard.exchange(calls=f"breaker:dependency:x {ok} {errors} 0")
            case "force":
                verb = ("open", "close", "auto")[pick % 3]
                shard.tune(
                    verb, "breaker:dependency:x", f"{(0, 2000)[other % 2]} {(0, 1000)[other % 3 == 0]}"
                )
            case "recover":
                shard.elapse(LEASE)
                self.recover()
                self.held.clear()  # their workers are taken for dead
            case "repair" if self.names:
                shard.repair(*self.names)
            case "deliver":
                self.offers += shard.deliver("w1", LANES[pick % 2], "ar"[other % 2], count=1)
            case "offer":
                self.claim(2, LANES)
            case _:
                return
        self.judge()

    def claim(self, limit: int, lanes: tuple[str, ...]) -> None:
        offers, self.offers = self.offers, []
        plan = plan_of(*lanes, *((lane, 1, 0, "q") for lane in lanes))
        self.held += self.shard.claim("w1", limit=limit, plan=plan, offers=offers)

    def recover(self) -> None:
        for lane, kind in itertools.product(LANES, STREAM_SUFFIX):
            for candidate in self.shard.recover(lane, kind, worker="keeper")[2]:
                self.shard.recovery(candidate, LOST)

    def judge(self) -> None:
        """No gate is held by more than it lets in, by the records."""
        running: Counter[str] = Counter()
        for record in self.shard.look().records().values():
            if record.status in HELD:
                running.update(name for name in words(record) if name in MOST and "breaker" not in name)
                running.update(granted(record))  # of a job that runs: what it tries
        assert all(count <= MOST[name] for name, count in running.items()), running

    def end(self) -> None:
        """Nothing is paused any more, and workers and keepers do what they always do."""
        shard = self.shard
        for scope in SCOPES:
            shard.tune("resume", scope, 0)
        shard.tune("close", "breaker:dependency:x", "0 0")
        shard.tune("auto", "breaker:dependency:x")
        for turn in range(80):
            self.claim(8, LANES)
            for claim in self.held:
                shard.settle(claim, Success())
            self.held.clear()
            shard.elapse(1000 if turn % 8 else LEASE)
            shard.promote()
            while shard.wake()[0]:
                self.judge()
            self.recover()
            if all(record.status in TERMINAL for record in shard.look().records().values()):
                break
        after = shard.look()
        left = [record for record in after.records().values() if record.status not in TERMINAL]
        assert not left, f"never ended: {left}, timers {after.zsets.get('timers')}, {after.hashes}"
        assert not [name for name in after.zsets if name.startswith(("gate:", "waiting:"))]


@settings(
    max_examples=max(5, EXAMPLES),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(ACTIONS), st.integers(0, 40), st.integers(0, 40)), min_size=4, max_size=40
    )
)
def test_no_sequence_of_steps_passes_a_limit_or_leaves_a_job_waiting(
    valkey_shard: Shard, steps: list[tuple[str, int, int]]
) -> None:
    shard = Shard(valkey_shard.link, f"{valkey_shard.keys.namespace}-{next(_numbers)}")
    try:
        story = Story(shard)
        for action, pick, other in steps:
            story.step(action, pick, other)
        story.end()
    finally:
        shard.clear()
