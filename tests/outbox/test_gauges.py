"""What the outbox tells of itself: by a relay, and by the elected worker when there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamworker import App, enqueue_in
from streamworker.embedded_postgres import EmbeddedPostgres
from streamworker.outbox import gauges as told
from streamworker.outbox.depth import Depth, measure
from streamworker.outbox.gauges import RESULTS, Gauges, page
from streamworker.outbox.relay import Relay
from streamworker.postgres import migrate
from streamworker.telemetry.catalogue import Scope, of_scope
from streamworker.telemetry.cluster import ClusterNumbers
from streamworker.telemetry.labels import Codes
from streamworker.worker.watcher import Watcher
from tests.outbox.conftest import Relaying
from tests.servers import BenchServer
from tests.waiting import wait_until_async

FIRST = "WHERE id = (SELECT min(id) FROM streamworker.outbox)"


async def requested(app: App, sql: asyncpg.Connection, *orders: int) -> None:
    async with sql.transaction():
        for order in orders:
            await enqueue_in(sql, app.tasks["ship"].call(order))


def numbers() -> ClusterNumbers:
    return ClusterNumbers(codes=Codes(), expected=None)


def test_all_metrics_of_a_relay_are_told() -> None:
    gauges = Gauges(depth=Depth(pending=3, refused=2, lag_seconds=2.5))
    gauges.relayed["refused"] += 1
    found = {family.name: family for family in text_string_to_metric_families(page(gauges))}

    for spec in of_scope(Scope.RELAY):
        labels = {name for sample in found[spec.full_name].samples for name in sample.labels}
        assert labels == set(spec.labels), spec.name
    values = {
        sample.labels["result"]: sample.value for sample in found["streamworker_outbox_relayed"].samples
    }
    assert values == {**dict.fromkeys(RESULTS, 0), "refused": 1}
    for name, value in (("lag_seconds", 2.5), ("pending_rows", 3), ("refused_rows", 2)):
        assert [sample.value for sample in found[f"streamworker_outbox_{name}"].samples] == [value]


def test_a_relay_is_ready_as_long_as_its_rounds_work(monkeypatch: pytest.MonkeyPatch) -> None:
    gauges = Gauges()
    assert not gauges.ready()[0], "nothing is known yet"

    gauges.worked()
    assert gauges.ready()[0]

    monkeypatch.setattr(told, "SILENT", 0.0)
    gauges.problem = "Redis is away"
    assert gauges.ready() == (False, gauges.ready()[1])
    assert gauges.ready()[1]["problem"] == "Redis is away"


async def test_a_relay_counts_what_becomes_of_requests(app: App, sql: asyncpg.Connection, dsn: str) -> None:
    await requested(app, sql, 1, 2)
    await sql.execute(f"UPDATE streamworker.outbox SET extra = 'no such thing' {FIRST}")
    relay = Relay(app.settings, dsn, "r")
    running = asyncio.create_task(relay.run())

    await wait_until_async(lambda: relay.published == 1, what="the good one is told")
    relay.stop()
    await running

    assert relay.gauges.relayed == {"published": 1, "refused": 1, "rejected": 0}
    assert relay.gauges.ready()[0]


async def test_what_waits_is_measured_by_its_oldest(
    app: App, sql: asyncpg.Connection, relaying: Relaying
) -> None:
    assert await measure(sql, app.settings.namespace) == Depth()
    await requested(app, sql, 1)
    await requested(app, sql, 2)
    await sql.execute(f"UPDATE streamworker.outbox SET created_at = now() - interval '90 s' {FIRST}")

    found = await measure(sql, app.settings.namespace)

    assert (found.pending, found.refused, found.attempts, found.error) == (2, 0, 0, None)
    assert 90 <= found.lag_seconds < 150
    assert await measure(sql, "another") == Depth()
    await relaying()
    assert await measure(sql, app.settings.namespace) == Depth()


async def test_the_elected_worker_tells_of_an_outbox_that_nobody_relays(
    app: App, sql: asyncpg.Connection
) -> None:
    await requested(app, sql, 1)
    mine = numbers()
    watcher = Watcher(app.settings, "w", mine)

    await watcher.look()

    assert mine.outbox is not None
    assert (mine.outbox.pending, mine.outbox.lag_seconds > 0) == (1, True)
    await watcher.close()


@pytest.mark.parametrize("migrated", [True, False])
async def test_without_postgres_or_its_schema_the_rest_is_told(
    valkey: BenchServer, namespace: str, own_postgres: Callable[[], EmbeddedPostgres], migrated: bool
) -> None:
    postgres = own_postgres()
    if migrated:
        connection = await asyncpg.connect(postgres.dsn)
        await migrate.migrate(connection)
        await connection.close()
    app = App("shop", redis_url=valkey.url, namespace=namespace, postgres_dsn=postgres.dsn)
    mine = numbers()
    watcher = Watcher(app.settings, "w", mine)
    await watcher.look()
    assert mine.outbox == (Depth() if migrated else None)

    postgres.stop()
    await watcher.look()

    assert mine.snapshot is not None
    assert mine.outbox is None
    await watcher.close()


async def test_without_a_postgres_nobody_asks_for_one(app: App) -> None:
    mine = numbers()
    watcher = Watcher(replace(app.settings, postgres_dsn=None), "w", mine)

    await watcher.look()

    assert mine.snapshot is not None
    assert mine.outbox is None
    await watcher.close()
