"""The steps of the keeper, and time."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from streamworker.store import scripts
from tests.integration.stateful.bench import LANES, LEASE
from tests.integration.stateful.hands import Hand, Row
from tests.integration.stateful.machine import RETENTION, Protocol, fate, nth, some
from tests.model import keeping


class Keepers(Protocol):
    """recover, repair and promote; time."""

    @rule(worker=some, known=st.booleans(), slow=st.booleans())
    def keeper_judges(self, worker: int, known: bool, slow: bool) -> None:
        """Sweeps, or looks at all records (`slow`); what it finds is decided, and committed later."""
        keeper = nth(self.hands, worker).name
        found = self.repair(keeper) if slow else self.sweep_all(keeper)
        self.judged += [(one, fate(one, known=known)) for one in found]

    @precondition(lambda self: self.judged)
    @rule(worker=some, pick=some, again=st.booleans())
    def keeper_commits(self, worker: int, pick: int, again: bool) -> None:
        """At any time, whatever has happened to the job since it was judged."""
        one = nth(self.judged, pick)
        if not again:
            self.judged.remove(one)
        self.commit(nth(self.hands, worker).name, *one)

    @rule(worker=some, known=st.booleans())
    def keeper_ticks(self, worker: int, known: bool) -> None:
        keeper = nth(self.hands, worker).name
        self.promote(keeper, 500)
        for one in self.sweep_all(keeper):
            self.commit(keeper, one, fate(one, known=known))

    @rule(worker=some, limit=st.sampled_from((500, 500, 1, 2)))
    def keeper_promotes(self, worker: int, limit: int) -> None:
        self.promote(nth(self.hands, worker).name, limit)

    @rule(ms=st.sampled_from((1_000, 5_000, 20_000, 70_000, -20_000)))
    def time_passes(self, ms: int) -> None:
        """While nobody sweeps; or the server's clock is set back (R15)."""
        self.bench.pass_time(ms)

    @rule(ms=st.sampled_from((LEASE, LEASE, 10_000, 70_000)), beating=st.integers(0, 2))
    def time_passes_under_a_keeper(self, ms: int, beating: int) -> None:
        """Somebody sweeps all the time, though not these lanes; the first workers send heartbeats."""
        self._time_passes(ms, self.hands[:beating])

    def _time_passes(self, ms: int, beating: Sequence[Hand]) -> None:
        while ms > 0:
            step = min(ms, LEASE // 2)
            ms -= step
            self.bench.pass_time(step)
            self._sweep_elsewhere()
            for hand in beating:
                if hand.held:
                    self.beat(hand)

    def _sweep_elsewhere(self) -> None:
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

    @rule(worker=some, known=st.booleans(), limit=st.integers(0, 2))
    def worker_stalls(self, worker: int, known: bool, limit: int) -> None:
        """It sends nothing until its leases are over. The others take over, and then it is back."""
        stalled = nth(self.hands, worker)
        other = next(hand for hand in self.hands if hand is not stalled)
        self._time_passes(2 * LEASE, [hand for hand in self.hands if hand is not stalled])
        for one in self.sweep_all(other.name):
            self.commit(other.name, one, fate(one, known=known))
        asked = self.ask(other, LANES, limit, quarantine=LANES)
        self.hear(other, asked, self.exchange(asked))

    @rule(worker=some, known=st.booleans(), started=st.booleans(), later=st.sampled_from((0, LEASE)))
    def worker_comes_back_in_time(self, worker: int, known: bool, started: bool, later: int) -> None:
        """All stall for a lease. Between judgement and commit one starts its handlers, or sends a heartbeat.

        `later`: then it stalls again, and what was judged is too old all the same.
        """
        back, keeper = nth(self.hands, worker), nth(self.hands, worker + 1).name
        if not back.held:
            asked = self.ask(back, LANES, 2)
            self.hear(back, asked, self.exchange(asked))
        self._time_passes(2 * LEASE, [])
        judged = [(one, fate(one, known=known)) for one in self.sweep_all(keeper)]
        if started:
            self.settle_rows(back.name, [Row(held.claim, None) for held in back.held])
        else:
            self.beat(back)
        self._time_passes(later, [])
        for one in judged:
            self.commit(keeper, *one)
