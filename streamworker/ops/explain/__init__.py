"""Why a job is not running, or how it ended: from live state, in words and with the command that helps."""

from __future__ import annotations

from streamworker.core.ids import check_job_id
from streamworker.core.job import Record
from streamworker.core.states import TERMINAL, Status
from streamworker.ops.explain import ended, held, policy, waiting
from streamworker.ops.explain.answer import Answer, Explanation
from streamworker.ops.explain.scene import Scene
from streamworker.store.queue import Queue

__all__ = ["Answer", "Explanation", "explain"]


async def explain(queue: Queue, job_id: str, *, sample: float = 1.0) -> Explanation:
    """Why this job is where it is.

    `sample` is for how many seconds the lane is watched to tell when a waiting job's turn may come; 0: not at
    all. Changes nothing. Raises InvalidArgument for what is no job id, JobNotFound, PostgresUnavailable.
    """
    check_job_id(job_id)
    raw = await queue.caller.command("GET", queue.keys.job(job_id))
    if raw is None:
        return await ended.from_memory(queue, job_id)
    try:
        record = Record.parse(job_id, raw)
    except ValueError as error:
        answer = Answer(
            "bad_record",
            [str(error), "A claim will keep it as a dead letter with the code bad_record."],
            ["streamworker doctor"],
        )
        return Explanation(job_id, "unreadable", None, None, answer)
    scene = await Scene.read(queue, record)
    if record.status in TERMINAL:
        answer = await ended.answer(scene)
    elif record.status in (Status.CLAIMED, Status.PROCESSING):
        answer = held.answer(scene)
    else:
        answer = await waiting.answer(scene, sample)
    return Explanation(job_id, str(record.status), record.task, record.lane, answer, policy.effective(scene))
