"""Ordinary jobs are moved as texts, and nobody can tell: the same histories leave the same keys without that.

Each history runs twice, by the scripts as they are and by a copy in which no job is ordinary. After each call
replies, keys and values are compared, the log among them. `STREAMWORKER_STATEFUL_EXAMPLES` sets how many.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import lua, scripts, settle_rows
from streamworker.store.connection import Argument
from streamworker.store.keys import STREAM_SUFFIX
from tests.lua.driver import LEASE, Offer, Shard, job, plan_of
from tests.lua.mutating import SCRIPTS

#: Histories of a test, and how many such tests.
HISTORIES, TESTS = 5, max(1, int(os.environ.get("STREAMWORKER_STATEFUL_EXAMPLES", "200")) // 40)
LANES = ("normal", "priority")
LOST = Retry(0, ErrorClass.UNKNOWN, "worker_lost", "", "-", Reason.RECOVERED)
SUCCESSES = (
    *(Success(),) * 4,
    *(Success(b"7"),) * 3,
    Success(b"x" * 64),
    Success(b"x" * 65),
    Success(b"a\nre=b"),
    Success(b"2", Reason.SKIPPED),
)
OTHERS: tuple[Outcome, ...] = (
    Retry(700, ErrorClass.TRANSIENT, "timeout", "Timeout: x", "p"),
    Retry(0, ErrorClass.UNKNOWN, "value_error", "ValueError: x"),
    Fail(ErrorClass.PERSISTENT, "bad", "Bad: x"),
    Release(Reason.SHUTDOWN),
    Release(Reason.SNOOZED, 300),
)
#: What jobs of a history say, besides those that say nothing.
SPECIAL: tuple[dict[str, Any], ...] = (
    {"tenant": "acme"},
    {"gates": "0 entity:e:1"},
    {"gates": "0 rate:r|2,1000,2 concurrency:c|1"},
    {"deadline_ms": 1500},
    {"delay_ms": 500},
    {"max_starts": 1},
)
SCOPES = ("task:add", "lane:normal", "lane:priority", "tenant:acme")
Row = tuple[Argument, ...]


class Copies:
    """The scripts as they are and without the short way, in folders of their own.

    In both, ids of stream entries are counted, so that they are the same; and the first count what goes the
    short way in `stats`.
    """

    def __init__(self, folder: Path) -> None:
        self.short, self.long = folder / "short", folder / "long"
        for each in (self.short, self.long):
            shutil.copytree(SCRIPTS, each)
            for path in each.rglob("*.lua"):
                text = path.read_text(encoding="utf-8")
                path.write_text(text.replace(", '*', ", ", redis.call('INCR', tag .. ':ids') .. '-1', "))
        ordinary, enqueue = "fragments/ordinary.lua", "enqueue.lua"
        self._change(self.long / ordinary, "  return texts[id] or records[id] ~= nil\n", "  return true\n")
        self._change(self.long / enqueue, "return enqueue_ordinary() or enqueue()", "return enqueue()")
        counted = "  bump(list == open_texts and 'short:claims' or 'short:ends', 1)\n"
        self._change(self.short / ordinary, "  local n = #list\n", "  local n = #list\n" + counted)
        counted = "  bump('short:enqueues', #names)\n"
        names = "  if not all_are_taken(names) then return nil end\n"
        self._change(self.short / "fragments/enqueue_ordinary.lua", names, names + counted)
        self._composed: dict[Path, dict[str, lua.Script]] = {self.short: {}, self.long: {}}

    def _change(self, path: Path, old: str, new: str) -> None:
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")

    def pair(self, like: Shard) -> tuple[Shard, Shard]:
        """An empty shard on which jobs may be ordinary, and one on which none is."""
        return self.shard(like, self.short), self.shard(like, self.long)

    def shard(self, like: Shard, folder: Path) -> Shard:
        """An empty shard that runs the scripts of one of the folders, each composed once."""
        made = Shard(like.link, f"{like.keys.namespace}-{folder.name}", folder=folder)
        made._composed = self._composed[folder]
        made.watchful = False
        return made


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    return Copies(tmp_path_factory.mktemp("ordinary"))


class Story:
    """One history on one shard. All that is drawn depends on the seed and on what the scripts answered."""

    def __init__(self, shard: Shard, seed: int) -> None:
        self.shard, self.random = shard, random.Random(seed)
        self.held: list[Claim] = []
        self.names: list[str] = []
        self.offers: list[Offer] = []
        #: Settle rows that were sent, to be sent again.
        self.sent: list[Row] = []
        self.worker = "w1"

    def begin(self) -> None:
        if self.random.random() < 0.5:
            self.mirror()
        self.shard.pass_hold()
        for worker in ("w1", "w2"):
            self.shard.session(worker)
        for lane in LANES:
            for kind in STREAM_SUFFIX:
                self.make_group(self.shard.keys.stream(lane, kind))

    def make_group(self, stream: str) -> None:
        self.shard.redis("XGROUP", "CREATE", stream, "workers", "0", "MKSTREAM")

    def step(self) -> object:
        """One call or a few, and what they answered."""
        actions = {
            self.enqueue: 9, self.claim: 4, self.settle: 5, self.exchange: 9, self.cancel: 1, self.watch: 1,
            self.time: 1, self.pause: 1, self.resume: 5, self.twin: 2, self.deliver: 1, self.mirror: 1,
            self.recover: 1, self.forget: 1, self.damage: 1, self.heartbeat: 1, self.regroup: 1,
            self.session: 1, self.repair: 1, self.bound: 1,
        }  # fmt: skip
        (action,) = self.random.choices(list(actions), list(actions.values()))
        return action.__name__, action()

    # --- the short way, and what stands in it

    def enqueue(self) -> object:
        """Jobs of which all are plain or some are not, at times one that is there or comes twice."""
        jobs = []
        plain = self.random.random() < 0.5
        for _ in range(self.random.randint(1, 8)):
            name = f"j{len(self.names)}"
            if self.random.random() < 0.05:
                name = self.pick()
            self.names.append(name)
            special: dict[str, Any] = {}
            if not plain and self.random.random() < 0.4:
                special |= self.random.choice(SPECIAL)
            if not plain and self.random.random() < 0.4:
                special |= {"key_id": f"add::{name}", "fingerprint": "f"}
            lane, task = self.random.choice(LANES), self.random.choice(("add", "pack"))
            jobs.append(job(name, lane=lane, task=task, **special))
        rows = [word for one in jobs for word in one.row()]
        marker = self.random.choice(("", "", "", "m1"))
        return self.shard.send(scripts.enqueue(clock=self.shard.clock, marker=marker, rows=rows))

    def claim_words(self) -> dict[str, Any]:
        """Few slots or many, for two lanes in any order, and with what was delivered to a reader."""
        offers, self.offers = self.offers, []
        limit = self.random.randint(0, 10)
        first, second = self.random.sample(LANES, 2)
        rows = [(first, self.random.randint(0, 1), 4, self.random.randint(0, 3)), (second, 0, 8, 0)]
        apart = [(lane, 1, 0, "q") for lane in LANES]
        return {"limit": limit, "offers": offers, "plan": plan_of(*rows, *apart)}

    def took(self, verdict: bytes, flat: list[bytes]) -> object:
        self.held += [Claim.parse(*flat[i : i + 3]) for i in range(0, len(flat), 3)]
        return sorted(verdict.split(b" ")), flat

    def claim(self) -> object:
        words = self.claim_words()
        call = self.shard.claim_call(self.worker, shared=self.random.randint(0, 8), **words)
        return self.took(*self.shard.send(call))

    def rows(self) -> list[Row]:
        """Outcomes and start marks of jobs that are held: twice, of another fence, or sent before."""
        rows: list[Row] = []
        for _ in range(min(len(self.held), self.random.randint(1, 6))):
            claim = self.held.pop(self.random.randrange(len(self.held)))
            chance = self.random.random()
            if chance < 0.1:
                rows.append(settle_rows.mark_row(claim, self.random.choice((0, 20))))
            outcome = self.random.choice(SUCCESSES if self.random.random() < 0.8 else OTHERS)
            row = settle_rows.outcome_row(claim, outcome, self.random.choice((0, 5, 5, 5)))
            head, *rest = row
            if 0.1 < chance < 0.2:
                kind, fence, more = str(head).split(" ", 2)
                rows.append((f"{kind} {int(fence) + self.random.choice((-1, 1))} {more}", *rest))
            if 0.2 < chance < 0.3:
                self.held.append(claim)  # its worker has not heard of it
            rows.append(row)
            if 0.3 < chance < 0.4:
                rows.append(settle_rows.outcome_row(claim, self.random.choice(OTHERS + SUCCESSES), 5))
        if self.sent and self.random.random() < 0.2:
            rows.append(self.random.choice(self.sent))
        self.sent += rows
        return rows

    def settle(self) -> object:
        return self.shard.settle_rows(*rows) if (rows := self.rows()) else None

    def exchange(self) -> object:
        words = [word for row in self.rows() for word in row]
        verdict, claims, replies = self.shard.send(
            self.shard.exchange_call(words, self.worker, **self.claim_words())
        )
        return self.took(verdict, claims), replies

    # --- what happens beside it

    def mirror(self) -> None:
        words = ("mirror", self.random.choice(("m1", "off")), "mirror_bound", self.random.choice((99, 10**7)))
        self.shard.redis("HSET", self.shard.keys.policies, *words)

    def bound(self) -> object:
        """A lane takes few jobs from now on, or all."""
        rules = self.random.choice(("depth normal 5 backlog\nbacklog normal 9 reject", "", ""))
        return self.shard.declare(admission=rules)

    def pick(self) -> str:
        return self.random.choice(self.names) if self.names else "nobody"

    def cancel(self) -> object:
        return self.shard.cancel(self.pick())

    def watch(self) -> object:
        return self.shard.watch(self.pick(), wait=1)

    def time(self) -> object:
        self.shard.elapse(self.random.choice((1, 100, 700)))
        return self.shard.promote(), self.shard.wake()

    def pause(self) -> object:
        return self.shard.tune("pause", self.random.choice(SCOPES), self.random.choice((300, "")))

    def resume(self) -> list[str]:
        ramp = self.random.choice((0, 0, 0, 1000))
        return [self.shard.tune("resume", scope, ramp) for scope in SCOPES]

    def twin(self) -> None:
        """A second entry of some job stands in a lane: its own or another."""
        name, shard = self.pick(), self.shard
        entry = f"{shard.redis('INCR', f'{shard.keys.tag}:ids')}-1"
        stream = shard.keys.stream(self.random.choice(LANES), "a")
        shard.redis("XADD", stream, entry, "id", name, "env", f"env of {name}")

    def deliver(self) -> None:
        """Its reader gets an entry, which the next claim is offered; or it never is."""
        found = self.shard.deliver("w1", self.random.choice(LANES), self.random.choice("ar"), count=2)
        self.offers += found if self.worker == "w1" else []

    def recover(self) -> object:
        shard, replies = self.shard, []
        shard.elapse(LEASE)
        for lane in LANES:
            for kind in STREAM_SUFFIX:
                for candidate in shard.recover(lane, kind)[2]:
                    replies.append(shard.recovery(candidate, LOST))
        return replies

    def forget(self) -> None:
        self.shard.forget_record(self.pick())

    def damage(self) -> None:
        name = self.pick()
        raw = self.shard.redis("GET", self.shard.keys.job(name))
        if raw:
            self.shard.damage(name, self.random.choice(("junk", raw.split(b"\n")[0].decode() + " x")))

    def heartbeat(self) -> object:
        return self.shard.heartbeat(*self.held, worker=self.worker)

    def regroup(self) -> None:
        """The group of a stream is lost, and all of it is delivered again."""
        stream = self.shard.keys.stream(self.random.choice(LANES), "a")
        self.shard.redis("XGROUP", "DESTROY", stream, "workers")
        self.make_group(stream)

    def session(self) -> object:
        self.worker = self.random.choice(("w1", "w2"))
        self.offers = []
        lost = [claim for claim in self.held if self.random.random() < 0.5]
        self.offers = [self.shard.offer_of(claim) for claim in lost]  # their replies were lost
        self.held = [claim for claim in self.held if claim not in lost]
        return self.shard.session(self.worker)

    def repair(self) -> object:
        return self.shard.repair(*self.names)


def state_of(shard: Shard, counted: Counter[str] | None = None) -> dict[str, Any]:
    """All keys and values; a time to live in tenths of the time that finished records have."""
    now = shard.look()
    state = now.without_times()
    state["lives"] = {name: round(ttl / 90_000) for name, ttl in now.ttls.items()}
    stats = state["hashes"].get("stats", {})
    for name in ("short:enqueues", "short:claims", "short:ends"):
        count = int(stats.pop(name.encode(), 0))
        if counted is not None:
            counted[name] = count
    return state


@pytest.mark.parametrize("number", range(TESTS))
def test_histories_leave_what_they_leave_without_the_short_way(
    valkey_shard: Shard, copies: Copies, number: int
) -> None:
    counted: Counter[str] = Counter()
    for seed in range(number * HISTORIES, (number + 1) * HISTORIES):
        counted += differ(copies.pair(valkey_shard), seed)

    assert counted["short:enqueues"] > 20, counted
    assert counted["short:claims"] > 40, counted
    assert counted["short:ends"] > 10, counted


def differ(pair: tuple[Shard, Shard], seed: int) -> Counter[str]:
    """Compare the two after each step; how many jobs went the short way."""
    counted: Counter[str] = Counter()
    first, second = (Story(shard, seed) for shard in pair)
    try:
        first.begin()
        second.begin()
        for number in range(50):
            done = first.step()
            where = f"seed {seed}, step {number}: {done}"
            assert second.step() == done, where
            assert state_of(second.shard) == state_of(first.shard, counted), where
    finally:
        for shard in pair:
            shard.clear()
    return counted
