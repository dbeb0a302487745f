"""Each role can do its work with the rights that the documentation gives it, and nothing else."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import asyncpg
import pytest

from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.postgres import adopt, offsets, reconcile
from streamworker.postgres.batch import Batch
from streamworker.postgres.migrate import migrate
from streamworker.postgres.retention import prune
from streamworker.postgres.writer import Writer
from tests.postgres.conftest import fresh_database
from tests.postgres.journal import Journal, claimed, job_id
from tests.unit.documentation import text_of

ROLES = ("owner", "mirror", "reader", "app", "relay")


def documented() -> str:
    """The GRANTs of docs/how-to/postgres.md."""
    found = re.search(r"<!-- test: roles -->\s+```sql\n(.*?)```", text_of("how-to/postgres.md"), re.DOTALL)
    assert found
    return found[1]


class Roles:
    """A database of its own whose roles have exactly the rights that are documented."""

    def __init__(self, server: EmbeddedPostgres, database: str) -> None:
        self._server = server
        self._database = database

    def dsn(self, role: str) -> str:
        return self._server.dsn_of(f"streamworker_{role}", self._database)

    async def connect(self, role: str) -> asyncpg.Connection:
        return await asyncpg.connect(self.dsn(role))


@pytest.fixture
async def roles(each_postgres: EmbeddedPostgres) -> Roles:
    dsn = await fresh_database(each_postgres)
    database = urlsplit(dsn).path.lstrip("/")
    root = await asyncpg.connect(dsn)
    for role in ROLES:
        if not await root.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", f"streamworker_{role}"):
            await root.execute(f"CREATE ROLE streamworker_{role} LOGIN")
    own, rest = documented().replace("DATABASE shop", f"DATABASE {database}").split("-- the mirror\n")
    await root.execute(own)
    made = Roles(each_postgres, database)
    owner = await made.connect("owner")
    await migrate(owner)
    await owner.execute(rest)
    await owner.close()
    await root.close()
    return made


async def test_the_mirror_needs_no_more_than_its_rights(roles: Roles) -> None:
    import datetime

    sql = await roles.connect("mirror")
    offset = await offsets.begin(sql, "shop", 0, "marker")
    batch, journal = Batch(), Journal()
    job = job_id(1)
    for entry in (
        journal.enqueued(job, p1=b"{}"),
        journal.entry(claimed(job), audit=f"{job} 0 cancel_requested"),
        (b"1-0", [b"not", b"readable"]),
        journal.entry(claimed(job, fence=8)),
    ):
        batch.add(*entry)

    first = await Writer(sql, "m").write(batch, offset)
    again = await Writer(sql, "m").write(batch, first.offset)
    pruned = await prune(
        sql, "shop", keep=datetime.timedelta(days=1), now=datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    )

    assert (first.moves, first.refused, first.differing) == (2, 1, 1)
    assert again.differing == 1
    nil = "00000000-0000-0000-0000-000000000000"
    assert [row["id"] for row in await sql.fetch(adopt.TOLD, "shop", 0, nil, 10)] == [job]
    await sql.execute(adopt.MARK, [job])
    assert await sql.fetch(reconcile.WITH_EFFECTS, "shop", ["mail"]) == []
    assert (await offsets.turn_on(sql, again.offset)).on
    assert ([str(day) for day in pruned.days], pruned.actions) == (["2026-07-24"], 1)
    await sql.close()


REFUSED = [
    ("mirror", "CREATE TABLE streamworker.mine ()"),
    ("mirror", "DROP TABLE streamworker.jobs"),
    ("mirror", "DELETE FROM streamworker.job_transitions"),
    ("mirror", "UPDATE streamworker.job_transitions SET reason = ''"),
    ("mirror", "SELECT * FROM streamworker.outbox"),
    ("mirror", "SELECT result FROM streamworker.processed_operations"),
    ("reader", "UPDATE streamworker.jobs SET status = 'queued'"),
    ("reader", "SELECT streamworker.drop_days_before('2030-01-01')"),
    ("reader", "SELECT * FROM streamworker.processed_operations"),
    ("app", "SELECT * FROM streamworker.job_transitions"),
    ("app", "UPDATE streamworker.jobs SET status = 'queued'"),
    ("app", "DELETE FROM streamworker.outbox"),
    ("app", "SELECT streamworker.ensure_day('2030-01-01')"),
    ("relay", "INSERT INTO streamworker.outbox DEFAULT VALUES"),
    ("relay", "SELECT * FROM streamworker.processed_operations"),
    ("relay", "SELECT * FROM streamworker.job_transitions"),
]


async def test_nobody_can_do_more(roles: Roles) -> None:
    allowed = []
    for role, statement in REFUSED:
        sql = await roles.connect(role)
        try:
            await sql.execute(statement)
            allowed.append((role, statement))
        except asyncpg.InsufficientPrivilegeError:
            pass
        finally:
            await sql.close()

    assert allowed == []
