"""The statements of the mirror, and the rows that it writes.

New rows go in by COPY, which costs Postgres less than half of an upsert; only jobs that it has already are
updated, from one array a column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from struct import Struct
from typing import Any

from streamworker.postgres import copying
from streamworker.postgres.batch import Step
from streamworker.postgres.copying import NULL
from streamworker.postgres.folding import JobRow, error_text
from streamworker.store.events import Transition

# --- jobs


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `jobs`, and where the value comes from."""

    name: str
    type: str  # of an array's element, `ms` for a time; `word`: a text of which there are few
    source: str = ""  # attribute of the row, by default the name
    update: str = "{u}"  # what a newer row {u} makes of what is there {j}

    @property
    def attribute(self) -> str:
        return self.source or self.name

    @property
    def expression(self) -> str:
        """The value in SQL, from the array's element."""
        if self.type == "ms":
            return _moment(f"u.{self.name}")
        return f"convert_from(u.{self.name}, 'UTF8')::jsonb" if self.type == "json" else f"u.{self.name}"

    @property
    def array(self) -> str:
        return {"ms": "bigint", "json": "bytea", "word": "text"}.get(self.type, self.type)

    @property
    def assignment(self) -> str:
        return f"{self.name} = {self.update.format(u=self.expression, j=f'j.{self.name}')}"


#: What the enqueue told once stays; what a later move tells replaces what was there.
_FACT, _GAINED = "coalesce({j}, {u})", "coalesce({u}, {j})"
#: A success has no error; a new epoch begins without.
_ERROR = (
    "CASE WHEN u.status = 'succeeded' THEN NULL WHEN u.error_code IS NOT NULL OR u.epoch > j.epoch "
    "THEN {u} ELSE {j} END"
)
_OF_EPOCH = "coalesce({u}, CASE WHEN u.epoch = j.epoch THEN {j} END)"

_ID = Column("id", "uuid")
#: What each row has, of a size that is always the same.
_FIXED = (
    Column("attempt", "integer"),
    Column("starts", "integer"),
    Column("strikes", "integer"),
    Column("epoch", "integer"),
    Column("version", "integer"),
    Column("fence", "bigint"),
    Column("updated_at", "ms", "updated_ms"),
)
#: What moves change.
_MOVING = (
    Column("lane", "word", update=_GAINED),
    Column("status", "word"),
    Column("worker", "word", update=_GAINED),
    Column("reason", "word"),
    Column("error_class", "word", update=_ERROR),
    Column("error_code", "word", update=_ERROR),
    Column("error", "text", update=_ERROR),
    Column("result", "bytea", update=_OF_EPOCH),
    Column("result_json", "json", update=_OF_EPOCH),
    Column("due_at", "ms", "due_ms"),
    Column("started_at", "ms", "started_ms", _OF_EPOCH),
    Column("finished_at", "ms", "finished_ms"),
)
_DEADLINE = Column("deadline_at", "ms", "deadline_ms", _OF_EPOCH)
#: What only the enqueue tells.
_TOLD = (
    Column("task", "word", update=_FACT),
    Column("tenant", "word", update=_FACT),
    Column("key", "text", update=_FACT),
    Column("correlation_id", "text", update=_FACT),
    Column("payload", "bytea", update=_FACT),
    Column("payload_json", "json", update=_FACT),
    Column("record", "text", update=_FACT),
    Column("key_id", "text", update=_FACT),
    Column("fingerprint", "text", update=_FACT),
    Column("key_window_ms", "bigint", update=_FACT),
    Column("enqueued_at", "ms", "enqueued_ms", _FACT),
)
_UPDATED = (_ID, *_FIXED, *_MOVING, _DEADLINE)
_FILLED = (
    _ID,
    *_TOLD,
    Column("lane", "word", update=_FACT),
    Column("deadline_at", "ms", "deadline_ms", _FACT),
)
_MORE = (*_MOVING, _DEADLINE, *_TOLD)
_WORDS = tuple(each for each in _MORE if each.type == "word")
_REST = tuple(each for each in _MORE if each.type != "word")


