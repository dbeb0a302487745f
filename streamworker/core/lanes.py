"""How one worker's slots are shared between lanes: a pure plan of what to claim next.

Reserved slots serve only their lane. The rest is shared by weight, in starts: while several lanes have work, each
gets its part of the shared slots, and who has had less than its part comes first. The claim script does not know
how much work a lane has until it reads, so a plan gives every lane a quota and says who takes what others leave.

Two things are balanced at once, for either alone fails: by starts alone, lanes of long jobs would slowly fill all
shared slots; by slots held alone, a weight of 4 : 1 over two slots would come out as 1 : 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streamworker.core.errors import ConfigurationError, InvalidArgument

_LANE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)
#: The script takes ready entries before arrivals, except every fourth claim while both wait.
PHASES = 4
MAX_WEIGHT = 1000


def check_lane_name(name: object) -> str:
    """Return a lane name if it is one: 1 to 32 of `a-z 0-9 _ -`, a letter or digit first."""
    if not isinstance(name, str) or not _LANE_NAME.fullmatch(name):
        raise InvalidArgument(
            "lane name", name, "use 1 to 32 characters of a-z, 0-9, '_' and '-', a letter or digit first"
        )
    return name


@dataclass(frozen=True, slots=True)
class Lane:
    """An isolated flow of jobs. `reserved`: slots of a worker that serve no other lane; `weight`: its part of the rest."""

    reserved: int = 0
    weight: int = 1

    def __post_init__(self) -> None:
        _check_whole("reserved", self.reserved, 0, 100_000)
        _check_whole("weight", self.weight, 1, MAX_WEIGHT)


def _check_whole(what: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(
            f"a lane's {what} must be a whole number from {low} to {high}, not {value!r}"
        )


DEFAULT_LANES: Mapping[str, Lane] = {
    "priority": Lane(reserved=4, weight=4),
    "normal": Lane(reserved=4, weight=1),
}


@dataclass(frozen=True, slots=True)
class Slots:
    """A worker's slots, divided: `reserved` by lane, and `shared` by `weight`."""

    concurrency: int
    shared: int
    reserved: Mapping[str, int]
    weight: Mapping[str, int]

    @classmethod
    def of(cls, lanes: Mapping[str, Lane], concurrency: int) -> Slots:
        """Divide `concurrency` slots. Reservations that leave no shared slot are scaled down, to none at 1."""
        _check_whole("concurrency", concurrency, 1, 1_000_000)
        if not lanes:
            raise ConfigurationError("a worker needs at least one lane")
        reserved = {check_lane_name(name): lane.reserved for name, lane in lanes.items()}
        wanted, room = sum(reserved.values()), concurrency - 1
        if wanted > room:
            reserved = {name: count * room // wanted for name, count in reserved.items()}
        weight = {name: lane.weight for name, lane in lanes.items()}
        return cls(concurrency, concurrency - sum(reserved.values()), reserved, weight)


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered between claims. `State()` is the beginning.

    `owed`: starts that a lane is behind its share (below zero: ahead). `idle`: lanes that had nothing more when they
    were last asked; they collect nothing. `phase`: claims of a lane, modulo 4.
    """

    owed: Mapping[str, float] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    phase: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What one lane may take: `reserved` free slots of its own and `quota` shared ones."""

    lane: str
    reserved: int
    quota: int
    phase: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to claim: at most `limit` in all and `shared` beyond the rows' reserved slots.

    First each row in order takes up to `reserved + quota`; then what is left of `shared` goes to any row in order
    that still has work. What a lane takes beyond `reserved` counts as shared.
    """

    limit: int
    shared: int
    rows: tuple[PlanRow, ...]
    slots: Slots


def plan(
    slots: Slots, state: State, in_flight: Mapping[str, int], limit: int, *, under_way: Sequence[Plan] = ()
) -> Plan:
    """Say what to claim next; pure, O(lanes).

    `in_flight` counts the jobs held by lane; a lane's own reserved slots are used first. `limit` bounds the claims of
    this call. `under_way` are the plans of calls without an answer: every slot that one of them may fill, in
    whichever lane, counts as taken.
    """
    held = {lane: in_flight.get(lane, 0) for lane in slots.reserved}
    borrowed = {lane: max(0, held[lane] - slots.reserved[lane]) for lane in held}
    others = sum(in_flight.values()) - sum(held.values())  # of lanes that this worker no longer serves
    shared = max(0, slots.shared - sum(borrowed.values()) - others)
    free = {lane: max(0, slots.reserved[lane] - held[lane]) for lane in held}
    for other in under_way:
        shared = max(0, shared - min(other.limit, other.shared))
        for row in other.rows:
            free[row.lane] = max(0, free[row.lane] - min(other.limit, row.reserved))
    limit = max(0, min(limit, shared + sum(free.values())))

    active_weight = sum(weight for lane, weight in slots.weight.items() if lane not in state.idle)
    lacking: dict[str, float] = {}
    rank: dict[str, tuple[float, float]] = {}
    for lane, weight in slots.weight.items():
        owed = state.owed.get(lane, 0.0)
        # The share that a lane would hold by its weight beside the lanes that have work.
        share = slots.shared * weight / (active_weight + (weight if lane in state.idle else 0))
        # Starts owed move the balance of slots by one slot at most: enough to round fairly in the long run, too
        # little for a lane of long jobs, which starts rarely, to collect slots beyond its share.
        lacking[lane] = share - borrowed[lane] + max(-1.0, min(1.0, owed))
        # Who holds its share of slots is owed nothing, and who holds less owes nothing.
        due = min(owed, 0.0) if borrowed[lane] >= share else max(owed, 0.0)
        rank[lane] = (-due, -lacking[lane])
    quotas = _divide(shared, lacking, slots.weight)
    rows = tuple(
        PlanRow(lane, free[lane], quotas[lane], state.phase.get(lane, 0))
        for lane in sorted(rank, key=rank.__getitem__)
        if shared or free[lane]
    )
    return Plan(limit, shared, rows, slots)


def charge(state: State, plan: Plan, taken: Mapping[str, int]) -> State:
    """Return the state after a claim by `plan` in which each lane got what `taken` says.

    A lane that got less than it might have has no more work: it is owed nothing, and it owes nothing. The starts of
    the others are set against their shares of all slots (reserved and shared), so `owed` stays in sum what it was.
    """
    slots, left = plan.slots, plan.limit
    empty, busy = set[str](), set[str]()
    for row in plan.rows:
        room = min(row.reserved + row.quota, left)
        got = min(taken.get(row.lane, 0), room)
        left -= got
        if room:
            (empty if got < room else busy).add(row.lane)

    # A lane that was not asked may have work by now: it collects, until it is owed enough to be asked.
    weights = sum(weight for lane, weight in slots.weight.items() if lane not in empty)
    parts = {
        lane: slots.reserved[lane] + slots.shared * weight / weights
        for lane, weight in slots.weight.items()
        if lane not in empty
    }
    whole = sum(parts.values())
    starts = sum(taken.get(lane, 0) for lane in parts)
    bound = float(slots.concurrency)
    owed = {
        lane: max(-bound, min(bound, state.owed.get(lane, 0.0) + starts * part / whole - taken.get(lane, 0)))
        for lane, part in parts.items()
    }
    phase = {
        lane: (state.phase.get(lane, 0) + taken.get(lane, 0)) % PHASES
        for lane in {*state.phase, *taken, *parts}
    }
    return State(owed, (state.idle - busy) | empty, phase)


def _divide(count: int, lacking: Mapping[str, float], weight: Mapping[str, int]) -> dict[str, int]:
    """Divide `count` slots so that all lanes lack the same for their weight, as far as they lack any.

    Water-filling: with a level t such that the sum of max(0, lacking + weight * t) is `count`; then the largest
    remainders are rounded up.
    """
    if not count:
        return dict.fromkeys(lacking, 0)
    # In the order in which lanes drop out while the level falls.
    order = sorted(lacking, key=lambda lane: lacking[lane] / weight[lane], reverse=True)
    total, weights, level = 0.0, 0, 0.0
    for lane in order:
        if weights and lacking[lane] + weight[lane] * level <= 0:
            break
        total += lacking[lane]
        weights += weight[lane]
        level = (count - total) / weights
    exact = {lane: max(0.0, lacking[lane] + weight[lane] * level) for lane in lacking}
    quotas = {lane: math.floor(part) for lane, part in exact.items()}
    rest = count - sum(quotas.values())
    for lane in sorted(exact, key=lambda lane: exact[lane] - quotas[lane], reverse=True)[:rest]:
        quotas[lane] += 1
    return quotas
