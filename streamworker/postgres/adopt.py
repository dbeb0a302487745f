"""Takes in the jobs that were open or dead before the mirror was on: their envelopes are not in the log.

And writes down the ends of those that were open when Postgres last heard of them, and ended while the mirror
was off, or marks those whose ends nobody knows: after a loss of Redis they would run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from streamworker.core.ids import shard_of
from streamworker.core.job import Record
from streamworker.core.states import TERMINAL, WAITING, Status
from streamworker.postgres import copying, letters, rows
from streamworker.postgres.census import Census
from streamworker.postgres.connection import concerns_data, transaction
from streamworker.postgres.folding import JobRow, error_text, read_json, text
from streamworker.store.caller import Caller
from streamworker.store.events import pairs
from streamworker.store.keys import Keys

if TYPE_CHECKING:
    import asyncpg

#: Fields of a record that say what its job is; the others say how it is doing.
LASTING = ("ky", "kf", "kw", "dl", "tn", "ms", "ga", "ma", "bl")
COMPLETE = "SELECT id::text FROM streamworker.jobs WHERE id = ANY($1::uuid[]) AND payload IS NOT NULL"
PRESENT = "SELECT id::text FROM streamworker.jobs WHERE id = ANY($1::uuid[])"
WANTING = """
SELECT 1 FROM streamworker.jobs WHERE namespace = $1 AND shard = $2 AND payload IS NULL
  AND status NOT IN ('succeeded', 'failed_terminal') LIMIT 1
"""

#: Reason of a row whose job ended, or was lost, while the mirror was not on: nobody knows its end.
UNSEEN = "unseen"
#: Open jobs of which Redis was told; the others wait in the outbox.
TOLD = """
SELECT id::text FROM streamworker.jobs
WHERE namespace = $1 AND shard = $2 AND id > $3::uuid AND status NOT IN ('succeeded', 'failed_terminal')
  AND (version > 0 OR id NOT IN
       (SELECT job_id FROM streamworker.outbox WHERE namespace = $1 AND published_at IS NULL))