def _from_arrays(columns: Sequence[Column], first: int) -> str:
    arrays = ", ".join(f"${number}::{each.array}[]" for number, each in enumerate(columns, first))
    return f"unnest({arrays}) AS u({', '.join(each.name for each in columns)})"


def _moment(ms: str) -> str:
    return f"to_timestamp({ms}::float8 / 1000)"


def _assignments(columns: Iterable[Column]) -> str:
    return ", ".join(each.assignment for each in columns)


#: Moves on rows that are there; $1 is the namespace. Nothing moves back (R45).
UPDATE_JOBS = f"""
UPDATE streamworker.jobs j SET {_assignments(_UPDATED[1:])}
FROM {_from_arrays(_UPDATED, 2)}
WHERE j.id = u.id AND j.namespace = $1 AND (u.epoch, u.version) > (j.epoch, j.version)
"""  # noqa: S608
#: The envelope of what was merged or replayed; before its version moves on.
_CARRIED = (_ID, *(each for each in _FIXED if each.name in ("epoch", "version")),
            Column("payload", "bytea"), Column("payload_json", "json"))  # fmt: skip
CARRY_JOBS = f"""
UPDATE streamworker.jobs j SET {_assignments(_CARRIED[3:])}
FROM {_from_arrays(_CARRIED, 2)}
WHERE j.id = u.id AND j.namespace = $1 AND (u.epoch, u.version) > (j.epoch, j.version)
"""  # noqa: S608
#: What their enqueue told, where that is missing.
FILL_JOBS = f"""
UPDATE streamworker.jobs j SET {_assignments(_FILLED[1:])}
FROM {_from_arrays(_FILLED, 2)} WHERE j.id = u.id AND j.namespace = $1
"""  # noqa: S608

#: Moves of jobs that stand as the lines of the log say: `u` is one of them, `w` what many have in common. The
#: ids come as one text with commas between, as in KNOWN_JOBS. Each job is looked up by its id: `n` compared
#: thrice makes the planner expect few rows, and `|| ''` keeps it from `jobs_open`. It often knows nothing of
#: how many are open, and would read all of them for each batch.
UPDATE_ORDINARY = f"""
UPDATE streamworker.jobs j SET
    attempt = w.attempt, starts = w.starts, strikes = w.strikes, version = w.version, fence = u.fence,
    status = w.status, reason = w.reason, worker = w.worker, due_at = NULL,
    updated_at = {_moment("coalesce(u.updated, w.updated)")},
    started_at = coalesce({_moment("coalesce(u.started, w.started)")}, j.started_at),
    finished_at = CASE WHEN w.status = 'succeeded' THEN {_moment("coalesce(u.updated, w.updated)")} END,
    error_class = CASE WHEN w.status <> 'succeeded' THEN j.error_class END,
    error_code = CASE WHEN w.status <> 'succeeded' THEN j.error_code END,
    error = CASE WHEN w.status <> 'succeeded' THEN j.error END,
    result = coalesce(u.result, j.result),
    result_json = coalesce(convert_from(u.result_json, 'UTF8')::jsonb, j.result_json)
FROM unnest(string_to_array($2, ','), $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bytea[],
            $8::integer[]) AS u(id, fence, updated, started, result, result_json, n)
JOIN unnest($9::integer[], $10::integer[], $11::integer[], $12::integer[], $13::integer[], $14::integer[],
            $15::text[], $16::text[], $17::text[], $18::bigint[], $19::bigint[]) WITH ORDINALITY
    AS w(before, epoch, version, attempt, starts, strikes, status, reason, worker, updated, started, n)
    ON w.n = u.n AND w.n + 0 = u.n + 0 AND w.n + 1 = u.n + 1
WHERE j.id = u.id::uuid AND j.namespace = $1 AND j.epoch = w.epoch AND j.version = w.before
  AND j.status || '' NOT IN ('succeeded', 'failed_terminal')
"""  # noqa: S608

_updated_values = attrgetter(*(each.attribute for each in _UPDATED))
_carried_values = attrgetter(*(each.attribute for each in _CARRIED))
_filled_values = attrgetter(*(each.attribute for each in _FILLED))


