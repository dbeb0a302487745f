"""Brings Redis back to what Postgres knows, after it lost data (D19).

Absence alone proves nothing: a job that is missing may have ended and expired since its row was read. So the
open jobs that Redis does not have are noted first, then the log is mirrored up to where it ends now, and only
what Postgres still has as open is enqueued again. Running it twice, or beside another one, is harmless: the
script leaves alone what is there, unless it has gone back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamworker.core.job import Record
from streamworker.core.states import TERMINAL, Reason
from streamworker.postgres import offsets
from streamworker.postgres.adopt import UNSEEN
from streamworker.postgres.census import BEFORE_ALL, PAGE, Census
from streamworker.postgres.letters import Letters
from streamworker.postgres.log import Log
from streamworker.postgres.operators import Operators
from streamworker.postgres.pipe import Pipe
from streamworker.postgres.switch import Switch
from streamworker.postgres.ticks import Ticks
from streamworker.store import scripts
from streamworker.store.caller import Caller
from streamworker.store.connection import Argument
from streamworker.store.keys import EFFECTS, Keys

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger("streamworker.mirror")

#: SQLSTATE.
RIGHT_MISSING = "42501"
#: Jobs and bytes of envelopes that one call restores.
RESTORE_JOBS, RESTORE_BYTES = 100, 1 << 20

OPEN_JOBS = f"""
SELECT id::text FROM streamworker.jobs
WHERE namespace = $1 AND shard = $2 AND id > $3::uuid AND status NOT IN ('succeeded', 'failed_terminal')
  AND reason <> '{UNSEEN}' ORDER BY id LIMIT $4
"""  # noqa: S608
#: Whether somebody was told that it ends.
_CANCELLED = """
EXISTS (SELECT FROM streamworker.operator_actions a WHERE a.subject = j.id::text
        AND a.action = 'cancel_requested' AND a.detail = 'epoch ' || j.epoch) AS cancelled
"""
#: Of a job that is to end, once somebody has looked for its effect.
_BURIALS = frozenset({Reason.BURIAL, Reason.BURIAL_WAITS})
_ROW = f"""
SELECT id::text, status, attempt, starts, strikes, version, epoch, lane, task, error_class, error_code, error,
       reason, payload, record, {_CANCELLED}, (extract(epoch FROM enqueued_at) * 1000)::bigint AS enqueued_at,
       (extract(epoch FROM due_at) * 1000)::bigint AS due_at
FROM streamworker.jobs j WHERE id = ANY($1::uuid[])
"""  # noqa: S608
STILL_OPEN = _ROW + " AND status NOT IN ('succeeded', 'failed_terminal') ORDER BY id"
PLACES = f"""
SELECT id::text, epoch, version, {_CANCELLED} FROM streamworker.jobs j
WHERE id = ANY($1::uuid[]) AND status NOT IN ('succeeded', 'failed_terminal')
"""  # noqa: S608
#: Which of these tasks have ever committed an effect.
WITH_EFFECTS = """
SELECT task FROM unnest($2::text[]) AS task WHERE EXISTS (
    SELECT FROM streamworker.processed_operations WHERE namespace = $1 AND operation_type = task)
"""
OVER = _ROW + " AND status IN ('succeeded', 'failed_terminal') ORDER BY id"
_UNTIL = "((extract(epoch FROM finished_at AT TIME ZONE 'UTC') * 1000)::bigint + key_window_ms)"
#: Keys that are held until a moment ($3, in ms) or longer, after that of job $4; by `jobs_held_keys`.
HELD_KEYS = f"""
SELECT id::text, key_id, fingerprint, {_UNTIL} AS until FROM streamworker.jobs
WHERE namespace = $1 AND shard = $2 AND status = 'succeeded' AND key_id IS NOT NULL
  AND {_UNTIL} >= $3 AND ({_UNTIL}, id) > ($3, $4::uuid)
