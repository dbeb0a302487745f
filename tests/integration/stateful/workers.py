"""The steps of workers: claim, start, settle, heartbeat; lost and late calls; the blocking reader; death."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import scripts
from tests.integration.stateful.bench import LANES, LEASE
from tests.integration.stateful.hands import Asked, Hand, Row
from tests.integration.stateful.machine import nth, some
from tests.integration.stateful.producers import Producers, requests
from tests.model.claiming import Entry
from tests.model.job import Request

#: By short names, so that a failing sequence can be read.
OUTCOMES: dict[str, Outcome] = {
    "success": Success(),
    "long result": Success(b'"' + b"x" * 100 + b'"'),
    "retry now": Retry(0, ErrorClass.TRANSIENT, "timeout", "too slow", "transient:0;j=0;f=1"),
    "retry in 5 s": Retry(5_000, ErrorClass.UNKNOWN, "ValueError", "no", "unknown:5000;j=0;f=1"),
    "retry in 40 s": Retry(40_000, ErrorClass.TRANSIENT, "timeout", "", "transient:40000;j=0;f=1"),
    "process died": Retry(0, ErrorClass.UNKNOWN, "worker_lost", "gone", "-", Reason.DIED),
    "fail": Fail(ErrorClass.PERSISTENT, "bad_arguments", "what is this?"),
    "release": Release(Reason.SHUTDOWN),
    "snooze 10 s": Release(Reason.SNOOZED, 10_000),
    "unknown task": Release(Reason.UNKNOWN_TASK, 1_000),
    "other gates": Release(Reason.REGATED, gates="0 entity:e:1 concurrency:d|2"),
    "no gates any more": Release(Reason.REGATED),
}
#: What becomes of a call: answered; executed, but the reply was lost; not executed yet, if ever.
FATES = ("answered", "answered", "lost", "late")


fates = st.sampled_from(FATES)


class Workers(Producers):
    """claim, start, settle, heartbeat; lost and late calls; the blocking reader; death."""

    def worker_starts(self) -> None:
        self.born += 1
        self.hands.append(Hand(f"w{self.born}"))
        self.resync(self.hands[-1])

    def _send(self, hand: Hand, asked: Asked, what: str) -> None:
        if what == "late":
            self.late.append(asked)
        else:
            reply = self.exchange(asked)
            if what == "answered":
                self.hear(hand, asked, reply)
                return
        hand.broken = True

    @rule(
        batch=st.lists(requests, max_size=2),
        worker=some,
        limit=st.integers(1, 3),
        outcomes=st.lists(st.sampled_from(sorted(OUTCOMES)), min_size=1, max_size=4),
        rounds=st.integers(1, 3),
        fate=fates,
    )
    def work(
        self, batch: list[Request], worker: int, limit: int, outcomes: list[str], rounds: int, fate: str
    ) -> None:
        """Settle all that is held and claim anew, in one exchange, as the pump does, while jobs arrive."""
        if batch:
            self.arrive(batch)
        hand = nth(self.hands, worker)
        for left in reversed(range(rounds)):
            ends = [OUTCOMES[nth(outcomes, left + i)] for i in range(len(hand.held))]
            rows = [self._row(hand, i, end, True) for i, end in enumerate(ends)]
            asked = self.ask(hand, LANES, limit, quarantine=LANES[:1], rows=rows)
            self._send(hand, asked, "answered" if left else fate)

    @rule(
        worker=some,
        limit=st.integers(1, 3),
        lanes=st.permutations(LANES),
        reserved=st.integers(0, 1),
        quarantine=st.lists(st.sampled_from(LANES), max_size=1),
        fate=fates,
    )
    def claim(
        self, worker: int, limit: int, lanes: list[str], reserved: int, quarantine: list[str], fate: str
    ) -> None:
        hand = nth(self.hands, worker)
        self._send(hand, self.ask(hand, lanes, limit, reserved=reserved, quarantine=quarantine), fate)

    def _row(self, hand: Hand, pick: int, outcome: Outcome | None, ran: bool) -> Row:
        """The outcome that a claim has already, else this one."""
        held = nth(hand.held, pick)
        if outcome is None:
            return Row(held.claim, None)
        held.row = held.row or Row(held.claim, outcome, ran)
        return held.row

    def busy(self, worker: int) -> Hand:
        """A worker that holds something; if nobody does, one takes what there is, or a job that arrives."""
        if not any(hand.held for hand in self.hands):
            hand = nth(self.hands, worker)
            waiting = any(stream.undelivered() for stream in self.model.streams.values())
            if not (waiting or hand.offers):
                self.arrive([Request("", LANES[0])])
            self._send(hand, self.ask(hand, LANES, 2, quarantine=LANES), "answered")
        return nth([hand for hand in self.hands if hand.held] or self.hands, worker)

    @rule(
        worker=some,
        pick=some,
        outcome=st.sampled_from(sorted(OUTCOMES)),
        ran=st.booleans(),
        limit=st.integers(0, 2),
        fate=fates,
    )
    def settle(self, worker: int, pick: int, outcome: str, ran: bool, limit: int, fate: str) -> None:
        """In one exchange with the next claim, if `limit` asks for one."""
        hand = self.busy(worker)
        if not hand.held:
            return
        row = self._row(hand, pick, OUTCOMES[outcome], ran)
        if limit == 0 and fate == "answered":
            self.settle_rows(hand.name, [row])
            hand.let_go(nth(hand.held, pick))
        else:
            self._send(hand, self.ask(hand, LANES if limit else (), limit, rows=[row]), fate)

    @rule(worker=some, pick=some, what=st.sampled_from(("heartbeat", "start", "slow start")), fate=fates)
    def worker_signals(self, worker: int, pick: int, what: str, fate: str) -> None:
        """That it lives, or that a handler runs.

        A slow start comes late in the lease and extends it; a sweep after the first lease must let it be.
        """
        hand = self.busy(worker)
        if what == "heartbeat" or not hand.held:
            self.beat(hand)
            return
        if what == "slow start":
            self.pass_time_swept(LEASE // 2, [])
        asked = self.ask(hand, (), 0, rows=[self._row(hand, pick, None, True)])
        self._send(hand, asked, fate)
        if what == "slow start":
            self.pass_time_swept(LEASE // 2, [])
            self.recover_dead(nth(self.hands, pick).name, known=True)

    @precondition(lambda self: self.late)
    @rule(pick=some)
    def late_call_executes(self, pick: int) -> None:
        """It was on its way all the time; nobody waits for its reply."""
        asked = nth(self.late, pick)
        self.late.remove(asked)
        self.exchange(asked)

    @rule(
        worker=some,
        lane=st.sampled_from(LANES),
        then=st.sampled_from(("claimed", "claimed twice", "kept", "lost")),
        limit=st.integers(0, 2),
        arriving=st.booleans(),
    )
    def reader_reads(self, worker: int, lane: str, then: str, limit: int, arriving: bool) -> None:
        """Entries are delivered without a claim, and offered to one.

        At once, or (`kept`) to the next. `claimed twice`: they were listed as our own meanwhile. `lost`: the
        read failed, and they are listed before the next claim (R18).
        """
        hand = nth(self.hands, worker)
        if arriving:
            self.arrive([Request("", lane)])
        found = self._read(hand, lane, "r") + self._read(hand, lane, "a")
        hand.offers += found * 2 if then == "claimed twice" else found
        if then == "lost":
            hand.broken = True
        elif then != "kept":
            self._send(hand, self.ask(hand, [lane], limit), "answered")

    def _read(self, hand: Hand, lane: str, kind: str) -> list[Entry]:
        stream = self.model.streams[lane, kind]
        if not stream.group:
            return []  # NOGROUP: the next claim makes it (R9)
        key = self.bench.keys.stream(lane, kind)
        reply = self.bench.redis("XREADGROUP", "GROUP", "workers", hand.name, "COUNT", 1, "STREAMS", key, ">")
        found = [entry.decode() for entry, _ in reply[0][1]] if reply else []
        expected = stream.undelivered()[:1]
        if expected:
            stream.deliver(hand.name, expected[0])
        self.confirm(expected, found)
        return [(lane, kind, entry) for entry in found]

    @rule(worker=some, leave=st.booleans())
    def worker_dies(self, worker: int, leave: bool) -> None:
        """Its claims stay, and what it sent may still execute. Another one takes its place.

        `leave`: its key goes, and its consumers with it where nothing is pending (R6).
        """
        hand = nth(self.hands, worker)
        self.hands.remove(hand)
        reply = self.run(scripts.forget(worker=hand.name, leave=int(leave), rows=LANES))
        if leave:
            self.model.sessions.pop(hand.name, None)
        self.confirm(hand.name in self.model.sessions, reply == b"ALIVE")
        self.worker_starts()
