"""How much waits in the outbox, and for how long: for metrics and for `doctor`."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamworker.core.errors import ConfigurationError
from streamworker.outbox.table import PENDING
from streamworker.postgres.connection import PostgresUnavailable, connect, passing, unavailable

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger("streamworker.outbox")

#: Rows are counted up to here: a look must cost the same whatever waits.
MOST = 100_000
#: Seconds that a look may take.
PATIENCE = 3.0

_DEPTH = f"""
SELECT (SELECT count(*) FROM (SELECT FROM streamworker.outbox WHERE {PENDING} LIMIT {MOST}) few) AS pending,
       (SELECT count(*) FROM (SELECT FROM streamworker.outbox
                              WHERE namespace = $1 AND published_at IS NULL AND refused_at IS NOT NULL
                              LIMIT {MOST}) few) AS refused,
       coalesce(extract(epoch FROM clock_timestamp() - first.created_at), 0)::float8 AS lag,
       coalesce(first.attempts, 0) AS attempts, first.error
FROM (SELECT) one LEFT JOIN (
    SELECT created_at, attempts, error FROM streamworker.outbox WHERE {PENDING} ORDER BY id LIMIT 1
) first ON true
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Depth:
    """What waits. `attempts` and `error` are those of the request that came first of them."""

    pending: int = 0  # up to MOST
    refused: int = 0  # put aside: no relay tries them again
    lag_seconds: float = 0.0
    attempts: int = 0
    error: str | None = None


async def measure(connection: asyncpg.Connection, namespace: str) -> Depth:
    """Look now. Raises what asyncpg raises."""
    row = await connection.fetchrow(_DEPTH, namespace)
    assert row is not None
    return Depth(row["pending"], row["refused"], max(0.0, row["lag"]), row["attempts"], row["error"])


class Gauge:
    """Looks again and again over a connection of its own; no error of Postgres reaches who looks."""

    def __init__(self, dsn: str, namespace: str) -> None:
        self._dsn = dsn
        self._namespace = namespace
        self._connection: asyncpg.Connection | None = None
        self._said = False

    async def look(self) -> Depth | None:
        """None: Postgres could not be asked, or has no outbox."""
        try:
            async with asyncio.timeout(PATIENCE):
                if self._connection is None:
                    self._connection = await connect(self._dsn, timeout=PATIENCE, writes=False)
                found = await measure(self._connection, self._namespace)
        except ConfigurationError as error:  # no driver here
            self._tell(error)
        except PostgresUnavailable as error:
            self._tell(error)
        except Exception as error:
            self.close()
            if not passing(error):
                raise
            self._tell(unavailable(error))
        else:
            self._said = False
            return found
        return None

    def _tell(self, error: Exception) -> None:
        if not self._said:
            log.warning("no look at the outbox for metrics: %s", error)
        self._said = True

    def close(self) -> None:
        """Let go of the connection; the next look makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
