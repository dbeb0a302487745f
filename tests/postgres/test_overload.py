"""What the durable record makes of jobs that were deferred, drained and merged."""

from __future__ import annotations

import asyncpg
import pytest

from streamworker.postgres import offsets
from tests.postgres.journal import Journal, claimed, job_id
from tests.postgres.test_writer import Desk

JOB = job_id(1)
FIRST, SECOND, THIRD = (b'{"t":"mail","a":{"to":[%s]}}' % items for items in (b"1", b"1,2", b"1,2,3"))


@pytest.fixture
async def desk(sql: asyncpg.Connection) -> Desk:
    return Desk(sql, await offsets.begin(sql, "shop", 0, "marker"))


def moved(reason: str, version: int, facts: str = "") -> str:
    """The line of a job that stays queued."""
    return f"{JOB} queued queued 0 0 0 {version} 0 0 0 {reason}{facts}"


async def test_a_job_that_is_deferred_and_drained_has_both_moves_and_its_lane(desk: Desk) -> None:
    journal = Journal()

    await desk.write(journal.enqueued(JOB, facts=" backlog=lane_full", p1=FIRST, k1=b"\nbl=lane_full"))
    assert ((await desk.job())["reason"], (await desk.job())["lane"]) == ("deferred", "normal")
    await desk.write(journal.entry(moved("drained", 2), script="drain", actor="keeper"))

    row = await desk.job()
    assert (row["status"], row["reason"], row["lane"], row["worker"]) == ("queued", "drained", "normal", None)
    assert await desk.moves() == [(0, 1, "queued"), (0, 2, "queued")]
    facts = await desk.sql.fetchval("SELECT facts FROM streamworker.job_transitions WHERE version = 1")
    assert "backlog=lane_full" in facts


@pytest.mark.parametrize("together", [True, False])
async def test_what_was_merged_is_in_the_payload(desk: Desk, together: bool) -> None:
    journal = Journal()
    entries = [
        journal.enqueued(JOB, facts=f" due={journal.at_ms + 1000}", p1=FIRST),
        journal.entry(moved("merged", 2, " events=1"), script="coalesce", actor="-", p1=SECOND),
        journal.entry(moved("merged", 3, " events=1"), script="coalesce", actor="-", p1=THIRD),
        journal.entry(claimed(JOB, version=4)),
    ]

    if together:
        await desk.write(*entries)
    else:
        for entry in entries:
            await desk.write(entry)

    row = await desk.job()
    assert (row["payload"], row["status"], row["version"]) == (THIRD, "claimed", 4)
    assert '"to"' in row["payload_json"]


async def test_an_entry_that_is_read_again_does_not_bring_back_an_older_payload(desk: Desk) -> None:
    journal = Journal()
    enqueued = journal.enqueued(JOB, p1=FIRST)
    second = journal.entry(moved("merged", 2, " events=1"), script="coalesce", actor="-", p1=SECOND)
    third = journal.entry(moved("merged", 3, " events=1"), script="coalesce", actor="-", p1=THIRD)
    await desk.write(enqueued, second, third)

    await desk.write(enqueued, second)

    assert (await desk.job())["payload"] == THIRD
