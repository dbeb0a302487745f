"""What people see of dead letters: a list, and one of them whole."""

from __future__ import annotations

from typing import Any

from streamworker.core.ids import check_job_id
from streamworker.ops.dlq.filters import Filters
from streamworker.ops.dlq.letters import DeadLetterNotFound, find, key_of, letters
from streamworker.ops.history import iso, read_history, with_older
from streamworker.store.queue import Queue


async def listing(queue: Queue, *, limit: int = 50, filters: Filters | None = None) -> dict[str, Any]:
    """`dlq list --json`: how many letters there are, and the newest `limit` of them.

    With filters `total` counts what matches, which reads the whole stream.
    """
    filters = filters or Filters()
    items: list[dict[str, Any]] = []
    total = 0
    if not filters:
        total = int(await queue.caller.command("XLEN", queue.keys.dlq))
    async for letter in letters(queue, newest_first=True):
        if not filters and len(items) >= limit:
            break
        if filters.match(letter):
            total += bool(filters)
            if len(items) < limit:
                items.append(letter.json())
    return {"total": total, "items": items}


async def show(queue: Queue, job_id: str) -> dict[str, Any]:
    """`dlq show --json`: the item of `dlq list` and all else that the letter has.

    Raises InvalidArgument for what is no job id, DeadLetterNotFound.
    """
    found = (await find(queue, [check_job_id(job_id)])).get(job_id)
    if found is None:
        raise DeadLetterNotFound(job_id)
    envelope = found.envelope_or_none()
    version = found.version or None
    history = await read_history(queue, job_id, since_ms=found.enqueued_at, version=version)
    history = await with_older(queue, job_id, history, version)
    return {
        **found.json(),
        "key": envelope.key if envelope is not None else key_of(found.key_id),
        "args": None if envelope is None else envelope.args,
        "starts": found.starts,
        "strikes": found.strikes,
        "epoch": found.epoch,
        "reason": found.reason,
        "worker": found.worker,
        "enqueued_at": iso(found.enqueued_at),
        "history": history.json(),
        "history_complete": history.complete,
    }
