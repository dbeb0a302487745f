"""Jobs that moved as nearly all do, straight from the lines of the log to what is sent to Postgres.

Ordinary is a job that was enqueued, claimed, begun or succeeded, each of its versions after the other. It is
taken on trust that Postgres has of it what the lines say: if not, nothing of the batch is written so, and the
writer looks up what is known. The rows are those that `folding` and `rows` make of the same moves; whatever
else happens to jobs is theirs.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamworker.core.ids import check_job_id
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
#: Moments that jobs of an update may share: from there on each has its own.
MOST_MOMENTS = 200


@dataclass(slots=True, eq=False)
class _Shape:
    """What moves of the same edge by the same caller have in common."""

    edge: Edge
    worker: str | None
    before: int  # the version that they lead on from; 0: there was no job
    begun: bytes | None  # beginning of the row of the handler's start, where the line stands for that as well
    moved: bytes
    latest: _Moves | None = None


class _Move(NamedTuple):
    """What moves of a shape that an entry has at the same moment have in common."""

    shape: _Shape
    before: int
    epoch: int
    version: int
    over: bool  # nothing may follow
    at_ms: int
    started_ms: int | None  # None: it does not say
    begun: bytes | None  # rows without whose they are
    moved: bytes


class _Moves(dict["int | None", "_Move | None"]):
    """The moves of a shape in an entry, by offset; None where the moment is none."""

    def __init__(self, shape: _Shape, at_ms: int) -> None:
        super().__init__()
        self._shape = shape
        self.at_ms = at_ms

    def __missing__(self, offset: int | None) -> _Move | None:
        made: _Move | None = None
        with contextlib.suppress(OverflowError):
            made = self._make(offset)
        self[offset] = made
        return made

    def _make(self, offset: int | None) -> _Move:
        shape, at_ms, started, begun = self._shape, self.at_ms, None, None
        edge = shape.edge
        if shape.begun is not None:
            started = at_ms + (offset or 0)
            begun = shape.begun + rows.when(started)
        elif offset is not None:
            at_ms += offset
        if edge.target is _PROCESSING:
            started = at_ms
        moved = shape.moved + rows.when(at_ms)
        over = edge.target is _SUCCEEDED
        return _Move(shape, shape.before, edge.epoch, edge.version, over, at_ms, started, begun, moved)


#: Move, fence, what came along.
_Step = tuple[_Move, int, Mapping[str, bytes]]


#: Fence, updated, started, result, the same as JSON, number of what it shares with others from 1.
_Own = tuple[int, "int | None", "int | None", "bytes | None", "bytes | None", int]


@dataclass(slots=True)
class Updates:
    """Of jobs that Postgres has: what they are now, each of its own and what many of them share."""

    ids: list[str] = field(default_factory=list)
    own: list[_Own] = field(default_factory=list)
    #: Version before, newest move, and when they were updated and started unless each has its own moments.
    shared: list[tuple[int, _Move, int | None, int | None]] = field(default_factory=list)
    known: dict[tuple[int, int, int | None], int] = field(default_factory=dict)  # numbers of what is shared

    def add(
        self,
        job_id: str,
        before: int,
        last: _Move,
        fence: int,
        started: int | None,
        result: bytes | None,
        json: bytes | None,
    ) -> None:
        """One job that moved from this version to that after `last`."""
        updated = own_started = None
        number = self.known.get((before, id(last), started))
        if number is None:
            if len(self.shared) < MOST_MOMENTS:
                number = self._share((before, id(last), started), (before, last, last.at_ms, started))
            else:
                updated, own_started = last.at_ms, started
                key = before, id(last.shape), None
                number = self.known.get(key) or self._share(key, (before, last, None, None))
        self.ids.append(job_id)
        self.own.append((fence, updated, own_started, result, json, number))

    def _share(
        self, key: tuple[int, int, int | None], what: tuple[int, _Move, int | None, int | None]
    ) -> int:
        self.shared.append(what)
        self.known[key] = len(self.shared)
        return len(self.shared)

    def arguments(self) -> list[Sequence[Any] | None]:
        """The arguments of `rows.UPDATE_ORDINARY` after the namespace."""
        shared = []
        for before, move, updated, started in self.shared:
            edge, worker = move.shape.edge, move.shape.worker
            counts = edge.attempt, edge.starts, edge.strikes
            words = str(edge.target), edge.reason, worker
            shared.append((before, edge.epoch, edge.version, *counts, *words, updated, started))
        columns: list[Sequence[Any]] = [*zip(*self.own, strict=True), *zip(*shared, strict=True)]
        return [
            ",".join(self.ids),
            *[None if column.count(None) == len(column) else column for column in columns],
        ]


@dataclass(slots=True)
class Ordinary:
    """What is sent for them."""

    jobs: int = 0
    moves: int = 0
    job_rows: list[bytes] = field(default_factory=list)  # pieces of rows
    updates: Updates = field(default_factory=Updates)
    move_rows: list[bytes] = field(default_factory=list)  # pieces of rows


def sort_out(batch: Batch, namespace: str) -> tuple[Ordinary, set[str]]:
    """The ordinary jobs of a batch, and the ids of the others."""
    return _Sorter(namespace).sort(batch.entries)


class _Times(dict[tuple["int | None", ...], bytes]):
    """Columns of times, by ms: many jobs share theirs."""

    def __missing__(self, times: tuple[int | None, ...]) -> bytes:
        made = self[times] = b"".join(map(copying.moment, times))
        return made


class _Shards(dict[str, int]):
    """A shard, by what an id has of it."""

    def __missing__(self, digits: str) -> int:
        made = self[digits] = int(digits, 16)
        return made


class _Sorter:
    """Makes the rows of one batch."""

    def __init__(self, namespace: str) -> None:
        self._space = copying.text(namespace)
        self._made = Ordinary()
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        self._heads: dict[tuple[int, int], bytes] = {}  # by the shapes of enqueue and newest move
        self._times, self._shards = _Times(), _Shards()

    def sort(self, entries: Iterable[Entry]) -> tuple[Ordinary, set[str]]:
        jobs: dict[str, list[_Step]] = {}
        odd: set[str] = set()
        for entry in entries:
            last: Edge | None = None
            moves: _Moves | None = None
            parts = entry.parts
            for number, (job_id, edge, fence, offset) in enumerate(entry.lines, 1):
                if edge is not last:
                    last, moves = edge, self._moves(edge, entry)
                move = None if moves is None else moves[offset]
                if move is None:
                    odd.add(job_id)
                    continue
                step = (move, fence, parts.get(number, _NOTHING) if parts else _NOTHING)
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

    def _moves(self, edge: Edge, entry: Entry) -> _Moves | None:
        """By offset. None: they are not ordinary."""
        shape = self._shape(edge, entry)
        if shape is None:
            return None
        found = shape.latest
        if found is None or found.at_ms != entry.at_ms:
            found = shape.latest = _Moves(shape, entry.at_ms)
        return found

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
        shard = self._shards[check_job_id(job_id)[15:18]]
        identity = copying.identity(job_id)
        first = steps[0][0]
        version, epoch, over = first.before, first.epoch, False
        started: int | None = None
        owner, owned = b"", None
        pieces: list[bytes] = []
        for step in steps:
            (_, before, of_epoch, after, ends, _, began, begun, moved), fence, _ = step
            if before != version or of_epoch != epoch or over:
                return False
            version, over = after, ends
            if fence != owned:
                owner, owned = rows.whose(identity, fence), fence
            if began is not None:
                started = began
            if begun is None:
                pieces += (moved, owner)
            else:
                pieces += (begun, owner, moved, owner)
        last, fence, parts = step
        result = json = None
        if over and parts:
            result = parts.get("r")
            json = result if result is not None and read_json(result)[1] else None
        made = self._made
        if first.before == 0 and first.shape.edge.source is None:
            owner = rows.identity_columns(identity, shard, fence)
            made.job_rows += self._job_row(owner, steps, started, result, json)
        elif first.before <= 0 or first.shape.edge.source is None:
            return False
        else:
            made.updates.add(job_id, first.before, last, fence, started, result, json)
        made.move_rows += pieces
        made.moves += len(pieces) // 2
        made.jobs += 1
        return True

    def _job_row(
        self,
        identity: bytes,
        steps: list[_Step],
        started: int | None,
        result: bytes | None,
        json: bytes | None,
    ) -> tuple[bytes, ...]:
        """Pieces of the row: they are put together once, when they are sent."""
        (born, _, parts), last = steps[0], steps[-1][0]
        head = self._heads.get((id(born.shape), id(last.shape)))
        if head is None:
            head = self._heads[id(born.shape), id(last.shape)] = self._head(born.shape, last.shape)
        at_ms, payload = last.at_ms, parts.get("p")
        times = self._times[at_ms, born.at_ms, started, at_ms if last.over else None]
        names, payload_json = names_in(payload)
        key, correlation_id = names or (None, None)
        lines = parts.get("k")
        envelope = copying.both(payload, payload_json)
        if result is None and key is None and correlation_id is None and lines is None:
            return head, identity, times, _NOTHING_SPECIAL, *envelope, _NOTHING_TOLD
        deadline, told = _told(lines)
        own = (
            NULL,  # no error
            copying.data(result),
            copying.json(json),
            NULL,  # due at no time
            deadline,
            copying.text(key),
            copying.text(correlation_id),
        )
        return head, identity, times, *own, *envelope, told

    def _head(self, born: _Shape, last: _Shape) -> bytes:
        facts, edge = born.edge.facts, last.edge
        numbers = (edge.attempt, edge.starts, edge.strikes, edge.epoch, edge.version)
        words = (facts["lane"], edge.target, last.worker, edge.reason, None, None)
        return rows.shared_columns(self._space, numbers, (*words, facts["task"], facts.get("tenant")))


#: Columns of a job without error, result, due time, deadline, key and correlation id; and without lines.
_NOTHING_SPECIAL, _NOTHING_TOLD = NULL * 7, NULL * 4


def _told(lines: bytes | None) -> tuple[bytes, bytes]:
    """The deadline of a new record's lines; and the columns of the lines and what they say of the key."""
    record, key_id, fingerprint, window_ms, deadline_ms = enqueued_with(lines)
    told = (*map(copying.text, (record, key_id, fingerprint)), copying.number(window_ms))
    return copying.moment(deadline_ms), b"".join(told)
