"""The writer keeps each move once, knows contradictions from repetitions, and never gets stuck."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from streamworker.postgres import offsets
from streamworker.postgres.batch import Batch
from streamworker.postgres.migrate import migrate
from streamworker.postgres.offsets import Offset, Overtaken
from streamworker.postgres.ready import make_ready
from streamworker.postgres.writer import Writer, Written
from tests.postgres.journal import NOON, Journal, claimed, failed, job_id, replayed, retried, succeeded

ENV = b'{"t":"mail","a":{"to":"x"},"k":"mail:1","c":"trace-1"}'
JOB = job_id(1)
Raw = tuple[bytes, list[bytes]]


def batch_of(entries: Iterable[Raw]) -> Batch:
    batch = Batch()
    for entry_id, flat in entries:
        batch.add(entry_id, flat)
    return batch


class Desk:
    """A writer with its offset."""

    def __init__(self, sql: asyncpg.Connection, offset: Offset) -> None:
        self.sql = sql
        self.offset = offset
        self.writer = Writer(sql, "mirror-1")

    async def write(self, *entries: Raw) -> Written:
        batch = batch_of(entries)
        batch.ready = make_ready(batch, self.offset.namespace)  # as the mirror does
        written = await self.writer.write(batch, self.offset)
        self.offset = written.offset
        return written

    async def job(self, job: str = JOB) -> asyncpg.Record:
        row = await self.sql.fetchrow("SELECT * FROM streamworker.jobs WHERE id = $1", job)
        assert row is not None
        return row

    async def moves(self, job: str = JOB) -> list[Any]:
        """Epoch, version and the state that each move led to, in order."""
        return [
            (row["epoch"], row["version"], row["to_status"])
            for row in await self.sql.fetch(
                "SELECT * FROM streamworker.job_transitions WHERE job_id = $1 ORDER BY epoch, version", job
            )
        ]

    async def count(self, table: str) -> int:
        return int(await self.sql.fetchval(f"SELECT count(*) FROM streamworker.{table}"))


@pytest.fixture
async def desk(sql: asyncpg.Connection) -> Desk:
    return Desk(sql, await offsets.begin(sql, "shop", 0, "marker"))


LIFE = [(0, 1, "queued"), (0, 2, "claimed"), (0, 3, "processing"), (0, 4, "succeeded")]


async def test_a_life_in_one_batch_is_one_row_and_all_its_moves(desk: Desk) -> None:
    journal = Journal()

    written = await desk.write(
        journal.enqueued(JOB, facts=" tenant=acme", p1=ENV, k1=b"\nky=mail::mail:1\nkf=abc\nkw=86400000"),
        journal.entry(claimed(JOB)),
        journal.entry(succeeded(JOB), r1=b'{"sent":true}'),
    )

    assert (written.jobs, written.moves, written.refused) == (1, 4, 0)
    assert await desk.moves() == LIFE
    row = await desk.job()
    assert (row["task"], row["lane"], row["tenant"]) == ("mail", "normal", "acme")
    assert (row["key"], row["correlation_id"], row["key_id"]) == ("mail:1", "trace-1", "mail::mail:1")
    assert (row["status"], row["attempt"], row["version"], row["fence"]) == ("succeeded", 1, 4, 7)
    assert (row["payload"], row["result"]) == (ENV, b'{"sent":true}')
    assert json.loads(row["payload_json"]) == json.loads(ENV)
    assert json.loads(row["result_json"]) == {"sent": True}
    assert row["worker"] == "worker-1"
    assert [
        int(row[name].timestamp() * 1000) - NOON for name in ("enqueued_at", "started_at", "finished_at")
    ] == [
        1,
        0,
        3,
    ]


async def test_every_statement_works_on_the_oldest_and_the_newest_postgres(empty_database: str) -> None:
    connection = await asyncpg.connect(empty_database)
    await migrate(connection)
    desk, journal = Desk(connection, await offsets.begin(connection, "shop", 0, "marker")), Journal()
    new, late = journal.enqueued(JOB, p1=ENV), journal.enqueued(job_id(2), p1=ENV)

    await desk.write(new)  # copied
    await desk.write(journal.entry(claimed(JOB)), journal.entry(claimed(job_id(2))))  # updated
    await desk.write(late, journal.entry(succeeded(JOB), r1=b'"sent"'))  # filled
    again = await desk.write(new, journal.entry(claimed(JOB, fence=8)))
    refused = await desk.write(journal.entry(f"{JOB} queued claimed 1 1 0 99999999999 0 7 0 claimed"))

    assert (again.known, again.differing, refused.refused) == (1, 1, 1)
    assert (await desk.moves(), (await desk.job())["result_json"]) == (LIFE, '"sent"')
    assert (await desk.job(job_id(2)))["payload"] == ENV
    await connection.close()


async def test_a_life_in_many_batches_comes_to_the_same(desk: Desk) -> None:
    journal = Journal()

    await desk.write(journal.enqueued(JOB, p1=ENV))
    await desk.write(journal.entry(claimed(JOB)))
    await desk.write(journal.entry(retried(JOB), x1=b"TimeoutError: late"))

    row = await desk.job()
    assert (row["status"], row["error_class"], row["error_code"]) == (
        "retry_scheduled",
        "transient",
        "timeout",
    )
    assert row["error"] == "TimeoutError: late"
    assert int(row["due_at"].timestamp() * 1000) == NOON + 30_000
    assert row["finished_at"] is None

    second = claimed(JOB, attempt=2, version=5, fence=9).replace("queued", "retry_scheduled", 1)
    await desk.write(journal.entry(second))
    assert (await desk.job())["error_code"] == "timeout", "the latest error stays while the job goes on"
    assert (await desk.job())["due_at"] is None
    await desk.write(journal.entry(succeeded(JOB, attempt=2, version=7, fence=9)))

    row = await desk.job()
    assert (row["status"], row["error_code"], row["error"], row["payload"]) == ("succeeded", None, None, ENV)
    assert [version for _, version, _ in await desk.moves()] == [1, 2, 3, 4, 5, 6, 7]
    errors = await desk.sql.fetch(
        "SELECT version, error, policy FROM streamworker.job_transitions WHERE error IS NOT NULL"
    )
    assert [tuple(row) for row in errors] == [(4, "TimeoutError: late", "transient:30000;j=0.1;f=1.0")]


def lives(job: str) -> list[list[str]]:
    """Of a job that is retried and succeeds; and of one that ends without, is replayed, and then succeeds."""
    again = claimed(job, attempt=2, version=5, fence=9).replace("queued", "retry_scheduled", 1)
    tried = [claimed(job), retried(job), again]
    replay = [failed(job, attempt=2, version=7, fence=9), replayed(job, version=8)]
    replay.append(claimed(job, version=9, epoch=1, fence=11))
    replay.append(succeeded(job, version=11, epoch=1, fence=11))
    return [[*tried, succeeded(job, attempt=2, version=7, fence=9)], [*tried, *replay]]


async def test_what_comes_in_one_batch_comes_to_the_same_as_move_by_move(desk: Desk) -> None:
    """Whatever one of the moves has set, a later one of the batch may have to take away again."""
    lengths = [(life, moves) for life, lines in enumerate(lives(JOB)) for moves in range(1, len(lines) + 1)]
    rows: dict[bool, list[Any]] = {True: [], False: []}
    for number, (life, moves) in enumerate(lengths, 1):
        for at_once, job in ((True, job_id(2 * number)), (False, job_id(2 * number + 1))):
            journal = Journal()
            entries = [journal.enqueued(job, p1=ENV)]
            entries += [journal.entry(line, x1=b"late") for line in lives(job)[life][:moves]]
            for batch in [entries] if at_once else [[entry] for entry in entries]:
                desk.offset = replace(desk.offset, sequence=0)
                await desk.write(*batch)
            rows[at_once].append(list((await desk.job(job)).items())[1:])

    assert rows[True] == rows[False]


async def test_a_replay_begins_a_new_life_in_the_same_row(desk: Desk) -> None:
    journal = Journal()
    await desk.write(journal.enqueued(JOB, p1=ENV), journal.entry(claimed(JOB)), journal.entry(failed(JOB)))

    await desk.write(journal.entry(replayed(JOB), script="replay", actor="ann@ops"))

    row = await desk.job()
    assert (row["status"], row["epoch"], row["attempt"], row["error_code"]) == ("queued", 1, 0, None)
    assert (row["started_at"], row["finished_at"], row["payload"]) == (None, None, ENV)
    assert row["worker"] == "worker-1", "an operator holds no job"
    actions = await desk.sql.fetch("SELECT actor, action, subject, detail FROM streamworker.operator_actions")
    assert [tuple(row) for row in actions] == [("ann@ops", "replayed", JOB, "epoch 1")]


async def test_what_was_asked_for_is_an_operators_action_and_no_move(desk: Desk) -> None:
    journal = Journal()
    asked = journal.entry(script="cancel", actor="bob@ops", audit=f"{JOB} 0 cancel_requested")

    await desk.write(asked)

    assert await desk.count("operator_actions") == 1
    assert await desk.count("job_transitions") == 0


async def test_a_batch_that_is_read_again_changes_nothing(desk: Desk) -> None:
    journal = Journal()
    entries = [
        journal.enqueued(JOB, p1=ENV),
        journal.entry(claimed(JOB)),
        journal.entry(audit=f"{JOB} 0 cancel_requested", script="cancel", actor="bob@ops"),
        journal.entry(succeeded(JOB)),
    ]
    await desk.write(*entries)
    before = await desk.job()

    again = await desk.write(*entries[:2])
    assert desk.offset.sequence == len(entries), "what is there is no older for it"
    again = await desk.write(*entries)
    partly = await desk.write(*entries[1:], journal.enqueued(job_id(2), p1=ENV))

    assert (again.moves, again.known, again.differing) == (0, 4, 0)
    assert (partly.moves, partly.known, partly.differing) == (1, 3, 0)
    assert await desk.job() == before
    assert desk.offset.loss is None
    assert await desk.count("operator_actions") == 1


async def test_moves_that_come_late_are_kept_and_move_nothing_back(desk: Desk) -> None:
    journal = Journal()
    first, second, third = (
        journal.enqueued(JOB, facts=" tenant=acme", p1=ENV),
        journal.entry(claimed(JOB)),
        journal.entry(succeeded(JOB)),
    )

    await desk.write(third)
    assert (await desk.job())["task"] is None
    twice = await desk.write(second, second)
    assert (twice.moves, twice.known, twice.refused) == (1, 1, 0)
    await desk.write(first)

    assert await desk.moves() == LIFE
    row = await desk.job()
    assert (row["status"], row["task"], row["tenant"], row["payload"]) == ("succeeded", "mail", "acme", ENV)
    assert row["key"] == "mail:1"


async def test_a_hastened_job_is_due_when_that_was_said_and_a_later_retry_keeps_its_time(desk: Desk) -> None:
    """It had its old time: after a loss of Redis it waited for that."""
    journal = Journal()
    before = journal.enqueued(JOB), journal.entry(claimed(JOB)), journal.entry(retried(JOB))
    hastened = journal.entry(script="hasten", actor="ann@ops", audit=f"{JOB} 0 hastened")
    at_ms = journal.at_ms

    async def due_ms() -> int:
        return round((await desk.job())["due_at"].timestamp() * 1000)

    await desk.write(*before, hastened)
    assert await due_ms() == at_ms

    again = journal.entry(claimed(JOB, attempt=2, version=5))
    after = journal.entry(retried(JOB, attempt=2, version=7, due=NOON + 90_000))
    other_life = journal.entry(script="hasten", actor="ann@ops", audit=f"{JOB} 1 hastened")
    await desk.write(again, after, hastened, other_life)

    assert await due_ms() == NOON + 90_000
    assert await desk.count("operator_actions") == 2


async def test_a_late_move_of_a_job_that_goes_on_moves_it_nowhere(desk: Desk) -> None:
    journal = Journal()
    first, second = journal.enqueued(JOB, p1=ENV), journal.entry(claimed(JOB))

    await desk.write(second)
    await desk.write(first)

    row = await desk.job()
    assert (row["status"], row["version"], row["task"]) == ("claimed", 2, "mail")


@pytest.mark.parametrize("days", [0, 1])
async def test_other_content_under_a_known_identity_is_kept_aside(desk: Desk, days: int) -> None:
    journal = Journal()
    await desk.write(journal.enqueued(JOB, p1=ENV), journal.entry(claimed(JOB, fence=7)))
    journal.at_ms += days * 86_400_000

    written = await desk.write(journal.entry(claimed(JOB, fence=8)), journal.entry(succeeded(JOB, fence=8)))

    assert written.differing == 1
    assert await desk.count("mirror_conflicts") == 1
    fences = await desk.sql.fetch("SELECT version, fence FROM streamworker.job_transitions ORDER BY version")
    assert [tuple(row) for row in fences] == [(1, 0), (2, 7), (3, 8), (4, 8)]
    assert desk.offset.loss is not None
    assert "differ" in desk.offset.loss


async def test_one_batch_may_contradict_or_repeat_itself(desk: Desk) -> None:
    journal = Journal()
    claim = journal.entry(claimed(JOB))

    written = await desk.write(
        journal.enqueued(JOB, p1=ENV),
        claim,
        claim,
        journal.entry(claimed(JOB, fence=8)),
        journal.entry(succeeded(JOB)),
        journal.entry(f"{JOB} claimed queued 0 1 0 5 0 0 0 shutdown fence=9"),
    )

    assert (written.moves, written.known, written.differing, written.refused) == (4, 1, 2, 0)
    assert await desk.moves() == LIFE
    assert await desk.count("mirror_conflicts") == 2


async def test_nothing_moves_a_job_that_has_ended_but_a_new_epoch(desk: Desk) -> None:
    journal = Journal()
    await desk.write(journal.enqueued(JOB), journal.entry(claimed(JOB)), journal.entry(succeeded(JOB)))

    late = f"{JOB} claimed queued 0 1 0 5 0 0 0 shutdown fence=9"
    written = await desk.write(journal.entry(late))

    assert written.differing == 1
    assert (await desk.job())["status"] == "succeeded"
    assert await desk.moves() == LIFE


async def test_numbers_that_begin_anew_prove_that_redis_lost_its_data(desk: Desk) -> None:
    await desk.write(*[Journal(first=40).enqueued(JOB)])

    await desk.write(Journal(first=1).enqueued(job_id(2)))

    assert desk.offset.loss is not None
    assert desk.offset.sequence == 1
    assert await desk.moves(job_id(2)) == [(0, 1, "queued")]


async def test_they_prove_it_beside_a_row_that_postgres_refuses_too(desk: Desk) -> None:
    await desk.write(*[Journal(first=40).enqueued(JOB)])
    anew, bad = Journal(first=1), f"{JOB} queued claimed 1 1 0 99999999999 0 7 0 claimed"

    written = await desk.write(anew.enqueued(job_id(2)), anew.entry(bad))

    assert written.refused == 1
    assert desk.offset.loss is not None


async def test_entries_that_went_unread_are_counted(desk: Desk) -> None:
    first = await desk.write(Journal(first=1000).enqueued(JOB))
    second = await desk.write(Journal(first=1001).enqueued(job_id(2)))
    third = await desk.write(Journal(first=1005).enqueued(job_id(3)))

    assert (first.unread, second.unread, third.unread) == (0, 0, 3)
    assert desk.offset.loss is None


async def test_a_writer_that_was_overtaken_writes_nothing(desk: Desk) -> None:
    journal = Journal()
    old = desk.offset
    await desk.write(journal.enqueued(JOB))
    desk.offset = old

    with pytest.raises(Overtaken):
        await desk.write(journal.enqueued(job_id(2)))

    assert await desk.count("jobs") == 1


# --- what cannot be taken


HOSTILE = [
    pytest.param(b'{"t":"mail","a":{"x":"\\u0000"}}', id="NUL"),
    pytest.param(b'{"t":"mail","a":{"x":"\\ud800"}}', id="lone surrogate"),
    pytest.param(b'{"t":"mail","a":{"x":NaN}}', id="NaN"),
    pytest.param(b'{"t":"mail","a":{"x":1e400000}}', id="beyond numeric"),
    pytest.param(b'{"t":"mail","a":' + b"[" * 9000 + b"]" * 9000 + b"}", id="deep"),
    pytest.param(b"\x00\xff\xfe not JSON", id="bytes"),
    pytest.param(b'{"t":"mail","a":{"x":"' + b"\xf0\x9f\xa6\x8a" * 65_000 + b'"}}', id="256 kB"),
    pytest.param(b'{"t":"mail","a":{"x":"\'); DROP TABLE streamworker.jobs; --"}}', id="SQL"),
    pytest.param(b'{"t":"mail","a":{},"k":"\\u0000","c":["not text"]}', id="key"),
]


@pytest.mark.parametrize("payload", HOSTILE)
async def test_hostile_payloads_are_kept_byte_for_byte(desk: Desk, payload: bytes) -> None:
    journal = Journal()

    written = await desk.write(
        journal.enqueued(job_id(2), JOB, p1=ENV, p2=payload),
        journal.entry(claimed(JOB)),
        journal.entry(succeeded(JOB), r1=payload),
    )

    assert written.refused == 0
    row = await desk.job()
    assert (row["payload"], row["result"], row["status"]) == (payload, payload, "succeeded")
    assert (await desk.job(job_id(2)))["payload_json"] is not None, "its neighbour's JSON is queryable"


async def test_an_error_text_that_cannot_be_stored_is_made_storable(desk: Desk) -> None:
    journal = Journal()

    await desk.write(
        journal.enqueued(JOB), journal.entry(claimed(JOB)), journal.entry(failed(JOB), x1=b"a\x00b\xffc")
    )

    assert (await desk.job())["error"] == "a\ufffdb\ufffdc"


async def test_a_job_that_postgres_refuses_is_kept_with_the_reason_and_stops_nobody(desk: Desk) -> None:
    journal = Journal()
    others = [job_id(number) for number in range(2, 40)]
    bad = f"{JOB} queued claimed 1 1 0 99999999999 0 7 0 claimed"

    written = await desk.write(journal.enqueued(*others[:20], JOB, *others[20:]), journal.entry(bad))

    assert written.refused == 1
    assert written.moves == len(others)
    assert await desk.count("jobs") == len(others)
    (row,) = await desk.sql.fetch("SELECT * FROM streamworker.mirror_refused")
    assert row["job_id"] == JOB
    assert b"99999999999" in row["data"]
    assert row["reason"]
    again = await desk.write(journal.enqueued(job_id(50)))
    assert again.moves == 1


@pytest.mark.parametrize(
    "flat",
    [
        [b"n", b"7", b"t", b"soon", b"s", b"enqueue", b"w", b"-", b"e", b"x"],
        [b"n", b"7", b"t", b"7", b"s", b"enqueue", b"w", b"-", b"e", b"\xff\xfe + mail normal"],
        [b"n", b"7", b"t", b"7", b"s", b"enqueue", b"w", b"-", b"e", b"too short"],
        [b"n", b"99999999999999999999999", b"t", b"7", b"s", b"enqueue", b"w", b"-"],
        [b"n", b"7", b"t", b"999999999999999999", b"s", b"enqueue", b"w", b"-"],
        [b"unknown", b"1"],
    ],
)
async def test_an_entry_that_cannot_be_read_is_kept_as_it_is(desk: Desk, flat: list[bytes]) -> None:
    journal = Journal()

    written = await desk.write(journal.enqueued(JOB), (b"5-0", flat), journal.entry(claimed(JOB)))

    assert (written.moves, written.refused) == (2, 1)
    (row,) = await desk.sql.fetch("SELECT entry, data FROM streamworker.mirror_refused")
    assert row["entry"] == "5-0"
    assert all(value in row["data"] for value in flat)


async def test_a_refused_row_that_is_read_again_proves_no_loss(desk: Desk) -> None:
    journal = Journal()
    entries = [journal.enqueued(JOB), journal.entry(f"{JOB} queued claimed 1 1 0 99999999999 0 7 0 claimed")]

    await desk.write(*entries)
    await desk.write(*entries)

    assert desk.offset.loss is None


@pytest.mark.parametrize("name", ["no-id", "NULL", f"{JOB},{job_id(2)}", '{"', "\\", JOB.upper(), "\0"])
async def test_an_impossible_job_id_is_kept_aside_too(desk: Desk, name: str) -> None:
    journal = Journal()

    written = await desk.write(journal.enqueued(name), journal.enqueued(JOB))

    assert (written.moves, written.refused) == (1, 1)


async def test_an_operators_action_that_postgres_refuses_is_kept_aside_too(desk: Desk) -> None:
    journal, words = Journal(), "".join(str(number) for number in range(3000))
    long = journal.entry(
        script="tune", actor="ann@ops", audit=f"- 0 pause lane:a {words}\n- 0 pause lane:b why"
    )
    nameless = journal.entry("\0 queued failed_terminal 0 0 0 2 0 0 0 cancelled", script="cancel", actor="a")

    written = await desk.write(journal.enqueued(JOB), long, nameless)

    assert (written.moves, written.refused) == (1, 3)
    actions = await desk.sql.fetch("SELECT subject FROM streamworker.operator_actions")
    assert [row["subject"] for row in actions] == ["lane:b"]
    kept = await desk.sql.fetch("SELECT entry, data FROM streamworker.mirror_refused")
    assert [row["entry"] for row in kept if words.encode() in row["data"]] == [long[0].decode()]


@pytest.mark.parametrize("offset", [-(10**17), -(10**30), 10**15 + 1, -NOON - 86_400_000])
async def test_a_moment_that_cannot_be_stops_nobody(desk: Desk, offset: int) -> None:
    journal = Journal()
    far = succeeded(JOB).replace("started=-3", f"started={offset}")

    written = await desk.write(journal.enqueued(JOB, job_id(2)), journal.entry(claimed(JOB), far))

    assert (written.moves, written.refused) == (1, 1)
    days = await desk.sql.fetchval(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = 'streamworker.job_transitions'::regclass"
    )
    assert days == 1, "no day is made for it"


async def test_a_day_that_somebody_dropped_is_made_again(desk: Desk) -> None:
    """A mirror of another namespace, say, that keeps the moves of all for less long."""
    journal = Journal()
    await desk.write(journal.enqueued(JOB))
    await desk.sql.fetch("SELECT streamworker.drop_days_before('2027-01-01')")

    written = await desk.write(journal.entry(claimed(JOB)), journal.enqueued(job_id(2)))

    assert (written.moves, written.refused) == (2, 0)


async def test_two_namespaces_share_a_database(desk: Desk) -> None:
    await desk.write(Journal().enqueued(JOB))
    other = Desk(desk.sql, await offsets.begin(desk.sql, "bank", 0, "other"))

    await other.write(Journal().enqueued(job_id(2)))

    assert (await desk.job(job_id(2)))["namespace"] == "bank"
    assert desk.offset.marker == "marker"
    assert other.offset.marker == "other"
