"""Whether committed requests become jobs: for `doctor`, where a Postgres is known."""

from __future__ import annotations

from streamworker.core.durations import format_ms
from streamworker.core.errors import ConfigurationError
from streamworker.ops.checks import Finding, ok, problem, warning
from streamworker.ops.postgres_checks import postgres
from streamworker.outbox.depth import MOST, Depth, measure
from streamworker.postgres.connection import PoolerUnfit, PostgresUnavailable, connect, passing, unavailable
from streamworker.postgres.migrate import MIGRATE
from streamworker.settings import Settings

#: Seconds that a request may wait for a relay.
STUCK_AFTER = 60.0
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
            return [problem("postgres", error.problem, MIGRATE)]
        advice = "does STREAMWORKER_POSTGRES_DSN name the right server, and is it up?"
        return [warning("outbox", f"it could not be looked at: {error}", advice)]


async def _look(dsn: str, namespace: str) -> list[Finding]:
    """Raises ConfigurationError or PostgresUnavailable."""
    connection = await connect(dsn, timeout=PATIENCE, writes=False)
    found = list[Finding]()
    try:
        found += await postgres(connection, namespace)
        async with connection.transaction():  # a pooler that has none is found out
            return [*found, *judge(await measure(connection, namespace))]
    except Exception as error:
        if not passing(error):
            raise
        if found and unavailable(error).kind == "schema":  # that is told
            return found
        raise unavailable(error) from error
    finally:
        await connection.close()


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
