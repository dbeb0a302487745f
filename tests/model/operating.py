"""cancel, replay and discard, as the rules want them (D9, D23)."""

from __future__ import annotations

from dataclasses import replace

from streamworker.core.states import Status
from tests.model.job import Key
from tests.model.shard import Shard


def cancel(shard: Shard, job_id: str, epoch: int | None) -> str:
    """At once where nobody holds the job, else a flag that its holder is told of. Twice is once."""
    job = shard.jobs.get(job_id)
    if job is None:
        return "GONE"
    if epoch is not None and job.epoch != epoch:
        return f"ALREADY {job.status}"
    if job.over:
        return "OK" if job.error == "persistent cancelled" else f"ALREADY {job.status}"
    if job.waiting:
        shard.overrule(job, "cancelled")
        return "OK"
    job.cancel = job.cancel or "cancelled"
    return "FLAGGED"


def replay(shard: Shard, job_id: str, epoch: int, letter_epoch: int) -> str:
    """`letter_epoch` is that of the dead letter which is named, `epoch` what the operator says."""
    job = shard.jobs.get(job_id)
    letter = shard.letters.get((job_id, letter_epoch))
    if letter is None:
        return "GONE" if job is None else "ALREADY"
    if epoch != letter_epoch:
        return "ALREADY"
    if job is not None and (job.status != Status.FAILED_TERMINAL or job.epoch != epoch):
        return "ALREADY"
    if not letter.envelope:
        return "GONE"
    # Without its record: from the dead letter alone.
    job = job or replace(letter.job, disposition="ACCEPTED")
    key = shard.keys.get(job.request.key)
    if key is not None and key.job_id != job.id and (key.state != "open" or key.job_id in shard.jobs):
        return f"KEY_TAKEN {key.job_id}"
    if job.request.key:
        shard.keys[job.request.key] = Key(job.id, job.request.fingerprint, "open")
    shard.jobs[job.id] = shard.accepted[job.id] = job
    job.attempt = job.starts = job.strikes = 0
    job.epoch += 1
    job.cancel = job.error = ""
    job.deadline = job.settled = job.unknown_since = None
    shard.move(job, Status.QUEUED, "replayed")
    shard.make_ready(job)
    del shard.letters[job_id, letter_epoch]
    return "OK"


def discard(shard: Shard, job_id: str, epoch: int, letter_epoch: int) -> str:
    """The dead letter goes; the record, while it lives, says why."""
    if epoch != letter_epoch or shard.letters.pop((job_id, letter_epoch), None) is None:
        return "ALREADY"
    job = shard.jobs.get(job_id)
    if job is not None and job.status == Status.FAILED_TERMINAL and job.epoch == epoch:
        job.error = "persistent discarded"
    return "OK"
