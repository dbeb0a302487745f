"""What is too old to be kept: whole days of transitions, and jobs that ended before them."""

from __future__ import annotations

import datetime
import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamworker.core.ids import RANDOM_BYTES, new_job_id
from streamworker.core.states import QUIET_CODES
from streamworker.postgres.adopt import UNSEEN
from streamworker.postgres.letters import OLDEST

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger("streamworker.mirror")

#: Rows of `jobs` that one statement deletes.
CHUNK = 1000
#: SQLSTATE of a lock that was not to be had in time: somebody reads the table, such as pg_dump.
_LOCKED = "55P03"
#: Classes of SQLSTATE that the jobs need not wait for: rights that are missing, or somebody's view of a day.
_OF_DAYS = ("2B", "42")

#: Dead letters of which nobody has decided stay as long as Redis has them, by default: else they would not
#: come back after a loss, and one that is replayed would be a job without task, lane or key.
_KEPT = """
status = 'failed_terminal' AND finished_at >= $6 AND error_code <> ALL($7::text[]) AND NOT EXISTS (
    SELECT FROM streamworker.operator_actions a
    WHERE a.subject = jobs.id::text AND a.action = 'discarded' AND a.detail = 'epoch ' || jobs.epoch)
"""
#: Goes on where the last one ended: what that deleted is looked through again until it is vacuumed.
DELETE_JOBS = f"""
WITH gone AS (
    DELETE FROM streamworker.jobs WHERE id IN (
        SELECT id FROM streamworker.jobs
        WHERE namespace = $1 AND id > $5::uuid AND id < $2::uuid AND (
            finished_at < $3 AND status IN ('succeeded', 'failed_terminal') AND ({_KEPT}) IS NOT TRUE
            OR reason = '{UNSEEN}' AND updated_at < $3 AND status NOT IN ('succeeded', 'failed_terminal'))
        ORDER BY id LIMIT $4) RETURNING id
)
SELECT (SELECT count(*) FROM gone), (SELECT id::text FROM gone ORDER BY id DESC LIMIT 1)
"""  # noqa: S608
#: Words about jobs: each cancel is one, whoever asks for it. What was set holds on, however old.
DELETE_ACTIONS = """
WITH gone AS (
    DELETE FROM streamworker.operator_actions WHERE id IN (
        SELECT id FROM streamworker.operator_actions
        WHERE namespace = $1 AND at < $2 AND subject ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7' ORDER BY at LIMIT $3)
    RETURNING id
)
SELECT count(*) FROM gone
"""
#: What was kept aside for somebody to look at.
_ASIDE = """
WITH gone AS (
    DELETE FROM streamworker.{table} WHERE id IN (
        SELECT id FROM streamworker.{table} WHERE namespace = $1 AND {since} < $2 ORDER BY id LIMIT $3)
    RETURNING id
)
SELECT count(*) FROM gone
"""
DELETE_CONFLICTS = _ASIDE.format(table="mirror_conflicts", since="noticed_at")
DELETE_REFUSED = _ASIDE.format(table="mirror_refused", since="refused_at")
#: Before the first job.
BEGINNING = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went."""

    days: tuple[datetime.date, ...]
    jobs: int
    reached: str = BEGINNING  # time was up: the next call goes on after that job
    actions: int = 0
    conflicts: int = 0  # moves that were kept aside
    refused: int = 0  # what could not be stored
    words_left: bool = False  # time was up before they were gone

    @property
    def more(self) -> bool:
        return self.reached != BEGINNING or self.words_left


async def prune(
    connection: asyncpg.Connection,
    namespace: str,
    *,
    keep: datetime.timedelta,
    now: datetime.datetime,
    seconds: float = math.inf,
    after: str = BEGINNING,
) -> Pruned:
    """Drop the days before `now - keep`, of all namespaces, and this one's jobs that ended before, with what
    operators did to them, and what was kept aside before.

    They go until there are no more, or for about so many seconds. Days that somebody reads stay for now.
    """
    before, until = now - keep, time.monotonic() + seconds
    days = await _drop_days(connection, before.date())
    oldest = new_job_id(now_ms=max(0, int(before.timestamp() * 1000)), random=bytes(RANDOM_BYTES))
    jobs = 0
    while True:
        values = namespace, oldest, before, CHUNK, after, now - OLDEST, list(QUIET_CODES)
        row = await connection.fetchrow(DELETE_JOBS, *values)
        assert row is not None
        deleted, last = row
        jobs += deleted
        if deleted < CHUNK:
            gone = [
                await _delete(connection, what, statement, namespace, end, until)
                for what, statement, end in (
                    ("what operators did to jobs", DELETE_ACTIONS, min(before, now - OLDEST)),
                    ("what contradicted what was known", DELETE_CONFLICTS, before),
                    ("what could not be stored", DELETE_REFUSED, before),
                )
            ]
            (actions, _), (conflicts, _), (refused, _) = gone
            left = any(more for _, more in gone)
            return Pruned(days, jobs, actions=actions, conflicts=conflicts, refused=refused, words_left=left)
        after = last
        if time.monotonic() >= until:
            return Pruned(days, jobs, after)


async def _delete(
    connection: asyncpg.Connection,
    what: str,
    statement: str,
    namespace: str,
    before: datetime.datetime,
    until: float,
) -> tuple[int, bool]:
    """How many went, and whether time was up. They stay where the right is missing: it came later."""
    gone = 0
    while True:
        try:
            deleted = await connection.fetchval(statement, namespace, before, CHUNK)
        except Exception as error:
            if getattr(error, "sqlstate", None) != "42501":
                raise
            log.warning("%s before %s stays: %s", what, before.date(), error)
            return gone, False
        gone += deleted
        if deleted < CHUNK:
            return gone, False
        if time.monotonic() >= until:
            return gone, True


async def _drop_days(connection: asyncpg.Connection, before: datetime.date) -> tuple[datetime.date, ...]:
    try:
        rows = await connection.fetch("SELECT streamworker.drop_days_before($1) AS day", before)
    except Exception as error:
        state = getattr(error, "sqlstate", None) or ""
        if state != _LOCKED and not state.startswith(_OF_DAYS):
            raise
        log.warning("the days of transitions before %s stay for now: %s (%s)", before, error, state)
        return ()
    return tuple(row["day"] for row in rows)
