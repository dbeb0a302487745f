"""The steps of the keeper, time, and workers that stall."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.integration.stateful.bench import LANES, LEASE
from tests.integration.stateful.hands import Row
from tests.integration.stateful.machine import fate, nth, some
from tests.integration.stateful.workers import Workers


class Keepers(Workers):
    """recover, repair and promote; time; workers that stall."""

    @rule(what=st.sampled_from(("tick", "judge", "look", "promote")), worker=some, known=st.booleans())
    def keeper_acts(self, what: str, worker: int, known: bool) -> None:
        """`judge`, `look`: a sweep, or a look at all records, whose findings are committed later, if ever."""
        keeper = nth(self.hands, worker).name
        match what:
            case "tick":
                self.keep(keeper, known=known)
            case "promote":
                self.promote(keeper, 1 + worker % 2)
            case _:
                found = self.sweep_all(keeper) if what == "judge" else self.repair(keeper)
                self.judged += [(one, fate(one, known=known)) for one in found]

    @rule(high=st.integers(1, 4), limit=st.integers(1, 3))
    def backlog_is_drained(self, high: int, limit: int) -> None:
        """As far as the lanes have room; not all of it at once."""
        self.drain("keeper", high, limit)

    @precondition(lambda self: self.judged)
    @rule(worker=some, pick=some, again=st.booleans())
    def keeper_commits(self, worker: int, pick: int, again: bool) -> None:
        """At any time, whatever has happened to the job since it was judged."""
        one = nth(self.judged, pick)
        if not again:
            self.judged.remove(one)
        self.commit(nth(self.hands, worker).name, *one)

    @rule(ms=st.sampled_from((1_000, 5_000, 20_000, LEASE, 70_000, -20_000)), swept=st.booleans())
    def time_passes(self, ms: int, swept: bool) -> None:
        """`swept`: under a keeper, so that there is no outage. Or the server's clock is set back (R15)."""
        if swept:
            self.pass_time_swept(ms, [])
        else:
            self.bench.pass_time(ms)

    @rule(worker=some, known=st.booleans(), limit=st.integers(0, 2), speaks=st.booleans())
    def worker_stalls(self, worker: int, known: bool, limit: int, speaks: bool) -> None:
        """It sends nothing until its leases are over. The others take over; then it settles what it held."""
        stalled = self.busy(worker)
        others = [hand for hand in self.hands if hand is not stalled]
        self.pass_time_swept(2 * LEASE, others)
        self.recover_dead(others[0].name, known=known)
        asked = self.ask(others[0], LANES, limit, quarantine=LANES)
        self.hear(others[0], asked, self.exchange(asked))
        if speaks and stalled.held:
            self.settle_rows(stalled.name, [self.row_of(held) for held in stalled.held])
            stalled.held.clear()

    @rule(worker=some, known=st.booleans(), started=st.booleans(), later=st.sampled_from((0, LEASE)))
    def worker_comes_back_in_time(self, worker: int, known: bool, started: bool, later: int) -> None:
        """All stall for a lease. Between judgement and commit one starts its handlers, or sends a heartbeat.

        `later`: then it stalls again, and what was judged is too old all the same.
        """
        back = self.busy(worker)
        keeper = nth(self.hands, worker + 1).name
        self.pass_time_swept(2 * LEASE, [])
        judged = [(one, fate(one, known=known)) for one in self.sweep_all(keeper)]
        if started:
            self.settle_rows(back.name, [Row(held.claim, None) for held in back.held])
        else:
            self.beat(back)
        self.pass_time_swept(later, [])
        for one in judged:
            self.commit(keeper, *one)
