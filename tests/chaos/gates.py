"""The rules about gates: who held what at once, in which order, how often, and while it was paused.

A handler writes down by which gates it runs (`Start.holds`). It is live from its start until it ends, until
its process dies, or until its claim is over by the log: what a worker does after it lost a claim is no
holder's work any more, and nothing is promised of it (R59).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from streamworker.core.states import HELD, TERMINAL, WAITING, Reason, Status
from streamworker.store.events import Transition
from tests.chaos.history import FaultKind, History, Life, Paused, Start
from tests.chaos.holdings import holdings
from tests.chaos.rules import shown, strikes_after
from tests.chaos.verdict import Kind, Violation

#: Kinds of gates, as the names of gates begin.
ENTITY, RATE = "entity:", "rate:"
#: Seconds after a pause in which the order of entities may still be that in which their jobs came back.
SETTLED = 2.0
#: Seconds for which a gate keeps a place for a waiter that nobody claims, and leases without a keeper.
KEPT, KEEPERLESS = 5.0, 3


@dataclass(frozen=True, slots=True)
class Live:
    """One handler that held a gate."""

    start: Start
    #: When its job passed the gate at the earliest: as a waiter, it was let in some time before its claim.
    passed: float
    #: When its job was claimed.
    claimed: float
    until: float


def held(jobs: Mapping[str, Life]) -> dict[str, list[Life]]:
    """The jobs that passed each gate, as far as a handler of theirs ever ran."""
    found: dict[str, list[Life]] = defaultdict(list)
    for life in jobs.values():
        for name in {name for start in life.starts for name in start.holds}:
            found[name].append(life)
    return found


def never_too_many(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """No gate has more live holders than it allowed when the last of them passed it."""
    for name, lives in held(jobs).items():
        if not (name.startswith(ENTITY) or name in history.limits.holders):
            continue
        live: list[Live] = []
        for one in sorted(_handlers(history, lives, name), key=lambda one: one.start.at):
            live = [other for other in live if other.until > one.start.at]
            live.append(one)
            since, until = max(each.passed for each in live), max(each.claimed for each in live)
            most = _most(history, name, since, until)
            if most is not None and len(live) > most:
                given = [each for each in history.figures if each.name == name and each.until >= since]
                evidence = f"{name} lets in {most}, and {len(live)} ran: {live}, {given}"
                yield Violation(Kind.TOO_MANY_HOLDERS, one.start.job_id, evidence)


def _most(history: History, name: str, since: float, until: float) -> int | None:
    """How many may hold a gate that is passed between these times; None: nobody can say."""
    if name.startswith(ENTITY):
        return 1
    given = [each for each in history.figures if each.name == name]
    if not given:
        return history.limits.holders[name]
    return max((each.most for each in given if each.since <= until and since <= each.until), default=None)


def _handlers(history: History, lives: list[Life], name: str) -> Iterator[Live]:
    deaths = {fault.worker: fault.begin for fault in history.faults if fault.kind is FaultKind.KILL}
    kept = KEPT + KEEPERLESS * history.limits.lease
    for life in lives:
        for holding in holdings(life):
            waited = max((e.at_ms for e in life.edges if e.version < holding.claim.version), default=0) / 1000
            passed = max(waited, holding.since - kept)
            for start in holding.starts:
                if name in start.holds:
                    ends = [end.at for end in holding.ends if end.fence == start.fence]
                    died = deaths.get(start.worker, math.inf)
                    over = math.inf if holding.over is None else holding.over.at_ms / 1000
                    yield Live(start, passed, holding.since, min([*ends, died, over]))


def within_rate(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Any window of w ms holds at most burst + tokens × w / period claims of a rate's jobs.

    A bucket that is full before the first claim says the same. Where the server's clock was put on, it is
    full again: time that has passed by that clock brings tokens (R36).
    """
    for name, lives in held(jobs).items():
        if name not in history.limits.rates:
            continue
        tokens, period, burst = history.limits.rates[name]
        claims = sorted(_claims(lives), key=lambda edge: edge.at_ms)
        level, before = burst * period, -1
        for edge in claims:
            jumped = any(before <= jump * 1000 <= edge.at_ms for jump in history.jumps)
            level = burst * period if jumped else min(burst * period, level + (edge.at_ms - before) * tokens)
            level, before = level - period, edge.at_ms
            if level < 0:
                evidence = f"{name} gives {tokens} in {period} ms, at most {burst} at once: {shown(edge)}"
                yield Violation(Kind.OVER_RATE, edge.job_id, evidence)
                level = 0


def _claims(lives: list[Life]) -> Iterator[Transition]:
    for life in lives:
        yield from (edge for edge in life.edges if edge.to_status is Status.CLAIMED)


