"""What real workers tell: text that promtool accepts, and no more series than lanes, tasks and states make.

CARDINALITY_JOBS and CARDINALITY_RESTARTS make the second longer: 10,000 and 200 in `make soak-rounds`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import string
import subprocess
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamworker import Request
from streamworker.client import Client
from streamworker.request import Options
from streamworker.store import lua
from streamworker.telemetry.labels import OWN_CODES
from tests.integration.cli_desk import Desk
from tests.integration.test_fleet import fleet, free_port, get
from tests.observability.promtool import needs_promtool
from tests.processes import WorkerProcess
from tests.servers import BenchServer
from tests.waiting import wait_until

JOBS = int(os.environ.get("CARDINALITY_JOBS", "200"))
RESTARTS = int(os.environ.get("CARDINALITY_RESTARTS", "4"))
#: Rolling restarts of both workers before the series are counted first, and as many after.
HALF = max(1, RESTARTS // 4)
RESTARTED = "rolling restart is done"
PATIENCE = 60.0

Series = tuple[str, tuple[tuple[str, str], ...]]


@pytest.fixture
def desk(valkey: BenchServer, namespace: str) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


def series(text: str) -> set[Series]:
    """Names and labels of a scrape."""
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def merged(found: set[Series]) -> set[Series]:
    """Ours, whichever process told them: the one that is elected to look at Redis may be another by now."""
    return {
        (name, tuple(label for label in labels if label[0] != "proc"))
        for name, labels in found
        if name.startswith("streamworker_") and not name.startswith(CALLS)
    }


#: By script, of which there are so many as there are: which of them a keeper needs is a matter of chance.
CALLS = "streamworker_redis_call_duration_seconds"
#: Values that labels may have, whatever producers and handlers make up.
ALLOWED = {
    "task": {"tell", "other"},
    "lane": {"priority", "normal", "backlog"},
    "error_code": {*OWN_CODES, "other"},
    "gate": {"entity:thing", "entity:other", "concurrency:tenant", "concurrency:other"},
    "limiter": {"concurrency:tenant", "concurrency:other"},
    "lock": {"other"},
    "script": set(lua.names()),
    "state": {"ready", "parked", "scheduled", "in_flight", "dead", "capacity", "in_use", "reserved"},
}


def workers(desk: Desk, port: int) -> WorkerProcess:
    return fleet(desk, "--metrics-port", str(port), "--concurrency", "8", app="hostile_jobs:app")


def scrape(port: int) -> str:
    status, text = get(port, "/metrics")
    assert status == 200
    return text


@needs_promtool
def test_promtool_finds_nothing_wrong_with_a_scrape(desk: Desk) -> None:
    port = free_port()
    with workers(desk, port):
        wait_until(lambda: get(port, "/readyz")[0] == 200, timeout=PATIENCE, what="the fleet is ready")
        for code in ("", "away"):
            desk.call("enqueue", "tell", f'{{"thing": "a", "code": "{code}", "fatal": true}}')
        wait_until(
            lambda: "queue_dead_lettered_total" in scrape(port) and 'code="other"' in scrape(port),
            timeout=PATIENCE,
            what="the dead letter is told",
        )

        checked = subprocess.run(
            ["promtool", "check", "metrics"],
            input=scrape(port),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def hostile(rng: random.Random) -> Request:
    """A request that nobody expects: a task, lane, code or thing of its own."""
    word = "".join(rng.choices(string.ascii_lowercase + string.digits + "_.-", k=12))
    name = f"t{word}"
    options = Options.of(tenant=word, key=word, lane="normal")
    match rng.randrange(4):
        case 0:
            return Request(name, {"thing": word}, options)
        case 1:
            return Request("tell", {"thing": word, "code": f"e_{word}", "fatal": True}, options)
        case 2:
            return Request("tell", {"thing": word, "code": f"e_{word}"}, options)
        case _:
            return Request("tell", {"thing": word}, Options.of(tenant=word, key=word))


def told_of(text: str) -> float:
    """How many jobs a scrape says that were enqueued."""
    lines = (line for line in text.splitlines() if line.startswith("streamworker_queue_enqueued_total{"))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def flood(desk: Desk, count: int, rng: random.Random) -> None:
    async with Client(desk.url, app=desk.namespace) as client:
        for first in range(0, count, 200):
            await client.enqueue_many([hostile(rng) for _ in range(min(200, count - first))])


@pytest.mark.timeout(max(240, 1800 * (JOBS > 1000), 30 * RESTARTS))
def test_series_depend_on_lanes_tasks_and_states_alone(desk: Desk) -> None:
    port, rng = free_port(), random.Random(7)
    counted: set[Series] = set()
    sent = 0

    def more() -> None:
        nonlocal sent
        asyncio.run(flood(desk, JOBS // (2 * HALF), rng))
        sent += JOBS // (2 * HALF)

    def settled() -> bool:
        text = scrape(port)
        counted.update(series(text))
        if told_of(text) < sent:  # who looks at Redis has not looked since
            return False
        waiting = [line for line in text.splitlines() if line.startswith("streamworker_queue_jobs{")]
        open_jobs = [line for line in waiting if 'state="ready"' in line or 'state="in_flight"' in line]
        return bool(open_jobs) and all(line.endswith(" 0.0") for line in open_jobs)

    def rolled(before: int) -> None:
        wait_until(
            lambda: supervisor.log().count(RESTARTED) > before, timeout=PATIENCE, what="both were restarted"
        )

    def roll(times: int) -> None:
        for _ in range(times):
            done = supervisor.log().count(RESTARTED)
            more()
            os.kill(supervisor.pid, signal.SIGHUP)
            rolled(done)
            counted.update(series(scrape(port)))

    with workers(desk, port) as supervisor:
        wait_until(lambda: get(port, "/readyz")[0] == 200, timeout=PATIENCE, what="the fleet is ready")
        roll(HALF)
        more()  # what processes counted before they were restarted, nobody may have asked for
        wait_until(settled, timeout=JOBS * 0.1 + PATIENCE, what="half of the jobs have come to something")
        at_half = merged(counted)
        roll(HALF)
        wait_until(settled, timeout=JOBS * 0.1 + PATIENCE, what="all jobs have come to something")

    assert merged(counted) == at_half, "another half of hostile jobs and restarts made no series"
    assert {value for _, labels in counted for name, value in labels if name == "proc"} == {"1", "2"}
    for label, allowed in ALLOWED.items():
        found = {value for _, labels in counted for name, value in labels if name == label}
        assert found <= allowed, label
    print(f"{len(at_half)} series of {JOBS} jobs and {RESTARTS} restarts")
    assert len(at_half) < 1000
