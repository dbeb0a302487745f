"""Ordinary jobs go a short way into Postgres, and come to the same there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from streamworker.postgres import offsets, ordinary
from streamworker.postgres.batch import Batch
from streamworker.postgres.offsets import Offset
from streamworker.postgres.ordinary import sort_out
from streamworker.postgres.ready import make_ready
from streamworker.postgres.rows import UPDATE_ORDINARY
from streamworker.postgres.writer import Writer, Written
from tests.postgres.journal import NOON, Journal, claimed, failed, job_id, replayed, retried, succeeded

ENV = b'{"t":"mail","a":{"to":"x"},"k":"mail:1","c":"trace-1"}'
KEYED = b"\nky=mail::mail:1\nkf=abc\nkw=86400000\ndl=1784894500000"
ENVELOPES = (ENV, b'{"t":"mail","a":{"to":"\\u0000"}}', b"\xff no JSON", b"[1]", b"")
RESULTS = (None, b'{"sent":true}', b'"\\u0000"', b"\xff")
Raw = tuple[bytes, list[bytes]]


def batch_of(entries: list[Raw]) -> Batch:
    batch = Batch()
    for entry_id, flat in entries:
        batch.add(entry_id, flat)
    return batch


class Desk:
    """A writer that may be kept from the short way."""

    def __init__(self, sql: asyncpg.Connection, offset: Offset, *, short: bool) -> None:
        self.sql, self.offset = sql, offset
        self.writer = Writer(sql, "mirror-1")
        self._short = short

    async def write(self, *entries: Raw) -> Written:
        batch = batch_of(list(entries))
        batch.ready = make_ready(batch, self.offset.namespace) if self._short else None
        written = await self.writer.write(batch, self.offset)
        self.offset = written.offset
        return written

    async def all(self) -> list[list[tuple[Any, ...]]]:
        """All that the tables hold."""
        queries = (
            "SELECT * FROM streamworker.jobs ORDER BY id",
            "SELECT * FROM streamworker.job_transitions ORDER BY job_id, epoch, version",
            "SELECT namespace, job_id, epoch, version, at, entry, move FROM streamworker.mirror_conflicts",
            "SELECT namespace, entry, job_id, data FROM streamworker.mirror_refused",
        )
        return [[tuple(row) for row in await self.sql.fetch(query)] for query in queries]


async def desk_of(sql: asyncpg.Connection, *, short: bool) -> Desk:
    await sql.execute(
        "TRUNCATE streamworker.jobs, streamworker.job_transitions, streamworker.mirror_conflicts, "
        "streamworker.mirror_refused, streamworker.mirror_offsets"
    )
    return Desk(sql, await offsets.begin(sql, "shop", 0, "marker"), short=short)


class Life:
    """A job's moves, one after the other, some of them out of the ordinary."""

    def __init__(self, number: int, choose: random.Random) -> None:
        self.job, self._choose, self._fence = job_id(number), choose, 7 + number
        self._born = False
        self._moves = self._lived()

    def next(self, journal: Journal) -> Raw | None:
        return next(self._moves, None) if self._born else self._enqueued(journal)

    def _enqueued(self, journal: Journal) -> Raw:
        self._born, choose = True, self._choose
        self._moves = self._lived(journal)
        parts = {"p1": choose.choice(ENVELOPES)} | ({"k1": KEYED} if choose.random() < 0.4 else {})
        facts = choose.choice(("", "", " tenant=acme", " route=bulk tenant=acme", f" due={NOON + 5}"))
        return journal.entry(f"{self.job} + mail normal{facts}", script="enqueue", actor="-", parts=parts)

    def _lived(self, journal: Journal | None = None) -> Iterator[Raw]:
        if journal is None:
            return
        choose, job, version, attempt, source = self._choose, self.job, 2, 1, "queued"
        while True:
            worker = f"worker-{choose.randrange(3)}"
            line = claimed(job, attempt=attempt, version=version, fence=self._fence)
            yield journal.entry(line.replace("queued", source, 1), actor=worker)
            kind = choose.choice(("S", "S", "S", "M", "R", "F"))
            ended = {"attempt": attempt, "version": version + 2, "fence": self._fence}
            if kind == "R" and attempt < 3:
                yield journal.entry(
                    retried(job, **ended), actor=worker, script="settle", x1=b"TimeoutError: late"
                )
                version, attempt, source = version + 3, attempt + 1, "retry_scheduled"
                continue
            if kind in "RF":
                yield journal.entry(
                    failed(job, attempt=attempt, version=version + 2), actor=worker, x1=b"Broken: so"
                )
                if choose.random() < 0.5:
                    yield journal.entry(replayed(job, version=version + 3), script="replay", actor="ops@host")
                return
            result = choose.choice(RESULTS)
            more = {} if result is None else {"r1": result}
            if kind == "M":
                numbers = f"{attempt} {attempt} 0"
                mark = (
                    f"{job} claimed processing {numbers} {version + 1} 0 {self._fence} {NOON} started at=-25"
                )
                yield journal.entry(mark, actor=worker)
                end = f"{job} processing succeeded {numbers} {version + 2} 0 0 0 returned fence={self._fence}"
                yield journal.entry(end, actor=worker, parts=more)
            else:
                yield journal.entry(succeeded(job, **ended), actor=worker, parts=more)
            return


