"""The rules about overload: the backlog and its drain, merged events, breakers, and what a cache said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from streamworker.core.states import Reason, Status
from streamworker.store.events import Transition
from tests.chaos.history import History, Ill, Life
from tests.chaos.holdings import holdings
from tests.chaos.rules import shown
from tests.chaos.verdict import Kind, Violation

#: How a handler names an item that it works on; the code with which it fails when a cached value is wrong.
ITEM, WRONG = "item:", "wrong_value"
#: Windows that count as one: a breaker counts by halves, and hears of a call some time after it.
WINDOWS = 2


def drained_in_turn(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """No worker has a job before it is drained, and those of a lane are drained as they came."""
    places = {(edge.job_id, edge.version): n for n, edge in enumerate(history.transitions)}
    arrived: dict[str, list[tuple[int, int, Transition]]] = defaultdict(list)
    for life in jobs.values():
        first = life.edges[0] if life.edges else None
        if first is None or "backlog" not in first.facts:
            continue
        moves = [edge for edge in life.edges if edge.reason in (Reason.DRAINED, Reason.CLAIMED)]
        if moves and moves[0].reason != Reason.DRAINED:
            yield Violation(Kind.UNDRAINED, life.job_id, f"waits in the backlog: {shown(moves[0])}")
        elif moves and "due" not in first.facts:
            came, went = (places[life.job_id, edge.version] for edge in (first, moves[0]))
            arrived[first.facts["lane"]].append((came, went, moves[0]))
    for found in arrived.values():
        latest: tuple[int, Transition] | None = None
        for _, went, edge in sorted(found, key=lambda one: one[0]):
            if latest is not None and went < latest[0]:
                evidence = f"{shown(edge)} came before {latest[1].job_id}, which was there earlier"
                yield Violation(Kind.OUT_OF_ORDER, edge.job_id, evidence)
            else:
                latest = went, edge


def drained_by_tokens(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Any window of w ms holds at most burst + tokens × w / period moves out of the backlog."""
    if history.limits.drain is None:
        return
    tokens, period, burst = history.limits.drain
    moves = [edge for life in jobs.values() for edge in life.edges if edge.reason == Reason.DRAINED]
    level, before = burst * period, -1
    for edge in sorted(moves, key=lambda edge: edge.at_ms):
        jumped = any(before <= jump * 1000 <= edge.at_ms for jump in history.jumps)
        level = burst * period if jumped else min(burst * period, level + (edge.at_ms - before) * tokens)
        level, before = level - period, edge.at_ms
        if level < 0:
            evidence = f"the drain has {tokens} in {period} ms, at most {burst} at once: {shown(edge)}"
            yield Violation(Kind.OVER_RATE, edge.job_id, evidence)
            level = 0


def items_are_where_told(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """The job that answered for an event has worked on it, if it succeeded. Its key is its item."""
    for one in history.accepted:
        life = jobs.get(one.job_id)
        if one.task not in history.limits.merging or one.key is None or life is None or not life.edges:
            continue
        if life.edges[-1].to_status is not Status.SUCCEEDED:
            continue
        last = holdings(life)[-1]
        worked_on = {name for start in last.starts for name in start.holds}
        if ITEM + one.key not in worked_on:
            evidence = f"answered {one.disposition} for {one.key!r}, and worked on {sorted(worked_on)}"
            yield Violation(Kind.LOST_ITEM, one.job_id, evidence)


def the_ill_are_left_alone(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Few call a dependency while it is ill: until its breaker has heard enough, and then the probes.

    It opens when as many calls failed as went well in its window. Until then all slots may have begun a call;
    a fault in the meantime may cost it as many again, of which it never hears.
    """
    for ill in history.illnesses:
        calls, window_ms, open_ms, probes = history.limits.breakers[ill.name]
        begun = sorted(start.at for life in jobs.values() for start in life.starts if ill.name in start.holds)
        window = WINDOWS * window_ms / 1000
        before = sum(ill.since - window <= at < ill.since for at in begun)
        during = [at for at in begun if ill.since <= at <= ill.until]
        trials = 2 + int((ill.until - ill.since) * 1000 / open_ms)
        most = max(calls, before) + history.limits.slots * (1 + _faults(history, ill)) + probes * trials
        if len(during) > most:
            evidence = f"{ill} was called {len(during)} times, {most} are allowed; {before} before it"
            yield Violation(Kind.OVER_BREAKER, None, evidence)


def _faults(history: History, ill: Ill) -> int:
    return sum(fault.begin <= ill.until and fault.until >= ill.since for fault in history.faults)


def no_wrong_value(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Whatever happens to a cache, no handler works with a value that nobody loaded."""
    for life in jobs.values():
        for edge in life.edges:
            if edge.facts.get("code") == WRONG:
                yield Violation(Kind.WRONG_VALUE, life.job_id, shown(edge))