def in_order(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """Jobs of one entity are claimed for the first time in the order in which they were enqueued.

    One that comes back at once, as after a crash, is the next again, unless an earlier one waits. While one
    of strict order is between its first claim and its end, no other one is claimed. A job that waited while
    something was paused has come back to its place, which is not that of arrival; a delayed one and a
    replayed one came later than they were enqueued.
    """
    places = {(edge.job_id, edge.version): n for n, edge in enumerate(history.transitions)}
    for name, lives in held(jobs).items():
        if name.startswith(ENTITY):
            yield from _by_arrival(history, name, lives, places)
            yield from _in_turn(history, name, lives, places)
            yield from _strictly(history, name, lives, places)


def _by_arrival(
    history: History, name: str, lives: list[Life], places: Mapping[tuple[str, int], int]
) -> Iterator[Violation]:
    claimed: dict[str, tuple[int, Transition]] = {}
    for life in lives:
        first = life.edges[0] if life.edges else None
        claims = [edge for edge in life.edges if edge.to_status is Status.CLAIMED and edge.epoch == 0]
        if first is None or not claims or first.reason != Reason.ENQUEUED:
            continue
        if not _paused_between(history, first.at_ms / 1000, claims[0].at_ms / 1000):
            claimed[life.job_id] = (places[life.job_id, claims[0].version], claims[0])
    latest: tuple[int, Transition] | None = None
    for job_id in sorted(claimed, key=lambda job_id: places[job_id, 1]):
        place, edge = claimed[job_id]
        if latest is not None and place < latest[0]:
            evidence = f"of {name}, {shown(edge)} came before {latest[1].job_id}, which was enqueued earlier"
            yield Violation(Kind.OUT_OF_ORDER, job_id, evidence)
        else:
            latest = (place, edge)


def _in_turn(
    history: History, name: str, lives: list[Life], places: Mapping[tuple[str, int], int]
) -> Iterator[Violation]:
    first_deaths = {
        (edge.job_id, edge.version)
        for life in lives
        for edge, strikes in strikes_after(life)
        if edge.reason == Reason.RECOVERED and strikes == 1
    }
    edges = [(places[edge.job_id, edge.version], edge) for life in lives for edge in life.edges]
    late = {life.job_id for life in lives if life.edges and life.edges[0].reason != Reason.ENQUEUED}
    back: Transition | None = None
    for _, edge in sorted(edges, key=lambda each: each[0]):
        if edge.from_status in HELD and edge.to_status in WAITING:
            at_once = edge.to_status is Status.QUEUED and "due" not in edge.facts
            if at_once or (edge.job_id, edge.version) in first_deaths:
                back = edge
        elif back is not None and edge.to_status is Status.CLAIMED:
            earlier = places[edge.job_id, 1] <= places[back.job_id, 1]
            unsure = {edge.job_id, back.job_id} & late or edge.epoch or back.epoch
            if not (earlier or unsure or _paused_between(history, back.at_ms / 1000, edge.at_ms / 1000)):
                evidence = f"of {name}, {back.job_id} had come back at once: {shown(back)}; {shown(edge)}"
                yield Violation(Kind.OUT_OF_ORDER, edge.job_id, evidence)
            back = None
        elif back is not None and edge.job_id == back.job_id and edge.to_status in TERMINAL:
            back = None


def _strictly(
    history: History, name: str, lives: list[Life], places: Mapping[tuple[str, int], int]
) -> Iterator[Violation]:
    if not any(life.task in history.limits.strict for life in lives):
        return
    edges = [(places[edge.job_id, edge.version], edge) for life in lives for edge in life.edges]
    owner: Transition | None = None
    for _, edge in sorted(edges, key=lambda each: each[0]):
        if edge.to_status is Status.CLAIMED:
            if owner is not None and owner.job_id != edge.job_id:
                since, until = owner.at_ms / 1000, edge.at_ms / 1000
                if not _paused_between(history, since, until):
                    evidence = f"{name} is kept by {owner.job_id}, which is not over: {shown(edge)}"
                    yield Violation(Kind.OUT_OF_ORDER, edge.job_id, evidence)
            if owner is None or owner.job_id != edge.job_id:
                owner = edge
        elif edge.to_status in TERMINAL and owner is not None and owner.job_id == edge.job_id:
            owner = None


def _paused_between(history: History, since: float, until: float) -> bool:
    return any(one.begin <= until and since <= one.end + SETTLED for one in history.pauses)


def not_in_a_pause(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """While a lane, tenant, task or dependency is paused, none of its jobs is claimed."""
    for life in jobs.values():
        claims = [edge for edge in life.edges if edge.to_status is Status.CLAIMED]
        for pause in history.pauses if claims else ():
            if not _concerns(pause, life):
                continue
            for edge in claims:  # the log's times are whole ms, rounded off
                if pause.since * 1000 < edge.at_ms and edge.at_ms + 1 < pause.until * 1000:
                    evidence = f"{pause.scope} was paused from {pause.since} to {pause.until}: {shown(edge)}"
                    yield Violation(Kind.CLAIMED_IN_PAUSE, life.job_id, evidence)


def _concerns(pause: Paused, life: Life) -> bool:
    kind, _, name = pause.scope.partition(":")
    if kind in ("lane", "task", "tenant"):
        return life.edges[0].facts.get(kind) == name
    return any(f"pause:{pause.scope}" in start.holds for start in life.starts)
