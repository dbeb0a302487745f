"""The rows of `processed_operations`: what a handler has done, under a name that all its attempts share.

One row for each step of a key. Whoever inserts it first does the work; a rival waits for it and then finds
what came of it. A row `buried` says that a job ended without the effect, and refuses claims that are older
(D14).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from streamworker.core.errors import FencedOut
from streamworker.postgres.connection import unavailable

if TYPE_CHECKING:
    import asyncpg

#: Classes of SQLSTATE of a schema, table, column or right that is missing.
_NOT_READY = ("3F", "42")
_ROW = "namespace = $1 AND operation_type = $2 AND idempotency_key = $3 AND step = $4"
#: Takes the row: inserted, or a buried one of an older claim. A step is not begun once its job is buried.
#: Says by set_config how long the transaction may be silent: a frozen handler's must not keep the next
#: attempt waiting.
_TAKE = """
INSERT INTO streamworker.processed_operations AS o
    (namespace, operation_type, idempotency_key, step, status, fingerprint, job_id, fence)
SELECT $1, $2, $3, $4, $5, $6, $7::uuid, $8
FROM set_config('idle_in_transaction_session_timeout', $9, true)
WHERE $4 = '' OR NOT EXISTS (
    SELECT 1 FROM streamworker.processed_operations
    WHERE namespace = $1 AND operation_type = $2 AND idempotency_key = $3 AND step = ''
      AND status = 'buried' AND fence >= $8)
ON CONFLICT (namespace, operation_type, idempotency_key, step) DO UPDATE
    SET status = excluded.status, fingerprint = excluded.fingerprint, job_id = excluded.job_id,
        fence = excluded.fence, updated_at = now()
    WHERE o.status = 'buried' AND o.fence < excluded.fence
RETURNING true
"""
_FIND = f"""
SELECT status, fingerprint, result, result_ref, cache_keys, fence
FROM streamworker.processed_operations WHERE {_ROW}
"""  # noqa: S608
_RECORD = f"""
UPDATE streamworker.processed_operations SET result = $5, result_ref = $6, cache_keys = $7 WHERE {_ROW}
"""  # noqa: S608
_FINISH = f"""
UPDATE streamworker.processed_operations
SET status = 'succeeded', result = $5, result_ref = $6, fence = $7, updated_at = now()
WHERE {_ROW} AND status = 'started' RETURNING true
"""  # noqa: S608
_DROP = f"DELETE FROM streamworker.processed_operations WHERE {_ROW} AND status = 'started' AND fence = $5"  # noqa: S608
#: Ends the chance of every claim up to this one; waits for one that is in the middle of it.
_BURY = """
INSERT INTO streamworker.processed_operations AS o
    (namespace, operation_type, idempotency_key, step, status, job_id, fence)
VALUES ($1, $2, $3, $4, 'buried', $5::uuid, $6)
ON CONFLICT (namespace, operation_type, idempotency_key, step) DO UPDATE
    SET fence = greatest(o.fence, excluded.fence), updated_at = now() WHERE o.status = 'buried'
RETURNING true
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose effect it is, the same for every attempt."""

    namespace: str
    task: str
    key: str  # the job's key, within its entity if it has one; else its id

    def of(self, step: str) -> tuple[str, str, str, str]:
        return (self.namespace, self.task, self.key, step)


@dataclass(frozen=True, slots=True)
class Found:
    """A row that was there."""

    status: str
    fingerprint: str | None
    result: bytes | None
    result_ref: str | None
    cache_keys: tuple[str, ...]
    fence: int

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"

    @property
    def buried(self) -> bool:
        return self.status == "buried"


class Connection(Protocol):
    """What is asked of asyncpg here."""

    async def fetchval(self, query: str, *args: Any) -> Any: ...
    async def fetchrow(self, query: str, *args: Any) -> Any: ...
    async def execute(self, query: str, *args: Any) -> Any: ...


async def take(
    connection: Connection | asyncpg.Connection,
    subject: Subject,
    step: str,
    *,
    status: str,
    fingerprint: str,
    job_id: str,
    fence: int,
    silence_ms: int,
) -> Found | None:
    """Take the step: None, it is ours to do; else what was there. Waits for a rival to come to its end.

    Raises FencedOut when the job was ended without its effect, PostgresUnavailable where the schema or a
    right to it is missing: that can be mended, and the job is tried again.
    """
    values = *subject.of(step), status, fingerprint, job_id, fence, str(silence_ms)
    while not await _taken(connection, values):
        found = await find(connection, subject, step)
        if found is not None and not found.buried:
            return found
        last = found if not step else await find(connection, subject)
        if last is not None and last.buried and last.fence >= fence:
            raise FencedOut(f"job {job_id} was ended without its effect; this claim of it came too late")
    return None  # also where a row that was in the way has been dropped meanwhile


async def _taken(connection: Connection | asyncpg.Connection, values: tuple[Any, ...]) -> bool:
    try:
        return bool(await connection.fetchval(_TAKE, *values))
    except Exception as error:
        if str(getattr(error, "sqlstate", None)).startswith(_NOT_READY):
            raise unavailable(error) from error
        raise


async def find(connection: Connection | asyncpg.Connection, subject: Subject, step: str = "") -> Found | None:
    """The row, if it is there."""
    row = await connection.fetchrow(_FIND, *subject.of(step))
    if row is None:
        return None
    return Found(
        row["status"],
        row["fingerprint"],
        row["result"],
        row["result_ref"],
        tuple(row["cache_keys"] or ()),
        row["fence"],
    )


async def record(
    connection: Connection | asyncpg.Connection,
    subject: Subject,
    step: str,
    *,
    result: bytes,
    result_ref: str | None,
    cache_keys: Collection[str],
) -> None:
    """Keep what the step came to, in the transaction that does it."""
    await connection.execute(
        _RECORD, *subject.of(step), result or None, result_ref, sorted(cache_keys) or None
    )


async def finish(
    connection: Connection | asyncpg.Connection,
    subject: Subject,
    step: str,
    *,
    result: bytes,
    result_ref: str | None,
    fence: int,
) -> bool:
    """A step that was started elsewhere is done. False: another attempt was first."""
    return bool(await connection.fetchval(_FINISH, *subject.of(step), result or None, result_ref, fence))


async def drop(
    connection: Connection | asyncpg.Connection, subject: Subject, step: str, *, fence: int
) -> None:
    """A step that this claim started did certainly not happen."""
    await connection.execute(_DROP, *subject.of(step), fence)


async def bury(
    connection: Connection | asyncpg.Connection, subject: Subject, *, job_id: str, fence: int
) -> Found | None:
    """The committed effect of a job that is to end; None: there is none, and no older claim can add one."""
    buried = await connection.fetchval(_BURY, *subject.of(""), job_id, fence)
    return None if buried else await find(connection, subject)
