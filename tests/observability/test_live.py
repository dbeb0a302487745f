"""A live fleet, mirror and relay under load, a real Prometheus, and what dashboards and alerts make of it.

All windows are scaled: minutes are seconds. The alerts are those of the committed file otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import psycopg
import pytest
import yaml

from streamworker import App, Context, SyncClient, enqueue_in
from streamworker.ops import tune
from streamworker.postgres import connection, migrate
from streamworker.request import Options, Request
from streamworker.settings import read
from streamworker.store.queue import Queue
from streamworker.telemetry.catalogue import CATALOGUE, Kind, Spec
from tests.chaos.bench import Bench
from tests.observability.files import DASHBOARDS, REPOSITORY, alerts, dashboard, queries
from tests.observability.monitor import Monitor, scaled
from tests.observability.promtool import needs_prometheus
from tests.processes import WorkerProcess
from tests.waiting import wait_until

pytestmark = needs_prometheus

#: Seconds that may pass until something is seen; a machine that is busy needs them.
PATIENCE = 60.0


def samples(spec: Spec) -> list[str]:
    """The names of a metric's samples."""
    parts = ("_bucket", "_sum", "_count") if spec.kind is Kind.HISTOGRAM else ("",)
    return [spec.sample + part for part in parts]


IN_BACKLOG = Options.of(lane="backlog")


def calm(tick: int) -> list[Request]:
    """A tenth of a second of a day like others."""
    requests = [
        *(Request("greet", {}) for _ in range(2)),
        *(Request("call", {"parcel": 2 * tick + n}) for n in range(2)),
        *(Request("charge", {"cents": cents}) for cents in (100, 200, -1)),
        Request("count", {"shelf": tick % 3}),
        Request("quote", {"sku": tick % 20}),
        Request("report", {"seconds": 0.05}),
    ]
    if tick % 10 == 0:  # who comes at once waits at gates
        requests += [Request("ship", {"order": 1}) for _ in range(10)]
        requests += [Request("remind", {}) for _ in range(12 if tick == 0 else 3)]
    if tick % 30 == 0:
        requests += [Request("charge", {"cents": 0}), Request("charge", {"cents": 1}, IN_BACKLOG)]
    return requests


def stormy(tick: int) -> list[Request]:
    """The same on a day when all goes wrong, and half of the world is urgent."""
    return [
        *calm(tick),
        *(Request("greet", {}) for _ in range(80)),
        *(Request("call", {"parcel": -9 * tick - n}) for n in range(3)),
        *(Request("charge", {"cents": 0}) for _ in range(4)),
        *(Request("ship", {"order": 1}) for _ in range(6)),
        *(Request("report", {"seconds": 5.0}) for _ in range(3)),
        *(Request("charge", {"cents": 100}, IN_BACKLOG) for _ in range(3)),
    ]


