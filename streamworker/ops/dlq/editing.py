"""Change what a dead job will be replayed with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from streamworker.core import codec
from streamworker.core.errors import StreamworkerError
from streamworker.core.ids import check_job_id
from streamworker.core.job import Envelope, encode_envelope
from streamworker.core.lane import MAX_PAYLOAD_BYTES
from streamworker.core.text import truncate_text
from streamworker.ops.dlq import checks
from streamworker.ops.dlq.letters import DeadLetter, DeadLetterNotFound, find
from streamworker.ops.dlq.moves import name_row, note
from streamworker.store import scripts
from streamworker.store.connection import Argument
from streamworker.store.queue import Queue

#: Longest account of a change that the log keeps, in characters.
MAX_DETAIL = 2_000


class NotEdited(StreamworkerError):
    """The letter was not changed; the message says why."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One letter and what its arguments are to be."""

    letter: DeadLetter
    envelope: Envelope
    args: Mapping[str, Any]

    @property
    def changes(self) -> dict[str, list[Any]]:
        """Old and new value by argument; None stands for one that is not there."""
        before, after = self.envelope.args, self.args
        names = sorted(before.keys() | after.keys())
        return {
            name: [before.get(name), after.get(name)]
            for name in names
            if (name in before) != (name in after) or before.get(name) != after.get(name)
        }


async def prepare(queue: Queue, job_id: str) -> Edit:
    """The letter of a job with its arguments as they are.

    Raises InvalidArgument for what is no job id, DeadLetterNotFound, NotEdited.
    """
    found = (await find(queue, [check_job_id(job_id)])).get(job_id)
    if found is None:
        raise DeadLetterNotFound(job_id)
    envelope = found.envelope_or_none()
    if envelope is None:
        raise NotEdited(f"the arguments of job {job_id} cannot be read, so there is nothing to change")
    return Edit(found, envelope, envelope.args)


async def objection(queue: Queue, wanted: Edit) -> str | None:
    """Why a replay would refuse these arguments, by what workers published of the task; else None."""
    await queue.know([wanted.envelope.task])
    known = queue.declared(wanted.envelope.task)
    return None if known is None else checks.misfit(known, wanted.args.keys())


async def edit(queue: Queue, wanted: Edit, *, actor: str, reason: str = "") -> dict[str, list[Any]]:
    """Let the letter have these arguments, if it is still the same; returns the changes.

    What was changed, from what and to what, stands in the log with `actor`. Raises SerializationError or
    PayloadTooLarge for arguments that no job can have, NotEdited.
    """
    changes = wanted.changes
    if not changes:
        raise NotEdited(f"the arguments of job {wanted.letter.job_id} are already so")
    await queue.know([wanted.envelope.task])
    row = row_of(queue, wanted)
    if reason:
        await note(queue, actor, "edit", [wanted.letter.job_id], "eligible=1", reason)
    (reply,) = await queue.run(
        scripts.dlq_edit(clock="", actor=actor, retention_ms=scripts.RETENTION_MS, rows=row)
    )
    if reply == b"ALREADY":
        raise NotEdited(f"somebody else dealt with job {wanted.letter.job_id} in the meantime")
    return changes


def row_of(queue: Queue, wanted: Edit) -> tuple[Argument, ...]:
    """What the script is told of it, once the queue knows the task. Raises as `edit`."""
    was = wanted.envelope
    # What was taken once, may stay: by a lane that took more, say.
    limit = max(
        queue.router.limit(wanted.letter.lane), len(codec.encode_args(was.args, limit=MAX_PAYLOAD_BYTES))
    )
    envelope = encode_envelope(
        was.task,
        codec.encode_args(dict(wanted.args), limit=limit),
        key=was.key,
        tenant=was.tenant,
        correlation_id=was.correlation_id,
        tick=was.tick,
        delay_ms=was.delay_ms,
        trace=was.trace,
    )
    detail = quote(truncate_text(orjson.dumps(wanted.changes).decode(), MAX_DETAIL), safe='{}[]":,')
    return *name_row(wanted.letter), envelope, detail
