"""`enqueue_in(connection, call)`: the job exists if, and only if, the caller's transaction commits."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from streamworker.client import Job
from streamworker.core.errors import InvalidArgument
from streamworker.core.gates import entity_of
from streamworker.core.ids import shard_of
from streamworker.core.job import Envelope
from streamworker.outbox.rows import CHANNEL, extra_of, record_lines
from streamworker.postgres.adapters import Adapter, adapt
from streamworker.store.scripts import NewJob

if TYPE_CHECKING:
    import asyncpg
    import psycopg
    from asyncpg.pool import PoolConnectionProxy
    from sqlalchemy.engine import Connection as SaConnection
    from sqlalchemy.ext.asyncio import AsyncConnection as SaAsyncConnection
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from streamworker.effects.transaction import Transaction

    AsyncConnection = (
        asyncpg.Connection
        | PoolConnectionProxy
        | psycopg.AsyncConnection[Any]
        | SaAsyncConnection
        | AsyncSession
        | Transaction
    )
    SyncConnection = psycopg.Connection[Any] | SaConnection | Session

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Call(Protocol[R_co]):
    """What a task makes of its arguments: `task.call(...)`."""

    @property
    def job(self) -> NewJob: ...
    @property
    def key(self) -> str | None: ...
    @property
    def namespace(self) -> str: ...
    def handle(self) -> Job[R_co]: ...


#: Both rows in one statement. The casts are for drivers that send text. Times count from here, not from when
#: the transaction began.
_INSERT = """
WITH request AS (
    INSERT INTO streamworker.outbox (namespace, job_id, task, lane, payload, extra, entity, created_at)
    VALUES (?, CAST(? AS uuid), ?, ?, ?, ?, ?, clock_timestamp())
    RETURNING namespace, job_id, task, lane, payload
)
INSERT INTO streamworker.jobs
    (id, namespace, shard, task, lane, tenant, key, correlation_id, status, attempt, starts, strikes, epoch,
     version, fence, reason, payload, record, key_id, fingerprint, key_window_ms, updated_at)
SELECT job_id, namespace, CAST(? AS smallint), task, lane, CAST(? AS text), CAST(? AS text), CAST(? AS text),
       'queued', 0, 0, 0, 0, 0, 0, 'outbox', payload, CAST(? AS text), CAST(? AS text), CAST(? AS text),
       CAST(? AS bigint), now()
FROM request
"""
_NOTIFY = "SELECT pg_notify(?, ?)"


@overload
def enqueue_in(
    connection: AsyncConnection, call: Call[R], *, notify: bool = False
) -> Coroutine[Any, Any, Job[R]]: ...


@overload
def enqueue_in(connection: SyncConnection, call: Call[R], *, notify: bool = False) -> Job[R]: ...


@overload
def enqueue_in(connection: Any, call: Call[R], *, notify: bool = False) -> Any: ...


def enqueue_in(connection: Any, call: Call[R], *, notify: bool = False) -> Any:
    """Enqueue a call in the transaction that is open on this connection; a relay tells Redis after it.

    `await` it on connections of asyncpg, psycopg's and SQLAlchemy's asynchronous ones, and the transaction
    of a handler; on those of psycopg, SQLAlchemy and Django that block, it returns the handle itself. Never
    commits. The handle has the job's id at once; that the key is held by another job is only known when the
    relay comes. `notify` wakes a relay that listens, at a cost for every commit. Raises ConfigurationError
    for what is no such connection, InvalidArgument for what is no call.
    """
    if not hasattr(call, "job"):
        raise InvalidArgument("call", call, "is none: make it by task.call(...)")
    adapter = adapt(connection)
    if adapter.is_async:
        return _enqueue(adapter, call, notify)
    adapter.run(_INSERT, _values(call))
    if notify:
        adapter.run(_NOTIFY, (CHANNEL, call.namespace))
    return call.handle()


async def _enqueue(adapter: Adapter, call: Call[R], notify: bool) -> Job[R]:
    await adapter.run_async(_INSERT, _values(call))
    if notify:
        await adapter.run_async(_NOTIFY, (CHANNEL, call.namespace))
    return call.handle()


def _values(call: Call[Any]) -> tuple[Any, ...]:
    job = call.job
    envelope = Envelope.decode(job.envelope)
    keyed = bool(job.key_id)
    return (
        call.namespace,
        job.job_id,
        job.task,
        job.lane,
        job.envelope,
        extra_of(job),
        entity_of(job.gates) or "",
        shard_of(job.job_id),
        job.tenant or None,
        call.key,
        envelope.correlation_id,
        record_lines(job) or None,
        job.key_id or None,
        job.fingerprint or None,
        job.window_ms if keyed else None,
    )
