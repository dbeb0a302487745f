"""What Redis knows, read from a real server: by whom, and that the numbers are those of the jobs."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamworker import App, Concurrency, Context, Lane, PersistentError, Rate
from streamworker.core.lane import Pressure
from streamworker.core.retry import Retry
from streamworker.ops import snapshot, tune
from streamworker.ops.snapshot import Snapshot
from streamworker.store import scripts
from streamworker.store.manifest import Declaration
from streamworker.telemetry.cluster import ClusterNumbers
from streamworker.telemetry.labels import Codes
from streamworker.worker.watcher import Watcher
from tests.integration.cli_desk import Desk
from tests.integration.serving import failure, serving
from tests.processes import WorkerProcess
from tests.servers import BenchServer
from tests.waiting import wait_until


class Refused(PersistentError):
    code = "refused"


def shop(server: BenchServer, namespace: str) -> App:
    app = App(
        namespace,
        redis_url=server.url,
        lanes={"normal": Lane(target="30s"), "bulk": Lane(), "backlog": Lane(target="15m")},
        lease="2s",
    )

    @app.task(retry=Retry.never())
    async def refuse(ctx: Context) -> None:
        raise Refused("no")

    @app.task(entity="order:{order_id}", limits=[Rate("task", "1/h", burst=3), Concurrency("tenant", 5)])
    async def pack(ctx: Context, order_id: int) -> None:
        return None

    return app


async def look(app: App) -> Snapshot:
    queue = app.queue()
    return await snapshot.take(queue.caller, queue.keys)


def counted(seen: Snapshot) -> dict[tuple[str, str, str], int]:
    """The jobs that are somewhere."""
    return {key: count for key, count in seen.jobs.items() if count}


async def test_a_look_counts_jobs_where_they_are(server: BenchServer, namespace: str, no_leaks: None) -> None:
    async with shop(server, namespace) as app:
        refuse, pack = app.tasks["refuse"], app.tasks["pack"]
        await refuse.options(lane="bulk").enqueue()
        await refuse.options(delay="1h").enqueue()
        for _ in range(3):
            await pack.enqueue(order_id=7)  # the first is granted the entity, the others wait for it
        for _ in range(40):
            await refuse.options(tenant="acme").enqueue()  # most of them wait behind the turnstile
        await tune.pause(app.queue(), "lane:bulk", actor="test")

        seen = await look(app)

        assert counted(seen) == {
            ("bulk", "refuse", "ready"): 1,
            ("normal", "refuse", "scheduled"): 1,
            ("normal", "pack", "ready"): 1,
            ("normal", "pack", "parked"): 2,
            ("normal", "refuse", "ready"): 16,
            ("normal", "refuse", "parked"): 24,
        }
        assert seen.enqueued == {("bulk", "refuse"): 1, ("normal", "refuse"): 41, ("normal", "pack"): 3}
        assert seen.waiting == {"entity:order:7": 2}
        assert (seen.workers, seen.tasks) == (0, frozenset()), "no worker has published anything yet"


async def test_a_look_sees_what_workers_published_and_did(
    server: BenchServer, namespace: str, no_leaks: None
) -> None:
    async with shop(server, namespace) as app, serving(app):
        refuse, pack = app.tasks["refuse"], app.tasks["pack"]
        for _ in range(2):
            await failure(await refuse.enqueue())
        for _ in range(3):
            await (await pack.enqueue(order_id=7)).result(10)

        seen = await look(app)

        assert seen.workers == 1
        assert seen.tasks == {"refuse", "pack"}
        assert seen.gates == {"entity:order:", "rate:task:pack", "concurrency:tenant:"}
        assert set(seen.lanes) == {"normal", "bulk", "backlog"}
        assert (seen.lanes["normal"].target, seen.lanes["bulk"].target) == (30, None)
        assert seen.lanes["backlog"].target == 900
        assert seen.lanes["normal"].pressure is Pressure.OK
        assert counted(seen) == {("normal", "refuse", "dead"): 2}
        assert seen.dead_lettered == {("refuse", "refused"): 2}
        left, capacity = seen.buckets["task:pack"]
        assert capacity == 3
        assert 0 <= left < 0.1


async def test_only_who_is_elected_tells_and_who_loses_clears_its_series(
    server: BenchServer, namespace: str, no_leaks: None
) -> None:
    app = shop(server, namespace)
    told = [ClusterNumbers(codes=Codes(), expected=None) for _ in range(2)]
    first, second = (Watcher(app.settings, f"w{n}", numbers) for n, numbers in enumerate(told))
    exporter = Watcher(app.settings, "exporter", ClusterNumbers(codes=Codes(), expected=None), always=True)
    async with app:
        await first.look()
        await second.look()
        assert [numbers.snapshot is not None for numbers in told] == [True, False]

        await exporter.look()
        await first.look()

        assert [numbers.snapshot is not None for numbers in told] == [False, False]
        for watcher in (first, second, exporter):
            await watcher.close()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_the_exporter_tells_what_redis_knows_and_the_codes_of_an_app_that_it_is_given(
    valkey: BenchServer, namespace: str, port: int
) -> None:
    def scrape() -> dict[str, float]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        return {
            f"{sample.name}{sample.labels.get('error_code', '')}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels.get("task", "charge") == "charge"
        }

    with Desk(valkey.url, namespace) as desk:
        rows = ("task:charge", Declaration(lane="normal").encode())
        desk.run(scripts.publish(rows=rows), tag=desk.keys.namespace_tag)
        desk.dead("charge", code="bad_amount")
        desk.dead("charge", code="made_up_17")
    with WorkerProcess(
        *("observed_jobs:app", "--metrics-port", str(port)),
        command="exporter",
        redis_url=valkey.url,
        namespace=namespace,
        env={"STREAMWORKER_WORKERS_EXPECTED": "4"},
    ) as process:
        wait_until(
            lambda: "streamworker_workers_registered" in scrape(), timeout=20, what="the exporter has looked"
        )

        found = scrape()
        assert (found["streamworker_workers_registered"], found["streamworker_workers_expected"]) == (1, 4)
        dead = "streamworker_queue_dead_lettered_total"
        assert (found[f"{dead}bad_amount"], found[f"{dead}carrier_away"]) == (1, 0)
        assert f"{dead}made_up_17" not in found
        process.terminate()
        assert process.wait() == 0
