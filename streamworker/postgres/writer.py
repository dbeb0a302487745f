"""Writes batches of the log, each in one transaction, and never gets stuck at a row.

A batch is first written as a whole. If Postgres refuses a value in it, it is written again job by job where
need be: halves that pass are kept, and the one job that does not goes to `mirror_refused` with the reason.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from streamworker.core.states import TERMINAL
from streamworker.postgres import copying, offsets, rows
from streamworker.postgres.batch import Batch, Refusal, Step, describe, line_of
from streamworker.postgres.connection import concerns_data, transaction
from streamworker.postgres.folding import fold
from streamworker.postgres.offsets import Offset
from streamworker.postgres.ordinary import Ordinary
from streamworker.postgres.ready import Ready
from streamworker.postgres.rows import ACT, HASTEN, content_of, identity_of

if TYPE_CHECKING:
    import asyncpg

_EPOCH = datetime.date(1970, 1, 1)
_NOWHERE = (-1, 0, "")


@dataclass(slots=True)
class Written:
    """What became of a batch."""

    offset: Offset
    jobs: int = 0  # rows of `jobs`
    moves: int = 0  # rows of `job_transitions`
    known: int = 0  # moves that were there already, word for word
    differing: int = 0  # moves whose place was taken by others, or that came after the end
    refused: int = 0
    unread: int = 0  # entries that went from the log before they were read

    def take(self, attempt: Written) -> None:
        """The counts of an attempt that has passed."""
        self.jobs, self.moves = attempt.jobs, attempt.moves
        self.known, self.differing = attempt.known, attempt.differing


@dataclass(slots=True)
class _Sorted:
    """Moves by what the tables know of them."""

    #: Of the jobs that have a row: epoch, version and state.
    there: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    #: By job, in order; first those that are older than the row and not stored.
    new: dict[str, list[Step]] = field(default_factory=dict)
    known: int = 0
    differing: list[Step] = field(default_factory=list)
    all_new: bool = True


class _Otherwise(Exception):
    """Postgres has something else of a job than the lines of the log say."""


class Writer:
    """Writes on one connection for one shard."""

    def __init__(self, connection: asyncpg.Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._days: set[int] = set()
        #: The newest batch had jobs of the outbox, whose rows were there before the log told of it. The next
        #: will have some, too, and the short way would be undone.
        self.early = False

    async def write(self, batch: Batch, offset: Offset) -> Written:
        """Write it and move the offset on. Raises Overtaken or asyncpg's errors; then nothing was written."""
        days = batch.days()
        ways: list[tuple[Ready | None, bool]] = [(None, False), (None, True)]
        if batch.ready is not None and not self.early and not batch.repeats(offset.sequence):
            ways.insert(0, (batch.ready, False))
        for ready, careful in ways:
            await self._ensure_days(days)
            try:
                return await self._write(batch, offset, ready, careful=careful)
            except _Otherwise:
                continue
            except Exception as error:
                if careful or not concerns_data(error):
                    raise
                self.forget_days()  # a mirror of another namespace may have dropped one
        raise AssertionError("the careful way writes or raises")

    async def _ensure_days(self, days: set[int]) -> None:
        for day in sorted(days - self._days):
            await self._connection.execute(
                "SELECT streamworker.ensure_day($1)", _EPOCH + datetime.timedelta(days=day)
            )
            self._days.add(day)

    def forget_days(self) -> None:
        """Partitions may have gone."""
        self._days.clear()

    async def _write(self, batch: Batch, offset: Offset, ready: Ready | None, *, careful: bool) -> Written:
        self.early = False
        steps = list(batch.steps().values()) if ready is None else ready.steps
        numbers = [entry.sequence for entry in batch.entries]
        newest = numbers[-1] if numbers else offset.sequence
        entry = batch.read[-1][0]
        async with transaction(self._connection):
            written = Written(
                await offsets.advance(
                    self._connection,
                    offset,
                    sequence=max(newest, offset.sequence),
                    entry=entry,
                    writer=self._name,
                )
            )
            repeated = batch.repeats(offset.sequence)
            told: set[str] = set()  # repeated entries that told something new
            if ready is not None:
                await self._add_ordinary(ready.ordinary, offset, written)
            if careful:
                await self._halve(steps, offset, written, told)
            else:
                await self._apply(steps, offset, written, told, ready)
            await self._refuse(batch.unreadable, offset, written)
            await self._act(batch, offset, written)
            await self._judge(offset, written, repeated & told, newest)
        if numbers and offset.sequence and not written.offset.loss:
            written.unread = max(0, min(numbers) - offset.sequence - 1)
        return written

    # --- the moves

    async def _add_ordinary(self, ordinary: Ordinary, offset: Offset, written: Written) -> None:
        """Write jobs of which Postgres should have what the log says. Raises _Otherwise."""
        link, updates = self._connection, ordinary.updates
        if ordinary.job_rows:
            await copying.copy(link, "jobs", rows.JOB_COLUMNS, ordinary.job_rows)
        if updates.ids:
            done = await link.execute(rows.UPDATE_ORDINARY, offset.namespace, *updates.arguments())
            if done != f"UPDATE {len(updates.ids)}":
                raise _Otherwise
        if ordinary.move_rows:
            await copying.copy(link, "job_transitions", rows.PLAIN_MOVE_COLUMNS, ordinary.move_rows)
        written.jobs, written.moves = ordinary.jobs, ordinary.moves

    async def _halve(
        self, steps: Sequence[list[Step]], offset: Offset, written: Written, told: set[str]
    ) -> None:
        """Write these jobs, in halves if they are refused together."""
        attempt, news = replace(written), set[str]()
        try:
            async with self._connection.transaction():
                await self._apply(steps, offset, attempt, news)
        except Exception as error:
            if not concerns_data(error):
                raise
            if len(steps) > 1:
                middle = len(steps) // 2
                await self._halve(steps[:middle], offset, written, told)
                await self._halve(steps[middle:], offset, written, told)
            elif not await self._without_json(steps, offset, written, told):
                (moves,) = steps
                state = getattr(error, "sqlstate", None)
                last = moves[-1]
                refusal = Refusal(last.entry.id, last.move.job_id, describe(moves), state, str(error))
                await self._refuse([refusal], offset, written)
            return
        written.take(attempt)
        told |= news

    async def _without_json(
        self, steps: Sequence[list[Step]], offset: Offset, written: Written, told: set[str]
    ) -> bool:
        """Write one job without its jsonb; whether that passed. The bytes are the truth (R44)."""
        attempt, news = replace(written), set[str]()
        try:
            async with self._connection.transaction():
                await self._apply(steps, offset, attempt, news, json=False)
        except Exception as error:
            if not concerns_data(error):
                raise
            return False
        written.take(attempt)
        told |= news
        return True

    async def _apply(
        self,
        steps: Sequence[list[Step]],
        offset: Offset,
        written: Written,
        told: set[str],
        ready: Ready | None = None,
        *,
        json: bool = True,
    ) -> None:
        if not steps:
            return
        found = await self._sort(steps)
        told.update([step.entry.id for some in (*found.new.values(), found.differing) for step in some])
        written.known += found.known
        if found.new:
            await self._add(found, offset, ready if found.all_new else None, json=json)
            written.jobs += len(found.new)
            written.moves += sum(map(len, found.new.values()))
        if found.differing:
            await self._keep_aside(found.differing, offset)
            written.differing += len(found.differing)

    async def _add(self, found: _Sorted, offset: Offset, ready: Ready | None, *, json: bool) -> None:
        """Write moves that are new, and what they make of their jobs."""
        jobs = [fold(*some) for some in found.new.items()] if ready is None else ready.jobs
        if not json:
            for row in jobs:
                row.payload_json = row.result_json = None
        link, there = self._connection, found.there
        if arrived := [row for row in jobs if row.id not in there]:
            made = {} if ready is None else ready.job_rows
            rest = rows.job_rows(offset.namespace, [row for row in arrived if row.id not in made])
            known = [made[row.id] for row in arrived if row.id in made]
            await copying.copy(link, "jobs", rows.JOB_COLUMNS, [*known, *rest])
        if recast := [row for row in jobs if row.recast and row.id in there]:
            await link.execute(rows.CARRY_JOBS, offset.namespace, *rows.carried_arrays(recast))
        if moved := [row for row in jobs if row.id in there]:
            await link.execute(rows.UPDATE_JOBS, offset.namespace, *rows.updated_arrays(moved))
        if filled := [row for row in moved if row.task is not None]:
            await link.execute(rows.FILL_JOBS, offset.namespace, *rows.filled_arrays(filled))
        if ready is None:
            moves = rows.move_rows([step for steps in found.new.values() for step in steps])
        else:
            moves = iter([ready.moves])
        await copying.copy(link, "job_transitions", rows.MOVE_COLUMNS, moves)

    async def _sort(self, steps: Sequence[list[Step]]) -> _Sorted:
        """What is new, what is known, and what contradicts it."""
        found = _Sorted()
        ids = ",".join([moves[0].move.job_id for moves in steps])
        for job_id, *place in await self._connection.fetch(rows.KNOWN_JOBS, f"{{{ids}}}"):
            found.there[job_id] = _, version, _ = tuple(place)
            self.early = self.early or version == 0
        doubtful: list[Step] = []
        for moves in steps:
            epoch, version, status = found.there.get(moves[0].move.job_id, _NOWHERE)
            fresh = []
            for step in moves:
                move = step.move
                if (move.epoch, move.version) <= (epoch, version):
                    doubtful.append(step)
                elif move.epoch == epoch and status in TERMINAL:
                    found.differing.append(step)
                else:
                    fresh.append(step)
                    epoch, version, status = move.epoch, move.version, move.to_status
            if fresh:
                found.new[moves[0].move.job_id] = fresh
        found.all_new = not doubtful and not found.differing
        if doubtful:
            await self._compare(doubtful, found)
        return found

    async def _compare(self, doubtful: Sequence[Step], found: _Sorted) -> None:
        ids = sorted({step.move.job_id for step in doubtful})
        stored: dict[Any, list[Any]] = {}
        for row in await self._connection.fetch(rows.STORED_MOVES, ids):
            values = tuple(row)
            stored.setdefault(values[:3], []).append(values[3:])
        for job_id in ids:  # what this very batch has of the same jobs counts as stored
            for step in found.new.get(job_id, ()):
                stored.setdefault(identity_of(step.move), []).append(content_of(step.move))
        late: dict[str, list[Step]] = {}
        for step in doubtful:
            move = step.move
            there = stored.get(identity_of(move))
            if there is None:
                late.setdefault(move.job_id, []).append(step)
                stored[identity_of(move)] = [content_of(move)]
            elif content_of(move) in there:
                found.known += 1
            else:
                found.differing.append(step)
        for job_id, some in late.items():
            found.new[job_id] = [*some, *found.new.get(job_id, ())]

    # --- what is kept aside

    async def _keep_aside(self, steps: Sequence[Step], offset: Offset) -> None:
        await self._connection.executemany(
            rows.KEEP_ASIDE,
            [
                (
                    offset.namespace,
                    offset.shard,
                    step.move.job_id,
                    step.move.epoch,
                    step.move.version,
                    step.move.at_ms,
                    step.entry.id,
                    line_of(step.move),
                )
                for step in steps
            ],
        )

    async def _refuse(self, refusals: Sequence[Refusal], offset: Offset, written: Written) -> None:
        if not refusals:
            return
        written.refused += len(refusals)
        await self._connection.executemany(
            rows.REFUSE,
            [
                (
                    offset.namespace,
                    offset.shard,
                    each.entry,
                    each.job_id and each.job_id.replace("\x00", "\ufffd"),
                    each.data,
                    each.sqlstate,
                    each.reason.replace("\x00", "\ufffd"),
                )
                for each in refusals
            ],
        )

    async def _act(self, batch: Batch, offset: Offset, written: Written) -> None:
        told = [(entry.id, action) for entry in batch.entries for action in entry.actions]
        rows = [(offset.namespace, offset.shard, *astuple(action)) for _, action in told]
        if not rows or await self._acted(rows) is None:
            return
        for (entry_id, _), row in zip(told, rows, strict=True):
            if (error := await self._acted([row])) is not None:
                state = getattr(error, "sqlstate", None)
                data = " ".join(map(str, row)).encode("utf-8", "backslashreplace")
                await self._refuse([Refusal(entry_id, None, data, state, str(error))], offset, written)

    async def _acted(self, rows: Sequence[tuple[Any, ...]]) -> Exception | None:
        """Write down what operators did; the error if Postgres refuses a value, and then nothing of it."""
        hastened = [(job, epoch, at_ms) for _, _, at_ms, _, act, job, epoch in rows if act == "hastened"]
        try:
            async with self._connection.transaction():
                await self._connection.executemany(ACT, rows)
                if hastened:
                    await self._connection.executemany(HASTEN, hastened)
        except Exception as error:
            if not concerns_data(error):
                raise
            return error
        return None

    async def _judge(self, offset: Offset, written: Written, told: set[str], newest: int) -> None:
        """Whether this batch proves that Redis lost data (D19)."""
        if told:
            proof = f"an entry numbered {newest} or less told something new after number {offset.sequence}"
        elif written.differing:
            proof = f"{written.differing} moves differ from those that are known"
        else:
            return
        written.offset = await offsets.note_loss(self._connection, written.offset, proof, sequence=newest)
