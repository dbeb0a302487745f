"""The rules about one job: each takes its life and says what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from streamworker.core.states import HELD, TERMINAL, TRANSITIONS, Reason, Status
from streamworker.store.events import Transition
from tests.chaos.history import Life, Limits, Told
from tests.chaos.holdings import Holding, holdings, strays
from tests.chaos.verdict import Kind, Violation

#: Reasons that say somebody died with the job.
DEATHS = frozenset({Reason.RECOVERED, Reason.DIED})
#: From place to place, along no edge.
MOVES = frozenset({Reason.DRAINED, Reason.MERGED})
#: Ends for which a charged attempt is given back: the handler did not get its try (D9).
GIVEN_BACK = frozenset({Reason.CANCELLED, Reason.EXPIRED, Reason.SUPERSEDED, Reason.ENTRY_DELETED})


def shown(edge: Transition) -> str:
    """An edge in a few words."""
    return (
        f"v{edge.version} {edge.from_status or 'new'} -> {edge.to_status} ({edge.reason}, attempt "
        f"{edge.attempt}, fence {edge.fence}, epoch {edge.epoch}, {edge.script} of {edge.worker} "
        f"at {edge.at_ms})"
    )


def chain(life: Life) -> Iterator[Violation]:
    """Versions have no gaps, each edge begins where the last one ended, only a replay begins an epoch."""
    before: Transition | None = None
    for edge in life.edges:
        if before is None:
            if edge.from_status is not None or (edge.version, edge.epoch) != (1, 0):
                yield Violation(Kind.BROKEN_CHAIN, life.job_id, f"has no beginning: {shown(edge)}")
        elif (
            edge.version != before.version + 1
            or edge.from_status is not before.to_status
            or edge.epoch != before.epoch + (edge.reason == Reason.REPLAYED)
        ):
            evidence = f"{shown(edge)} does not follow {shown(before)}"
            yield Violation(Kind.BROKEN_CHAIN, life.job_id, evidence)
        before = edge


def legal_edges(life: Life) -> Iterator[Violation]:
    """Every edge is one of the table."""
    for edge in life.edges:
        if edge.reason in MOVES and edge.from_status is edge.to_status is Status.QUEUED:
            continue
        if edge.from_status is not None and (edge.from_status, edge.to_status) not in TRANSITIONS:
            yield Violation(Kind.ILLEGAL_EDGE, life.job_id, shown(edge))


def one_outcome(life: Life) -> Iterator[Violation]:
    """One end for each epoch, one outcome for each fence."""
    ends = Counter(edge.epoch for edge in life.edges if edge.to_status in TERMINAL)
    for epoch, count in ends.items():
        if count > 1:
            yield Violation(Kind.DOUBLE_OUTCOME, life.job_id, f"ended {count} times in epoch {epoch}")
    left = [edge for edge in life.edges if edge.from_status in HELD and edge.to_status not in HELD]
    for fence, count in Counter(edge.fence for edge in left).items():
        if count > 1:
            evidence = f"{count} outcomes under fence {fence}: " + "; ".join(
                shown(edge) for edge in left if edge.fence == fence
            )
            yield Violation(Kind.DOUBLE_OUTCOME, life.job_id, evidence)


def fresh_fences(life: Life) -> Iterator[Violation]:
    """A claim ends only under its newest fence and by its owner; fences grow from claim to claim (D1, D4)."""
    found = holdings(life)
    for holding, following in pairwise(found):
        if following.claim.fence <= holding.claim.fence:
            evidence = f"{shown(following.claim)} after {shown(holding.claim)}"
            yield Violation(Kind.FENCE_FELL, life.job_id, evidence)
    for holding in found:
        over = holding.over
        if over is not None and over.fence < holding.newest_fence:
            evidence = f"{shown(over)}, but the newest fence was {holding.newest_fence}"
            yield Violation(Kind.STALE_ACCEPTED, life.job_id, evidence)
        if over is None or not holding.has_outcome or over.reason in GIVEN_BACK:
            continue  # a recovery, too, ends a job that was cancelled meanwhile
        if over.worker != holding.claim.worker:
            evidence = f"{shown(over)}, but the claim was {holding.claim.worker}'s"
            yield Violation(Kind.STALE_ACCEPTED, life.job_id, evidence)


def true_outcomes(life: Life) -> Iterator[Violation]:
    """A job succeeded only if the handler under that very fence said that it returned."""
    for holding in holdings(life):
        over = holding.over
        if over is None or over.to_status is not Status.SUCCEEDED:
            continue
        told = [end.told for end in holding.ends if end.fence == over.fence]
        if told != [Told.RETURNED]:
            evidence = f"{shown(over)}, but its handler told {[str(each) for each in told] or 'nothing'}"
            yield Violation(Kind.FALSE_OUTCOME, life.job_id, evidence)


def counted_attempts(life: Life) -> Iterator[Violation]:
    """A claim charges one attempt; a hand-back, and a death before the start, give it back."""
    for before, edge in pairwise(life.edges):
        if edge.attempt - before.attempt not in _charge(edge):
            evidence = f"{shown(edge)} after attempt {before.attempt}"
            yield Violation(Kind.MISCOUNTED, life.job_id, evidence)


def _charge(edge: Transition) -> tuple[int, ...]:
    """By how much an edge may change the attempt."""
    if edge.reason == Reason.REPLAYED:
        return tuple(range(-edge.version, 1))
    if edge.to_status is Status.CLAIMED:
        return (1,)
    if edge.from_status not in HELD or edge.to_status is Status.PROCESSING:
        return (0,)
    if edge.reason in GIVEN_BACK:
        return (0, -1)
    died_early = edge.reason == Reason.RECOVERED and edge.from_status is Status.CLAIMED
    return (-1,) if edge.to_status is Status.QUEUED or died_early else (0,)


def within_limits(life: Life, limits: Limits) -> Iterator[Violation]:
    """Attempts, starts and strikes stay within what the task allows, in each epoch."""
    attempts, starts = limits.attempts_of(life.task), limits.starts_of(life.task)
    if (most := max((edge.attempt for edge in life.edges), default=0)) > attempts:
        yield Violation(Kind.TOO_MANY_ATTEMPTS, life.job_id, f"{most} attempts, {attempts} are allowed")
    begun = Counter(edge.epoch for edge in life.edges if edge.to_status is Status.CLAIMED)
    begun.subtract(edge.epoch for edge in life.edges if _start_given_back(edge))
    if (most := max(begun.values(), default=0)) > starts:
        yield Violation(Kind.TOO_MANY_STARTS, life.job_id, f"{most} starts, {starts} are allowed")
    for edge, strikes in strikes_after(life):
        if strikes > limits.strikes or (strikes == limits.strikes and edge.to_status not in TERMINAL):
            evidence = f"strike {strikes} of {limits.strikes}: {shown(edge)}"
            yield Violation(Kind.TOO_MANY_STRIKES, life.job_id, evidence)


def _start_given_back(edge: Transition) -> bool:
    return edge.reason == Reason.UNKNOWN_TASK and edge.to_status is Status.QUEUED


def starts_counted(life: Life) -> int:
    """How many starts the record should count: the claims of the last epoch, less the unknown tasks."""
    last = [edge for edge in life.edges if edge.epoch == life.edges[-1].epoch]
    return sum((edge.to_status is Status.CLAIMED) - _start_given_back(edge) for edge in last)


def strikes_after(life: Life) -> Iterator[tuple[Transition, int]]:
    """Each edge, and the strikes after it: deaths since a handler last ran to an end (D22)."""
    strikes = 0
    for edge in life.edges:
        if edge.reason == Reason.REPLAYED or edge.to_status is Status.SUCCEEDED:
            strikes = 0
        elif edge.reason in DEATHS:
            strikes += 1
        elif edge.from_status is Status.PROCESSING and edge.to_status is not Status.QUEUED:
            strikes = 0
        yield edge, strikes


def claimed_starts(life: Life) -> Iterator[Violation]:
    """No handler runs but under a claim, and one claim runs it once."""
    found = holdings(life)
    for start in strays(life, found):
        evidence = f"started under fence {start.fence} of {start.worker}, which no claim had"
        yield Violation(Kind.UNCLAIMED_START, life.job_id, evidence)
    for holding in found:
        if len(holding.starts) > 1:
            evidence = f"{len(holding.starts)} starts under one claim: {holding.starts}"
            yield Violation(Kind.STARTED_TWICE, life.job_id, evidence)


def repeated(found: list[Holding]) -> Iterator[tuple[Holding, Holding]]:
    """Two holdings in a row that both started the handler, the first of which came to no outcome."""
    for holding, following in pairwise([each for each in found if each.starts]):
        if not holding.has_outcome:
            yield holding, following