def updated_arrays(rows: Iterable[JobRow]) -> list[Sequence[Any] | None]:
    """The arguments of UPDATE_JOBS after the namespace."""
    return _arrays(map(_updated_values, rows))


def carried_arrays(rows: Iterable[JobRow]) -> list[Sequence[Any] | None]:
    """The arguments of CARRY_JOBS after the namespace."""
    return _arrays(map(_carried_values, rows))


def filled_arrays(rows: Iterable[JobRow]) -> list[Sequence[Any] | None]:
    """The arguments of FILL_JOBS after the namespace."""
    return _arrays(map(_filled_values, rows))


def _arrays(values: Iterable[tuple[Any, ...]]) -> list[Sequence[Any] | None]:
    """One a column; None for a column of NULLs, which `unnest` then makes, and it is most of them."""
    columns = zip(*values, strict=True)
    return [None if column.count(None) == len(column) else column for column in columns]


#: Columns of `jobs` as `job_rows` gives them: first what many rows have in common, then of whom and when.
_SHARED = tuple(each for each in _FIXED if each.type == "integer")
_TIMES = ("updated_at", "enqueued_at", "started_at", "finished_at")
_OTHERS = tuple(each for each in _REST if each.name not in _TIMES)
JOB_COLUMNS = (
    *("namespace", *(each.name for each in (*_SHARED, *_WORDS))),
    *("id", "shard", "fence", *_TIMES),
    *(each.name for each in _OTHERS),
)
_FORM: dict[str, Callable[[Any], bytes]] = {
    "text": copying.text,
    "bytea": copying.data,
    "json": copying.json,
    "ms": copying.moment,
    "bigint": copying.number,
}
_FORMS = tuple(_FORM[each.type] for each in _OTHERS)
_shared_of = attrgetter(*(each.attribute for each in (*_SHARED, *_WORDS)))
_other_values = attrgetter(*(each.attribute for each in _OTHERS))
_counts = Struct(">ii ii ii ii ii").pack
_job_identity = Struct(">i16s ih iq").pack


def shared_columns(namespace: bytes, numbers: Sequence[int], words: Sequence[str | None]) -> bytes:
    """The beginning of a row of `jobs`. Raises struct.error for a number that is out of range."""
    attempt, starts, strikes, epoch, version = numbers
    counts = _counts(4, attempt, 4, starts, 4, strikes, 4, epoch, 4, version)
    return copying.row_of(len(JOB_COLUMNS)) + namespace + counts + b"".join(map(copying.text, words))


def identity_columns(identity: bytes, shard: int, fence: int) -> bytes:
    """What follows: whose row it is."""
    return _job_identity(16, identity, 2, shard, 8, fence)


def job_rows(namespace: str, rows: Iterable[JobRow]) -> Iterator[bytes]:
    """Rows of `jobs` for COPY. Raises struct.error for a number that is out of range."""
    said: dict[tuple[Any, ...], bytes] = {}
    space, moment = copying.text(namespace), copying.moment
    for row in rows:
        shared = _shared_of(row)
        head = said.get(shared)
        if head is None:
            head = said[shared] = shared_columns(space, shared[:5], shared[5:])
        rest = [make(value) for make, value in zip(_FORMS, _other_values(row), strict=True)]
        yield b"".join(
            (
                head,
                identity_columns(copying.identity(row.id), row.shard, row.fence),
                moment(row.updated_ms),
                moment(row.enqueued_ms),
                moment(row.started_ms),
                moment(row.finished_ms),
                *rest,
            )
        )


# --- moves

#: Columns of `job_transitions` as `move_rows` gives them: first what many moves have in common, then when and
#: whose, then what only some have.
PLAIN_MOVE_COLUMNS = (
    *("epoch", "version", "attempt", "starts", "strikes"),
    *("from_status", "to_status", "reason", "worker", "script", "facts"),
    *("day", "at", "job_id", "fence"),
)
MOVE_COLUMNS = (*PLAIN_MOVE_COLUMNS, "error_class", "error_code", "error", "due_at", "policy")
_day = Struct(">ii iq").pack
_owner = Struct(">i16s iq").pack
_NO_ERROR = NULL * 5


