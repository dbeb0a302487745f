"""settle: start marks and outcomes, each checked on status and fence (D1), and what recovery decided (D6)."""

from __future__ import annotations

from tests.model.protocol.policy import decided, fate
from tests.model.protocol.script import Script
from tests.model.protocol.state import (
    CLAIMED,
    DEAD,
    DIED,
    FAIL,
    HELD,
    LIVE,
    OUT,
    OWN,
    PROCESSING,
    QUEUED,
    RECOVERED,
    RELEASE,
    RETRY,
    RETRY_SCHEDULED,
    SNOOZE,
    SUCCEEDED,
    SUCCESS,
    Candidate,
    Record,
)


def settle(script: Script, job: int, fence: int, outcome: str, worker: int) -> str:
    """An owner's outcome."""
    record = script.load(job)
    if record is None:
        return "GONE"
    if record.status not in HELD or record.fence != fence:
        if script.rules.fence or record.status not in HELD:
            return _refusal(script, job, record, fence)
        script.draft.blame(f"an outcome under fence {fence} of job {job} was accepted under {record.fence}")
    if record.holder != worker:
        script.draft.blame(f"worker {record.holder} holds job {job}, and worker {worker} settles it")
    sent = decided(outcome, record.attempt, record.strikes)
    if record.status == CLAIMED:
        script.move(job, PROCESSING)  # it ended before its start mark: both edges
    if sent == RELEASE:
        script.put(job, attempt=max(0, record.attempt - 1))
    else:  # only a handler that ran to an end clears the strikes (D22)
        script.put(job, strikes=record.strikes + 1 if outcome == DIED else 0)
    if sent == SUCCESS:
        script.finish(job, SUCCEEDED, SUCCESS, OWN, charged=True)
    else:
        delayed = outcome == SNOOZE or (sent == RETRY and outcome != DIED)
        _end(script, job, sent, OWN, charged=sent != RELEASE, delayed=delayed, carried=True)
    return "OK"


def _refusal(script: Script, job: int, record: Record, fence: int) -> str:
    last = record.settled
    if last is None or last.fence != fence:
        return "STALE"
    if not script.rules.settled:
        if last.by == OWN:
            script.draft.blame(f"the owner of fence {fence} hears STALE of the outcome that is recorded")
        return "STALE"
    if last.by == RECOVERED:
        if script.rules.recovered:
            return "STALE"
        script.draft.blame(f"the owner of fence {fence} hears ALREADY of what a recovery recorded")
    return "ALREADY"


def recover(script: Script, job: int, judged: Candidate) -> str:
    """What a keeper decided for a claim that it found dead."""
    record = script.load(job)
    if record is None or record.status not in HELD or record.fence != judged.fence:
        return "STALE"
    if script.rules.version and not judged.fresh:
        return "STALE"
    if script.rules.lease and judged.renewed:
        return "STALE"
    if record.lease == LIVE:
        script.draft.blame(f"job {job} was recovered while its lease was live")
    if record.status != judged.status:
        script.draft.blame(f"job {job} was judged as {judged.status} and recovered as {record.status}")
    if record.lease == OUT and record.holder != DEAD:
        script.draft.blame(f"job {job} was recovered from worker {record.holder}, which lives")
    charged = record.status == PROCESSING
    outcome = fate(judged.status, record.attempt, record.strikes)
    attempt = record.attempt if charged else max(0, record.attempt - 1)
    script.put(job, strikes=record.strikes + 1, attempt=attempt)
    _end(script, job, outcome, RECOVERED, charged=charged, delayed=False, carried=False)
    return "OK"


def _end(
    script: Script, job: int, outcome: str, by: str, *, charged: bool, delayed: bool, carried: bool
) -> None:
    if outcome == FAIL or (script.rules.flag and script.overruled(job)):
        return script.fail(job, by, charged=charged)
    if not script.envelope(job, carried):
        if carried:
            script.draft.blame(f"job {job} ends entry_deleted, and its worker has the envelope")
        return script.bury_without_envelope(job, by, charged=charged)
    if charged:
        script.record_outcome(job)
    script.move(job, RETRY_SCHEDULED if outcome == RETRY else QUEUED)
    script.close_claim(job, outcome, by)
    script.ack_entry(job)
    return script.park(job) if delayed else script.make_ready(job)


def mark(script: Script, job: int, fence: int) -> None:
    """The start mark, which extends the lease."""
    record = script.load(job)
    if record is not None and record.status == CLAIMED and record.fence == fence:
        script.move(job, PROCESSING, lease=LIVE)