class Stage:
    """A bench with metrics, a mirror, a relay, and somebody who enqueues all the time. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outage = folder / "outage"
        self.bench = Bench(
            app="observed_jobs:app",
            workers=2,
            concurrency=16,
            arguments=("--metrics-port", "0"),
            respawn=False,
            postgres=True,
            env={"OBSERVED_OUTAGE": str(self._outage), "STREAMWORKER_WORKERS_EXPECTED": "2"},
        )
        self._stack = ExitStack()
        self._weather = calm
        self._stop = threading.Event()
        self._producer = threading.Thread(target=self._produce, name="producer", daemon=True)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.bench)
            postgres = self.bench.postgres
            assert postgres is not None
            asyncio.run(_migrate(postgres.dsn))
            self._mirror = stack.enter_context(self._companion("mirror", "run"))
            self._relay = stack.enter_context(self._companion("outbox", "relay"))
            self._mirror.wait_for_log("mirroring", timeout=PATIENCE)
            workers = [worker.process for worker in self.bench.fleet.up]
            ports = [port_of(process) for process in (*workers, self._mirror, self._relay)]
            self._orders = stack.enter_context(psycopg.connect(postgres.dsn, autocommit=True))
            self.monitor = stack.enter_context(Monitor(self._folder, ports))
            self._producer.start()
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def _companion(self, command: str, word: str) -> WorkerProcess:
        assert self.bench.postgres is not None
        return WorkerProcess(
            word,
            *("--metrics-port", "0"),
            command=command,
            redis_url=self.bench.server.url,
            namespace=self.bench.namespace,
            env={"STREAMWORKER_POSTGRES_DSN": self.bench.postgres.dsn},
        )

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        self._stop.set()
        self._producer.join()

    def _produce(self) -> None:
        bench = self.bench
        app = App(bench.app.name, redis_url=bench.server.url, namespace=bench.namespace)

        @app.task(name="greet", lane="priority")
        async def committed(ctx: Context) -> None: ...

        with SyncClient(bench.server.url, app=bench.app.name, namespace=bench.namespace) as client:
            for tick in itertools.count():
                client.enqueue_many(self._weather(tick))
                enqueue_in(self._orders, committed.call())
                if self._stop.wait(0.1):
                    return

    def storm(self) -> None:
        """The carrier is down, the priority lane stalls, the rest gets more than it can do."""
        self._outage.touch()
        asyncio.run(self._pause("lane:priority"))
        self._weather = stormy

    async def _pause(self, scope: str) -> None:
        bench = self.bench
        queue = Queue(read(bench.app.name, redis_url=bench.server.url, namespace=bench.namespace, environ={}))
        try:
            await tune.pause(queue, scope, actor="chaos", reason="to see who notices")
        finally:
            await queue.close()

    def repeat_deliveries(self) -> None:
        """Thousands of entries of one job that runs: as after a group that was made anew."""
        bench = self.bench
        job_id = bench.enqueue("report", {"seconds": 20.0})
        stream = bench.keys.stream("heavy")

        def entry() -> dict[bytes, bytes] | None:
            entries: list[dict[bytes, bytes]] = [fields for _, fields in bench.redis.xrange(stream)]
            return next((fields for fields in entries if job_id.encode() in fields.values()), None)

        fields = wait_until(entry, what="the job's entry is seen")
        pipeline = bench.redis.pipeline(transaction=False)
        for _ in range(3000):
            pipeline.xadd(stream, fields)
        pipeline.execute()

    def stop_mirror(self) -> None:
        """Nobody writes to Postgres any more."""
        self._mirror.kill()

    def stop_relay(self) -> None:
        """Nobody tells Redis of what was committed."""
        self._relay.kill()

    def lose_worker(self) -> None:
        """One of two."""
        self.bench.kill(self.bench.fleet.up[0])

    def lose_all_workers(self) -> None:
        """Nobody is left to tell anything."""
        for worker in self.bench.fleet.up:
            self.bench.kill(worker)


async def _migrate(dsn: str) -> None:
    link = await connection.connect(dsn)
    try:
        await migrate.migrate(link)
    finally:
        await link.close()


def port_of(process: WorkerProcess) -> int:
    """Where its endpoint is."""
    process.wait_for_log("/metrics on", timeout=PATIENCE)
    found = re.search(r"/metrics on \S+?:(\d+)", process.log())
    assert found is not None, process.log()
    return int(found[1])


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("live")) as one:
        yield one


def missing(monitor: Monitor, wanted: Mapping[str, str]) -> dict[str, str]:
    """Ask again and again until each query has an answer, or time is up; what has none."""
    left = dict(wanted)

    def look() -> bool:
        for name, query in list(left.items()):
            if any(float(each["value"][1]) == float(each["value"][1]) for each in monitor.ask(query)):
                del left[name]
        return not left

    with contextlib.suppress(AssertionError):
        wait_until(look, timeout=PATIENCE, what="all queries have an answer")
    return left


def chosen(query: str) -> str:
    """A panel's query with all chosen, and windows scaled."""
    for name, value in (("$job", "shop"), ("$lane", ".+"), ("$task", ".+")):
        query = query.replace(name, value)
    query = scaled(query.replace("$__range:1m]", "$__range:1s]").replace(":15s]", ":1s]"))
    return query.replace("$__rate_interval", "6s").replace("$__range", "60s")


