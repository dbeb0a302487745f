"""The rules about overload: the backlog and its drain, breakers, and what a cache said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from streamworker.core.states import Reason
from streamworker.store.events import Transition
from tests.chaos.history import FaultKind, History, Ill, Life
from tests.chaos.holdings import holdings
from tests.chaos.rules import shown
from tests.chaos.verdict import Kind, Violation

#: The code with which a handler fails when a cached value is wrong.
WRONG = "wrong_value"
#: Ends of a holding of whose call a breaker hears, with the same exchange or the one before.
HEARD = frozenset({Reason.RETURNED, Reason.ERROR})
#: Seconds in which a worker that has something to tell sends an exchange: that is what a fault may cost.
TOLD_WITHIN = 0.3
#: Faults by which an exchange gets lost; a busy machine and deleted hints lose none.
COSTLY = frozenset(FaultKind) - {FaultKind.STALL, FaultKind.HINTS}


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


def the_ill_are_left_alone(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Few call a dependency while it is ill, by what its breaker has heard: see `allowed_calls`."""
    for ill in history.illnesses:
        called, most, before = allowed_calls(history, jobs, ill)
        if called > most:
            evidence = f"{ill} was called {called} times, {most} are allowed; {before} before it"
            yield Violation(Kind.OVER_BREAKER, None, evidence)


def allowed_calls(history: History, jobs: Mapping[str, Life], ill: Ill) -> tuple[int, int, int]:
    """Calls in an illness that its breaker heard of, how many there may be, and those that went well before.

    It opens when as many calls failed as went well in its window, if they were enough; those who hold a place
    of the dependency have begun by then, and what as many have said may be lost. After that there are the
    probes of each trial. A call whose worker was struck meanwhile may be one of which nobody heard; it is not
    counted, nor is one that was not settled.
    """
    calls, window_ms, open_ms, probes = history.limits.breakers[ill.name]
    window, seconds = window_ms / 1000, ill.until - ill.since
    before = called = 0
    for life in jobs.values():
        if not any(ill.name in start.holds for start in life.starts):
            continue
        for holding in holdings(life):
            over = holding.over
            if over is None or over.reason not in HEARD or not holding.starts:
                continue
            begun, told = holding.starts[-1].at, over.at_ms / 1000
            if begun < ill.since:
                before += over.reason == Reason.RETURNED and told + TOLD_WITHIN >= ill.since - window
            elif begun <= ill.until:
                called += not _unheard(history, holding.starts[-1].worker, begun, told)
    untold = round(calls * (1 + seconds / window))  # each window may have too few to judge by
    dependency = ill.name.partition(":")[2]
    under_way = history.limits.holders.get(f"concurrency:{dependency}", history.limits.slots)
    return called, max(untold, before) + 2 * under_way + probes * _trials(seconds, open_ms / 1000), before


def _trials(seconds: float, open_for: float) -> int:
    """Trials at most of an illness: one that was due when it began, and then each after twice the time."""
    count, wait = 1, 2 * open_for
    while seconds >= wait:
        count, seconds, wait = count + 1, seconds - wait, min(2 * wait, 8 * open_for)
    return count


def _unheard(history: History, worker: str, begun: float, told: float) -> bool:
    return any(
        fault.kind in COSTLY and fault.strikes(worker, begun - TOLD_WITHIN, told) for fault in history.faults
    )


def no_wrong_value(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Whatever happens to a cache, no handler works with a value that nobody loaded."""
    for life in jobs.values():
        for edge in life.edges:
            if edge.facts.get("code") == WRONG:
                yield Violation(Kind.WRONG_VALUE, life.job_id, shown(edge))
