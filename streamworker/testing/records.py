"""What a test has in Postgres: its requests are told as a relay does, and nothing stays at the end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from streamworker.core.errors import StreamworkerError
from streamworker.settings import Settings
from streamworker.store.connection import Opens

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger("streamworker.testing")

#: Where a namespace has rows without a mirror.
TABLES = ("outbox", "jobs", "processed_operations")
#: Requests that a message names.
NAMED = 5


class Records:
    """The rows of the test's namespace. Connects when the test has made a request, or at its end."""

    def __init__(self, settings: Settings, opens: Opens) -> None:
        self._settings = settings
        self._opens = opens
        self._connection: asyncpg.Connection | None = None
        self._promised = 0  # requests since the last look
        self._ever = False
        #: Handlers have begun effects.
        self.effects = False
        #: Requests that stayed behind in the last look.
        self.waiting = 0
        self._said = ""

    def promise(self, job_id: str) -> None:
        """A request was written, in a transaction that may commit; from any thread."""
        self._promised += 1
        self._ever = True

    async def relay(self) -> int:
        """Tell Redis of what is committed; of how many requests. Raises PostgresUnavailable."""
        dsn = self._settings.postgres_dsn
        if not self._ever or dsn is None:
            return 0
        from streamworker.outbox import table, waiting
        from streamworker.outbox.relay import Relay
        from streamworker.postgres import migrate
        from streamworker.postgres.connection import PostgresUnavailable, connect, passing, unavailable

        namespace = self._settings.namespace
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect(dsn)
                if await migrate.pending(self._connection):
                    raise PostgresUnavailable("schema", "it has no tables: streamworker mirror migrate")
            self._promised = self.waiting = 0
            if not await table.pending(self._connection, namespace):
                return 0
            relay = Relay(self._settings, dsn, "test", opens=self._opens)
            try:
                told = await relay.all(self._connection)
            finally:
                await relay.close()
            left = await waiting.look(self._connection, namespace, False, NAMED)
            self.waiting = left.waiting
            self._said = "".join(
                f"\n  {each['task']} (job {each['id']}): {each['error'] or 'there was no room for it'}"
                for each in left.items
            )
            return told
        except Exception as error:
            if not isinstance(error, StreamworkerError) and passing(error):
                raise unavailable(error) from error
            raise

    def note(self) -> str:
        """What a failed assertion should say of requests that are no jobs yet; else ''."""
        if self._ever and self._settings.postgres_dsn is None:
            return (
                "; there were calls of enqueue_in, and a drain finds their jobs only in a Postgres that it "
                "is told of: harness(app, postgres_dsn=...)"
            )
        if self._promised:
            calls = "1 call" if self._promised == 1 else f"{self._promised} calls"
            return (
                f"; {calls} of enqueue_in since the last drain: once the transaction has committed, "
                "`await t.drain()` makes it a job"
            )
        return self._said and f"; in the outbox:{self._said}"

    async def remove(self) -> None:
        """Delete the rows. One that Postgres does not let go stays, and a warning says so."""
        dsn, connection = self._settings.postgres_dsn, self._connection
        if dsn is None or not (self._ever or self.effects):
            return
        from streamworker.postgres.connection import connect, passing

        try:
            if connection is None or connection.is_closed():
                connection = await connect(dsn)
            async with connection.transaction():
                for name in TABLES:
                    await connection.execute(
                        f"DELETE FROM streamworker.{name} WHERE namespace = $1",  # noqa: S608
                        self._settings.namespace,
                    )
        except Exception as error:
            if not (isinstance(error, StreamworkerError) or passing(error)):
                raise
            log.warning("rows of namespace %s stay in Postgres: %s", self._settings.namespace, error)
        finally:
            self._connection = None
            if connection is not None:
                connection.terminate()


def migrate(dsn: str) -> None:
    """Bring the tables in a Postgres for tests up to date, as `streamworker mirror migrate` does.

    Blocks; for fixtures. Raises PostgresUnavailable, MigrationError, or ConfigurationError without asyncpg.
    """
    from streamworker.postgres.lookup import run_apart

    run_apart(_migrate(dsn))


async def _migrate(dsn: str) -> None:
    from streamworker.postgres.connection import connect
    from streamworker.postgres.migrate import migrate as apply

    connection = await connect(dsn)
    try:
        await apply(connection)
    finally:
        await connection.close()
