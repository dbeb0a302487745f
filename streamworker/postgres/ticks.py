"""The last tick of each cron that Postgres knows, and back into a Redis that lost it (D19).

Else a tick that ran would run again: a worker asks for it that has not yet heard of it, or that starts and
finds it missed. And a job that is open again would not keep the next tick from running beside it.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from streamworker.core.cron import MISSED_WITHIN_MS
from streamworker.store import scripts
from streamworker.store.caller import Caller
from streamworker.store.connection import Argument
from streamworker.store.keys import Keys

if TYPE_CHECKING:
    import asyncpg

#: The time of a tick's job id is the tick's. Older ones are not made up for, but may still be open.
LAST_TICKS = """
SELECT DISTINCT ON (task) task, id::text, tick FROM (
    SELECT task, id, (payload_json ->> 's')::bigint AS tick FROM streamworker.jobs
    WHERE id >= $3 AND namespace = $1 AND shard = $2 AND task IS NOT NULL AND payload_json ? 's'
    UNION ALL
    SELECT task, id, (payload_json ->> 's')::bigint FROM streamworker.jobs
    WHERE namespace = $1 AND shard = $2 AND status NOT IN ('succeeded', 'failed_terminal')
      AND task IS NOT NULL AND payload_json ? 's'
) AS ticks ORDER BY task, tick DESC
"""


class Ticks:
    """One shard."""

    def __init__(self, connection: asyncpg.Connection, caller: Caller, keys: Keys) -> None:
        self._connection = connection
        self._caller = caller
        self._keys = keys

    async def restore(self) -> int:
        """Let Redis know them where it knows none as late, and return how many. Safe to be called twice."""
        seconds, _ = await self._caller.command("TIME")
        since = int(seconds) * 1000 - MISSED_WITHIN_MS
        rows = await self._connection.fetch(
            LAST_TICKS, self._keys.namespace, self._keys.shard, uuid.UUID(int=max(0, since) << 80)
        )
        words: list[Argument] = []
        for row in rows:
            words += [row["task"], row["tick"], row["id"]]
        return int(await self._caller.run(scripts.recall(rows=words))) if words else 0
