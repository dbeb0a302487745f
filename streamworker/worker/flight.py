"""One exchange under way: what it told, and what it asked for."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from streamworker.core.lanes import Plan
from streamworker.core.outcome import Success
from streamworker.store import scripts, settle_rows
from streamworker.store.connection import Argument
from streamworker.store.placing import CALL_BYTES
from streamworker.worker.running import Running

log = logging.getLogger("streamworker.worker")


@dataclass(slots=True, eq=False)
class Flight:
    """One exchange under way."""

    call: scripts.Call
    settled: list[Running]
    marked: list[Running]
    plan: Plan | None
    quarantine: str | None  # the lane whose quarantine it reads
    apart: bool  # what that gives runs beside the others
    limit: int
    sent_at: float
    took: float = 0.0  # seconds until it was answered


class Teller(Protocol):
    """Is told what exchanges come to."""

    def answered(self, script: str, seconds: float) -> None:
        """A call was answered after so long."""

    def exchanged(
        self,
        settled: list[Running],
        replies: list[bytes],
        begun: list[Running],
        taken: dict[str, int],
    ) -> None:
        """What was settled with its replies, what was begun, and claims by lane."""

    def marked(self, jobs: list[Running]) -> None:
        """Handlers whose start is in the record now."""

    def refused(self, lane: str, result: str, count: int) -> None:
        """Entries of a lane that led nowhere."""

    def parked(self, gate: str, count: int) -> None:
        """Jobs that a claim found and that wait at this gate now."""


def tell(
    tellers: list[Teller],
    flight: Flight,
    replies: list[bytes],
    begun: list[Running],
    taken: dict[str, int],
    said: list[str],
) -> None:
    """Tell all of them of an answered exchange; `said`: the words of its verdict."""
    for teller in tellers:
        teller.answered("exchange", flight.took)
        teller.exchanged(flight.settled, replies, begun, taken)
        if flight.marked:
            teller.marked(flight.marked)
        for word in said:
            if "=" not in word:  # a paused lane
                continue
            what, result, count = word.rsplit("=", 2)  # the name of a gate may have one of its own
            if result == "parked":
                teller.parked(what.removeprefix("g:"), int(count))
            else:
                teller.refused(what, result, int(count))


def fitting(ended: list[Running]) -> list[Running]:
    """As many of them, from the first on, as one call may carry: those that are handed back take their
    envelopes along, successes their results."""
    total = 0
    for index, running in enumerate(ended):
        outcome = running.outcome
        total += len(outcome.result if isinstance(outcome, Success) else running.claim.envelope)
        if total > CALL_BYTES and index:
            return ended[:index]
    return ended


def rows_of(settled: list[Running], marked: list[Running], now: float) -> list[Argument]:
    """The rows of an exchange: outcomes, then start marks."""
    rows: list[Argument] = []
    for running in settled:
        started = running.started
        ago = None if started is None else max(0, round((now - started) * 1000))
        if running.outcome is not None:
            rows.extend(settle_rows.outcome_row(running.claim, running.outcome, ago))
    for running in marked:
        ago = 0 if running.started is None else max(0, round((now - running.started) * 1000))
        rows.extend(settle_rows.mark_row(running.claim, ago))
    return rows


def report_stale(running: Running, word: str) -> None:
    """An outcome that was not recorded, because the claim was not ours any more."""
    log.warning(
        "job %s of task %s: the outcome was not recorded (%s): the claim was lost",
        running.claim.job_id,
        running.task_name,
        word,
    )
