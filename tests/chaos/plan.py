"""What a long run does: how many jobs and faults, in which order, from one seed."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

#: Jobs of the run that the figures in docs/reliability.md are of.
FULL = 500_000
#: Jobs that are judged together: then everything has to be over, and the history is let go.
ROUND = 25_000


class Blow(StrEnum):
    """A fault of the plan."""

    KILL = "kill"  # SIGKILL of a worker
    KILL_KEEPER = "kill_keeper"  # of the one that sweeps
    KILL_ALL = "kill_all"  # of all workers at once
    FREEZE = "freeze"  # SIGSTOP of a worker, for longer than the lease
    RESTART = "restart"  # SIGTERM of a worker, and a new one
    KILL_SERVER = "kill_server"  # SIGKILL of Redis
    BLACK_HOLE = "black_hole"  # nobody reaches Redis, and nobody is told
    REFUSE = "refuse"  # everybody is cut off and refused
    PARTITION = "partition"  # one worker does not reach Redis, for longer than the lease
    SLOW = "slow"  # each reply takes its time
    FULL = "full"  # Redis is out of memory


#: How many of each the full run deals out, and how many even the shortest does.
FULL_BLOWS: dict[Blow, tuple[int, int]] = {
    Blow.KILL: (76, 2),
    Blow.KILL_KEEPER: (24, 1),
    Blow.KILL_ALL: (4, 1),
    Blow.FREEZE: (36, 2),
    Blow.RESTART: (16, 1),
    Blow.KILL_SERVER: (12, 1),
    Blow.BLACK_HOLE: (6, 1),
    Blow.REFUSE: (6, 1),
    Blow.PARTITION: (6, 1),
    Blow.SLOW: (4, 1),
    Blow.FULL: (4, 1),
}


@dataclass(frozen=True, slots=True)
class Round:
    """Jobs and faults that are judged together."""

    jobs: int
    blows: tuple[Blow, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The rounds of one run."""

    jobs: int
    blows: tuple[Blow, ...]

    @classmethod
    def of(cls, jobs: int, seed: int) -> Plan:
        """The faults of the full run, scaled to so many jobs, in the order of the seed."""
        blows = [
            blow
            for blow, (full, least) in FULL_BLOWS.items()
            for _ in range(max(least, math.ceil(full * jobs / FULL)))
        ]
        random.Random(seed).shuffle(blows)
        return cls(jobs, tuple(blows))

    def rounds(self) -> Iterator[Round]:
        """Equal parts of jobs and faults."""
        count = math.ceil(self.jobs / ROUND)
        for number in range(count):
            jobs = self.jobs * (number + 1) // count - self.jobs * number // count
            first, last = (len(self.blows) * part // count for part in (number, number + 1))
            yield Round(jobs, self.blows[first:last])

    def count(self) -> Counter[Blow]:
        return Counter(self.blows)
