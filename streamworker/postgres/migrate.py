"""Brings the schema up to date: numbered SQL files, each applied once, in order, in one transaction.

What was applied is written down with its checksum. A file that was changed after it had been applied is
refused: somebody's tables are not what the file says. A file that only adds says from which schema on
releases may go on beside it, `-- usable from 4` in its first lines: those of before a deploy then do not
stand still.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from streamworker.core.errors import StreamworkerError
from streamworker.postgres.connection import PostgresUnavailable, transaction

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger("streamworker.postgres")

#: Two runners wait for each other. The number is the first half of SHA-256 of "streamworker.migrate".
LOCK = int.from_bytes(hashlib.sha256(b"streamworker.migrate").digest()[:8], signed=True)

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_USABLE = re.compile(r"(?:--.*\n)*?-- usable from (\d+)\n")
#: What to do where the schema is missing or behind.
MIGRATE = (
    "run `streamworker mirror migrate`; until then jobs with effects and requests of the outbox may have to "
    "wait, and nothing is mirrored"
)

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
ALTER TABLE streamworker.migrations ADD COLUMN IF NOT EXISTS usable_from integer;
"""


COLUMNS = "number, name, checksum, usable_from"


class MigrationError(StreamworkerError):
    """The schema is not what this version works with; the message says what to do."""

    def __init__(self, found: str, advice: str) -> None:
        self.found = found
        self.advice = advice
        super().__init__(f"{found}: {advice}")


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

    @property
    def usable_from(self) -> int:
        """The newest migration that a release has to know, to go on once this one is applied."""
        said = _USABLE.match(self.sql)
        return int(said[1]) if said else self.number


@dataclass(frozen=True, slots=True)
class Standing:
    """How a schema differs from what this version would make of it, and what to do about it."""

    found: str
    advice: str
    usable: bool = False

    def __str__(self) -> str:
        return f"{self.found}: {self.advice}"


@dataclass(frozen=True, slots=True)
class _Applied:
    name: str
    checksum: str
    usable_from: int


def migrations() -> list[Migration]:
    """All of this version, in order. Raises MigrationError when numbers are missing or double."""
    found = []
    for file in resources.files(__package__).joinpath("migrations").iterdir():
        if matched := _NAME.fullmatch(file.name):
            found.append(Migration(int(matched[1]), matched[2], file.read_text(encoding="utf-8")))
    found.sort(key=lambda each: each.number)
    if [each.number for each in found] != list(range(1, len(found) + 1)):
        raise MigrationError(f"migrations are numbered {[each.number for each in found]}", "reinstall")
    return found


def render() -> str:
    """All of it as one script for psql, for those who review and apply schemas themselves."""
    parts = ["BEGIN;", f"SELECT pg_advisory_xact_lock({LOCK});", BOOKKEEPING]
    for each in migrations():
        row = f"{each.number}, '{each.name}', '{each.checksum}', {each.usable_from}"
        note = f"INSERT INTO streamworker.migrations ({COLUMNS}) VALUES ({row});"  # noqa: S608
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
                f"INSERT INTO streamworker.migrations ({COLUMNS}) VALUES ($1, $2, $3, $4)",  # noqa: S608
                each.number,
                each.name,
                each.checksum,
                each.usable_from,
            )
    return missing


async def pending(connection: asyncpg.Connection) -> list[Migration]:
    """What `migrate` would apply. Raises MigrationError as it does."""
    return _missing(await _applied(connection))


async def standing(connection: asyncpg.Connection) -> Standing | None:
    """What is to be said of the schema; None where it is as this version wants it."""
    applied = await _applied(connection)
    try:
        missing = _missing(applied)
    except MigrationError as error:
        return Standing(error.found, error.advice)
    if not applied:
        return Standing("it has no schema of ours, nothing was migrated", MIGRATE)
    if missing:
        files = ", ".join(each.file for each in missing)
        return Standing(f"its schema is behind, {files} is not applied", MIGRATE)
    ours = len(migrations())
    if max(applied) > ours:
        found = f"the schema has migration {max(applied)}, this version knows {ours} and goes on with it"
        return Standing(found, "finish the upgrade", usable=True)
    return None


async def require(connection: asyncpg.Connection) -> None:
    """See that this version can work with the schema, for who will ask again. Raises PostgresUnavailable."""
    if (found := await standing(connection)) is None:
        return
    if not found.usable:
        raise PostgresUnavailable("schema", str(found))
    _say_once(str(found))


@functools.cache
def _say_once(text: str) -> None:
    log.warning("Postgres: %s", text)


async def _applied(connection: asyncpg.Connection) -> dict[int, _Applied]:
    if not await connection.fetchval("SELECT to_regclass('streamworker.migrations') IS NOT NULL"):
        return {}
    rows = await connection.fetch(  # whoever made the table may not have known of that column
        "SELECT number, name, checksum, coalesce((to_jsonb(m) ->> 'usable_from')::int, number) "
        "FROM streamworker.migrations m"
    )
    return {number: _Applied(*rest) for number, *rest in rows}


def _missing(applied: dict[int, _Applied]) -> list[Migration]:
    ours = migrations()
    newer = {number: each for number, each in applied.items() if number > len(ours)}
    if any(each.usable_from > len(ours) for each in newer.values()):
        raise MigrationError(
            f"the schema has migration {max(newer)}, this version knows {len(ours)}", "use the newer version"
        )
    for each in ours:
        if each.number in applied and applied[each.number].checksum != each.checksum:
            raise MigrationError(
                f"migration {each.file} was applied in another form",
                "compare the tables with `streamworker mirror sql`, and put the form that was applied back",
            )
    return [each for each in ours if each.number not in applied]
