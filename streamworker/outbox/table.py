"""The statements on `outbox`, as the relay and its commands need them."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncpg

#: Lane and tenant, '' for none.
Way = tuple[str, str]
#: Seconds after which a row that may have been told is looked up before it is told again. The record of a job
#: that ended at once lives 15 min.
DOUBT_SECONDS = 600

#: Rows that a relay is to tell Redis of.
PENDING = "namespace = $1 AND published_at IS NULL AND refused_at IS NULL"
#: Why a request waits for a person: nobody else can tell whether Redis has run it.
NO_MIRROR = (
    "it may have been told long ago, and without a mirror nobody knows: "
    "`streamworker outbox retry` tells it again"
)
#: Written down before Redis is told, so that nobody forgets that it may have been. Those that wait for a
#: person, and those of lanes and tenants that are closed now, have no place in a round.
_MARK = f"""
WITH due AS (
    SELECT id FROM streamworker.outbox o WHERE {PENDING} AND id > $6 AND (error IS DISTINCT FROM $3
        OR EXISTS (SELECT 1 FROM streamworker.mirror_offsets WHERE namespace = $1 AND is_on))
      AND (lane <> ALL($4::text[]) OR NOT EXISTS (
        SELECT 1 FROM unnest($4::text[], $5::text[]) AS closed(lane, tenant)
        WHERE closed.lane = o.lane AND closed.tenant
            = coalesce((SELECT j.tenant FROM streamworker.jobs j WHERE j.id = o.job_id), '')))
    ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
), marked AS (
    UPDATE streamworker.outbox o
    SET attempted_at = coalesce(o.attempted_at, now()), attempts = o.attempts + 1
    FROM due WHERE o.id = due.id RETURNING o.id, o.attempts, o.attempted_at = now() AS fresh
)
SELECT id, fresh FROM marked ORDER BY id
"""  # noqa: S608
_LOCK = f"""
SELECT id, job_id, task, lane, payload, extra, entity, attempts,
       greatest(0, (extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint) AS age_ms,
       attempted_at < now() - make_interval(secs => $3) AS doubtful
FROM streamworker.outbox WHERE {PENDING} AND id = ANY($2::bigint[]) ORDER BY id FOR UPDATE SKIP LOCKED
"""  # noqa: S608
#: The first request of each entity that somebody else is about to tell, or has not told.
_EARLIER = f"""
SELECT entity, min(id) AS first FROM streamworker.outbox
WHERE {PENDING} AND entity = ANY($2::text[]) AND id <> ALL($3::bigint[]) GROUP BY entity
"""  # noqa: S608
_DONE = """
UPDATE streamworker.outbox SET published_at = now(), outcome = $2, error = NULL WHERE id = ANY($1::bigint[])
"""
_LEAVE = """
UPDATE streamworker.outbox
SET attempts = attempts - 1, attempted_at = CASE WHEN id <> ALL($2::bigint[]) THEN attempted_at END
WHERE id = ANY($1::bigint[])
"""
_NOTE = """
UPDATE streamworker.outbox SET error = $2 WHERE id = ANY($1::bigint[]) AND error IS DISTINCT FROM $2
"""
_END_JOB = """
UPDATE streamworker.jobs
SET status = 'failed_terminal', reason = 'superseded', error_class = 'persistent',
    error_code = 'superseded', error = $2, finished_at = now(), updated_at = now()
WHERE id = $1::uuid AND version = 0
"""
_REFUSE = """
UPDATE streamworker.outbox SET error = $2, refused_at = CASE WHEN $3 THEN now() END WHERE id = $1
"""
_PRUNE = """
WITH gone AS (
    DELETE FROM streamworker.outbox WHERE id IN (
        SELECT id FROM streamworker.outbox
        WHERE namespace = $1 AND published_at < now() - $2::interval LIMIT $3
    ) RETURNING job_id
), ended AS (
    DELETE FROM streamworker.jobs j USING gone
    WHERE j.id = gone.job_id AND j.version = 0
      AND NOT EXISTS (SELECT 1 FROM streamworker.mirror_offsets WHERE namespace = $1 AND is_on)
)
SELECT count(*) FROM gone
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One request, locked by the transaction that is open."""

    fields: Mapping[str, Any]
    #: This round is the first that may have told Redis of it.
    fresh: bool

    @property
    def id(self) -> int:
        return int(self.fields["id"])

    @property
    def job_id(self) -> str:
        return str(self.fields["job_id"])

    @property
    def entity(self) -> str:
        """'' for none."""
        return str(self.fields["entity"])

    @property
    def doubtful(self) -> bool:
        """It may have been told so long ago that Redis has forgotten the job."""
        return bool(self.fields["doubtful"])


async def pending(connection: asyncpg.Connection, namespace: str, above: int = 0) -> bool:
    """Whether any row waits, of those with a larger id."""
    return bool(
        await connection.fetchval(
            f"SELECT EXISTS (SELECT 1 FROM streamworker.outbox WHERE {PENDING} AND id > $2)",  # noqa: S608
            namespace,
            above,
        )
    )


async def newest(connection: asyncpg.Connection) -> int:
    """The largest id; 0 without a row."""
    return int(await connection.fetchval("SELECT coalesce(max(id), 0) FROM streamworker.outbox"))


async def mark(
    connection: asyncpg.Connection, namespace: str, limit: int, closed: Collection[Way] = (), above: int = 0
) -> dict[int, bool]:
    """The rows that come next, of those with a larger id, and whether this is their first attempt.

    Committed at once.
    """
    lanes, tenants = [lane for lane, _ in closed], [tenant for _, tenant in closed]
    rows = await connection.fetch(_MARK, namespace, limit, NO_MIRROR, lanes, tenants, above)
    return {row["id"]: row["fresh"] for row in rows}


async def lock(connection: asyncpg.Connection, namespace: str, marked: Mapping[int, bool]) -> list[Row]:
    """Those of them that nobody else tells, in order; of each entity none before an earlier one is told."""
    found = await connection.fetch(_LOCK, namespace, list(marked), float(DOUBT_SECONDS))
    rows = [Row(dict(row), marked[row["id"]]) for row in found]
    entities = sorted({row.entity for row in rows} - {""})
    if entities:
        earlier = await connection.fetch(_EARLIER, namespace, entities, [row.id for row in rows])
        first = {row["entity"]: row["first"] for row in earlier}
        await leave(connection, [row for row in rows if row.id > first.get(row.entity, row.id)])
        rows = [row for row in rows if row.id < first.get(row.entity, row.id + 1)]
    return rows


async def done(connection: asyncpg.Connection, rows: Sequence[Row], outcome: str) -> None:
    """Redis knows of them."""
    if rows:
        await connection.execute(_DONE, [row.id for row in rows], outcome)


async def unmark(connection: asyncpg.Connection, rows: Sequence[Row]) -> None:
    """They were certainly not told."""
    if rows:
        await connection.execute(
            "UPDATE streamworker.outbox SET attempted_at = NULL WHERE id = ANY($1::bigint[])",
            [row.id for row in rows],
        )


async def leave(connection: asyncpg.Connection, rows: Sequence[Row]) -> None:
    """It was not their turn: this round was no attempt of theirs."""
    if rows:
        ids, fresh = [row.id for row in rows], [row.id for row in rows if row.fresh]
        await connection.execute(_LEAVE, ids, fresh)


async def note(connection: asyncpg.Connection, rows: Mapping[int, str]) -> None:
    """Why these wait, by id."""
    for why in sorted(set(rows.values())):
        ids = [row_id for row_id, said in rows.items() if said == why]
        await connection.execute(_NOTE, ids, why)


async def refuse(connection: asyncpg.Connection, row: Row, why: str, *, over: bool) -> None:
    """Redis does not take it. `over`: it is not tried again by itself."""
    await connection.execute(_REFUSE, row.id, why.replace("\x00", "\ufffd"), over)


async def end_job(connection: asyncpg.Connection, row: Row, why: str) -> None:
    """The job will never be: another one has answered for it."""
    await connection.execute(_END_JOB, row.job_id, why)


async def prune(connection: asyncpg.Connection, namespace: str, keep: datetime.timedelta, limit: int) -> int:
    """Drop up to `limit` rows of what was told long ago, without a mirror those of its jobs as well.

    Returns how many requests went.
    """
    return int(await connection.fetchval(_PRUNE, namespace, keep, limit))
