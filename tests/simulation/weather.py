"""What goes wrong, drawn from the seed: how rough it is, which calls are lost, which faults strike when."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from streamworker.store import lua
from tests.simulation.network import Fate


class Blow(StrEnum):
    """A fault that strikes a worker, the server or the clock."""

    KILL = "kill"
    FREEZE = "freeze"
    LEAVE = "leave"  # SIGTERM
    CUT_OFF = "cut off"  # one worker loses Redis
    OUTAGE = "outage"  # everybody does
    CLOCK_ON = "clock on"
    CLOCK_BACK = "clock back"
    FLUSH = "script flush"
    HINTS = "hints"  # liveness and sweep keys are deleted
    GROUP = "group"  # a consumer group is destroyed


#: How often of a hundred.
OFTEN = {
    Blow.KILL: 14,
    Blow.FREEZE: 25,
    Blow.LEAVE: 6,
    Blow.CUT_OFF: 16,
    Blow.OUTAGE: 14,
    Blow.CLOCK_ON: 5,
    Blow.CLOCK_BACK: 4,
    Blow.FLUSH: 4,
    Blow.HINTS: 6,
    Blow.GROUP: 6,
}
#: What becomes of a call that is not simply answered.
FATES = (Fate.SLOW, Fate.UNSENT, Fate.UNHEARD, Fate.UNHEARD, Fate.LATE, Fate.TWICE)
#: What the server calls its scripts by; only they may be sent twice.
SCRIPTS = frozenset(lua.names())


@dataclass(frozen=True, slots=True)
class Climate:
    """One seed's measure of everything."""

    seconds: float  # until the storm is over
    workers: int
    slots: int
    jobs: int
    trouble: float  # the part of the calls that are not simply answered
    pause: float  # seconds between two blows on average

    @classmethod
    def of(cls, dice: random.Random) -> Climate:
        """Some are calm, some are rough in one way, some in all."""
        return cls(
            seconds=dice.uniform(25, 70),
            workers=dice.choice((2, 2, 3)),
            slots=dice.choice((1, 2, 3, 5)),
            jobs=dice.choice((4, 8, 14, 20)),
            trouble=dice.choice((0.0, 0.01, 0.03, 0.10)),
            pause=dice.choice((5.0, 8.0, 15.0, 60.0)),
        )


class Weather:
    """Decides while the storm lasts; afterwards all is calm."""

    def __init__(self, dice: random.Random, climate: Climate) -> None:
        self._dice = dice
        self._climate = climate
        self.calm = False

    def fate(self, name: str) -> Fate:
        """What becomes of a call of that name."""
        if self.calm or self._dice.random() >= self._climate.trouble:
            return Fate.ANSWERED
        fate = self._dice.choice(FATES)
        return Fate.UNHEARD if fate is Fate.TWICE and name not in SCRIPTS else fate

    def next_blow(self) -> tuple[float, Blow]:
        """Seconds until it strikes, and what it is."""
        pause = self._dice.expovariate(1 / self._climate.pause)
        return pause, self._dice.choices(list(OFTEN), list(OFTEN.values()))[0]