ORDER BY id LIMIT $4
"""
MARK = f"""
UPDATE streamworker.jobs SET reason = '{UNSEEN}', updated_at = now()
WHERE id = ANY($1::uuid[]) AND status NOT IN ('succeeded', 'failed_terminal')
"""  # noqa: S608
#: Seconds that a look for letters without envelopes may keep the log waiting, at each start.
LOOK_SECONDS = 2.0
#: The log of before the mirror says that they failed, and not why.
EXPLAIN = """
UPDATE streamworker.jobs j SET error = u.error
FROM unnest($1::uuid[], $2::integer[], $3::text[]) AS u(id, epoch, error)
WHERE j.id = u.id AND j.epoch = u.epoch AND j.status = 'failed_terminal' AND j.error IS NULL
"""
#: Fields of a letter that are lines of a record as it was enqueued.
KEPT = ("ky", "kf", "kw", "tn", "ms", "ga")


class Adopter:
    """One shard. Running it twice changes nothing."""

    def __init__(self, connection: asyncpg.Connection, caller: Caller, keys: Keys) -> None:
        self._connection = connection
        self._caller = caller
        self._keys = keys
        self._census = Census(caller, keys)

    async def wanted(self) -> bool:
        """Whether Postgres has open jobs, or dead letters, without their envelopes."""
        found = await self._connection.fetchval(WANTING, self._keys.namespace, self._keys.shard)
        if found is not None:
            return True
        try:  # where very many jobs have failed the log does not wait for this: `mirror verify` tells of them
            return await letters.hollow(self._connection, self._keys, timeout=LOOK_SECONDS) > 0
        except TimeoutError:
            return False

    async def run(self) -> tuple[int, int]:
        """Complete what Postgres has of open jobs and of dead letters, and return of how many of each."""
        adopted, dead = 0, await self._letters()
        async for records in self._census.open():
            ids = [record.job_id for record in records]
            complete = await self._complete(ids)
            wanting = [await self._row(record) for record in records if record.job_id not in complete]
            found = [row for row in wanting if row.payload is not None]
            if found:
                adopted += await self._take_in(found)
        # Once more: a job may have died, or been replayed, while we looked.
        return adopted, dead + await self._letters()

    async def _letters(self) -> int:
        adopted, page = 0, list[JobRow]()
        async for fields in letters.present(self._caller, self._keys):
            with contextlib.suppress(ValueError):  # somebody else wrote it
                page.append(letter_row(fields))
            if len(page) == letters.LOOK:
                adopted, page = adopted + await self._take_in_letters(page), []
        return adopted + await self._take_in_letters(page)

    async def _take_in_letters(self, page: Sequence[JobRow]) -> int:
        await self._move(page)  # some may have died while the mirror was off
        complete = await self._complete([row.id for row in page])
        found = [row for row in page if row.payload and row.id not in complete]
        if not found:
            return 0
        adopted = await self._take_in(found)
        ids, epochs, errors = zip(*((row.id, row.epoch, row.error) for row in found), strict=True)
        await self._connection.execute(EXPLAIN, ids, epochs, errors)
        return adopted

    async def _complete(self, ids: Sequence[str]) -> set[str]:
        return {row["id"] for row in await self._connection.fetch(COMPLETE, ids)}

    async def end_unseen(self) -> tuple[int, int]:
        """Of the jobs that are open in Postgres, write down the ends that Redis knows, and mark those that it
        has no record of. Returns how many of each.

        Their ends are not in the log, which is read up to now: they came while the mirror was not on.
        """
        ended = marked = 0
        async for ids in self._census.stored(self._connection, TOLD):
            found = list(zip(ids, await self._census.raw(ids), strict=True))
            over = [record for job_id, raw in found if raw and (record := ended_record(job_id, raw))]
            await self._move([await self._end(record) for record in over])
            unseen = [job_id for job_id, raw in found if raw is None]
            await self._connection.execute(MARK, unseen)
            ended, marked = ended + len(over), marked + len(unseen)
        return ended, marked

    async def _end(self, record: Record) -> JobRow:
        row = await self._row(record, carry=False)
        row.finished_ms = row.updated_ms = record.finished_at or row.updated_ms
        result, error = await self._caller.command("HMGET", self._keys.body(record.job_id), "result", "error")
        if record.status is Status.SUCCEEDED:
            short = record.text("re")
            row.result = result if short is None else short.encode()
            row.result_json = row.result if read_json(row.result)[1] else None
        else:
            row.error = error_text(error)
        return row

    async def _move(self, found: Sequence[JobRow]) -> None:
        """Write what they are, where Postgres has less of them; or each alone when it refuses one."""
        link, namespace = self._connection, self._keys.namespace
        try:
            async with transaction(link):
                if recast := [row for row in found if row.payload is not None]:
                    await link.execute(rows.CARRY_JOBS, namespace, *rows.carried_arrays(recast))
                if found:
                    await link.execute(rows.UPDATE_JOBS, namespace, *rows.updated_arrays(found))
        except Exception as error:
            if not concerns_data(error):
                raise
            if len(found) > 1:
                for row in found:
                    await self._move([row])

    async def _take_in(self, found: Sequence[JobRow]) -> int:
        """Write these, or each alone when Postgres refuses one of them; how many it took."""
        try:
            async with transaction(self._connection):
                present = await self._connection.fetch(PRESENT, [row.id for row in found])
                known = {row["id"] for row in present}
                # A row that is there follows the log: only what is missing in it is filled in.
                link, namespace = self._connection, self._keys.namespace
                if arrived := [row for row in found if row.id not in known]:
                    made = rows.job_rows(namespace, arrived)
                    await copying.copy(link, "jobs", rows.JOB_COLUMNS, made)
                if filled := [row for row in found if row.id in known]:
                    await link.execute(rows.FILL_JOBS, namespace, *rows.filled_arrays(filled))
            return len(found)
        except Exception as error:
            if not concerns_data(error):
                raise
        if len(found) == 1:
            return 0
        return sum([await self._take_in([row]) for row in found])

    async def _row(self, record: Record, *, carry: bool = True) -> JobRow:
        payload = await self._envelope(record) if carry else None
        error_class, _, error_code = (record.text("ec") or "").partition(" ")
        fields = {name: record.text(name) for name in LASTING}
        row = JobRow(
            record.job_id,
            shard_of(record.job_id),
            task=record.task,
            lane=record.lane,
            tenant=fields["tn"],
            status=record.status.value,
            attempt=record.attempt,
            starts=record.starts,
            strikes=record.strikes,
            epoch=record.epoch,
            version=record.version,
            fence=record.fence,
            worker=record.worker,
            reason="adopted",
            error_class=error_class or None,
            error_code=error_code or None,
            record="".join(f"\n{name}={value}" for name, value in fields.items() if value) or None,
            key_id=fields["ky"],
            fingerprint=fields["kf"],
            key_window_ms=int(fields["kw"]) if fields["kw"] else None,
            enqueued_ms=record.number("at"),
            due_ms=record.number("du") if record.status in WAITING and record.entry is None else None,
            deadline_ms=record.number("dl"),
            started_ms=record.started_at,
            updated_ms=record.number("at") or 0,
        )
        if payload is not None:
            row.carry(payload)
        return row

    async def _envelope(self, record: Record) -> bytes | None:
        """From where it is by now: the entry, else the body."""
        if record.entry is not None:
            kind, entry = record.entry
            stream = self._keys.stream(record.lane, kind, record.text("tn") or "")
            found = await self._caller.command("XRANGE", stream, entry, entry)
            if found:
                return pairs(found[0][1]).get(b"env")
        data: bytes | None = await self._caller.command("HGET", self._keys.body(record.job_id), "env")
        return data


def ended_record(job_id: str, raw: bytes) -> Record | None:
    """The record of a job that is over; None for another, or one that cannot be read."""
    try:
        record = Record.parse(job_id, raw)
    except ValueError:
        return None
    return record if record.status in TERMINAL else None


def letter_row(fields: Mapping[bytes, bytes]) -> JobRow:
    """A job as its dead letter tells of it. Raises ValueError for one that names no job, task or version."""
    told = {name.decode("utf-8", "replace"): text(value) for name, value in fields.items() if name != b"env"}
    job_id, task, version = told.get("id", ""), told.get("task"), int(told.get("version") or 0)
    if not task or version < 1:
        raise ValueError(f"the letter of {job_id!r} says too little of its job")
    lines = {name: told.get(name) for name in KEPT} | {"tn": told.get("tenant")}
    row = JobRow(
        job_id,
        shard_of(job_id),
        task=task,
        lane=told.get("lane"),
        tenant=told.get("tenant") or None,
        status=Status.FAILED_TERMINAL.value,
        attempt=int(told.get("attempt") or 0),
        starts=int(told.get("starts") or 0),
        strikes=int(told.get("strikes") or 0),
        epoch=int(told.get("epoch") or 0),
        version=version,
        worker=told.get("worker") or None,
        reason=told.get("reason") or "adopted",
        error_class=told.get("class") or None,
        error_code=told.get("code") or None,
        error=error_text(fields.get(b"error")),
        record="".join(f"\n{name}={value}" for name, value in lines.items() if value) or None,
        key_id=lines["ky"] or None,
        fingerprint=lines["kf"] or None,
        key_window_ms=int(lines["kw"]) if lines["kw"] else None,
        enqueued_ms=int(told.get("at") or 0) or None,
        finished_ms=int(told.get("dead_at") or 0),
        updated_ms=int(told.get("dead_at") or 0),
    )
    if payload := fields.get(b"env"):
        row.carry(payload)
    return row
