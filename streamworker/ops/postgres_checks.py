"""Whether Postgres has the schema, what the mirror kept aside, and who hinders vacuum: for `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamworker.core.durations import format_ms
from streamworker.core.text import counted
from streamworker.ops.checks import Finding, problem, warning
from streamworker.postgres import migrate
from streamworker.postgres.connection import unavailable

if TYPE_CHECKING:
    import asyncpg

#: Seconds that a transaction may be open; where we may not know, the transactions of others meanwhile.
LONG_SECONDS, LONG_AGE = 600.0, 100_000

_ASIDE = """
SELECT (SELECT count(*) FROM streamworker.mirror_conflicts WHERE namespace = $1) AS conflicts,
       (SELECT count(*) FROM streamworker.mirror_refused WHERE namespace = $1) AS refused
"""
#: Who may still want to see the oldest state of this database, by a snapshot or as a prepared transaction:
#: what was deleted or updated since stays, and rows that are updated all the time get slow.
_HOLDER = """
SELECT * FROM (
    SELECT 'process ' || pid || ' of ' || coalesce(usename, 'nobody') || ' ('
           || coalesce(nullif(application_name, ''), 'no name') || ')' AS who,
           extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds, age(backend_xmin) AS age
    FROM pg_stat_activity
    WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
      AND (datname = current_database() OR datname IS NULL)
      AND backend_type IS DISTINCT FROM 'autovacuum worker'
    UNION ALL
    SELECT 'the prepared transaction ' || quote_literal(gid),
           extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)
    FROM pg_prepared_xacts WHERE database = current_database()
) AS holders ORDER BY age DESC LIMIT 1
"""


async def postgres(connection: asyncpg.Connection, namespace: str) -> list[Finding]:
    """Nothing where all is well, or we have no right to know. Raises what asyncpg raises."""
    found = []
    for look in (_schema(connection), _aside(connection, namespace), _holder(connection)):
        try:
            finding = await look
        except Exception as error:
            if unavailable(error).kind not in ("refused", "schema"):
                raise
        else:
            found += [] if finding is None else [finding]
    return found


async def _schema(connection: asyncpg.Connection) -> Finding | None:
    found = await migrate.standing(connection)
    if found is None:
        return None
    return (warning if found.usable else problem)("postgres", found.found, found.advice)


async def _aside(connection: asyncpg.Connection, namespace: str) -> Finding | None:
    row = await connection.fetchrow(_ASIDE, namespace)
    assert row is not None
    conflicts, refused = row
    if not conflicts and not refused:
        return None
    return warning(
        "kept aside",
        f"{counted(conflicts, 'move')} in mirror_conflicts, which contradict what is known; "
        f"{counted(refused, 'row')} in mirror_refused, which could not be stored",
        "see why in these tables, then delete the rows; else they go after the mirror's --retention",
    )


async def _holder(connection: asyncpg.Connection) -> Finding | None:
    row = await connection.fetchrow(_HOLDER)
    if row is None:
        return None
    who, seconds, age = row
    if age < LONG_AGE if seconds is None else seconds < LONG_SECONDS:
        return None
    since = counted(age, "transaction") if seconds is None else format_ms(round(seconds) * 1000)
    return warning(
        "vacuum",
        f"{who} keeps a transaction open for {since}: what is updated or deleted since cannot be cleaned up",
        "end it, such as with pg_terminate_backend: the mirror and the relay get slower until then",
    )
