"""A long run: rounds of jobs under a plan of faults, each judged, and one account of all."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.bench import Bench
from tests.chaos.checker import Violation
from tests.chaos.director import Director
from tests.chaos.events import Events
from tests.chaos.figures import Figures
from tests.chaos.gremlins import Gremlins
from tests.chaos.illness import Illness
from tests.chaos.operator import Operator
from tests.chaos.plan import Plan, Round
from tests.chaos.traffic import Traffic

#: Seconds between two lines of progress.
TELL_EVERY = 10.0
#: Seconds between two looks while nothing is due.
LOOK = 0.02
#: Seconds in which nothing moves, once the last job of a round is enqueued, after which it counts as stuck.
OVER_SECONDS = 60.0

Tell = Callable[[str], None]


@dataclass(slots=True)
class Account:
    """What all rounds came to."""

    figures: Figures = field(default_factory=Figures)
    violations: list[Violation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    #: The faults of the plan that were dealt out, and the small ones in between.
    dealt: Counter[str] = field(default_factory=Counter)
    tricks: Counter[str] = field(default_factory=Counter)
    failed_calls: int = 0
    cancelled: int = 0
    replayed: int = 0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return not self.violations and not self.problems

    def as_json(self) -> dict[str, Any]:
        return {
            **self.figures.as_json(),
            "dealt": dict(self.dealt),
            "tricks": dict(self.tricks),
            "enqueue_calls_failed": self.failed_calls,
            "cancelled": self.cancelled,
            "replayed": self.replayed,
            "seconds": round(self.seconds, 1),
            "jobs_per_second": round(self.figures.jobs / self.seconds, 1) if self.seconds else 0.0,
            "problems": self.problems,
            "clean": self.clean,
        }


class Campaign:
    """One run of a plan on one bench."""

    def __init__(self, bench: Bench, plan: Plan, *, rate: float, seed: int, tell: Tell) -> None:
        self._bench = bench
        self._plan = plan
        self._rate = rate
        self._rng = random.Random(seed)
        self._tell = tell
        self._director = Director(bench, self._rng)
        self._began = time.monotonic()
        self._told = 0.0
        self.account = Account()

    def run(self) -> Account:
        """All rounds, or up to the first one in which something was wrong."""
        rounds = list(self._plan.rounds())
        for number, part in enumerate(rounds, 1):
            self._round(part, f"round {number}/{len(rounds)}")
            if not self.account.clean:
                break
        self.account.problems += self._bench.fleet.stop()
        self.account.problems += [*self._bench.problems, *self._director.problems]
        self.account.dealt.update({str(blow): count for blow, count in self._director.dealt.items()})
        self.account.seconds = time.monotonic() - self._began
        return self.account

    def _round(self, part: Round, name: str) -> None:
        blows = part.blows
        dealt = 0

        def allowed() -> int:
            """Jobs that may be asked for by now: faults and jobs keep step."""
            return part.jobs * (dealt + 2) // (len(blows) + 1)

        traffic = Traffic(self._bench, part.jobs, rate=self._rate, rng=self._fork(), allowed=allowed)
        lease = self._bench.limits.lease
        gremlins = Gremlins(self._bench, self._fork(), every=lease / 4)
        operator = Operator(self._bench, self._fork(), every=lease)
        illness = Illness(self._bench, self._fork(), every=3 * lease)
        events = Events(self._bench, self._fork())
        with gremlins, operator, illness, events, traffic:
            for blow in blows:
                due = part.jobs * (dealt + 1) // (len(blows) + 1)
                while traffic.made < due and not traffic.done:
                    self._progress(
                        f"{name}: {traffic.made} of {part.jobs} jobs, {dealt} of {len(blows)} faults"
                    )
                    time.sleep(LOOK)
                if traffic.done:
                    break  # it has failed, and says so when it is left
                self._director.deal(blow)
                dealt += 1
                self._progress(f"{name}: {blow} dealt", always=True)
        self.account.tricks.update(gremlins.done + operator.done + illness.done)
        self.account.failed_calls += traffic.failed_calls + events.failed_calls
        self.account.cancelled += traffic.cancelled
        self.account.replayed += traffic.replayed
        run = self._bench.judge(OVER_SECONDS)
        self.account.figures.add(run.figures)
        self.account.violations += run.violations
        verdict = f"{len(run.violations)} violations" if run.violations else "clean"
        self._progress(f"{name}: {run.figures.jobs} jobs, {verdict}", always=True)

    def _fork(self) -> random.Random:
        return random.Random(self._rng.random())

    def _progress(self, what: str, *, always: bool = False) -> None:
        now = time.monotonic()
        if always or now - self._told >= TELL_EVERY:
            self._told = now
            self._tell(f"{now - self._began:7.1f} s  {what}")


def lines(account: Account) -> Sequence[str]:
    """The account as text."""
    figures, told = account.figures, account.as_json()

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"

    seconds = told["recovery_seconds"]
    recovery = f"p50 {seconds['p50']} s, p99 {seconds['p99']} s, max {seconds['max']} s"
    left = told["recovery_bound_left_seconds"]
    return [
        f"jobs               {figures.jobs}: {figures.succeeded} succeeded, {figures.failed} failed",
        f"handler starts     {figures.starts}",
        f"faults             {listed(told['dealt'])}",
        f"in between         {listed(told['tricks'])}",
        f"as seen            {listed(told['faults'])}",
        f"overload           {listed(told['moved'])}",
        f"breaker            {told['breaker_bound_left_calls']} calls left to the bound at the least",
        f"duplicates         {listed(told['duplicates'])}",
        f"recovery           {told['recovered']} jobs: {recovery}; {left} s left to the bound at the least",
        f"lost               {figures.lost}",
        f"stale accepted     {figures.stale_accepted}",
        f"double outcomes    {figures.double_outcomes}",
        f"violations         {listed(told['violations'])}",
        f"others             {account.cancelled} cancelled, {account.replayed} replayed",
        f"calls that failed  {account.failed_calls} of producers",
        f"time               {account.seconds:.0f} s, {told['jobs_per_second']} jobs/s",
    ]
