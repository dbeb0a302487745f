"""How far the mirror of a shard has come: one row, moved on only by who knows where it stands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from streamworker.core.errors import StreamworkerError

if TYPE_CHECKING:
    import asyncpg


class Overtaken(StreamworkerError):
    """Another writer has committed since: what this one read may be old."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The row as it was read."""

    namespace: str
    shard: int
    marker: str
    on: bool
    commits: int
    sequence: int
    entry: str
    loss: str | None


async def read(connection: asyncpg.Connection, namespace: str, shard: int) -> Offset | None:
    """The offset of a shard; None when nothing of it was ever mirrored here."""
    row = await connection.fetchrow(
        "SELECT marker, is_on AS on, commits, sequence, entry, loss FROM streamworker.mirror_offsets "
        "WHERE namespace = $1 AND shard = $2",
        namespace,
        shard,
    )
    return None if row is None else Offset(namespace, shard, **dict(row))


async def begin(connection: asyncpg.Connection, namespace: str, shard: int, marker: str) -> Offset:
    """The offset of a shard; a new one gets this marker, and is off until `turn_on`.

    Only if it was on can a missing marker, or a missing job, prove anything.
    """
    await connection.execute(
        "INSERT INTO streamworker.mirror_offsets (namespace, shard, marker, is_on) "
        "VALUES ($1, $2, $3, false) ON CONFLICT (namespace, shard) DO NOTHING",
        namespace,
        shard,
        marker,
    )
    found = await read(connection, namespace, shard)
    assert found is not None
    return found


async def turn_on(connection: asyncpg.Connection, known: Offset) -> Offset:
    """What there was is taken in: from here on a marker that is gone proves a loss. Raises Overtaken."""
    commits = await connection.fetchval(
        "UPDATE streamworker.mirror_offsets SET commits = commits + 1, is_on = true, committed_at = now() "
        "WHERE namespace = $1 AND shard = $2 AND commits = $3 RETURNING commits",
        known.namespace,
        known.shard,
        known.commits,
    )
    if commits is None:
        raise Overtaken(f"another mirror of {known.namespace}:{known.shard} has written meanwhile")
    return replace(known, commits=commits, on=True)


async def end(connection: asyncpg.Connection, namespace: str, shard: int) -> None:
    """The mirror of a shard is off: what Redis has or has not proves nothing any more."""
    await connection.execute(
        "UPDATE streamworker.mirror_offsets SET is_on = false, loss = NULL, loss_at = NULL, sequence = 0, "
        "commits = commits + 1 WHERE namespace = $1 AND shard = $2",
        namespace,
        shard,
    )


async def advance(
    connection: asyncpg.Connection, known: Offset, *, sequence: int, entry: str, writer: str
) -> Offset:
    """Move on, inside the transaction that writes the batch; holds off every other writer until its end.

    Raises Overtaken when the row is no longer as it is known.
    """
    commits = await connection.fetchval(
        "UPDATE streamworker.mirror_offsets SET commits = commits + 1, sequence = $4, entry = $5, "
        "writer = $6, committed_at = now() WHERE namespace = $1 AND shard = $2 AND commits = $3 "
        "RETURNING commits",
        known.namespace,
        known.shard,
        known.commits,
        sequence,
        entry,
        writer,
    )
    if commits is None:
        raise Overtaken(f"another mirror of {known.namespace}:{known.shard} has written meanwhile")
    return replace(known, commits=commits, sequence=sequence, entry=entry)


async def note_loss(connection: asyncpg.Connection, known: Offset, proof: str, *, sequence: int) -> Offset:
    """Write down that Redis lost data, and how that was seen; the first proof stays.

    `sequence` is where the log's count stands now: it may have begun anew.
    """
    loss = await connection.fetchval(
        "UPDATE streamworker.mirror_offsets SET loss = coalesce(loss, $3), "
        "loss_at = coalesce(loss_at, now()), sequence = $4 "
        "WHERE namespace = $1 AND shard = $2 RETURNING loss",
        known.namespace,
        known.shard,
        proof,
        sequence,
    )
    return replace(known, loss=loss, sequence=sequence)


async def note_reconciled(connection: asyncpg.Connection, known: Offset) -> Offset:
    """What was lost is there again."""
    await connection.execute(
        "UPDATE streamworker.mirror_offsets SET loss = NULL, loss_at = NULL, reconciled_at = now() "
        "WHERE namespace = $1 AND shard = $2",
        known.namespace,
        known.shard,
    )
    return replace(known, loss=None)
