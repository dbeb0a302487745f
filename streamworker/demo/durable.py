"""The demo's durable record: a mirror in the demo's own loop, and what Postgres has in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from streamworker.core.states import Status
from streamworker.demo.ledger import Compared, Ledger
from streamworker.embedded import EmbeddedServerError
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.postgres import connection, migrate
from streamworker.postgres.batch import Batch
from streamworker.postgres.gauges import State
from streamworker.postgres.mirror import Mirror
from streamworker.settings import Settings

#: Seconds until the mirror is on, and until it has read all at the end.
START_SECONDS, END_SECONDS = 20.0, 10.0
LOOK_EVERY = 0.02


@contextmanager
def embedded(told: list[str]) -> Iterator[str | None]:
    """Where a Postgres answers that goes with the block; None, and a word why, where there can be none."""
    server = EmbeddedPostgres()
    dsn = None
    try:
        import asyncpg  # noqa: F401

        dsn = server.start().dsn
    except (EmbeddedServerError, ImportError, OSError) as error:
        told.append(f"without Postgres: {str(error).splitlines()[0]}")
    try:
        yield dsn
    finally:
        server.stop()


class Durable:
    """Mirrors the demo's log, and tells the ledger of all that it has committed."""

    def __init__(self, settings: Settings, dsn: str, ledger: Ledger) -> None:
        self._dsn = dsn
        self._ledger = ledger
        self._noted: set[tuple[str, int]] = set()
        self._mirror = Mirror(settings, dsn, "demo", on_commit=self._note)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> bool:
        """Make the schema and mirror from now on; whether that works."""
        link = await connection.connect(self._dsn)
        try:
            await migrate.migrate(link)
        finally:
            await link.close()
        self._task = asyncio.create_task(self._mirror.run())
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                while self._mirror.gauges.state is not State.MIRRORING:  # noqa: ASYNC110 - told to no event
                    await asyncio.sleep(LOOK_EVERY)
            return True
        return False

    def _note(self, batch: Batch) -> None:
        for entry in batch.entries:
            for move in entry.moves:
                if (move.job_id, move.version) not in self._noted:  # an entry may be read again
                    self._noted.add((move.job_id, move.version))
                    self._ledger.note(move)

    async def close(self) -> None:
        """Finish the batch under way and end."""
        self._mirror.stop()
        if self._task is not None:
            await self._task

    async def compare(self, statuses: Mapping[str, Status | None]) -> Compared:
        """What Postgres has, and what it has otherwise than Redis's records and the log."""
        link = await connection.connect(self._dsn)
        try:
            jobs = {
                row["id"]: row["status"]
                for row in await link.fetch("SELECT id::text, status FROM streamworker.jobs")
            }
            moves = await link.fetchval("SELECT count(*) FROM streamworker.job_transitions")
        finally:
            await link.close()
        wrong = [job_id for job_id, status in statuses.items() if jobs.get(job_id) != status]
        found: list[str] = []
        if wrong:
            found.append(f"otherwise in Postgres: {len(wrong)} ({', '.join(sorted(wrong)[:3])})")
        if moves != len(self._noted):
            found.append(f"moves in Postgres: {moves}, in the log: {len(self._noted)}")
        return Compared(f"{len(jobs)} jobs and {moves} moves in Postgres", tuple(found))