def history(seed: int) -> list[list[Raw]]:
    """Batches in which some jobs live all their life, and others a part of it."""
    choose, journal = random.Random(seed), Journal()
    lives = [Life(number, choose) for number in range(1, 30)]
    entries: list[Raw] = []
    while lives:
        life = choose.choice(lives[:8])
        entry = life.next(journal)
        if entry is None:
            lives.remove(life)
        else:
            entries.append(entry)
    batches, at = [], 0
    while at < len(entries):
        size = choose.choice((1, 3, 10, 30))
        batches.append(entries[at : at + size])
        at += size
    return batches


@pytest.mark.parametrize("seed", range(6))
async def test_the_short_way_comes_to_the_same(
    sql: asyncpg.Connection, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every second time there are more moments than jobs of an update may share.
    monkeypatch.setattr(ordinary, "MOST_MOMENTS", 200 if seed % 2 else 2)
    found, counted = [], []
    for short in (True, False):
        desk = await desk_of(sql, short=short)
        written = [await desk.write(*entries) for entries in history(seed)]
        found.append(await desk.all())
        counted.append([(each.jobs, each.moves, each.known, each.refused) for each in written])

    assert found[0] == found[1]
    assert counted[0] == counted[1]
    assert len(found[0][0]) == 29
    sorted_out = [sort_out(batch_of(entries), "shop") for entries in history(seed)]
    assert sum(made.jobs for made, _ in sorted_out) > sum(len(odd) for _, odd in sorted_out) > 0


@pytest.mark.parametrize(
    ("there", "then", "known"),
    [
        ([], [claimed(job_id(1))], 0),
        ([claimed(job_id(1))], [claimed(job_id(1))], 1),
        ([claimed(job_id(1))], [claimed(job_id(1), version=4)], 0),
        ([claimed(job_id(1), version=6)], [claimed(job_id(1))], 0),
        ([claimed(job_id(1)), succeeded(job_id(1))], [claimed(job_id(1), version=5)], 0),
    ],
    ids=["no row", "the same again", "a gap", "an older one", "after the end"],
)
async def test_what_postgres_has_otherwise_is_looked_up(
    sql: asyncpg.Connection, there: list[str], then: list[str], known: int
) -> None:
    found = []
    for short in (True, False):
        desk, journal = await desk_of(sql, short=short), Journal()
        if there:
            await desk.write(journal.enqueued(job_id(1), p1=ENV))
        for line in there:
            await desk.write(journal.entry(line, after_ms=0))
        other = journal.enqueued(job_id(2), after_ms=0, p1=ENV)
        written = await desk.write(other, *(journal.entry(line, after_ms=0) for line in then))
        assert written.known == known
        found.append(await desk.all())

    assert found[0] == found[1]


async def test_a_job_that_is_there_already_is_looked_up(sql: asyncpg.Connection) -> None:
    desk, journal = await desk_of(sql, short=True), Journal()
    await desk.write(journal.enqueued(job_id(1), p1=ENV))

    written = await desk.write(journal.enqueued(job_id(1), p1=ENV), journal.enqueued(job_id(2), p1=ENV))

    assert (written.jobs, written.moves, written.differing) == (1, 1, 1), (
        "the second one came at another time"
    )


@pytest.mark.parametrize("most", [200, 2, 1])
async def test_jobs_that_end_together_keep_their_own_moments(
    sql: asyncpg.Connection, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordinary, "MOST_MOMENTS", most)
    first, second, third, fourth = map(job_id, range(1, 5))

    async def not_asked(_: object) -> None:
        raise AssertionError("Postgres is told, not asked")

    def begun(job: str, fence: int) -> str:
        return f"{job} claimed processing 1 1 0 3 0 {fence} {NOON} started at=-25"

    found = []
    for short in (True, False):
        desk, journal = await desk_of(sql, short=short), Journal()
        if short:
            monkeypatch.setattr(desk.writer, "_sort", not_asked)
        await desk.write(journal.enqueued(first, second, third, fourth, p1=ENV, p2=ENV, p3=ENV, p4=ENV))
        await desk.write(journal.entry(claimed(first), f"{second} = 8", f"{third} = 9"))
        written = await desk.write(
            journal.entry(begun(first, 7), after_ms=100),
            journal.entry(begun(second, 8), after_ms=100),
            journal.entry(claimed(fourth, fence=10)),
            journal.entry(
                f"{first} processing succeeded 1 1 0 4 0 0 0 returned fence=7", f"{second} = 8", r2=RESULTS[1]
            ),
            journal.entry(succeeded(third, fence=9), f"{fourth} = 10 -3"),
        )
        assert (written.jobs, written.moves, written.differing) == (4, 9, 0)
        found.append(await desk.all())

    assert found[0] == found[1]
    rows = await sql.fetch(
        "SELECT extract(epoch FROM finished_at - started_at) * 1000 FROM streamworker.jobs"
    )
    assert sorted(int(row[0]) for row in rows) == [3, 3, 27, 127]


async def test_jobs_are_looked_up_by_their_ids_however_many_others_are_open(sql: asyncpg.Connection) -> None:
    desk, journal = await desk_of(sql, short=True), Journal()
    ids = [job_id(number) for number in range(2000)]
    await desk.write(journal.enqueued(*ids))
    claims = [
        journal.entry(*map(claimed, ids[first : first + 50]), actor=f"worker-{first}")
        for first in range(0, 2000, 50)
    ]
    made, odd = sort_out(batch_of(claims), "shop")
    assert not odd
    assert len(made.updates.shared) == 40

    plan = await sql.fetch("EXPLAIN " + UPDATE_ORDINARY, "shop", *made.updates.arguments())

    told = "\n".join(row[0] for row in plan)
    assert "Index Scan using jobs_pkey" in told
    assert "jobs_open" not in told


async def test_batches_with_jobs_of_the_outbox_are_written_once(sql: asyncpg.Connection) -> None:
    """Their rows are there before the log tells of them, which the short way finds out at the end."""
    desk, journal = await desk_of(sql, short=True), Journal()
    tried: list[bool] = []
    write = desk.writer._write

    async def counted(batch: Batch, offset: Offset, ready: Any, *, careful: bool) -> Written:
        tried.append(ready is not None)
        return await write(batch, offset, ready, careful=careful)

    desk.writer._write = counted  # type: ignore[method-assign]
    for number in (1, 2):
        await sql.execute(
            "INSERT INTO streamworker.jobs (id, namespace, shard, task, lane, status, attempt, starts, "
            "strikes, epoch, version, fence, reason, payload, updated_at) VALUES "
            "($1::uuid, 'shop', 0, 'mail', 'normal', 'queued', 0, 0, 0, 0, 0, 0, 'outbox', $2, now())",
            job_id(number),
            ENV,
        )

    for numbers in ((1, 3), (2, 4), (5,), (6,)):
        await desk.write(journal.enqueued(*map(job_id, numbers)))

    assert tried == [True, False, False, False, True]
    versions = await sql.fetch("SELECT version, reason FROM streamworker.jobs")
    assert {tuple(row) for row in versions} == {(1, "enqueued")}
    assert len(versions) == 6
