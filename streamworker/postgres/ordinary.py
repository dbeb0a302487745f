"""Jobs that moved as nearly all do, straight from the lines of the log to what is sent to Postgres.

Ordinary is a job that was enqueued, claimed, begun or succeeded, each of its versions after the other. It is
taken on trust that Postgres has of it what the lines say: if not, nothing of the batch is written so, and the
writer looks up what is known. The rows are those that `folding` and `rows` make of the same moves; whatever
else happens to jobs is theirs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamworker.core.ids import shard_of
from streamworker.core.states import Reason, Status
from streamworker.postgres import copying, rows
from streamworker.postgres.batch import Batch
from streamworker.postgres.copying import NULL
from streamworker.postgres.entries import OPERATED, Entry
from streamworker.postgres.folding import enqueued_with, names_in, read_json
from streamworker.store.events import Edge

#: Facts of an enqueue that change nothing but the row of the move.
_PLAIN_FACTS = frozenset({"task", "lane", "tenant", "route"})
_QUEUED, _CLAIMED = Status.QUEUED, Status.CLAIMED
_PROCESSING, _SUCCEEDED = Status.PROCESSING, Status.SUCCEEDED
_TARGETS = frozenset({_CLAIMED, _PROCESSING, _SUCCEEDED})
#: Scripts whose caller is the worker that has the job.
_BY_WORKERS = frozenset({"claim", "exchange", "settle"})
_NOTHING: Mapping[str, bytes] = {}


@dataclass(slots=True, eq=False)
class _Shape:
    """What moves of the same edge by the same caller have in common."""

    edge: Edge
    worker: str | None
    before: int  # the version that they lead on from; 0: there was no job
    begun: bytes | None  # beginning of the row of the handler's start, where the line stands for that as well
    moved: bytes


#: Shape, fence, time of the entry, offset, what came along.
_Step = tuple[_Shape, int, int, "int | None", Mapping[str, bytes]]


@dataclass(slots=True)
class Updates:
    """Of jobs that Postgres has: what they are now, one list a column, and what many of them share."""

    ids: list[str] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    updated_ms: list[int] = field(default_factory=list)
    started_ms: list[int | None] = field(default_factory=list)
    results: list[bytes | None] = field(default_factory=list)
    results_json: list[bytes | None] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)  # index of `_Shared`, from 1
    known: dict[tuple[int, int], int] = field(default_factory=dict)
    shapes: list[tuple[int, _Shape]] = field(default_factory=list)  # version before, newest shape

    def add(
        self, job_id: str, first: _Shape, last: _Shape, fence: int, updated: int, started: int | None
    ) -> None:
        """One job that moved from the state before `first` to that after `last`."""
        key = first.before, id(last)
        index = self.known.get(key)
        if index is None:
            self.shapes.append((first.before, last))
            index = self.known[key] = len(self.shapes)
        self.ids.append(job_id)
        self.fences.append(fence)
        self.updated_ms.append(updated)
        self.started_ms.append(started)
        self.shared.append(index)

    def arguments(self) -> list[Sequence[Any] | None]:
        """The arguments of `rows.UPDATE_ORDINARY` after the namespace."""
        own: list[Sequence[Any]] = [
            self.ids,
            self.fences,
            self.updated_ms,
            self.started_ms,
            self.results,
            self.results_json,
        ]
        edges = [(before, shape.edge, shape.worker) for before, shape in self.shapes]
        shared = zip(
            *((before, e.epoch, e.version, e.attempt, e.starts, e.strikes, str(e.target), e.reason, worker)
              for before, e, worker in edges),
            strict=True,
        )  # fmt: skip
        columns: list[Sequence[Any]] = [*own, self.shared, *shared]
        return [None if column.count(None) == len(column) else column for column in columns]


@dataclass(slots=True)
class Ordinary:
    """What is sent for them."""

    jobs: int = 0
    moves: int = 0
    job_rows: list[bytes] = field(default_factory=list)
    updates: Updates = field(default_factory=Updates)
    move_rows: list[bytes] = field(default_factory=list)  # pieces of rows


def sort_out(batch: Batch, namespace: str) -> tuple[Ordinary, set[str]]:
    """The ordinary jobs of a batch, and the ids of the others."""
    return _Sorter(namespace).sort(batch.entries)


class _Moments(dict[int, bytes]):
    """Day and time of a move, by ms: many share theirs."""

    def __missing__(self, ms: int) -> bytes:
        made = self[ms] = rows.when(ms)
        return made


class _Times(dict["int | None", bytes]):
    """A time, by ms."""

    def __missing__(self, ms: int | None) -> bytes:
        made = self[ms] = copying.moment(ms)
        return made


class _Sorter:
    """Makes the rows of one batch."""

    def __init__(self, namespace: str) -> None:
        self._space = copying.text(namespace)
        self._made = Ordinary()
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        self._heads: dict[tuple[int, int], bytes] = {}  # by the shapes of enqueue and newest move
        self._moments, self._times = _Moments(), _Times()

    def sort(self, entries: Iterable[Entry]) -> tuple[Ordinary, set[str]]:
        jobs: dict[str, list[_Step]] = {}
        odd: set[str] = set()
        for entry in entries:
            last, shape, at_ms, parts = None, None, entry.at_ms, entry.parts
            for number, (job_id, edge, fence, offset) in enumerate(entry.lines, 1):
                if edge is not last:
                    last, shape = edge, self._shape(edge, entry)
                if shape is None:
                    odd.add(job_id)
                    continue
                step = (shape, fence, at_ms, offset, parts.get(number, _NOTHING) if parts else _NOTHING)
                steps = jobs.get(job_id)
                if steps is None:
                    jobs[job_id] = [step]
                else:
                    steps.append(step)
        for job_id in sorted(jobs):
            if job_id not in odd:
                try:
                    ordinary = self._job(job_id, jobs[job_id])
                except (ValueError, OverflowError, struct.error):
                    ordinary = False  # whoever writes job by job finds out what is wrong
                if not ordinary:
                    odd.add(job_id)
        return self._made, odd

    def _shape(self, edge: Edge, entry: Entry) -> _Shape | None:
        """None: it is not ordinary."""
        source, target, attempt, starts, strikes, version, epoch, reason, facts, tried = edge
        if source is None:
            if facts.keys() - _PLAIN_FACTS or entry.script in OPERATED:
                return None
        elif facts or target not in _TARGETS or entry.script not in _BY_WORKERS or entry.worker is None:
            return None
        key = (edge[:8], tried, tuple(facts.items()), entry.worker, entry.script)
        shape = self._shapes.get(key)
        if shape is None:
            count, worker, script = len(rows.PLAIN_MOVE_COLUMNS), entry.worker, entry.script
            before, begun = version - 1, None
            try:
                if tried is not None:
                    before -= 1
                    numbers, words = (epoch, version - 1, tried, starts, strikes), (_CLAIMED, _PROCESSING)
                    begun = rows.shared_move(count, numbers, (*words, Reason.STARTED, worker, script), {})
                    source = _PROCESSING
                moved = rows.shared_move(
                    count,
                    (epoch, version, attempt, starts, strikes),
                    (source, target, reason, worker, script),
                    facts,
                )
            except (ValueError, struct.error):
                return None
            shape = self._shapes[key] = _Shape(edge, worker, before, begun, moved)
        return shape

    def _job(self, job_id: str, steps: list[_Step]) -> bool:
        """Add what a job came to; whether its moves follow one another."""
        first, last = steps[0][0], steps[-1][0]
        version, epoch, status = first.before, first.edge.epoch, None
        shard, identity = shard_of(job_id), copying.identity(job_id)
        started: int | None = None
        pieces: list[bytes] = []
        moments, moves = self._moments, 0
        for shape, fence, at_ms, offset, _ in steps:
            edge, owner = shape.edge, rows.whose(identity, fence)
            if shape.before != version or edge.epoch != epoch or status is _SUCCEEDED:
                return False
            version, status = edge.version, edge.target
            if shape.begun is not None:
                started = at_ms + (offset or 0)
                pieces += (shape.begun, moments[started], owner)
                moves += 1
            elif offset is not None:
                at_ms += offset
            if status is _PROCESSING:
                started = at_ms
            pieces += (shape.moved, moments[at_ms], owner)
            moves += 1
        parts = steps[-1][4]
        result = parts.get("r") if status is _SUCCEEDED else None
        json = result if result is not None and read_json(result)[1] else None
        if first.before == 0 and first.edge.source is None:
            row = self._job_row(identity, shard, steps, at_ms, started, result, json)
            self._made.job_rows.append(row)
        elif first.before <= 0 or first.edge.source is None:
            return False
        else:
            updates = self._made.updates
            updates.add(job_id, first, last, fence, at_ms, started)
            updates.results.append(result)
            updates.results_json.append(json)
        self._made.move_rows += pieces
        self._made.moves += moves
        self._made.jobs += 1
        return True

    def _job_row(
        self,
        identity: bytes,
        shard: int,
        steps: list[_Step],
        updated: int,
        started: int | None,
        result: bytes | None,
        json: bytes | None,
    ) -> bytes:
        (born, _, enqueued, _, parts), (last, fence, *_) = steps[0], steps[-1]
        head = self._heads.get((id(born), id(last)))
        if head is None:
            head = self._heads[id(born), id(last)] = self._head(born, last)
        payload, times = parts.get("p"), self._times
        names, payload_json = names_in(payload)
        key, correlation_id = names or (None, None)
        deadline, told = NULL, _NOTHING_TOLD
        if (lines := parts.get("k")) is not None:
            deadline, told = _told(lines)
        return b"".join(
            (
                head,
                rows.identity_columns(identity, shard, fence),
                times[updated],
                times[enqueued],
                times[started],
                times[updated] if last.edge.target is _SUCCEEDED else NULL,
                NULL,  # no error
                NULL if result is None else copying.data(result),
                NULL if json is None else copying.json(json),
                NULL,  # due at no time
                deadline,
                copying.text(key),
                copying.text(correlation_id),
                copying.data(payload),
                copying.json(payload_json),
                told,
            )
        )

    def _head(self, born: _Shape, last: _Shape) -> bytes:
        facts, edge = born.edge.facts, last.edge
        numbers = (edge.attempt, edge.starts, edge.strikes, edge.epoch, edge.version)
        words = (facts["lane"], edge.target, last.worker, edge.reason, None, None)
        return rows.shared_columns(self._space, numbers, (*words, facts["task"], facts.get("tenant")))


_NOTHING_TOLD = NULL * 4


def _told(lines: bytes) -> tuple[bytes, bytes]:
    """The deadline of a new record's lines; and the columns of the lines and what they say of the key."""
    record, key_id, fingerprint, window_ms, deadline_ms = enqueued_with(lines)
    told = (*map(copying.text, (record, key_id, fingerprint)), copying.number(window_ms))
    return copying.moment(deadline_ms), b"".join(told)