ORDER BY {_UNTIL}, id LIMIT $5
"""  # noqa: S608
#: Keys that one statement asks for: they may be more than memory, and one statement's time, have room for.
KEYS_PAGE = 5000


@dataclass(slots=True)
class Reconciled:
    """What a reconcile did, or would do."""

    dry_run: bool = False
    #: Open jobs that Redis did not have and has again, by how: see `restore.lua`.
    restored: list[str] = field(default_factory=list)
    superseded: list[str] = field(default_factory=list)
    #: Open in Redis although Postgres had their end.
    ended: list[str] = field(default_factory=list)
    #: Somebody was told that they would end, before Redis lost that.
    cancelled: list[str] = field(default_factory=list)
    #: In Redis, but from before what Postgres had read of them: they go on behind that.
    caught_up: list[str] = field(default_factory=list)
    #: Cannot be restored: Postgres has no envelope of them, from before the mirror was on.
    without_payload: list[str] = field(default_factory=list)
    keys_held: int = 0
    #: Letters that nobody has decided of, back in the dead-letter stream.
    dead_letters: int = 0
    #: What operators had set, and is set again.
    settings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        would = " would be" if self.dry_run else ""
        parts = [
            f"{len(self.restored)} jobs{would} restored",
            f"{len(self.superseded)} superseded by a newer job of their key",
            f"{len(self.ended)}{would} ended as Postgres knows",
            f"{len(self.cancelled)}{would} cancelled, as was asked for",
            f"{len(self.caught_up)}{would} brought to the version that Postgres knows",
            f"{self.keys_held} keys{would} held again",
            f"{self.dead_letters} dead letters{would} brought back",
            f"{len(self.settings)} settings of operators{would} set again",
        ]
        if self.without_payload:
            parts.append(f"{len(self.without_payload)} lost, since Postgres has no payload of them")
        return ", ".join(parts)

    def json(self) -> dict[str, Any]:
        """`mirror reconcile --json`."""
        return {
            "dry_run": self.dry_run,
            "restored": self.restored,
            "superseded": self.superseded,
            "ended": self.ended,
            "cancelled": self.cancelled,
            "caught_up": self.caught_up,
            "without_payload": self.without_payload,
            "keys_held": self.keys_held,
            "dead_letters": self.dead_letters,
            "settings": self.settings,
        }


class Reconciler:
    """One shard, over the connections of a mirror."""

    def __init__(
        self,
        connection: asyncpg.Connection,
        caller: Caller,
        keys: Keys,
        pipe: Pipe,
        source: Log,
        switch: Switch,
        name: str,
    ) -> None:
        self._connection = connection
        self._caller = caller
        self._keys = keys
        self._census = Census(caller, keys)
        self._letters = Letters(connection, caller, keys)
        self._operators = Operators(connection, caller, keys)
        self._ticks = Ticks(connection, caller, keys)
        self._pipe = pipe
        self._log = source
        self._switch = switch
        self._name = name
        self._asked: set[str] = set()

    async def run(self, *, dry_run: bool = False) -> Reconciled:
        """Restore what was lost, then open enqueue again. A dry run changes nothing in Redis."""
        done = Reconciled(dry_run)
        if not dry_run:
            await self._switch.close(self._pipe.offset.marker)
        gone = self._census.missing(self._connection, OPEN_JOBS)
        missing = [job_id async for page in gone for job_id in page]
        unfinished = [record.job_id async for page in self._census.open() for record in page]
        await self._pipe.drain(await self._log.last_id())
        set_again = await self._operators.restore(actor=self._name, dry_run=dry_run)  # before any job may run
        done.settings += map(str, set_again)
        await self._bring_back(missing, done)
        await self._end(unfinished, done)
        await self._catch_up(done)
        await self._hold_keys(done)
        if not dry_run:
            await self._ticks.restore(self._census.stored(self._connection, OPEN_JOBS))
        done.dead_letters = await self._letters.restore(actor=self._name, dry_run=dry_run)
        if not dry_run:
            await self._switch.open(self._pipe.offset.marker)
            self._pipe.offset = await offsets.note_reconciled(self._connection, self._pipe.offset)
        return done

    # --- what is done about it

    async def _bring_back(self, missing: Sequence[str], done: Reconciled) -> None:
        for start in range(0, len(missing), PAGE):
            rows: list[Any] = []
            for row in await self._connection.fetch(STILL_OPEN, missing[start : start + PAGE]):
                if row["payload"] is None or row["task"] is None:
                    done.without_payload.append(row["id"])
                else:
                    rows.append(row)
            if done.dry_run:
                done.restored += [row["id"] for row in rows if not row["cancelled"]]
                done.cancelled += [row["id"] for row in rows if row["cancelled"]]
                continue
            await self._tell_of_effects({row["task"] for row in rows})
            for chunk in _chunks(rows):
                for row, reply in zip(chunk, await self._restore(chunk), strict=True):
                    if reply == b"RESTORED":
                        done.restored.append(row["id"])
                    elif reply == b"CANCELLED":
                        done.cancelled.append(row["id"])
                    elif reply.startswith(b"SUPERSEDED"):
                        done.superseded.append(row["id"])

    async def _tell_of_effects(self, tasks: set[str]) -> None:
        """Redis lost which tasks commit effects: their jobs are looked at before they are cancelled (D14)."""
        asked, self._asked = sorted(tasks - self._asked), self._asked | tasks
        try:
            found = await self._connection.fetch(WITH_EFFECTS, self._keys.namespace, asked) if asked else []
        except Exception as error:
            if getattr(error, "sqlstate", None) != RIGHT_MISSING:  # which came later
                raise
            log.warning("mirror %s: which tasks have committed effects is not known: %s", self._name, error)
            return
        if found:
            told = [word for row in found for word in (EFFECTS + row["task"], 1)]
            await self._caller.command("HSET", self._keys.policies, *told)

    async def _end(self, unfinished: Sequence[str], done: Reconciled) -> None:
        """Nothing that Postgres has read as finished runs again."""
        for start in range(0, len(unfinished), PAGE):
            rows = [dict(row) for row in await self._connection.fetch(OVER, unfinished[start : start + PAGE])]
            records = await self._census.records([row["id"] for row in rows])
            behind = [
                {**row, "payload": b""}
                for row, record in zip(rows, records, strict=True)
                if record is not None and record.status not in TERMINAL and record.epoch <= row["epoch"]
            ]
            if done.dry_run:
                done.ended += [row["id"] for row in behind]
                continue
            for chunk in _chunks(behind):
                for row, reply in zip(chunk, await self._restore(chunk), strict=True):
                    if reply in (b"ENDED", b"FLAGGED"):
                        done.ended.append(row["id"])

    async def _catch_up(self, done: Reconciled) -> None:
        """What a record that went back comes to must not be taken for what Postgres has read long ago."""
        async for ids in self._census.stored(self._connection, OPEN_JOBS):
            places = {row["id"]: tuple(row)[1:] for row in await self._connection.fetch(PLACES, ids)}
            records = await self._census.records(
                ids
            )  # later than the rows, so that no job is behind for long
            behind = [
                record.job_id
                for record in records
                if record is not None and _is_behind(record, places.get(record.job_id))
            ]
            rows = [{**row, "payload": b""} for row in await self._connection.fetch(STILL_OPEN, behind)]
            if done.dry_run:
                done.caught_up += [row["id"] for row in rows if not row["cancelled"]]
                done.cancelled += [row["id"] for row in rows if row["cancelled"]]
                continue
            for chunk in _chunks(rows):
                for row, reply in zip(chunk, await self._restore(chunk), strict=True):
                    if reply == b"CAUGHT_UP":
                        done.caught_up.append(row["id"])
                    elif reply in (b"CANCELLED", b"FLAGGED"):
                        done.cancelled.append(row["id"])

    async def _restore(self, rows: Sequence[Any]) -> list[bytes]:
        words: list[Argument] = []
        for row in rows:
            head = [row[name] for name in ("status", "attempt", "starts", "strikes", "version", "epoch")]
            head += [row["lane"] or "-", row["task"] or "-", row["enqueued_at"] or 0]
            due = row["due_at"] if row["status"] in ("queued", "retry_scheduled") else None
            head += [_word(due), _word(row["error_class"]), _word(row["error_code"])]
            more = row["record"] or ""
            if row["epoch"]:  # a replay has no deadline any more
                more = "\n".join(line for line in more.split("\n") if not line.startswith("dl="))
            if row["cancelled"]:
                more += "\ncx=cancelled"
            elif row["reason"] in _BURIALS and row["error_code"] is not None:  # it begins no more (D14)
                more += f"\nbu={Reason.ERROR} {row['error_class']} {row['error_code']}"
            words += [row["id"], " ".join(map(str, head)), row["payload"], more, row["error"] or ""]
        call = scripts.restore(clock="", actor=self._name, retention_ms=scripts.RETENTION_MS, rows=words)
        replies: list[bytes] = await self._caller.run(call)
        return replies

    async def _hold_keys(self, done: Reconciled) -> None:
        """Keys of jobs that succeeded, for what is left of their windows."""
        after = await self._now_ms(), BEFORE_ALL
        while True:
            shard = self._keys.namespace, self._keys.shard
            found = await self._connection.fetch(HELD_KEYS, *shard, *after, KEYS_PAGE)
            now_ms, rows = await self._now_ms(), list[Argument]()
            for row in found:
                if row["until"] > now_ms:
                    value = f"{row['id']} {row['fingerprint'] or '-'} succeeded"
                    rows += [row["key_id"], value, row["until"] - now_ms]
            for start in range(0, len(rows), 3 * PAGE):
                chunk = rows[start : start + 3 * PAGE]
                if done.dry_run:
                    names = [self._keys.key(str(each)) for each in chunk[::3]]
                    done.keys_held += (await self._caller.command("MGET", *names)).count(None)
                else:
                    done.keys_held += int(await self._caller.run(scripts.hold(rows=chunk)))
            if len(found) < KEYS_PAGE:
                return
            after = found[-1]["until"], found[-1]["id"]

    async def _now_ms(self) -> int:
        seconds, micros = await self._caller.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000


def _is_behind(record: Record, place: tuple[int, int, bool] | None) -> bool:
    """Whether it is open in Postgres (else None), and further than in Redis, or as far and over there.

    Or to be cancelled, which Redis knows no more.
    """
    if place is None:
        return False
    *theirs, cancelled = place
    ours, over = [record.epoch, record.version], record.status in TERMINAL
    return theirs > ours or (theirs == ours and over) or (cancelled and not over and not record.text("cx"))


def _word(value: object) -> object:
    return "-" if value is None else value


def _chunks(rows: Sequence[Any]) -> list[list[Any]]:
    """Parts that one call may carry."""
    parts: list[list[Any]] = []
    size = 0
    for row in rows:
        its = len(row["payload"]) + len(row["error"] or "")
        size += its
        if not parts or len(parts[-1]) >= RESTORE_JOBS or size > RESTORE_BYTES:
            parts.append([])
            size = its
        parts[-1].append(row)
    return parts
