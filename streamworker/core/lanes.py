"""How one worker's slots are shared between lanes: a pure plan of what to claim next.

Reserved slots serve only their lane; the rest is shared by weight. The claim script does not know how much
work a lane has until it reads, so a plan gives every lane a quota and says in which order they take what
others leave.

Two things are balanced at once, since either alone fails. By starts alone, a lane of long jobs would slowly
collect all shared slots. By slots held alone, a weight of 4 : 1 over two slots would come out as 1 : 1. So
the slots that a lane lacks decide, and starts that it is owed shift them by one at most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from streamworker.core.errors import ConfigurationError
from streamworker.core.lane import DEFAULT_LANES as DEFAULT_LANES
from streamworker.core.lane import Lane as Lane
from streamworker.core.lane import check_lane_name as check_lane_name
from streamworker.core.lane import check_whole

#: The script takes ready entries before arrivals, except every fourth claim while both wait.
PHASES = 4


@dataclass(frozen=True, slots=True)
class Slots:
    """A worker's slots, divided: `reserved` by lane, and `shared` by `weight`."""

    concurrency: int
    shared: int
    reserved: Mapping[str, int]
    weight: Mapping[str, int]

    @classmethod
    def of(cls, lanes: Mapping[str, Lane], concurrency: int) -> Slots:
        """Divide `concurrency` slots; reservations that leave no shared slot scale down, to none at 1."""
        check_whole("concurrency", concurrency, 1, 1_000_000)
        if not lanes:
            raise ConfigurationError("a worker needs at least one lane")
        reserved = {check_lane_name(name): lane.reserved for name, lane in lanes.items()}
        wanted, room = sum(reserved.values()), concurrency - 1
        if wanted > room:
            reserved = {name: count * room // wanted for name, count in reserved.items()}
        weight = {name: lane.weight for name, lane in lanes.items()}
        return cls(concurrency, concurrency - sum(reserved.values()), reserved, weight)

    def aged(self, lanes: Mapping[str, Lane], ages_ms: Mapping[str, int]) -> Slots:
        """The same slots, weighted by how long the jobs of each lane have waited; see `Lane.aging`."""
        weight = {name: lanes[name].aged_weight(ages_ms.get(name, 0)) for name in self.weight}
        return self if weight == self.weight else replace(self, weight=weight)


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered between claims. `State()` is the beginning.

    `owed`: starts that a lane is behind its share (below zero: ahead). `idle`: lanes that had nothing more
    when they were last asked. `phase`: claims of a lane, modulo 4. `emptied`: those of `idle` that the last
    claim asked.
    """

    owed: Mapping[str, float] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    phase: Mapping[str, int] = field(default_factory=dict)
    emptied: frozenset[str] = frozenset()

    def woken(self, lanes: Collection[str] | None = None) -> State:
        """The state after word that these lanes (None: all) may have work again."""
        idle = frozenset() if lanes is None else self.idle.difference(lanes)
        return State(self.owed, idle, self.phase)


class PlanRow(NamedTuple):
    """What one lane may take: `reserved` free slots of its own and `quota` shared ones."""

    lane: str
    reserved: int
    quota: int
    phase: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to claim: at most `limit` in all and `shared` beyond the rows' reserved slots.

    First each row in order takes up to `reserved + quota`; then what is left of `shared` goes to any row in
    order that still has work. What a lane takes beyond `reserved` counts as shared.
    """

    limit: int
    shared: int
    rows: tuple[PlanRow, ...]
    slots: Slots

    def half(self) -> Plan:
        """The larger half of every part of this plan, so that a second call finds the other half free."""
        rows = tuple(
            PlanRow(lane, (reserved + 1) // 2, (quota + 1) // 2, phase)
            for lane, reserved, quota, phase in self.rows
        )
        shared = (self.shared + 1) // 2
        limit = min(self.limit, shared + sum(row.reserved for row in rows))
        return Plan(limit, shared, rows, self.slots)


def eligible(slots: Slots, in_flight: Mapping[str, int]) -> list[str]:
    """The lanes that have a free slot, of their own or shared."""
    held = {lane: in_flight.get(lane, 0) for lane in slots.reserved}
    borrowed = sum(max(0, held[lane] - reserved) for lane, reserved in slots.reserved.items())
    others = sum(in_flight.values()) - sum(held.values())
    shared = slots.shared - borrowed - others
    return [lane for lane, reserved in slots.reserved.items() if shared > 0 or held[lane] < reserved]


def plan(
    slots: Slots,
    state: State,
    in_flight: Mapping[str, int],
    limit: int,
    *,
    under_way: Sequence[Plan] = (),
    without: Collection[str] = (),
) -> Plan:
    """Say what to claim next; pure, O(lanes).

    `in_flight` counts the jobs held by lane; a lane's own reserved slots are used first. `limit` bounds the
    claims of this call. `under_way` are the plans of calls without an answer: every slot that one of them may
    fill, in whichever lane, counts as taken. The lanes of `without` are not asked.
    """
    free_of, borrowed_of = {}, {}
    shared = slots.shared
    for lane, count in in_flight.items():
        if lane not in slots.reserved:  # no longer served by this worker, and still in a slot
            shared -= count
    for lane, reserved in slots.reserved.items():
        spare = reserved - in_flight.get(lane, 0)
        free_of[lane], borrowed_of[lane] = (spare, 0) if spare > 0 else (0, -spare)
        shared -= borrowed_of[lane]
    phase = dict(state.phase)
    for other in under_way:
        shared -= min(other.limit, other.shared)
        for row in other.rows:
            # It goes on with the turn of ready and arrivals where that call will leave it.
            phase[row.lane] = phase.get(row.lane, 0) + min(other.limit, row.reserved + row.quota)
            # What a lane's own free slots do not cover any more comes from the shared ones.
            taken = min(other.limit, row.reserved)
            shared -= max(0, taken - free_of[row.lane])
            free_of[row.lane] = max(0, free_of[row.lane] - taken)
    shared = max(shared, 0)
    for lane in without:
        free_of.pop(lane, None)
    limit = max(0, min(limit, shared + sum(free_of.values())))
    if not limit:
        return Plan(0, 0, (), slots)

    idle = state.idle
    active_weight = sum([weight for lane, weight in slots.weight.items() if lane not in idle])
    lacking: dict[str, float] = {}
    behind: dict[str, float] = {}
    order: list[tuple[float, float, str]] = []
    for lane, weight in slots.weight.items():
        if lane in without:
            continue
        owed = state.owed.get(lane, 0.0)
        borrowed = borrowed_of[lane]
        # What a lane would hold by its weight beside the lanes that have work.
        share = slots.shared * weight / (active_weight + weight if lane in idle else active_weight)
        # At most one slot either way: enough to round fairly in the long run, too little for a lane of long
        # jobs, which starts rarely and is owed much, to collect slots beyond its share.
        lacks = lacking[lane] = share - borrowed + (1.0 if owed > 1.0 else -1.0 if owed < -1.0 else owed)
        if owed > 1.0:  # so many rounds of the slots
            behind[lane] = owed / (slots.reserved[lane] + share)
        # When `limit` is what is short, starts decide; but who holds its share of slots is owed nothing, and
        # who holds less owes nothing.
        due = min(owed, 0.0) if borrowed >= share else max(owed, 0.0)
        order.append((-due, -lacks, lane))
    order.sort()
    quotas = _divide(shared, lacking, slots.weight, behind)
    rows = [
        PlanRow(lane, free_of[lane], quotas[lane], phase.get(lane, 0) % PHASES)
        for _, _, lane in order
        if shared or free_of[lane]
    ]
    return Plan(limit, shared, tuple(rows), slots)


def charge(state: State, plan: Plan, taken: Mapping[str, int]) -> State:
    """Return the state after a claim by `plan` in which each lane got what `taken` says.

    A lane that got less than it might have has no more work: it is owed nothing, and it owes nothing. The
    starts of the others are set against their parts of all slots, reserved and shared.
    """
    slots, left = plan.slots, plan.limit
    empty, busy = set[str](), set[str]()
    for row in plan.rows:
        room = min(row.reserved + row.quota, left)
        if room:
            got = min(taken.get(row.lane, 0), room)
            left -= got
            (empty if got < room else busy).add(row.lane)
    spare = plan.shared - sum(max(0, taken.get(row.lane, 0) - row.reserved) for row in plan.rows)
    if spare > 0 and sum(taken.values()) < plan.limit:  # what nobody took was offered to all
        empty, busy = {row.lane for row in plan.rows}, set()

    # A lane that was not asked may have work by now: it collects, until it is owed enough to be asked.
    counted = [lane for lane in slots.weight if lane not in empty]
    weights = sum([slots.weight[lane] for lane in counted])
    slots_of_all = slots.shared + sum([slots.reserved[lane] for lane in counted])
    starts = sum([taken.get(lane, 0) for lane in counted])
    bound = float(slots.concurrency)
    owed = {}
    for lane in counted:
        part = (slots.reserved[lane] + slots.shared * slots.weight[lane] / weights) / slots_of_all
        due = state.owed.get(lane, 0.0) + starts * part - taken.get(lane, 0)
        owed[lane] = max(-bound, min(bound, due))
    phase = dict(state.phase)
    for lane, count in taken.items():
        phase[lane] = (phase.get(lane, 0) + count) % PHASES
    idle = (state.idle - busy) | empty if state.idle or empty else state.idle
    return State(owed, idle, phase, frozenset(empty))


def _divide(
    count: int, lacking: Mapping[str, float], weight: Mapping[str, int], behind: Mapping[str, float]
) -> dict[str, int]:
    """Divide `count` slots so that all lanes lack the same for their weight, as far as they lack any.

    Water-filling, to a level t with the sum of max(0, lacking + weight * t) equal to `count`. What is left
    by rounding down goes to those that are `behind` by most rounds, then to the largest remainders: by
    remainders alone, a heavy lane with a small share would lose each time to a light one that is hardly
    behind.
    """
    if not count:
        return dict.fromkeys(lacking, 0)
    # In the order in which lanes drop out while the level falls.
    order = sorted([(-lacks / weight[lane], lane) for lane, lacks in lacking.items()])
    total, weights, level = 0.0, 0, 0.0
    for _, lane in order:
        if weights and lacking[lane] + weight[lane] * level <= 0:
            break
        total += lacking[lane]
        weights += weight[lane]
        level = (count - total) / weights
    quotas, remainders, rest = {}, [], count
    for lane, lacks in lacking.items():
        exact = max(0.0, lacks + weight[lane] * level)
        whole = quotas[lane] = int(exact)
        remainders.append((-behind.get(lane, 0.0) if exact > whole else 0.0, whole - exact, lane))
        rest -= whole
    remainders.sort()
    for _, _, lane in remainders[:rest]:
        quotas[lane] += 1
    return quotas
