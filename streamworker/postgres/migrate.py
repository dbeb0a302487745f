"""Brings the schema up to date: numbered SQL files, each applied once, in order, in one transaction.

What was applied is written down with its checksum. A file that was changed after it had been applied is
refused: somebody's tables are not what the file says.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from streamworker.core.errors import StreamworkerError
from streamworker.postgres.connection import PostgresUnavailable, transaction

if TYPE_CHECKING:
    import asyncpg

#: Two runners wait for each other. The number is the first half of SHA-256 of "streamworker.migrate".
LOCK = int.from_bytes(hashlib.sha256(b"streamworker.migrate").digest()[:8], signed=True)

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")

#: Whoever was given a schema may have no right to make one, and `IF NOT EXISTS` asks for that first.
BOOKKEEPING = """\
DO $$ BEGIN
    IF to_regclass('streamworker.migrations') IS NULL
        AND current_setting('server_encoding') NOT IN ('UTF8', 'SQL_ASCII') THEN
        RAISE EXCEPTION 'the encoding of database % is %, which cannot hold every text: make one with UTF8',
            current_database(), current_setting('server_encoding');
    END IF;
    IF to_regnamespace('streamworker') IS NULL THEN
        CREATE SCHEMA streamworker;
    END IF;
END $$;
CREATE TABLE IF NOT EXISTS streamworker.migrations (
    number      integer PRIMARY KEY,
    name        text NOT NULL,
    checksum    text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
);
"""


class MigrationError(StreamworkerError):
    """The schema is not what this version works with; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def file(self) -> str:
        return f"{self.number:04d}_{self.name}.sql"


def migrations() -> list[Migration]:
    """All of this version, in order. Raises MigrationError when numbers are missing or double."""
    found = []
    for file in resources.files(__package__).joinpath("migrations").iterdir():
        if matched := _NAME.fullmatch(file.name):
            found.append(Migration(int(matched[1]), matched[2], file.read_text(encoding="utf-8")))
    found.sort(key=lambda each: each.number)
    if [each.number for each in found] != list(range(1, len(found) + 1)):
        raise MigrationError(f"migrations are numbered {[each.number for each in found]}: reinstall")
    return found


def render() -> str:
    """All of it as one script for psql, for those who review and apply schemas themselves."""
    parts = ["BEGIN;", f"SELECT pg_advisory_xact_lock({LOCK});", BOOKKEEPING]
    for each in migrations():
        row = f"{each.number}, '{each.name}', '{each.checksum}'"
        note = f"INSERT INTO streamworker.migrations (number, name, checksum) VALUES ({row});"  # noqa: S608
        parts += [f"-- {each.file}", each.sql.strip(), note]
    return "\n\n".join([*parts, "COMMIT;"]) + "\n"


async def migrate(connection: asyncpg.Connection) -> list[Migration]:
    """Apply what is missing and return it. Raises MigrationError; then nothing was changed.

    Whoever may read `migrations` may ask for it when nothing is missing.
    """
    if not await pending(connection):
        return []
    async with transaction(connection):
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        await connection.execute(BOOKKEEPING)
        missing = _missing(await _applied(connection))
        for each in missing:
            await connection.execute(each.sql)
            await connection.execute(
                "INSERT INTO streamworker.migrations (number, name, checksum) VALUES ($1, $2, $3)",
                each.number,
                each.name,
                each.checksum,
            )
    return missing


async def pending(connection: asyncpg.Connection) -> list[Migration]:
    """What `migrate` would apply. Raises MigrationError as it does."""
    known = await connection.fetchval("SELECT to_regclass('streamworker.migrations') IS NOT NULL")
    return _missing(await _applied(connection) if known else {})


async def require(connection: asyncpg.Connection) -> None:
    """See that the schema is this version's, for who will ask again. Raises PostgresUnavailable."""
    try:
        missing = await pending(connection)
    except MigrationError as error:  # a release was taken back
        raise PostgresUnavailable("schema", str(error)) from error
    if missing:
        raise PostgresUnavailable("schema", f"{missing[0].file} is not applied: streamworker mirror migrate")


async def _applied(connection: asyncpg.Connection) -> dict[int, tuple[str, str]]:
    rows = await connection.fetch("SELECT number, name, checksum FROM streamworker.migrations")
    return {row["number"]: (row["name"], row["checksum"]) for row in rows}


def _missing(applied: dict[int, tuple[str, str]]) -> list[Migration]:
    ours = migrations()
    if newer := sorted(set(applied) - {each.number for each in ours}):
        raise MigrationError(
            f"the schema has migration {newer[-1]}, this version knows {len(ours)}: use the newer version"
        )
    for each in ours:
        if each.number in applied and applied[each.number][1] != each.checksum:
            raise MigrationError(
                f"migration {each.file} was applied in another form: compare the tables with "
                "`streamworker mirror sql`, and put the form that was applied back"
            )
    return [each for each in ours if each.number not in applied]
