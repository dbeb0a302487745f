"""A mirror whose Postgres gives up on long statements gets there in smaller steps."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from streamworker.postgres import offsets, pipe
from streamworker.postgres.gauges import Gauges
from streamworker.postgres.pipe import Pipe
from tests.postgres.journal import Journal, job_id

ENTRIES = 32
#: Of a row of `jobs` 10 ms, of a statement 200: 32 rows take too long together.
SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE INSERT ON streamworker.jobs FOR EACH ROW EXECUTE FUNCTION slow();
SET statement_timeout = '200ms';
"""


class Entries:
    """A log in memory."""

    def __init__(self) -> None:
        journal = Journal()
        self.left = [journal.enqueued(job_id(number)) for number in range(ENTRIES)]

    async def read(self, after: str, count: int, **_: object) -> list[tuple[bytes, list[bytes]]]:
        names = [entry_id.decode() for entry_id, _ in self.left]
        first = names.index(after) + 1 if after in names else 0
        return self.left[first : first + count]

    async def remove(self, read: list[tuple[str, int]]) -> None:
        del self.left[: len(read)]


async def test_what_takes_too_long_is_written_in_smaller_batches(
    sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "BATCH_ENTRIES", ENTRIES)
    offset = await offsets.begin(sql, "shop", 0, "marker")
    await sql.execute(SLOW)
    source: Any = Entries()
    way = Pipe(source, sql, offset, "m", Gauges())

    gave_up = 0
    while source.left:
        try:
            await way.commit(await way.gather(wait=False))
        except asyncpg.QueryCanceledError:  # the mirror comes again with a new connection
            gave_up += 1
            assert gave_up < 8, "it comes with the same again and again"

    assert gave_up > 0
    assert await sql.fetchval("SELECT count(*) FROM streamworker.jobs") == ENTRIES
