"""A word at the start where Postgres has not the schema that effects and `enqueue_in` need.

Else the first job that wants an effect would be the one to tell.
"""

from __future__ import annotations

import logging

log = logging.getLogger("streamworker.worker")

#: Seconds until Postgres must have answered; if it does not, its jobs will tell.
PATIENCE = 5.0


async def look(dsn: str | None, worker: str) -> None:
    """Warn if the schema is missing, behind or ahead, as `doctor` does.

    Says nothing where that cannot be known: without a Postgres, its driver, an answer, or the right to ask.
    """
    if dsn is None:
        return
    from streamworker.core.errors import ConfigurationError
    from streamworker.postgres import migrate
    from streamworker.postgres.connection import PostgresUnavailable, connect, passing

    try:
        connection = await connect(dsn, timeout=PATIENCE, writes=False)
    except (PostgresUnavailable, ConfigurationError):
        return
    try:
        found = await migrate.standing(connection)
    except Exception as error:
        if not passing(error):
            raise
    else:
        if found is not None:
            log.warning("worker %s: Postgres: %s", worker, found)
    finally:
        connection.terminate()
