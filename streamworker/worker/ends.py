"""Log lines of attempts that went wrong and of jobs that failed; never an exception, never the payload.

A failed attempt is told at once, a job's end when it is recorded: what may have had its effect is looked at
first, and may have succeeded (D14).
"""

from __future__ import annotations

import logging

from streamworker.core import durations
from streamworker.core.outcome import NOT_RECORDED, Fail, Release, Retry, Success, is_put_off
from streamworker.core.states import QUIET_CODES
from streamworker.worker.running import Running

log = logging.getLogger("streamworker.worker")


def retried(running: Running, outcome: Retry) -> None:
    """An attempt failed, and another follows."""
    log.info(
        "job %s of task %s: attempt %d failed (%s, %s), next in %s",
        running.claim.job_id,
        running.task_name,
        running.claim.attempt,
        outcome.error_class,
        outcome.code,
        durations.format_ms(outcome.delay_ms),
    )


class _OfOutcomes:
    """Is told what exchanges come to; hears outcomes only."""

    def answered(self, script: str, seconds: float) -> None:
        """No end of a job."""

    def marked(self, jobs: list[Running]) -> None:
        """No end of a job."""

    def refused(self, lane: str, result: str, count: int) -> None:
        """No end of a job that this worker holds."""

    def parked(self, gate: str, count: int) -> None:
        """No end of a job."""


class HandedBack(_OfOutcomes):
    """Counts the jobs that a worker hands back as it stops."""

    def __init__(self) -> None:
        self.count = 0

    def exchanged(
        self,
        settled: list[Running],
        replies: list[bytes],
        begun: list[Running],
        taken: dict[str, int],
    ) -> None:
        """Outcomes, with what was answered to each."""
        for running, reply in zip(settled, replies, strict=False):
            if type(running.outcome) is Release and reply not in NOT_RECORDED:
                self.count += 1


class Ends(_OfOutcomes):
    """Tells how jobs ended that did not simply succeed."""

    def exchanged(
        self,
        settled: list[Running],
        replies: list[bytes],
        begun: list[Running],
        taken: dict[str, int],
    ) -> None:
        """Outcomes, with what was answered to each."""
        for running, reply in zip(settled, replies, strict=False):
            outcome = running.outcome
            if type(outcome) is Fail:
                if reply not in NOT_RECORDED:
                    _failed(running, outcome, put_off=is_put_off(outcome, reply))
            elif running.claim.bury and type(outcome) is Success:
                log.info(
                    "job %s of task %s: its effect was committed, so it has succeeded",
                    running.claim.job_id,
                    running.task_name,
                )


def _failed(running: Running, outcome: Fail, *, put_off: bool) -> None:
    of_job = (running.claim.job_id, running.task_name, running.claim.attempt)
    why = (outcome.error_class, outcome.code)
    if put_off:
        log.info(
            "job %s of task %s: attempt %d failed (%s, %s); it ends once it is known whether its effect was "
            "committed",
            *of_job,
            *why,
        )
    elif outcome.code in QUIET_CODES:  # somebody wanted it so: it is no dead letter either
        log.info("job %s of task %s: ended at attempt %d (%s)", *of_job, outcome.code)
    else:
        log.warning("job %s of task %s: failed at attempt %d (%s, %s)", *of_job, *why)
