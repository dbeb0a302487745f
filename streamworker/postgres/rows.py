"""The statements of the mirror, and their columns. Rows travel as one array a column, through `unnest`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from streamworker.postgres.folding import JobRow, error_text
from streamworker.store.events import Transition


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, and where the value comes from."""

    name: str
    type: str  # of an array's element, as sent
    source: str = ""  # attribute of the row, by default the name
    update: str = "excluded.{c}"  # what a newer row makes of it

    @property
    def attribute(self) -> str:
        return self.source or self.name

    @property
    def expression(self) -> str:
        """The value in SQL, from the array's element."""
        if self.type == "ms":
            return f"to_timestamp(u.{self.name}::float8 / 1000)"
        return f"u.{self.name}::jsonb" if self.type == "json" else f"u.{self.name}"

    @property
    def array(self) -> str:
        return {"ms": "bigint", "json": "text"}.get(self.type, self.type)


#: What the enqueue told once stays; what a later move tells replaces what was there.
_FACT, _GAINED = "coalesce(j.{c}, excluded.{c})", "coalesce(excluded.{c}, j.{c})"
#: A success has no error; a new epoch begins without.
_ERROR = (
    "CASE WHEN excluded.status = 'succeeded' THEN NULL WHEN excluded.error_code IS NOT NULL "
    "OR excluded.epoch > j.epoch THEN excluded.{c} ELSE j.{c} END"
)
_OF_EPOCH = "coalesce(excluded.{c}, CASE WHEN excluded.epoch = j.epoch THEN j.{c} END)"

JOB_COLUMNS = (
    Column("id", "uuid"),
    Column("shard", "smallint", update=_FACT),
    Column("task", "text", update=_FACT),
    Column("lane", "text", update=_GAINED),
    Column("tenant", "text", update=_FACT),
    Column("key", "text", update=_FACT),
    Column("correlation_id", "text", update=_FACT),
    Column("status", "text"),
    Column("attempt", "integer"),
    Column("starts", "integer"),
    Column("strikes", "integer"),
    Column("epoch", "integer"),
    Column("version", "integer"),
    Column("fence", "bigint"),
    Column("worker", "text", update=_GAINED),
    Column("reason", "text"),
    Column("error_class", "text", update=_ERROR),
    Column("error_code", "text", update=_ERROR),
    Column("error", "text", update=_ERROR),
    Column("payload", "bytea", update=_FACT),
    Column("payload_json", "json", update=_FACT),
    Column("result", "bytea", update=_OF_EPOCH),
    Column("result_json", "json", update=_OF_EPOCH),
    Column("record", "text", update=_FACT),
    Column("key_id", "text", update=_FACT),
    Column("fingerprint", "text", update=_FACT),
    Column("key_window_ms", "bigint", update=_FACT),
    Column("enqueued_at", "ms", "enqueued_ms", _FACT),
    Column("due_at", "ms", "due_ms"),
    Column("deadline_at", "ms", "deadline_ms", _OF_EPOCH),
    Column("started_at", "ms", "started_ms", _OF_EPOCH),
    Column("finished_at", "ms", "finished_ms"),
    Column("updated_at", "ms", "updated_ms"),
)

#: Of a job that is older here than in the table: what its enqueue told, where that is missing.
FILLED = ("id", "task", "lane", "tenant", "key", "correlation_id", "payload", "payload_json", "record",
          "key_id", "fingerprint", "key_window_ms", "enqueued_at", "deadline_at")  # fmt: skip


def _names(columns: Iterable[Column]) -> str:
    return ", ".join(each.name for each in columns)


def _unnest(columns: Sequence[Column], first: int) -> str:
    arrays = ", ".join(f"${number}::{each.array}[]" for number, each in enumerate(columns, first))
    return f"unnest({arrays}) AS u({_names(columns)})"


def _values(columns: Iterable[Column]) -> str:
    return ", ".join(each.expression for each in columns)


#: Inserts or moves on one row for each job; $1 is the namespace. Nothing moves back (R45).
UPSERT_JOBS = f"""
INSERT INTO streamworker.jobs AS j (namespace, {_names(JOB_COLUMNS)})
SELECT $1, {_values(JOB_COLUMNS)} FROM {_unnest(JOB_COLUMNS, 2)} ORDER BY u.id
ON CONFLICT (id) DO UPDATE SET
    {", ".join(f"{each.name} = {each.update.format(c=each.name)}" for each in JOB_COLUMNS if each.name != "id")}
WHERE j.namespace = excluded.namespace
  AND (excluded.epoch, excluded.version) > (j.epoch, j.version)
"""  # noqa: S608, E501

