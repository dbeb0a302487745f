"""One JSON line for each move of a job that this worker knows of, many lines in one record of `logging`.

Lines are put together from parts that are made once for each task and once for each job: a formatter with a
record for each line took a third of the throughput (docs/decisions/0024). No argument and no result of a job
is ever in a line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

import orjson

from streamworker.core.job import Candidate, Claim, Envelope
from streamworker.core.outcome import NOT_RECORDED, Fail, Outcome, Release, Retry, Success, is_put_off
from streamworker.core.states import Reason, Status
from streamworker.core.text import inert_json

#: The logger of the lines. They are made once its own level is INFO or below.
LOGGER = "streamworker.transitions"
log = logging.getLogger(LOGGER)
#: Names of tasks whose part of a line is kept.
MAX_PARTS = 1000

#: Marks a record whose message is lines of JSON already.
READY = "streamworker_lines"
_READY = {READY: True}


def _edge(before: Status, after: Status, reason: str) -> str:
    return f',"previous_status":"{before}","next_status":"{after}","reason":"{reason}"'


#: How the rest of a line reads when nothing went wrong, and no handler has ended.
_WELL = ',"error_class":null,"error_code":null,"dependency_name":null,"cache_keys":[],"duration":'
_CLAIMED = {
    retried: f"{_edge(before, Status.CLAIMED, Reason.CLAIMED)}{_WELL}null}}"
    for retried, before in ((False, Status.QUEUED), (True, Status.RETRY_SCHEDULED))
}
_LOOKED_FOR = {
    retried: line.replace(f'"reason":"{Reason.CLAIMED}"', f'"reason":"{Reason.BURIAL}"')
    for retried, line in _CLAIMED.items()
}
_STARTED = f"{_edge(Status.CLAIMED, Status.PROCESSING, Reason.STARTED)}{_WELL}null}}"
_RETURNED = _edge(Status.PROCESSING, Status.SUCCEEDED, Reason.RETURNED) + _WELL


class Job(Protocol):
    """What lines tell of a job."""

    claim: Claim
    task_name: str
    envelope: Envelope | None
    started: float | None  # monotonic seconds
    ended: float
    marked: bool
    outcome: Outcome | None
    dependency: str | None  # whose call failed
    stale: set[str] | None  # cached values that its success drops
    who: str  # what all lines of the job have in common, once it is made


def wanted() -> bool:
    """Whether somebody asked for lines: by the level of their logger, not by that of the root."""
    return log.level != logging.NOTSET and log.isEnabledFor(logging.INFO)


class Transitions:
    """Writes the lines of one worker; each call takes what one exchange moved."""

    def __init__(self, worker: str, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._head = f',"level":"info","event":"transition","worker":{_text(worker)}'
        self._clock = clock
        self._of_tasks: dict[tuple[str, str], str] = {}

    def answered(self, script: str, seconds: float) -> None:
        """No move of a job."""

    def refused(self, lane: str, result: str, count: int) -> None:
        """No move of a job."""

    def parked(self, gate: str, count: int) -> None:
        """Moves of jobs that this worker does not hold: the event log has them."""

    def marked(self, jobs: Sequence[Job]) -> None:
        """Handlers that run for longer, and whose start is in the record now."""
        head = self._now()
        self._write([f"{head}{job.who or self._who(job)}{_STARTED}" for job in jobs])

    def exchanged(
        self, settled: Sequence[Job], replies: Sequence[bytes], begun: Sequence[Job], taken: Mapping[str, int]
    ) -> None:
        """One answered exchange: outcomes with their replies, and claims."""
        if not settled and not begun:
            return
        head = self._now()
        lines: list[str] = []
        for job, reply in zip(settled, replies, strict=False):
            if reply in NOT_RECORDED:
                continue
            who, started = job.who or self._who(job), job.started
            outcome = job.outcome
            looked = started is None and type(outcome) is Success  # for an effect that was committed
            if looked or (started is not None and not job.marked):  # both edges in its settle (D20)
                lines.append(f"{head}{who}{_STARTED}")
            if type(outcome) is Success and outcome.reason is Reason.RETURNED and not job.stale:
                lines.append(f"{head}{who}{_RETURNED}{job.ended - (started or job.ended):.6f}}}")
            elif outcome is not None:
                lines.append(f"{head}{who}{_end(job, outcome, reply)}")
        for job in begun:
            claim = job.claim
            edge = (_LOOKED_FOR if claim.bury else _CLAIMED)[claim.retried]
            lines.append(f"{head}{job.who or self._who(job)}{edge}")
        self._write(lines)

    def recovered(self, candidate: Candidate, outcome: Retry | Fail, reply: bytes) -> None:
        """A job of a dead worker was taken back."""
        after, reason = Status.FAILED_TERMINAL, Reason.RECOVERED
        if is_put_off(outcome, reply):
            after, reason = Status.RETRY_SCHEDULED, Reason.BURIAL
        elif isinstance(outcome, Retry):
            after = Status.RETRY_SCHEDULED
        line = (
            f'{self._now()},"job_id":"{candidate.job_id}","idempotency_key":null'
            f',"task":{_text(candidate.task)},"lane":"{candidate.lane}","tenant":null,"correlation_id":null'
            f',"lock_owner":null,"attempt":{candidate.attempt},"fence":{candidate.fence}'
            f"{_edge(candidate.status, after, reason)}{_failure(outcome)}"
            f',"dependency_name":null,"cache_keys":[],"duration":null'
            f',"lost_worker":{_text(candidate.worker)}}}'
        )
        self._write([line])

    def _who(self, job: Job) -> str:
        claim, envelope = job.claim, job.envelope
        place = (job.task_name, claim.lane)
        of_task = self._of_tasks.get(place)
        if of_task is None:
            of_task = f',"task":{_text(job.task_name)},"lane":"{claim.lane}"'
            if len(self._of_tasks) < MAX_PARTS:  # names of unknown tasks are anybody's
                self._of_tasks[place] = of_task
        owner = f'"{claim.job_id}:{claim.fence}"' if claim.gates and " entity:" in claim.gates else "null"
        key = tenant = correlation = "null"
        if envelope is not None:
            if envelope.key is not None:
                key = _text(envelope.key)
            if envelope.tenant is not None:
                tenant = _text(envelope.tenant)
            if envelope.correlation_id is not None:
                correlation = _text(envelope.correlation_id)
        job.who = (
            f',"job_id":"{claim.job_id}","idempotency_key":{key}{of_task},"tenant":{tenant}'
            f',"correlation_id":{correlation},"lock_owner":{owner},"attempt":{claim.attempt},"fence":{claim.fence}'
        )
        return job.who

    def _now(self) -> str:
        return f'{{"at":"{self._clock():%Y-%m-%dT%H:%M:%S.%f}Z"{self._head}'

    def _write(self, lines: list[str]) -> None:
        if lines:
            log.info("\n".join(lines), extra=_READY)


def _end(job: Job, outcome: Outcome, reply: bytes) -> str:
    """The rest of the line of an outcome that is not the usual one."""
    started = job.started
    before = Status.CLAIMED if started is None else Status.PROCESSING
    after, failure, reason = Status.QUEUED, _NO_FAILURE, str(outcome.reason)
    match outcome:
        case Success():
            before, after = Status.PROCESSING, Status.SUCCEEDED
        case Retry() if job.claim.bury:  # nobody could look
            after = Status.RETRY_SCHEDULED
        case Retry():
            after, failure = Status.RETRY_SCHEDULED, _failure(outcome)
        case Fail():
            after, failure = Status.FAILED_TERMINAL, _failure(outcome)
            if is_put_off(outcome, reply):
                after, reason = Status.RETRY_SCHEDULED, str(Reason.BURIAL)
            elif job.claim.bury:
                reason = job.claim.cause.partition(" ")[0]
        case Release():
            pass
    dependency = "null" if job.dependency is None else _text(job.dependency)
    keys = inert_json(orjson.dumps(sorted(job.stale)).decode()) if job.stale else "[]"
    duration = "null" if started is None else f"{job.ended - started:.6f}"
    return (
        f"{_edge(before, after, reason)}{failure}"
        f',"dependency_name":{dependency},"cache_keys":{keys},"duration":{duration}}}'
    )


_NO_FAILURE = ',"error_class":null,"error_code":null'


def _failure(outcome: Retry | Fail) -> str:
    told = f',"error_class":"{outcome.error_class}","error_code":{_text(outcome.code)}'
    return f'{told},"retry_in":{outcome.delay_ms / 1000:g}' if isinstance(outcome, Retry) else told


def _text(value: str) -> str:
    """A text as JSON."""
    return inert_json(orjson.dumps(value).decode())
