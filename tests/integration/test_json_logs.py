"""A fleet that logs JSON: every line is an object, and its moves are those that the event log has."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cli_desk import Desk
from tests.processes import WorkerProcess
from tests.servers import BenchServer
from tests.waiting import wait_until

SECRET = "4111-1111-1111"


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


def parsed(process: WorkerProcess) -> list[dict[str, Any]]:
    """Each line of the log; fails if one is no object."""
    return [json.loads(line) for line in process.log().splitlines()]


def moves_of(lines: list[dict[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """The moves of each job, in the order in which they were logged."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for line in lines:
        if line.get("event") == "transition":
            found[line["job_id"]].append((line["previous_status"], line["next_status"]))
    return found


def test_the_moves_that_a_fleet_logs_are_those_of_the_event_log(desk: Desk) -> None:
    jobs = [desk.call("enqueue", "where", "{}").stdout.strip() for _ in range(20)]
    flaky = [desk.call("enqueue", "flaky", "{}", "--key", f"k{n}").stdout.strip() for n in range(3)]
    bad = desk.call("enqueue", "block", json.dumps({"card": SECRET})).stdout.strip()
    late = desk.put("late", {"sent": 0, "seconds": 0.3})
    with WorkerProcess(
        "fleet_app:app",
        *("--processes", "2", "--concurrency", "4", "--log-format", "json"),
        redis_url=desk.url,
        namespace=desk.namespace,
        env={"STREAMWORKER_LEASE": "2s"},
    ) as fleet:
        ended = {"succeeded", "failed_terminal", "retry_scheduled"}
        wait_until(
            lambda: all(desk.status(job) in ended for job in [*jobs, *flaky, bad, late]),
            timeout=40,
            what="all jobs have come to something",
        )
        wait_until(
            lambda: sum(len(moves) for moves in moves_of(parsed(fleet)).values()) == 20 * 3 + 3 * 3 + 2 + 3,
            what="every move is logged",
        )
        fleet.terminate()
        assert fleet.wait() == 0
        lines = parsed(fleet)

    logged = moves_of(lines)
    for job in [*jobs, *flaky, bad, late]:
        history = desk.json("jobs", "show", job)["history"]
        assert logged[job] == [(move["from"], move["to"]) for move in history[1:]], "all but the enqueue"
    failed = [line for line in lines if line.get("error_code") == "carrier_away"]
    assert {line["idempotency_key"] for line in failed} == {"k0", "k1", "k2"}
    assert {(line["error_class"], line["next_status"]) for line in failed} == {
        ("transient", "retry_scheduled")
    }
    assert {line["logger"] for line in lines if "logger" in line} >= {
        "streamworker.supervisor",
        "streamworker.worker",
    }
    assert SECRET not in json.dumps(lines)


def test_children_of_a_worker_log_in_its_format(desk: Desk) -> None:
    with WorkerProcess(
        "process_app:app",
        redis_url=desk.url,
        namespace=desk.namespace,
        env={"STREAMWORKER_LOG_FORMAT": "json"},
    ) as worker:
        job = desk.call("enqueue", "say", "{}").stdout.strip()
        wait_until(lambda: desk.status(job) == "succeeded", timeout=40, what="the job has succeeded")
        worker.terminate()
        assert worker.wait() == 0
        lines = parsed(worker)

    (said,) = [line for line in lines if line.get("logger") == "streamworker.job"]
    assert (said["message"], said["job_id"], said["task"]) == ("hello from a child", job, "say")


def test_readable_logs_tell_of_failures_only(desk: Desk) -> None:
    done = desk.call("enqueue", "where", "{}").stdout.strip()
    failed = desk.call("enqueue", "block", "{}").stdout.strip()
    with WorkerProcess("fleet_app:app", redis_url=desk.url, namespace=desk.namespace) as worker:
        wait_until(lambda: desk.status(failed) == "failed_terminal", what="the job has failed")
        wait_until(lambda: desk.status(done) == "succeeded", what="the other has succeeded")
        worker.wait_for_log(failed)
        worker.terminate()
        assert worker.wait() == 0

        assert f" tasks of fleet, namespace {desk.namespace}\n" in worker.log()
        assert "bad_arguments" in worker.log()
        assert done not in worker.log()


def test_a_format_that_there_is_not_is_refused(desk: Desk) -> None:
    with WorkerProcess("fleet_app:app", "--log-format", "xml", redis_url=desk.url) as worker:
        assert worker.wait() == 2
        assert "xml" in worker.log()
