"""The job is over."""

from __future__ import annotations

from streamworker.core.states import QUIET_CODES, TERMINAL, Status
from streamworker.ops import dlq, inspect
from streamworker.ops.explain.answer import Answer, Explanation
from streamworker.ops.explain.scene import Scene
from streamworker.ops.history import iso
from streamworker.ops.inspect import JobReport
from streamworker.store.queue import Queue

#: What is known of the codes that the engine gives.
MEANINGS = {
    "cancelled": "It was cancelled.",
    "discarded": "An operator discarded it.",
    "superseded": "Another job took its place.",
    "expired": "Its deadline or its lane's `max_age` was over, or would have been before its next try.",
    "crash_loop": "Three workers died while they held it.",
    "worker_lost": "A worker died while it ran it, and its policy has no further try.",
    "too_many_starts": "It was started as often as its task allows, without an end.",
    "unknown_task": "No worker knew its task for an hour.",
    "bad_arguments": "Its arguments do not fit the handler.",
    "timeout": "It ran for longer than its time limit.",
    "bad_envelope": "What its producer sent cannot be read.",
    "bad_record": "Its record could not be read.",
    "entry_deleted": "Somebody deleted its entry from its lane's stream.",
}


async def answer(scene: Scene) -> Answer:
    """How it ended."""
    record = scene.record
    error_class, _, code = (record.text("ec") or "").partition(" ")
    body = await scene.queue.caller.command("HGET", scene.queue.keys.body(record.job_id), "error")
    error = None if body is None else body.decode("utf-8", "replace")
    epoch = await _letter(scene.queue, record.job_id, record.text("dq"), record.epoch)
    found = _ended(record.status, error_class, code, record.attempt, error, record.job_id, epoch=epoch)
    found.facts["finished_at"] = iso(record.finished_at)
    return found


async def from_memory(queue: Queue, job_id: str) -> Explanation:
    """A job whose record has expired. Raises JobNotFound, PostgresUnavailable."""
    report = await inspect.report(queue, job_id)
    if report.status not in TERMINAL:
        answer = await _lost(queue, report)
        return Explanation(job_id, str(report.status), report.task, report.lane, answer)
    found = _ended(
        report.status,
        report.error_class or "",
        report.error_code or "",
        report.attempt,
        report.error,
        job_id,
        epoch=await _letter(queue, job_id),
    )
    found.facts["finished_at"] = iso(report.finished_at)
    return Explanation(job_id, str(report.status), report.task, report.lane, found)


async def _lost(queue: Queue, report: JobReport) -> Answer:
    """Redis has no record of it, and nothing says that it has ended."""
    facts = {"enqueued_at": iso(report.enqueued_at)}
    show = f"streamworker jobs show {report.id}"
    if queue.settings.postgres_dsn is None:
        says = [
            f"The log has it as {report.status}, and its record is gone: deleted, or lost with Redis's data."
        ]
        return Answer("missing", says, [show, "streamworker doctor"], facts)
    from streamworker.postgres import lookup

    known = await lookup.find(queue.settings, report.id, moves=False)
    if known is not None and known.in_outbox:
        says = [
            "Its producer has committed it; as far as Postgres knows, it waits in the outbox for a relay."
        ]
        return Answer("in_outbox", says, ["streamworker outbox list", "streamworker outbox relay"], facts)
    if known is not None and known.forgotten:
        says = [f"Nobody knows its end: {lookup.FORGOTTEN}."]
        return Answer("unseen", says, [show], facts)
    if known is not None and known.unseen:
        says = ["It ended, or was lost, while the mirror was off: nobody knows its end."]
        return Answer("unseen", says, [show], facts)
    says = [
        f"Postgres has it as {report.status}, and Redis has no record of it: Redis lost data.",
        "A running mirror notices that, and brings it back; so does `streamworker mirror reconcile`.",
    ]
    return Answer("missing", says, ["streamworker mirror reconcile --dry-run", show], facts)


async def _letter(queue: Queue, job_id: str, entry: str | None = None, epoch: int = 0) -> int | None:
    """The epoch of its dead letter, None if that is gone; `entry` is where it is, if that is known."""
    if entry is not None:
        return epoch if await queue.caller.command("XRANGE", queue.keys.dlq, entry, entry) else None
    letter = (await dlq.find(queue, [job_id])).get(job_id)
    return None if letter is None else letter.epoch


def _ended(
    status: Status,
    error_class: str,
    code: str,
    attempt: int,
    error: str | None,
    job_id: str,
    *,
    epoch: int | None,
) -> Answer:
    if status is Status.SUCCEEDED:
        return Answer(
            "succeeded", [f"It succeeded, attempt {attempt}."], [f"streamworker jobs show {job_id}"]
        )
    says = [MEANINGS.get(code, f"It failed for good with a {error_class} error, attempt {attempt}.")]
    if error:
        says.append(f"{code}: {error}" if code else error)
    do = [f"streamworker jobs show {job_id}"]
    if epoch is not None:
        do = [f"streamworker dlq show {job_id}", dlq.replay_command(job_id, epoch)]
    elif code not in QUIET_CODES:
        says.append("Its dead letter is not there any more: it cannot be replayed.")
    return Answer(code or "failed", says, do, {"error_class": error_class or None, "attempts": attempt})
