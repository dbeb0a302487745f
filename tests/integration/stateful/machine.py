"""One shard and its clients in the hands of Hypothesis: how the steps are sent, predicted and compared.

The rules are in `rules`; what a rule does here is to send one call, let the model predict it, and compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from streamworker.core.job import Candidate, Claim
from streamworker.core.outcome import Fail, Retry, Success
from streamworker.core.retry import Burial, decide_recovery
from streamworker.core.retry import Retry as Policy
from streamworker.core.states import ErrorClass, Reason
from streamworker.store import scripts, settle_rows
from streamworker.store.connection import Argument
from tests.integration.stateful.bench import LANES, LEASE, Bench
from tests.integration.stateful.hands import Asked, Hand, Held, Row
from tests.model import claiming, keeping, settling
from tests.model.claiming import Room
from tests.model.job import Job

RETENTION = scripts.RETENTION_MS
#: Real time; no worker's key may expire by itself during an example.
LIVENESS = 3_600_000
#: Of the tasks that the sweeper knows.
POLICY = Policy.schedule("5s", "10s", "20s", unknown=("10s", "20s"))
#: Rounds of half a lease in which a fair run must end everything: the hold after an outage, a lease that was
#: clamped to two, one more for a swept entry, and time for what was promoted last; and a second for each job
#: that waits for a token.
FAIR_ROUNDS = 60

#: Picks a worker, job or claim by `nth`.
some = st.integers(0, 9)

T = TypeVar("T")


def nth(items: Sequence[T], number: int) -> T:
    """One of the items by any number, so that shrinking a number keeps a step meaningful."""
    return items[number % len(items)]


def texts(replies: Sequence[bytes]) -> list[str]:
    return [reply.decode() for reply in replies]


def fate(judged: Candidate, *, known: bool) -> Retry | Fail:
    """What the keeper makes of a dead claim."""
    decision = decide_recovery(
        POLICY if known else None,
        job_id=judged.job_id,
        status=judged.status,
        attempt=judged.attempt,
        strikes=judged.strikes,
    )
    text = f"worker {judged.worker} stopped while it held the job"
    if isinstance(decision, Burial):
        return Fail(ErrorClass.UNKNOWN, decision.code, text, Reason.RECOVERED)
    return Retry(
        decision.delay_ms, ErrorClass.UNKNOWN, "worker_lost", text, decision.policy, Reason.RECOVERED
    )


class Protocol(RuleBasedStateMachine):
    """The moves that the rules are made of."""

    def make_bench(self) -> Bench:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.bench = self.make_bench()
        self.model = self.bench.model
        self.hands: list[Hand] = []  # that are up
        self.born = 0
        self.late: list[Asked] = []  # calls that were sent and have not executed
        self.judged: list[tuple[Candidate, Retry | Fail]] = []
        #: Jobs that lost their entry, envelope or due time to an operator.
        self.damaged: set[str] = set()
        self.sound = True

    # --- one call, predicted -----------------------------------------------------------------------------

    def run(self, call: scripts.Call) -> Any:
        self.sound = False
        return self.bench.run(call)

    def confirm(self, expected: object = None, reply: object = None) -> None:
        """Compare everything; an example that has failed is not run to its end."""
        self.bench.confirm(expected, reply)
        for job in self.model.jobs.values():
            assert self._leads_on(job), f"{job} is nowhere"
        self.sound = True

    def _leads_on(self, job: Job) -> bool:
        if job.over or job.id in self.damaged or job.gate or self.model.standing(job):
            return True
        return job.waiting and job.parked and job.id in self.model.schedule

    def exchange(self, asked: Asked) -> tuple[str, list[Claim], list[str]]:
        """Execute one exchange now; what its reply says, whether or not anybody hears it."""
        words = [word for row in asked.rows for word in row.words()]
        common: dict[str, Any] = {
            "clock": self.bench.clock,
            "worker": asked.worker,
            "session": asked.session,
            "lease_ms": LEASE,
            "retention_ms": RETENTION,
            "limit": asked.room.limit,
            "shared": asked.room.shared,
            "offers": scripts.offer_lines(asked.offers),
            "plan": asked.plan(),
        }
        if asked.rows:
            verdict, flat, replies = self.run(scripts.exchange(**common, rows=words))
        else:
            verdict, flat = self.run(scripts.claim(**common))
            replies = []
        claims = [Claim.parse(*flat[i : i + 3]) for i in range(0, len(flat), 3)]
        settled = [row.predict(self.model) for row in asked.rows]
        self._fences_grow(claims)
        room = deepcopy(asked.room)
        predicted = claiming.claim(
            self.model,
            asked.worker,
            asked.session,
            room,
            offers=asked.offers,
            read_to={
                place: stream.last
                for place, stream in self.bench.seen.streams.items()
                if stream.last is not None
            },
            fences={claim.job_id: claim.fence for claim in claims},
        )
        if predicted.verdict != "NOSESSION" and not (predicted.left_alone or asked.rows):
            self._nothing_left(room)
        expected = (predicted.verdict, sorted(predicted.claims, key=_by_job), settled)
        found = sorted((replace(claim, age_ms=0) for claim in claims), key=_by_job)
        self.confirm(expected, (_said(verdict.decode()), found, texts(replies)))
        return predicted.verdict, claims, settled

    def _fences_grow(self, claims: Sequence[Claim]) -> None:
        """D4: each is larger than all before, and than any that a flushed counter could have given."""
        for claim in claims:
            assert claim.fence > self.model.fence, f"{claim} after fence {self.model.fence}"
            assert claim.fence >= self.model.now * 1024, f"{claim} at {self.model.now}"
            self.model.fence = claim.fence

    def _nothing_left(self, room: Room) -> None:
        """A claim that could have taken more has read its lanes to the end.

        Unless it met entries that it left alone, such as those of jobs that were settled in the same call.
        """
        for (lane, kind), stream in self.model.streams.items():
            if kind != "b" and room.fits(lane, kind):  # no worker takes from the backlog
                assert not stream.undelivered(), f"claim left {stream.undelivered()} of {lane} {kind}: {room}"

    def settle_rows(self, actor: str, rows: Sequence[Row]) -> list[str]:
        """Settle without a claim."""
        words = [word for row in rows for word in row.words()]
        call = scripts.settle(
            clock=self.bench.clock, actor=actor, lease_ms=LEASE, retention_ms=RETENTION, rows=words
        )
        replies = texts(self.run(call))
        expected = [row.predict(self.model) for row in rows]
        self.confirm(expected, replies)
        return replies

    def commit(self, keeper: str, judged: Candidate, outcome: Retry | Fail) -> str:
        """Commit what was decided for a claim that was found dead."""
        call = scripts.settle(
            clock=self.bench.clock,
            actor=keeper,
            lease_ms=LEASE,
            retention_ms=RETENTION,
            rows=settle_rows.recovery_row(judged, outcome),
        )
        (reply,) = texts(self.run(call))
        self.confirm(settling.recover(self.model, judged, outcome), reply)
        return reply

    def sweep(self, keeper: str, lane: str, kind: str) -> list[Candidate]:
        """One pass over one stream."""
        ripe = self.bench.ripe(lane, kind)
        call = scripts.recover(
            clock=self.bench.clock,
            worker=keeper,
            lease_ms=LEASE,
            retention_ms=RETENTION,
            lane=lane,
            kind=kind,
            count=100,
        )
        hold, complete, found = self.run(call)
        reply = (int(hold), [Candidate.parse(line) for line in found])
        assert complete
        self.confirm(keeping.sweep(self.model, keeper, lane, kind, ripe), reply)
        return reply[1]

    def sweep_all(self, keeper: str) -> list[Candidate]:
        """One pass over all streams in which something is pending."""
        pending = [place for place, stream in self.model.streams.items() if stream.pending]
        return [judged for lane, kind in pending for judged in self.sweep(keeper, lane, kind)]

    def recover_dead(self, keeper: str, *, known: bool) -> None:
        """Sweep, decide and commit."""
        for judged in self.sweep_all(keeper):
            self.commit(keeper, judged, fate(judged, known=known))

    def keep(self, keeper: str, *, known: bool) -> None:
        """One tick of a keeper: what is due, what is dead, what is nowhere."""
        self.promote(keeper, 500)
        self.wake(keeper, 100)
        self.drain(keeper, 100, 100)
        dead = self.sweep(
            keeper, LANES[0], "a"
        )  # even if nothing is pending: a keeper that sweeps is no outage
        for judged in dead + self.sweep_all(keeper) + self.repair(keeper):
            self.commit(keeper, judged, fate(judged, known=known))

    def pass_time_swept(self, ms: int, beating: Sequence[Hand]) -> None:
        """Time under a keeper that looks elsewhere, so that there is no outage; `beating` send heartbeats."""
        while ms > 0:
            step = min(ms, LEASE // 2)
            ms -= step
            self.bench.pass_time(step)
            call = scripts.recover(
                clock=self.bench.clock,
                worker="keeper",
                lease_ms=LEASE,
                retention_ms=RETENTION,
                lane="empty",
                kind="a",
                count=100,
            )
            hold, _, found = self.bench.run(call, look=False)
            assert (int(hold), found) == (keeping.note_sweep(self.model), [])
            for hand in beating:
                if hand.held:
                    self.beat(hand)

    def repair(self, keeper: str) -> list[Candidate]:
        """One look at the place of every record."""
        ids = sorted(self.model.accepted)
        call = scripts.repair(clock=self.bench.clock, worker=keeper, retention_ms=RETENTION, rows=ids)
        mended, found = self.run(call)
        reply = (mended, [Candidate.parse(line) for line in found])
        self.confirm(keeping.repair(self.model, ids), reply)
        return reply[1]

    def promote(self, keeper: str, limit: int) -> None:
        call = scripts.promote(clock=self.bench.clock, worker=keeper, retention_ms=RETENTION, limit=limit)
        promoted, expired, nearest, _ = self.run(call)
        reply = (promoted, expired, int(nearest) if nearest else None)
        self.confirm(keeping.promote(self.model, limit), reply)

    def wake(self, keeper: str, limit: int) -> None:
        """Serve the timers of gates: who is let in is told by the records."""
        due = [at for at in self.bench.seen.kept.zsets.get("timers", {}).values() if at <= self.model.now]
        call = scripts.wake(clock=self.bench.clock, worker=keeper, retention_ms=RETENTION, limit=limit)
        served, _ = self.run(call)
        self.confirm(min(limit, len(due)), served)

    def declare(self, admission: str) -> None:
        """As a worker does when it starts: how the backlog is drained, and what the lanes take."""
        rows = ["drain", "1000,1000,1000", "admission", admission]
        self.run(scripts.declare(clock=self.bench.clock, lanes=" ".join(LANES), rows=rows))
        for line in filter(None, admission.split("\n")):
            _, lane, most, overflow = line.split(" ")
            self.model.limits[lane] = (int(most), overflow)
        self.confirm()

    def drain(self, keeper: str, high: int, limit: int) -> None:
        """Let the backlog into the lanes."""
        rows = [word for lane in LANES for word in (lane, high)]
        call = scripts.drain(
            clock=self.bench.clock, worker=keeper, retention_ms=RETENTION, limit=limit, rows=rows
        )
        drained, _ = self.run(call)
        self.confirm(keeping.drain(self.model, [(lane, high) for lane in LANES], limit), drained)

    def tune(self, verb: str, name: str, value: str = "") -> None:
        """What operators change: pauses, limits, throttles."""
        call = scripts.tune(
            clock=self.bench.clock, actor="operator", retention_ms=RETENTION, rows=(verb, name, value, "-")
        )
        (reply,) = texts(self.run(call))
        gates, now = self.model.gates, self.model.now
        match verb:
            case "pause":
                expected = gates.pause(name, now, int(value or 0))
            case "resume":
                expected = gates.resume(name, now, int(value))
            case "limit":
                expected = gates.limit(name, value)
            case "throttle":
                expected = gates.throttle(name, value)
            case _:
                expected = gates.reset(name)
        self.confirm(expected, reply)

    def resync(self, hand: Hand) -> None:
        """A new connection: a new session, and what is ours and not held is offered (D5)."""
        call = scripts.session(worker=hand.name, own=hand.session, liveness_ms=LIVENESS, rows=["host", "h"])
        reply = int(self.bench.run(call, look=False))
        assert reply == claiming.open_session(self.model, hand.name, hand.session)
        hand.session, hand.broken = reply, False
        held = hand.places()
        hand.offers = [one for one in keeping.pending_of(self.model, hand.name) if one not in held]

    def beat(self, hand: Hand) -> None:
        """A heartbeat for all that the worker holds; what it hears of as lost, it lets go."""
        claims = list({held.claim.job_id: held.claim.fence for held in hand.held}.items())
        rows: list[Argument] = [word for claim in claims for word in claim]
        call = scripts.heartbeat(
            clock=self.bench.clock, worker=hand.name, lease_ms=LEASE, liveness_ms=LIVENESS, rows=rows
        )
        verdict, lost, cancelled = self.run(call)
        expected = keeping.heartbeat(self.model, hand.name, claims)
        self.confirm(expected, (verdict.decode(), texts(lost), texts(cancelled)))
        hand.broken = hand.broken or expected[0] != "OK"
        for held in [one for one in hand.held if one.claim.job_id in expected[1] and one.row is None]:
            hand.let_go(held)

    def ask(
        self,
        hand: Hand,
        lanes: Sequence[str],
        limit: int,
        *,
        reserved: int = 0,
        quarantine: Sequence[str] = (),
        rows: Sequence[Row] = (),
    ) -> Asked:
        """The worker's next exchange; its offers ride in it."""
        if hand.broken:
            self.resync(hand)
        offers, hand.offers = tuple(hand.offers), []
        room = Room(limit, limit, dict.fromkeys(lanes, reserved), dict.fromkeys(quarantine, 1))
        return Asked(hand.name, hand.session, room, offers, tuple(rows))

    def hear(self, hand: Hand, asked: Asked, reply: tuple[str, list[Claim], list[str]]) -> None:
        """The reply reached the worker."""
        verdict, claims, replies = reply
        hand.broken = verdict == "NOSESSION"
        for row, _ in zip(asked.rows, replies, strict=True):
            for held in [one for one in hand.held if one.row is row]:
                hand.let_go(held)
        hand.held.extend(Held(claim) for claim in claims)

    # --- the end -----------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if self.sound:
                self._fair_run()
        finally:
            self.bench.clear()

    def _fair_run(self) -> None:
        """Without further faults, everything that was accepted comes to an end, and nothing stays behind."""
        for scope in list(self.model.gates.pauses):
            self.tune("resume", scope, "0")
        for _ in range(FAIR_ROUNDS):
            for hand in self.hands:
                self._work(hand)
            if self._finished():
                break
            self.bench.pass_time(self._pause())
            self.keep(self.hands[0].name, known=True)
        assert self._finished(), f"after {FAIR_ROUNDS} fair rounds: {self._open()}, {self.model.streams}"
        lives = self.bench.history.lives
        assert lives.keys() == self.model.accepted.keys()
        assert all(lives[job_id].status == job.status for job_id, job in self.model.accepted.items())
        assert not self.bench.seen.schedule
        assert not self.bench.seen.deadlines
        assert not self.bench.seen.kept.zsets, f"gates are not empty: {self.bench.seen.kept.zsets}"
        assert not self.bench.seen.kept.hashes, f"somebody is counted: {self.bench.seen.kept.hashes}"
        assert not any(one.entries or one.pending for one in self.bench.seen.streams.values())

    def _pause(self) -> int:
        """Half a lease, so that the keeper's sweeps are no outage; longer if all wait for their time."""
        streams = self.model.streams.values()
        if any(job.gate.startswith("rate:") for job in self.model.jobs.values()):
            return 1000
        if any(stream.entries or stream.pending for stream in streams) or not self.model.schedule:
            return LEASE // 2
        return max(LEASE // 2, min(self.model.schedule.values()) - self.model.now)

    def _work(self, hand: Hand) -> None:
        """Settle what is held, take what there is, and settle that, until nothing is left."""
        while True:
            rows = [self.row_of(held) for held in hand.held]
            asked = self.ask(hand, LANES, 20, quarantine=LANES, rows=rows)
            self.hear(hand, asked, self.exchange(asked))
            if not hand.held and not any(
                stream.undelivered() for (_, kind), stream in self.model.streams.items() if kind != "b"
            ):
                return

    def row_of(self, held: Held) -> Row:
        held.row = held.row or Row(held.claim, Success())
        return held.row

    def _open(self) -> list[Job]:
        return [job for job in self.model.jobs.values() if not job.over]

    def _finished(self) -> bool:
        streams = self.model.streams.values()
        places = (
            *(self.model.schedule, self.model.deadlines, self.bench.seen.kept.zsets, self.model.gates.pauses),
            *(one.entries or one.pending for one in streams),
        )
        return not self._open() and not any(places)


def _said(verdict: str) -> str:
    """The verdict with its paused lanes, without the count of entries that led nowhere."""
    return " ".join(word for word in verdict.split(" ") if "=" not in word)


def _by_job(claim: Claim) -> str:
    return claim.job_id
