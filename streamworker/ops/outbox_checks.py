"""Whether Postgres has the schema, and committed requests become jobs: for `doctor`, where one is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamworker.core.durations import format_ms
from streamworker.core.errors import ConfigurationError
from streamworker.ops.checks import Finding, ok, problem, warning
from streamworker.outbox.depth import MOST, Depth, measure
from streamworker.postgres.connection import PoolerUnfit, PostgresUnavailable, connect, passing, unavailable
from streamworker.postgres.migrate import MigrationError, pending
from streamworker.settings import Settings

if TYPE_CHECKING:
    import asyncpg

#: Seconds that a request may wait for a relay.
STUCK_AFTER = 60.0
MIGRATE = "run `streamworker mirror migrate`; until then jobs that want effects wait, and nothing is mirrored"
#: Seconds until Postgres must have answered.
PATIENCE = 5.0


async def outbox(settings: Settings) -> list[Finding]:
    """Nothing where no Postgres is known."""
    if settings.postgres_dsn is None:
        return []
    try:
        return await _look(settings.postgres_dsn, settings.namespace)
    except PoolerUnfit as error:
        return [problem("postgres", error.found, error.advice)]
    except (ConfigurationError, PostgresUnavailable) as error:
        if isinstance(error, PostgresUnavailable) and error.kind == "schema":
            return [problem("postgres", f"it has no schema of ours: {error.problem}", MIGRATE)]
        advice = "does STREAMWORKER_POSTGRES_DSN name the right server, and is it up?"
        return [warning("outbox", f"it could not be looked at: {error}", advice)]


async def _look(dsn: str, namespace: str) -> list[Finding]:
    """Raises ConfigurationError or PostgresUnavailable."""
    connection = await connect(dsn, timeout=PATIENCE, writes=False)
    try:
        found = await _schema(connection)
        async with connection.transaction():  # a pooler that has none is found out
            return [*found, *judge(await measure(connection, namespace))]
    except Exception as error:
        if passing(error):
            raise unavailable(error) from error
        raise
    finally:
        await connection.close()


async def _schema(connection: asyncpg.Connection) -> list[Finding]:
    """Nothing where it is as this version wants it, or we have no right to know."""
    try:
        missing = await pending(connection)
    except MigrationError as error:
        return [problem("postgres", str(error), "compare versions: `streamworker --version`")]
    except Exception as error:
        if unavailable(error).kind != "refused":
            raise
        return []
    if not missing:
        return []
    if missing[0].number == 1:
        raise PostgresUnavailable("schema", "nothing was migrated here")
    files = ", ".join(each.file for each in missing)
    return [problem("postgres", f"its schema is behind: {files} is not applied", MIGRATE)]


def judge(depth: Depth) -> list[Finding]:
    """What is found, by how much waits and whether a relay has tried it."""
    found = [_waiting(depth)]
    if depth.refused:
        found.append(
            warning(
                "outbox",
                f"{_many(depth.refused)} requests were put aside: Redis does not take them",
                "look with `streamworker outbox list --refused`, mend the cause, then `outbox retry`",
            )
        )
    return found


def _waiting(depth: Depth) -> Finding:
    if not depth.pending:
        return ok("outbox", "no request waits for a relay")
    shown = f"{_many(depth.pending)} requests wait for a relay, the first for {_age(depth)}"
    if depth.lag_seconds <= STUCK_AFTER:
        return ok("outbox", shown)
    if not depth.attempts:
        return problem(
            "outbox",
            f"{shown}; no relay has tried it",
            "start one: `streamworker outbox relay`, or workers with --with-relay",
        )
    why = depth.error or "Redis is away, or takes no jobs"
    return problem(
        "outbox",
        f"{shown}; it was tried {depth.attempts} times: {why}",
        "the log of the relay says what it meets; see also `streamworker outbox list`",
    )


def _many(count: int) -> str:
    return f"{MOST} or more" if count >= MOST else str(count)


def _age(depth: Depth) -> str:
    return format_ms(round(depth.lag_seconds) * 1000)
