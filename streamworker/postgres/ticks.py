"""The last tick of each cron that Postgres knows, and back into a Redis that lost it (D19).

Else a tick that ran would run again: a worker asks for it that has not yet heard of it, or that starts and
finds it missed. And a job that is open again would not keep the next tick from running beside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from streamworker.core.cron import MISSED_WITHIN_MS
from streamworker.core.ids import time_of
from streamworker.store import scripts
from streamworker.store.caller import Caller
from streamworker.store.connection import Argument
from streamworker.store.keys import Keys

if TYPE_CHECKING:
    import asyncpg

_TICK = "task, id::text, (payload_json ->> 's')::bigint AS tick"
#: The time of a tick's job id is the tick's, a whole second: so few other jobs are looked at: by their ids,
#: since OFFSET keeps the planner from reading them all at once. $3 to $4 in ms.
TICKS = f"""
SELECT {_TICK} FROM generate_series($3::bigint, $4::bigint, 1000) AS second(ms)
CROSS JOIN LATERAL (
    SELECT * FROM streamworker.jobs
    WHERE id >= (lpad(to_hex(ms), 12, '0') || repeat('0', 20))::uuid
      AND id < (lpad(to_hex(ms + 1), 12, '0') || repeat('0', 20))::uuid
    OFFSET 0
) AS job
WHERE namespace = $1 AND shard = $2 AND task IS NOT NULL AND payload_json ? 's'
"""  # noqa: S608
#: Older ones are not made up for, but may still be open.
OPEN_TICKS = f"""
SELECT {_TICK} FROM streamworker.jobs
WHERE id = ANY($1::uuid[]) AND status NOT IN ('succeeded', 'failed_terminal')
  AND task IS NOT NULL AND payload_json ? 's'
"""  # noqa: S608
#: ms that one statement looks through.
SPAN_MS = 3_600_000


class Ticks:
    """One shard."""

    def __init__(self, connection: asyncpg.Connection, caller: Caller, keys: Keys) -> None:
        self._connection = connection
        self._caller = caller
        self._keys = keys

    async def restore(self, still_open: AsyncIterator[list[str]]) -> int:
        """Let Redis know them where it knows none as late, and return how many. Safe to be called twice.

        `still_open`: the ids of all jobs that are, in pages.
        """
        seconds, _ = await self._caller.command("TIME")
        now_ms = int(seconds) * 1000
        last: dict[str, tuple[int, str]] = {}
        for start in range(max(0, now_ms - MISSED_WITHIN_MS), now_ms + 1, SPAN_MS):
            until = min(start + SPAN_MS - 1000, now_ms)
            of_shard = self._keys.namespace, self._keys.shard
            _note(last, await self._connection.fetch(TICKS, *of_shard, start, until))
        async for page in still_open:
            if ids := [job_id for job_id in page if time_of(job_id) % 1000 == 0]:
                _note(last, await self._connection.fetch(OPEN_TICKS, ids))
        words: list[Argument] = []
        for task, (tick, job_id) in sorted(last.items()):
            words += [task, tick, job_id]
        return int(await self._caller.run(scripts.recall(rows=words))) if words else 0


def _note(last: dict[str, tuple[int, str]], rows: Iterable[Any]) -> None:
    for task, job_id, tick in rows:
        last[task] = max(last.get(task, (0, "")), (tick, job_id))