def test_each_metric_of_the_catalogue_is_there(stage: Stage) -> None:
    wanted = {name: name for spec in CATALOGUE for name in samples(spec)}

    left = missing(stage.monitor, wanted)

    assert not left, "without data: " + "; ".join(sorted(left))


def test_each_panel_has_data(stage: Stage) -> None:
    wanted = {
        f"{path.stem}: {title} {number}": chosen(query)
        for path in DASHBOARDS
        for number, (title, query) in enumerate(queries(dashboard(path)))
    }

    assert len(wanted) > 50
    left = missing(stage.monitor, wanted)

    assert not left, "without data: " + "; ".join(sorted(left))


def test_annotations_are_understood(stage: Stage) -> None:
    for path in DASHBOARDS:
        for mark in dashboard(path)["annotations"]["list"]:
            if "expr" in mark:
                stage.monitor.ask(chosen(mark["expr"]))  # raises what Prometheus says


def test_each_variable_has_values(stage: Stage) -> None:
    for path in DASHBOARDS:
        for variable in dashboard(path)["templating"]["list"]:
            if variable["type"] != "query":
                continue
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            values = stage.monitor.get(f"label/{found[2]}/values", **{"match[]": chosen(found[1])})
            assert values, f"{path.stem}: {variable['name']}"


def test_what_workers_are_added_for_is_known(stage: Stage) -> None:
    manifest = yaml.safe_load((REPOSITORY / "deploy" / "kubernetes" / "scaledobject.yaml").read_text())
    (trigger,) = manifest["spec"]["triggers"]

    (found,) = stage.monitor.ask(trigger["metadata"]["query"])

    assert float(found["value"][1]) < float(trigger["metadata"]["threshold"])


def test_redis_refuses_nothing_on_a_calm_day(stage: Stage) -> None:
    refused = stage.monitor.ask('streamworker_redis_errors_total{kind="reply"} > 0')

    assert [each["metric"]["kind"] for each in refused] == []


STORM = (
    "StreamworkerRetrySpike",
    "StreamworkerMeanAttemptRising",
    "StreamworkerRetriesFollowDependency",
    "StreamworkerLaneOverTarget",
    "StreamworkerDepthUpThroughputFlat",
    "StreamworkerPriorityDiluted",
    "StreamworkerTerminalFailures",
    "StreamworkerDeadLetterSurge",
    "StreamworkerGateGrows",
    "StreamworkerBacklogGrowsWhileDraining",
)
#: What is done, and which alerts it fires, in this order: after the last nobody tells anything.
FAULTS: dict[str, tuple[Callable[[Stage], None], tuple[str, ...]]] = {
    "repeated deliveries": (Stage.repeat_deliveries, ("StreamworkerClaimConflicts",)),
    "no mirror": (Stage.stop_mirror, ("StreamworkerMirrorLag",)),
    "no relay": (Stage.stop_relay, ("StreamworkerOutboxStuck",)),
    "storm": (Stage.storm, STORM),
    "a lost worker": (Stage.lose_worker, ("StreamworkerWorkerMissing",)),
    "no workers": (Stage.lose_all_workers, ("StreamworkerNoMetrics",)),
}


def test_each_alert_has_a_fault() -> None:
    assert {alert for _, fired in FAULTS.values() for alert in fired} == alerts().keys()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fires_its_alerts(stage: Stage, fault: str) -> None:
    strike, named = FAULTS[fault]
    wanted = set(named)

    def firing() -> set[str]:
        return wanted & stage.monitor.firing()

    try:
        wait_until(lambda: not firing(), timeout=PATIENCE, what=f"all is quiet before {fault}")
    except AssertionError:
        pytest.fail(f"{sorted(firing())} fire before {fault}")
    seen: set[str] = set()

    strike(stage)

    def all_seen() -> bool:
        seen.update(firing())
        return seen == wanted

    try:
        wait_until(all_seen, timeout=PATIENCE, what=f"{fault} is noticed")
    except AssertionError:
        pytest.fail(f"{fault} does not fire {sorted(wanted - seen)}")
