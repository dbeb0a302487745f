"""Deaths and what became of what was in flight: recovery times against D6's bound, second starts by cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.chaos.history import Fault, FaultKind, History, Life, Limits
from tests.chaos.holdings import Holding, holdings
from tests.chaos.rules import repeated, shown
from tests.chaos.verdict import Kind, Violation

#: What explains a second start, the most particular first.
CAUSES = (FaultKind.KILL, FaultKind.FREEZE, FaultKind.PARTITION, FaultKind.OUTAGE, FaultKind.STALL)


@dataclass(frozen=True, slots=True)
class Recovery:
    """One job that a worker held when it stopped."""

    fault: Fault
    holding: Holding
    #: Seconds from the stop to the end of the claim; None: it never ended.
    seconds: float | None
    #: Seconds that D6 allows, the margin included.
    allowed: float

    @property
    def late(self) -> bool:
        return self.seconds is None or self.seconds > self.allowed


def allowed_seconds(stopped: float, faults: Iterable[Fault], limits: Limits) -> float:
    """How long after a worker stopped its jobs may wait for their recovery (D6).

    Lease and one sweep while somebody sweeps. What stops the sweeps meanwhile puts it off: a successor has to
    be elected, and nothing is recovered for one lease more.
    """
    due = stopped + limits.lease + limits.sweep
    for fault in sorted(faults, key=lambda fault: fault.begin):
        if fault.sweeps_from is not None and fault.begin < due:
            due = max(due, fault.sweeps_from + limits.succession + limits.lease + limits.sweep)
    return due + limits.margin - stopped


def _last_word(fault: Fault, faults: Iterable[Fault]) -> float:
    """When the last thing that the worker had sent may have been carried out: a heartbeat, or a claim.

    What it sent into a cut line is carried out when the line is mended.
    """
    lines = [each for each in faults if each.kind is FaultKind.PARTITION and each.worker == fault.worker]
    return max([fault.begin, *(each.until for each in lines if each.begin <= fault.begin)])


def recoveries(history: History, jobs: Mapping[str, Life]) -> Iterator[Recovery]:
    """Every job that a killed or frozen worker held, and that it could not end itself any more."""
    by_worker: dict[str, list[Holding]] = defaultdict(list)
    for life in jobs.values():
        for holding in holdings(life):
            by_worker[holding.claim.worker or ""].append(holding)
    for fault in history.faults:
        if fault.kind not in (FaultKind.KILL, FaultKind.FREEZE) or fault.worker is None:
            continue
        last_word = _last_word(fault, history.faults)
        for holding in by_worker[fault.worker]:
            over = None if holding.over is None else holding.over.at_ms / 1000
            stopped = max(fault.begin, holding.since)  # the claim of a dead worker may be carried out late
            if over is not None and over <= stopped:
                continue  # not in flight
            word = max(last_word, stopped)
            allowed = allowed_seconds(word, history.faults, history.limits) + word - stopped
            if fault.kind is FaultKind.FREEZE and (
                holding.since > fault.begin or _back_in_time(fault, over, stopped + allowed)
            ):
                continue
            yield Recovery(fault, holding, None if over is None else over - stopped, allowed)


def _back_in_time(fault: Fault, over: float | None, due: float) -> bool:
    """Whether a frozen worker came back before its job had to be recovered, and was."""
    return fault.until <= due and (over is None or over > fault.until)


def in_time(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """What was in flight at a death is recovered within D6's bound."""
    for recovery in recoveries(history, jobs):
        if recovery.late:
            over = recovery.holding.over
            evidence = (
                f"after the {recovery.fault.kind} of {recovery.fault.worker} at {recovery.fault.begin:.3f} "
                f"recovery took {recovery.seconds} s, {recovery.allowed:.3f} s are allowed: "
                f"{'it never ended' if over is None else shown(over)}"
            )
            yield Violation(Kind.LATE_RECOVERY, recovery.holding.claim.job_id, evidence)


def cause_of(holding: Holding, following: Holding, history: History) -> FaultKind | None:
    """The fault that struck the first holder while it held the job, before the second start."""
    first, second = holding.starts[-1], following.starts[0]
    since = min(holding.since, first.at)
    for kind in CAUSES:
        for fault in history.faults:
            if fault.kind is not kind or _is_harmless(fault, history.limits):
                continue
            if fault.strikes(first.worker, since, second.at):
                return kind
    return None


def _is_harmless(fault: Fault, limits: Limits) -> bool:
    """Whether nobody's lease can run out by it.

    After an outage of more than half a lease nothing is recovered for a lease, in which all renew (D6); one
    as short as the tests' may run out in a shorter outage. A stall has to outlast the wait for a heartbeat.
    """
    seconds = fault.until - fault.begin
    if fault.kind is FaultKind.OUTAGE:
        return seconds > limits.lease / 2
    return fault.kind is FaultKind.STALL and seconds < limits.lease / 3


def second_starts(
    history: History, jobs: Mapping[str, Life]
) -> Iterator[tuple[Holding, Holding, FaultKind | None]]:
    """Each start that repeats one without an outcome, with its cause; None: nothing explains it."""
    for life in jobs.values():
        if len(life.starts) > 1:
            for holding, following in repeated(holdings(life)):
                yield holding, following, cause_of(holding, following, history)


def explained(history: History, jobs: Mapping[str, Life]) -> Iterator[Violation]:
    """A handler starts again without an outcome in between only if a fault struck its holder in flight."""
    for holding, following, cause in second_starts(history, jobs):
        if cause is None:
            first, second = holding.starts[-1], following.starts[0]
            over = "nothing" if holding.over is None else shown(holding.over)
            evidence = f"{first} was followed by {second}; nothing struck {first.worker}; in between {over}"
            yield Violation(Kind.UNEXPLAINED_START, first.job_id, evidence)
