"""Rows in the binary form of COPY, made here: asyncpg takes three times as long to make them of values.

The form is on https://www.postgresql.org/docs/current/sql-copy.html, under Binary Format. A row is the number
of its columns and, for each, its size and its bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from streamworker.postgres.entries import MAX_MS

if TYPE_CHECKING:
    import asyncpg

#: Before the first row: the signature, no flags, no extension. After the last: a row of -1 columns.
_HEADER, _TRAILER = b"PGCOPY\n\xff\r\n\x00" + bytes(8), b"\xff\xff"
#: Bytes that are sent at once.
_CHUNK = 256 << 10
#: Postgres counts from the year 2000, in microseconds and in days.
_MILLENNIUM_MS, _MILLENNIUM_DAYS, _DAY_MS = 946_684_800_000, 10_957, 86_400_000

NULL = b"\xff\xff\xff\xff"
_size = Struct(">i").pack
_json = Struct(">ib").pack
_count = Struct(">h").pack
_moment = Struct(">iq").pack


def row_of(columns: int) -> bytes:
    """The beginning of a row of so many columns."""
    return _count(columns)


def text(value: str | None) -> bytes:
    """A text."""
    if value is None:
        return NULL
    encoded = value.encode()
    return _size(len(encoded)) + encoded


def data(value: bytes | None) -> bytes:
    """A bytea."""
    return NULL if value is None else _size(len(value)) + value


def json(value: bytes | None) -> bytes:
    """A jsonb, from its text."""
    return NULL if value is None else _size(len(value) + 1) + b"\x01" + value


def both(value: bytes | None, as_json: bytes | None) -> tuple[bytes, ...]:
    """A bytea and a jsonb, as pieces: what is long is copied once less."""
    if value is None or as_json is None:
        return data(value), json(as_json)
    return _size(len(value)), value, _json(len(as_json) + 1, 1), as_json


def number(value: int | None) -> bytes:
    """A bigint."""
    return NULL if value is None else _moment(8, value)


def moment(ms: int | None) -> bytes:
    """A timestamptz, from ms since the epoch. Raises OverflowError for what Python could not read again."""
    return NULL if ms is None else _moment(8, micros(ms))


def micros(ms: int) -> int:
    """A time as Postgres counts it, from ms since the epoch. Raises OverflowError as `moment` does."""
    if not 0 <= ms < MAX_MS:
        raise OverflowError(f"{ms} ms is no time between 1970 and 9999")
    return (ms - _MILLENNIUM_MS) * 1000


def day(ms: int) -> int:
    """The day of a time, as Postgres counts days."""
    return ms // _DAY_MS - _MILLENNIUM_DAYS


def identity(job_id: str) -> bytes:
    """The 16 bytes of a job's id."""
    return bytes.fromhex(job_id.replace("-", ""))


async def copy(
    connection: asyncpg.Connection, table: str, columns: Sequence[str], rows: Iterable[bytes]
) -> None:
    """Append these rows to a table of ours."""
    made = memoryview(b"".join([_HEADER, *rows, _TRAILER]))  # before COPY begins: a row may be impossible
    await connection.copy_to_table(
        table, schema_name="streamworker", columns=columns, format="binary", source=_chunks(made)
    )


async def _chunks(made: memoryview) -> AsyncIterator[bytes]:
    for start in range(0, len(made), _CHUNK):
        yield bytes(made[start : start + _CHUNK])
