"""What Postgres has of one job: its row and its moves, long after Redis forgot them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from streamworker.core.errors import JobMissing, JobNotFound
from streamworker.core.states import TERMINAL, Status
from streamworker.postgres.adopt import UNSEEN
from streamworker.postgres.connection import connect, passing, unavailable
from streamworker.postgres.entries import Action
from streamworker.request import JobView
from streamworker.settings import Settings
from streamworker.store.events import Transition
from streamworker.store.watching import Ended

if TYPE_CHECKING:
    import asyncpg

T = TypeVar("T")

#: Keys that one question names.
_KEYS = 1_000

#: Why a job is missing of which Redis was told.
FORGOTTEN = (
    "a relay has told Redis of it, which has no record of it any more: it has ended, or was lost, and no "
    "mirror has read how"
)
_TIMES = ("enqueued_at", "due_at", "deadline_at", "started_at", "finished_at", "updated_at")
_MS = "(extract(epoch FROM {0}) * 1000)::bigint AS {0}"
JOB = f"""
SELECT id::text, task, lane, tenant, key, correlation_id, status, attempt, starts, strikes, epoch, version,
       fence, worker, reason, error_class, error_code, error, payload, result, key_id,
       {", ".join(_MS.format(each) for each in _TIMES)}
FROM streamworker.jobs WHERE id = $1::uuid AND namespace = $2
"""  # noqa: S608
MOVES = f"""
SELECT epoch, version, from_status, to_status, {_MS.format("at")}, attempt, starts, strikes, fence, reason,
       worker, script, error_class, error_code, error, {_MS.format("due_at")}, policy, facts
