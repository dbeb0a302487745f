"""What a reconcile asks of Postgres is bounded by what is to be restored, not by what ever ran."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from streamworker.core.cron import Cron, Overlap, Schedule
from streamworker.postgres import reconcile, ticks
from streamworker.postgres.census import Census
from streamworker.postgres.reconcile import OPEN_JOBS, Reconciled, Reconciler
from streamworker.postgres.ticks import Ticks
from streamworker.store.caller import Caller
from streamworker.store.keys import Keys
from tests.servers import BenchServer

HOUR_MS = 3_600_000
#: Jobs that ended, `$1` of them, one each 7.013 seconds before $2 (ms), each with a key that is held.
ENDED = """
INSERT INTO streamworker.jobs (id, namespace, shard, task, lane, status, attempt, starts, strikes, epoch,
    version, fence, reason, payload_json, key_id, fingerprint, key_window_ms, finished_at, updated_at)
SELECT (lpad(to_hex($2::bigint - n * 7013), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid, $3, 0,
    'mail', 'normal', 'succeeded', 1, 1, 0, 0, 4, 1, 'returned', '{}', 'key' || n, 'f', 86400000,
    to_timestamp(($2::bigint - n / 2 * 1000) / 1000.0), now()
FROM generate_series(1, $1::bigint) AS n
"""


@pytest.fixture
async def caller(valkey: BenchServer, keys: Keys) -> AsyncIterator[Caller]:
    made = Caller(valkey.url, keys.tag)
    yield made
    await made.close()


@pytest.fixture
def keys() -> Keys:
    """Of a namespace of its own: the server is shared."""
    return Keys(f"large{time.time_ns()}")


async def rows_read(sql: asyncpg.Connection, statement: str, *arguments: Any) -> int:
    """Rows of tables that it goes through."""
    said = await sql.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *arguments)
    total, plans = 0, [json.loads(said)[0]["Plan"]]
    while plans:
        plan = plans.pop()
        plans += plan.get("Plans", ())
        if "Relation Name" in plan:
            removed = plan.get("Rows Removed by Filter", 0)
            total += (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    return round(total)


async def test_ticks_are_found_among_many_other_jobs(
    sql: asyncpg.Connection, caller: Caller, keys: Keys
) -> None:
    """A day of jobs is more than Postgres reads in the time that a statement has."""
    seconds, _ = await caller.command("TIME")
    now = int(seconds) * 1000
    await sql.execute(ENDED, 10_000, now, keys.namespace)
    sweep, old = (Cron(name, Schedule.parse("* * * * *"), Overlap.SKIP) for name in ("sweep", "old"))
    last, before, long_ago = now // 60_000 * 60_000, now - 3 * HOUR_MS, now - 100 * HOUR_MS
    for cron, tick, status in (
        (sweep, last, "succeeded"),
        (sweep, before, "succeeded"),
        (old, long_ago, "queued"),
    ):
        job_id = cron.job_id(tick, namespace=keys.namespace)
        await sql.execute(
            "INSERT INTO streamworker.jobs (id, namespace, shard, task, status, attempt, starts, strikes, "
            "epoch, version, fence, reason, payload_json, updated_at) VALUES ($1::text::uuid, $5, 0, $2, $3, "
            "1, 1, 0, 0, 4, 1, 'x', jsonb_build_object('s', $4::bigint), now())",
            job_id, cron.name, status, tick, keys.namespace,
        )  # fmt: skip
    await sql.execute("ANALYZE streamworker.jobs")

    open_jobs = Census(caller, keys).stored(sql, OPEN_JOBS)
    assert await Ticks(sql, caller, keys).restore(open_jobs) == 2

    known = await caller.command("HGETALL", keys.crons)
    found = dict(zip(known[::2], (word.split(b" ")[:2] for word in known[1::2]), strict=True))
    assert found == {
        b"sweep": [b"%d" % last, sweep.job_id(last, namespace=keys.namespace).encode()],
        b"old": [b"%d" % long_ago, old.job_id(long_ago, namespace=keys.namespace).encode()],
    }
    assert await rows_read(sql, ticks.TICKS, keys.namespace, 0, now - HOUR_MS, now) < 100


async def test_keys_are_held_again_page_by_page(
    sql: asyncpg.Connection, caller: Caller, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several end at the same moment: none is left out between two pages."""
    monkeypatch.setattr(reconcile, "KEYS_PAGE", 7)
    now = round(time.time() * 1000)
    await sql.execute(ENDED, 50, now, keys.namespace)
    await sql.execute("UPDATE streamworker.jobs SET key_window_ms = 1 WHERE key_id = 'key50'")
    absent: Any = None
    made = Reconciler(sql, caller, keys, absent, absent, absent, "m")
    planned, done = Reconciled(dry_run=True), Reconciled()

    await made._hold_keys(planned)
    await made._hold_keys(done)

    assert (planned.keys_held, done.keys_held) == (49, 49)
    held = await caller.command("MGET", *(keys.key(f"key{n}") for n in range(1, 51)))
    assert held.count(None) == 1
    assert 86_000_000 < await caller.command("PTTL", keys.key("key1")) <= 86_400_000