_FILL_COLUMNS = tuple(each for each in JOB_COLUMNS if each.name in FILLED)
FILL_JOBS = f"""
UPDATE streamworker.jobs j SET
    {", ".join(f"{each.name} = coalesce(j.{each.name}, {each.expression})" for each in _FILL_COLUMNS[1:])}
FROM {_unnest(_FILL_COLUMNS, 2)} WHERE j.id = u.id AND j.namespace = $1
"""  # noqa: S608


class MoveRow(NamedTuple):
    """A row of `job_transitions`; a tuple, since a frozen dataclass takes four times as long to make."""

    job_id: str
    epoch: int
    version: int
    from_status: str | None
    to_status: str
    at_ms: int
    attempt: int
    starts: int
    strikes: int
    fence: int
    reason: str
    worker: str | None
    script: str
    error_class: str | None = None
    error_code: str | None = None
    error: str | None = None
    due_ms: int | None = None
    policy: str | None = None
    facts: str | None = None

    @classmethod
    def of(cls, move: Transition, error: bytes | None) -> MoveRow:
        source = move.from_status
        plain = (
            move.job_id,
            move.epoch,
            move.version,
            None if source is None else source._value_,
            move.to_status._value_,
            move.at_ms,
            move.attempt,
            move.starts,
            move.strikes,
            move.fence,
            move.reason,
            move.worker,
            move.script,
        )
        if not move.facts:
            return cls(*plain)
        facts = dict(move.facts)
        due = facts.pop("due", None)
        return cls(
            *plain,
            facts.pop("class", None),
            code := facts.pop("code", None),
            error_text(error) if error and code else None,
            None if due is None else int(due),
            facts.pop("policy", None),
            " ".join([f"{name}={value}" for name, value in facts.items()]) or None,
        )


#: Columns of `job_transitions` as `move_records` gives them.
MOVE_COLUMNS = (
    *("day", "job_id", "epoch", "version", "from_status", "to_status", "at", "attempt", "starts", "strikes"),
    *(
        "fence",
        "reason",
        "worker",
        "script",
        "error_class",
        "error_code",
        "error",
        "due_at",
        "policy",
        "facts",
    ),
)

#: What makes two rows of one identity the same move.
IDENTITY = ("job_id", "epoch", "version")
CONTENT = ("from_status", "to_status", "at_ms", "attempt", "fence", "reason", "worker", "error_code")
STORED_MOVES = """
SELECT job_id::text, epoch, version, from_status, to_status,
       (extract(epoch FROM at) * 1000)::bigint AS at_ms, attempt, fence, reason, worker, error_code
FROM streamworker.job_transitions WHERE job_id = ANY($1::uuid[])
"""
KNOWN_JOBS = "SELECT id::text, epoch, version, status FROM streamworker.jobs WHERE id = ANY($1::uuid[])"

#: A move that contradicts what is known.
KEEP_ASIDE = """
INSERT INTO streamworker.mirror_conflicts (namespace, shard, job_id, epoch, version, at, entry, move)
VALUES ($1, $2, $3, $4, $5, to_timestamp($6::float8 / 1000), $7, $8) ON CONFLICT DO NOTHING
"""
#: What could not be taken.
REFUSE = """
INSERT INTO streamworker.mirror_refused (namespace, shard, entry, job_id, data, sqlstate, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
#: What an operator did.
ACT = """
INSERT INTO streamworker.operator_actions (namespace, shard, at, actor, action, subject, detail)
VALUES ($1, $2, to_timestamp($3::float8 / 1000), $4, $5, $6, $7) ON CONFLICT DO NOTHING
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_job_values = attrgetter(*(each.attribute for each in JOB_COLUMNS))
_fill_values = attrgetter(*(each.attribute for each in _FILL_COLUMNS))
content_of = attrgetter(*CONTENT)
identity_of = attrgetter(*IDENTITY)


def job_arrays(rows: Iterable[JobRow]) -> list[Sequence[Any]]:
    """The arguments of UPSERT_JOBS after the namespace."""
    return list(zip(*map(_job_values, rows), strict=True))


def fill_arrays(rows: Iterable[JobRow]) -> list[Sequence[Any]]:
    """The arguments of FILL_JOBS after the namespace."""
    return list(zip(*map(_fill_values, rows), strict=True))


def move_records(rows: Iterable[MoveRow]) -> list[tuple[Any, ...]]:
    """Rows of `job_transitions` for COPY. With arrays, asyncpg asks of each element whether it is an array.

    Many rows share their moment, which is made once.
    """
    moments: dict[int, datetime] = {}
    records = []
    for row in rows:
        at = moments.get(row.at_ms)
        if at is None:
            at = moments[row.at_ms] = moment(row.at_ms)
        due = moment(row.due_ms) if row.due_ms is not None else None
        records.append((at.date(), *row[:5], at, *row[6:16], due, *row[17:]))
    return records


def moment(ms: int) -> datetime:
    """A time in ms since the epoch. Raises OverflowError beyond the year 9999."""
    return _EPOCH + timedelta(milliseconds=ms)