FROM streamworker.job_transitions WHERE job_id = $1::uuid ORDER BY version
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Remembered:
    """A job as Postgres has it. Times are ms since the epoch, by Redis's clock."""

    row: Mapping[str, Any]
    moves: tuple[Transition, ...] = ()
    #: Of one that no mirror has read of: whether a relay has told Redis of it. None: we may not know.
    told: bool | None = None

    @property
    def status(self) -> Status:
        return Status(self.row["status"])

    @property
    def in_outbox(self) -> bool:
        """It was committed with a producer's own data; as far as is known here, Redis has not been told."""
        return self._unread and not self.told

    @property
    def forgotten(self) -> bool:
        """Redis was told of it, and no mirror has read what came of it."""
        return self._unread and self.told is True

    @property
    def _unread(self) -> bool:
        return self.status is Status.QUEUED and self.row["version"] == 0 and not self.unseen

    @property
    def unseen(self) -> bool:
        """Its end came while the mirror was not on."""
        return self.status not in TERMINAL and self.row["reason"] == UNSEEN

    def ended(self) -> Ended:
        """The outcome of a job that is over."""
        row = self.row
        return Ended(
            self.status,
            row["result"] or b"",
            row["error_class"] or "",
            row["error_code"] or "",
            row["error"] or "",
        )

    def refuse_cancel(self) -> None:
        """It is over. Raises JobNotFound where that is still to come."""
        if self.in_outbox:
            raise JobNotFound(
                self.row["id"], "Redis has not been told of it: it waits in the outbox; cancel it once it has"
            )

    def view(self) -> JobView:
        """The same as the record would say."""
        row = self.row
        return JobView(
            id=row["id"],
            task=row["task"] or "",
            lane=row["lane"] or "",
            tenant=row["tenant"],
            status=self.status,
            attempt=row["attempt"],
            error_class=row["error_class"],
            error_code=row["error_code"],
            enqueued_at=row["enqueued_at"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
        )


COMPLETED = """
SELECT DISTINCT ON (key_id) key_id, id::text FROM streamworker.jobs
WHERE namespace = $1 AND status = 'succeeded' AND key_id = ANY($2::text[]) ORDER BY key_id, finished_at DESC
"""


async def completed_keys(settings: Settings, key_ids: Collection[str]) -> dict[str, str]:
    """Of these identities of keys, those under which a job succeeded, ever, with the newest such job.

    Raises PostgresUnavailable.
    """
    assert settings.postgres_dsn is not None
    wanted = sorted(key_ids)
    connection = await connect(settings.postgres_dsn, writes=False)
    try:
        rows = []
        for start in range(0, len(wanted), _KEYS):
            rows += await connection.fetch(COMPLETED, settings.namespace, wanted[start : start + _KEYS])
        return {row["key_id"]: row["id"] for row in rows}
    except Exception as error:
        if passing(error):
            raise unavailable(error) from error
        raise
    finally:
        await connection.close()


async def find(settings: Settings, job_id: str, *, moves: bool = True) -> Remembered | None:
    """The job with its moves; None when Postgres does not know it. Raises PostgresUnavailable.

    Makes a connection of its own: this is for the few questions that Redis cannot answer any more.
    """
    assert settings.postgres_dsn is not None
    connection = await connect(settings.postgres_dsn, writes=False)
    try:
        row = await connection.fetchrow(JOB, job_id, settings.namespace)
        if row is None:
            return None
        rows = await connection.fetch(MOVES, job_id) if moves else []
        found = Remembered(dict(row), tuple(_move(job_id, dict(each)) for each in rows))
        return replace(found, told=await _told(connection, job_id)) if found.in_outbox else found
    except Exception as error:
        if passing(error):
            raise unavailable(error) from error
        raise
    finally:
        await connection.close()


TOLD = """
SELECT NOT EXISTS (SELECT FROM streamworker.outbox WHERE job_id = $1::uuid AND published_at IS NULL)
"""


async def _told(connection: asyncpg.Connection, job_id: str) -> bool | None:
    """Whether a relay has told Redis of it; its request goes a week later. None without the right to know."""
    try:
        return bool(await connection.fetchval(TOLD, job_id))
    except Exception as error:
        if getattr(error, "sqlstate", None) != "42501":
            raise
        return None


ACTIONS = """
SELECT (extract(epoch FROM at) * 1000)::bigint AS at_ms, actor, action, subject, detail
FROM streamworker.operator_actions
WHERE namespace = $1 AND at >= to_timestamp($2::float8 / 1000) ORDER BY at, id
"""


async def actions_since(settings: Settings, since_ms: int) -> list[Action]:
    """What operators did from that moment on, as far as the mirror is. Raises PostgresUnavailable."""
    assert settings.postgres_dsn is not None
    connection = await connect(settings.postgres_dsn, writes=False)
    try:
        rows = await connection.fetch(ACTIONS, settings.namespace, since_ms)
        return [Action(*row) for row in rows]
    except Exception as error:
        if passing(error):
            raise unavailable(error) from error
        raise
    finally:
        await connection.close()


async def remember(settings: Settings, job_id: str) -> Remembered:
    """A job that is over, or waits in the outbox.

    Raises JobNotFound for one that never was, JobMissing for another one that is open.
    """
    found = await find(settings, job_id, moves=False)
    if found is None:
        raise JobNotFound(job_id, "it was never enqueued here, or is not in Postgres yet or any more")
    if found.unseen:
        raise JobNotFound(job_id, "it ended, or was lost, while the mirror was off: nobody knows its end")
    if found.forgotten:
        raise JobMissing(job_id, found.status, FORGOTTEN)
    if found.status not in TERMINAL and not found.in_outbox:
        raise JobMissing(job_id, found.status)
    return found


def run_apart(asking: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread and loop of its own, for callers that block theirs."""
    outcome: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(asking))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="streamworker-postgres")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]


def _move(job_id: str, row: dict[str, Any]) -> Transition:
    facts = dict(word.split("=", 1) for word in (row["facts"] or "").split(" ") if word)
    for name, column in (("class", "error_class"), ("code", "error_code"), ("policy", "policy")):
        if row[column] is not None:
            facts[name] = row[column]
    if row["due_at"] is not None:
        facts["due"] = str(row["due_at"])
    return Transition(
        job_id,
        row["epoch"],
        row["version"],
        None if row["from_status"] is None else Status(row["from_status"]),
        Status(row["to_status"]),
        row["at"],
        row["attempt"],
        row["fence"],
        row["reason"],
        row["worker"],
        row["script"],
        facts,
        row["starts"],
        row["strikes"],
        error=row["error"],
    )
