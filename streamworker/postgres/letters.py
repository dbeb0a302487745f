"""Dead letters that Postgres knows, and back into a Redis that lost them (D19).

A letter of which nobody has decided: its job failed for good, was not replayed since, and no operator
discarded it. A letter that an operator edited and did not replay comes back as the job was enqueued.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from streamworker.core.states import QUIET_CODES
from streamworker.postgres.census import PAGE
from streamworker.store import scripts
from streamworker.store.caller import Caller
from streamworker.store.connection import Argument
from streamworker.store.events import pairs
from streamworker.store.keys import Keys

if TYPE_CHECKING:
    import asyncpg

#: Letters and bytes that one call brings back, and letters of one look at the stream.
CALL_LETTERS, CALL_BYTES, LOOK = 100, 1 << 20, 50
#: How old a letter may be: as long as they are kept by default.
OLDEST = datetime.timedelta(days=30)

UNDECIDED = """
SELECT id::text, task, lane, tenant, error_class AS class, error_code AS code, reason, error, attempt, starts,
       strikes, epoch, version, (extract(epoch FROM enqueued_at) * 1000)::bigint AS at,
       (extract(epoch FROM finished_at) * 1000)::bigint AS dead_at, worker, key_id AS ky, fingerprint AS kf,
       key_window_ms AS kw, payload AS env, record
FROM streamworker.jobs j
WHERE namespace = $1 AND shard = $2 AND id > $3::uuid AND status = 'failed_terminal'
  AND error_code <> ALL($4::text[]) AND task IS NOT NULL AND finished_at > now() - $5::interval
  AND NOT EXISTS (
    SELECT FROM streamworker.operator_actions a
    WHERE a.subject = j.id::text AND a.action = 'discarded' AND a.detail = 'epoch ' || j.epoch)
ORDER BY id LIMIT $6
"""
#: Letters that could only come back without what they were called with.
HOLLOW = """
SELECT count(*) FROM streamworker.jobs j
WHERE namespace = $1 AND shard = $2 AND status = 'failed_terminal' AND payload IS NULL
  AND error_code <> ALL($3::text[]) AND error_code <> 'bad_record' AND finished_at > now() - $4::interval
  AND NOT EXISTS (
    SELECT FROM streamworker.operator_actions a
    WHERE a.subject = j.id::text AND a.action = 'discarded' AND a.detail = 'epoch ' || j.epoch)
"""
_NO_JOB = "00000000-0000-0000-0000-000000000000"
#: Columns that a letter has under the same name.
_PLAIN = (
    *("id", "task", "lane", "tenant", "class", "code", "reason", "error", "attempt", "starts", "strikes"),
    *("epoch", "version", "at", "dead_at", "worker", "ky", "kf", "kw"),
)


async def hollow(connection: asyncpg.Connection, keys: Keys, *, timeout: float | None = None) -> int:
    """How many undecided letters Postgres has without their envelopes: from before the mirror was on.

    Raises TimeoutError after `timeout` seconds, by default those of any statement.
    """
    arguments = keys.namespace, keys.shard, list(QUIET_CODES), OLDEST
    many = await connection.fetchval(HOLLOW, *arguments, timeout=timeout)
    return int(many)


async def present(caller: Caller, keys: Keys) -> AsyncIterator[dict[bytes, bytes]]:
    """The letters of the stream, as Redis has them."""
    start = "-"
    while True:
        page = await caller.command("XRANGE", keys.dlq, start, "+", "COUNT", LOOK)
        for _, flat in page:
            yield pairs(flat)
        if len(page) < LOOK:
            return
        start = f"({page[-1][0].decode()}"


class Letters:
    """One shard."""

    def __init__(self, connection: asyncpg.Connection, caller: Caller, keys: Keys) -> None:
        self._connection = connection
        self._caller = caller
        self._keys = keys

    async def restore(self, *, actor: str, dry_run: bool) -> int:
        """Bring back those that the stream has not, and return how many. Safe to be called twice."""
        found = present(self._caller, self._keys)
        there = {fields.get(b"id", b"").decode("utf-8", "replace") async for fields in found}
        restored = 0
        async for rows in self._undecided():
            lost = [row for row in rows if row["id"] not in there]
            if dry_run:
                restored += len(lost)
                continue
            for words in _calls(lost):
                call = scripts.dlq_import(
                    clock="", actor=actor, retention_ms=scripts.RETENTION_MS, rows=words
                )
                restored += (await self._caller.run(call)).count(b"OK")
        return restored

    async def _undecided(self) -> AsyncIterator[Sequence[Any]]:
        after = _NO_JOB
        while True:
            rows = await self._connection.fetch(
                UNDECIDED,
                self._keys.namespace,
                self._keys.shard,
                after,
                list(QUIET_CODES),
                OLDEST,
                PAGE,
            )
            yield rows
            if len(rows) < PAGE:
                return
            after = rows[-1]["id"]


def _calls(rows: Sequence[Any]) -> Iterator[list[Argument]]:
    """The rows of `dlq/import`, as much as one call may carry."""
    words: list[Argument] = []
    letters = size = 0
    for row in rows:
        fields = _fields(row)
        letters, size = letters + 1, size + sum(len(value) for _, value in fields)
        words += (row["id"], row["epoch"], 2 * len(fields), *(word for field in fields for word in field))
        if letters >= CALL_LETTERS or size >= CALL_BYTES:
            yield words
            words, letters, size = [], 0, 0
    if words:
        yield words


def _fields(row: Any) -> list[tuple[str, bytes]]:
    """A letter as `finish` writes it."""
    fields = [(name, str("" if row[name] is None else row[name]).encode()) for name in _PLAIN]
    lines = dict(line.split("=", 1) for line in (row["record"] or "").split("\n") if "=" in line)
    fields += [("ms", lines.get("ms", "").encode()), ("env", row["env"] or b"")]
    if "ga" in lines:
        fields.append(("ga", lines["ga"].encode()))
    return fields
