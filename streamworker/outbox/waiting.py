"""What waits in the outbox, for people: looked at, and tried again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamworker.core.durations import format_ms
from streamworker.postgres.connection import transaction

if TYPE_CHECKING:
    import asyncpg

_LOOK = """
SELECT job_id::text AS id, task, lane, entity, attempts, error, refused_at IS NOT NULL AS refused,
       (extract(epoch FROM now() - created_at) * 1000)::bigint AS age_ms
FROM streamworker.outbox
WHERE namespace = $1 AND published_at IS NULL AND (refused_at IS NOT NULL OR NOT $2)
ORDER BY outbox.id LIMIT $3
"""
_COUNT = """
SELECT count(*) FILTER (WHERE refused_at IS NULL) AS waiting,
       count(*) FILTER (WHERE refused_at IS NOT NULL) AS refused,
       coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE refused_at IS NULL)), 0)::float8
           AS oldest
FROM streamworker.outbox WHERE namespace = $1 AND published_at IS NULL
"""
_RETRY = """
UPDATE streamworker.outbox SET refused_at = NULL, attempted_at = NULL, attempts = 0, error = NULL
WHERE namespace = $1 AND published_at IS NULL AND (refused_at IS NOT NULL OR error IS NOT NULL)
  AND ($2::uuid[] IS NULL OR job_id = ANY($2::uuid[]))
RETURNING job_id::text
"""
_REOPEN = """
UPDATE streamworker.jobs SET status = 'queued', reason = 'outbox', error_class = NULL, error_code = NULL,
       error = NULL, finished_at = NULL
WHERE id = ANY($1::uuid[]) AND version = 0
"""
_DISCARD = """
UPDATE streamworker.outbox SET published_at = now(), outcome = 'discarded'
WHERE namespace = $1 AND published_at IS NULL AND refused_at IS NOT NULL AND job_id = ANY($2::uuid[])
RETURNING job_id::text
"""
_END = """
UPDATE streamworker.jobs SET status = 'failed_terminal', reason = 'discarded', error_class = 'persistent',
       error_code = 'discarded', finished_at = now(), updated_at = now()
WHERE id = ANY($1::uuid[]) AND version = 0 AND status = 'queued'
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How much there is, and the oldest of it."""

    waiting: int
    refused: int
    oldest_seconds: float
    items: list[dict[str, Any]]


async def look(connection: asyncpg.Connection, namespace: str, refused: bool, limit: int) -> Waiting:
    """Raises what asyncpg raises."""
    rows = await connection.fetch(_LOOK, namespace, refused, limit)
    counts = await connection.fetchrow(_COUNT, namespace)
    assert counts is not None
    items = [{**dict(row), "age": format_ms(row["age_ms"])} for row in rows]
    return Waiting(counts["waiting"], counts["refused"], counts["oldest"], items)


async def retry(connection: asyncpg.Connection, namespace: str, jobs: Sequence[str] | None) -> list[str]:
    """The jobs whose requests are told again."""
    async with transaction(connection):
        rows = await connection.fetch(_RETRY, namespace, None if jobs is None else list(jobs))
        again = [row["job_id"] for row in rows]
        await connection.execute(_REOPEN, again)
    return again


async def discard(connection: asyncpg.Connection, namespace: str, jobs: Sequence[str]) -> list[str]:
    """The jobs that are given up, of those that were put aside. Their rows go as told ones do."""
    async with transaction(connection):
        rows = await connection.fetch(_DISCARD, namespace, list(jobs))
        over = [row["job_id"] for row in rows]
        await connection.execute(_END, over)
    return over
