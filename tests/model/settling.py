"""settle, as the rules want it: start marks, an owner's outcomes, and what recovery decided."""

from __future__ import annotations

from dataclasses import replace

from streamworker.core.job import Candidate, Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import Reason, Status
from tests.model.job import Job
from tests.model.shard import Shard


def mark(shard: Shard, claim: Claim) -> str:
    """The handler runs: claimed -> processing, and the lease begins anew."""
    job = shard.jobs.get(claim.job_id)
    if job is None or not _owned(job, claim.fence):
        return _refusal(job, claim.fence)
    if job.status == Status.CLAIMED:
        shard.move(job, Status.PROCESSING, "started")
        job.lease_until = shard.now + shard.lease_ms
    return "OK"


def settle(shard: Shard, claim: Claim, outcome: Outcome, *, ran: bool) -> str:
    """An owner's outcome; `ran`: the handler ran."""
    job = shard.jobs.get(claim.job_id)
    if job is None or not _owned(job, claim.fence):
        return _refusal(job, claim.fence)
    if job.status == Status.CLAIMED and (ran or isinstance(outcome, Success)):
        shard.move(job, Status.PROCESSING, "started")  # it finished before its start mark: both edges
    died = outcome.reason is Reason.DIED
    if ran and died:
        job.strikes += 1  # the process that ran it, and nobody else with it (D22)
    elif ran and not isinstance(outcome, Release):
        job.strikes = 0  # only a handler that ran to an end clears them, and a release does not
    if isinstance(outcome, Release):
        job.attempt -= 1
    if isinstance(outcome, Release) and outcome.reason is Reason.UNKNOWN_TASK:
        job.starts -= 1  # bounded by age, not by starts
        job.unknown_since = job.unknown_since or shard.now
    else:
        job.unknown_since = None
    if isinstance(outcome, Success):
        shard.succeed(job, outcome.reason, "own")
        return "OK"
    _end(shard, job, outcome, claim.envelope, "died" if died else "own")
    return "OK"


def recover(shard: Shard, judged: Candidate, outcome: Retry | Fail) -> str:
    """What was decided for a claim found dead; refused when it came back to life since (D6)."""
    job = shard.jobs.get(judged.job_id)
    if job is None or not _owned(job, judged.fence):
        return _refusal(job, judged.fence)
    if (job.version, job.lease_until) != (judged.version, judged.lease_until):
        return "STALE"
    job.strikes += 1
    if job.status == Status.CLAIMED:
        job.attempt -= 1  # only a death in processing is charged
    job.unknown_since = None
    _end(shard, job, outcome, b"", "recovered")
    return "OK"


def _owned(job: Job, fence: int) -> bool:
    return job.held and job.fence == fence


def _refusal(job: Job | None, fence: int) -> str:
    """ALREADY for the owner that settled this fence before, STALE for all others (D1)."""
    if job is None:
        return "GONE"
    last = job.settled
    if last is not None and last.fence == fence and last.by != "recovered":
        return f"ALREADY {last.outcome}"
    return "STALE"


def _end(shard: Shard, job: Job, outcome: Retry | Fail | Release, carried: bytes, by: str) -> None:
    if isinstance(outcome, Fail):
        if job.cancel:
            shard.overrule(job, job.cancel, carried, by)
        else:
            shard.fail(job, outcome.reason, f"{outcome.error_class} {outcome.code}", carried, by)
        return
    due = shard.now + outcome.delay_ms
    code = shard.overruled(job, due)
    if code:
        shard.overrule(job, code, carried, by)
        return
    if not shard.envelope(job, carried):  # nobody has it any more (D8)
        shard.fail(job, "entry_deleted", "unknown entry_deleted", by=by)
        return
    if isinstance(outcome, Retry):
        shard.move(job, Status.RETRY_SCHEDULED, outcome.reason)
        shard.close_claim(job, "retry", by)
        job.error = f"{outcome.error_class} {outcome.code}"
    else:
        shard.move(job, Status.QUEUED, outcome.reason)
        shard.close_claim(job, "released", by)
        if outcome.reason is Reason.REGATED:  # it passes others from now on (D17)
            job.request = replace(job.request, gates=outcome.gates)
    shard.drop_entry(job)
    if outcome.delay_ms:
        shard.park(job, due)
    else:
        shard.make_ready(job)