def shared_move(
    columns: int, numbers: Sequence[int], words: Sequence[str | None], facts: Mapping[str, str]
) -> bytes:
    """The beginning of a row of `job_transitions`. Raises struct.error for a number that is out of range."""
    epoch, version, attempt, starts, strikes = numbers
    counts = _counts(4, epoch, 4, version, 4, attempt, 4, starts, 4, strikes)
    said = " ".join([f"{name}={value}" for name, value in facts.items() if name not in _OF_ERROR]) or None
    return copying.row_of(columns) + counts + b"".join(map(copying.text, (*words, said)))


def when(ms: int) -> bytes:
    """What follows: the day and the moment. Raises OverflowError as `copying.moment`."""
    return _day(4, copying.day(ms), 8, copying.micros(ms))


def whose(identity: bytes, fence: int) -> bytes:
    """What follows: the job, and by which claim."""
    return _owner(16, identity, 8, fence)


def move_rows(steps: Iterable[Step]) -> Iterator[bytes]:
    """Rows of `job_transitions` for COPY. Raises struct.error for a number that is out of range."""
    count = len(MOVE_COLUMNS)
    said: dict[tuple[Any, ...], bytes] = {}
    moments: dict[int, bytes] = {}  # many share their moment
    last, identity = "", b""
    for move, parts, _ in steps:
        (job_id, epoch, version, source, target, at_ms, attempt, fence, reason, worker, script, facts,
         starts, strikes, *_) = move  # fmt: skip
        if job_id != last:
            last, identity = job_id, copying.identity(job_id)
        moment = moments.get(at_ms)
        if moment is None:
            moment = moments[at_ms] = when(at_ms)
        numbers, words = (epoch, version, attempt, starts, strikes), (source, target, reason, worker, script)
        if facts:
            yield shared_move(count, numbers, words, facts) + moment + whose(identity, fence)
            yield _error(facts, parts.get("x"))
            continue
        head = said.get((numbers, words))
        if head is None:
            head = said[numbers, words] = shared_move(count, numbers, words, facts)
        yield head + moment + whose(identity, fence) + _NO_ERROR


#: Facts with columns of their own.
_OF_ERROR = frozenset({"class", "code", "due", "policy"})


def _error(facts: Mapping[str, str], error: bytes | None) -> bytes:
    due, code = facts.get("due"), facts.get("code")
    return b"".join(
        (
            copying.text(facts.get("class")),
            copying.text(code),
            copying.text(error_text(error) if error and code else None),
            copying.moment(None if due is None else int(due)),
            copying.text(facts.get("policy")),
        )
    )


# --- what is known

#: $1 is the ids with commas between: asyncpg takes far longer to make an array.
KNOWN_JOBS = """
SELECT j.id::text, j.epoch, j.version, j.status
FROM unnest($1::text::uuid[]) AS u(id)
CROSS JOIN LATERAL (SELECT * FROM streamworker.jobs WHERE id = u.id LIMIT 1) AS j
"""
STORED_MOVES = """
SELECT job_id::text, epoch, version, from_status, to_status,
       (extract(epoch FROM at) * 1000)::bigint AS at_ms, attempt, fence, reason, worker, error_code
FROM streamworker.job_transitions WHERE job_id = ANY($1::uuid[])
"""

#: What makes two moves the same: their identity, and what is then compared.
identity_of = attrgetter("job_id", "epoch", "version")
Content = tuple[str | None, str, int, int, int, str, str | None, str | None]


def content_of(move: Transition) -> Content:
    """What STORED_MOVES has of a move after its identity."""
    return (
        move.from_status,
        move.to_status,
        move.at_ms,
        move.attempt,
        move.fence,
        move.reason,
        move.worker,
        move.facts.get("code"),
    )


# --- what is kept aside

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
#: A job that waited is due now, which is no move. What moved since waits for a time of its own.
HASTEN = """
UPDATE streamworker.jobs SET due_at = to_timestamp($3::float8 / 1000)
WHERE id = $1 AND $2 = 'epoch ' || epoch AND due_at > to_timestamp($3::float8 / 1000)
  AND updated_at <= to_timestamp($3::float8 / 1000)
"""
