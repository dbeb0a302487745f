"""Several worker processes under a supervisor: deaths, signals, restarts, and one endpoint for all."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.integration.cli_desk import Desk
from tests.processes import WorkerProcess
from tests.servers import BenchServer
from tests.waiting import wait_until

#: Seconds that a fleet may take to come up on a busy machine.
PATIENCE = 40.0


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def fleet(desk: Desk, *arguments: str, app: str = "fleet_app:app", processes: int = 2) -> WorkerProcess:
    return WorkerProcess(
        app,
        *("--processes", str(processes), "--grace", "5s", *arguments),
        redis_url=desk.url,
        namespace=desk.namespace,
        env={"STREAMWORKER_LEASE": "2s"},
    )


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
    except OSError as error:
        return 0, str(error)


def pids(supervisor: WorkerProcess) -> dict[int, int]:
    """The newest pid of each slot, as the supervisor told it."""
    return {int(slot): int(pid) for slot, pid in re.findall(r"process (\d+) is pid (\d+)", supervisor.log())}


def up(supervisor: WorkerProcess, count: int) -> dict[int, int]:
    """Wait until so many workers have come up in all, and return the pids by slot."""
    wait_until(
        lambda: supervisor.log().count(" slots, lanes ") >= count or supervisor.returncode is not None,
        timeout=PATIENCE,
        what=f"{count} workers have come up",
    )
    return pids(supervisor)


def gone(pid: int) -> bool:
    """Whether it has ended; an orphan may wait as a zombie for process 1."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_each_process_has_a_slot_and_all_end_with_zero(desk: Desk) -> None:
    with fleet(desk) as supervisor:
        children = up(supervisor, 2)
        assert set(children) == {1, 2}
        job_id = desk.call("enqueue", "where", "{}").stdout.strip()
        wait_until(lambda: desk.status(job_id) == "succeeded", what="the job has succeeded")
        told = desk.json("jobs", "show", job_id)["result"]
        assert children[int(told["slot"])] == told["pid"]
        assert len(desk.json("workers")) == 2

        supervisor.terminate()

        assert supervisor.wait() == 0
        assert all(gone(pid) for pid in children.values())
        assert "Traceback" not in supervisor.log()
    assert desk.json("workers") == []


def test_a_dead_child_is_started_again_and_its_job_ends(desk: Desk) -> None:
    with fleet(desk) as supervisor:
        children = up(supervisor, 2)

        os.kill(children[1], signal.SIGKILL)

        supervisor.wait_for_log("process 1 ended with signal 9; again in 0.5 s")
        renewed = up(supervisor, 3)
        assert renewed[1] != children[1]
        assert renewed[2] == children[2]
        job_id = desk.call("enqueue", "where", "{}").stdout.strip()
        wait_until(lambda: desk.status(job_id) == "succeeded", what="the job has succeeded")
        os.kill(renewed[1], signal.SIGKILL)
        supervisor.wait_for_log("process 1 ended with signal 9; again in 1 s")
        supervisor.terminate()
        assert supervisor.wait() == 0


def test_a_second_signal_ends_at_once_and_hands_back(desk: Desk) -> None:
    with fleet(desk, "--grace", "60s") as supervisor:
        up(supervisor, 2)
        job_id = desk.put("late", {"sent": 0, "seconds": 600})
        wait_until(lambda: desk.status(job_id) == "processing", what="the job runs")

        os.kill(supervisor.pid, signal.SIGINT)
        supervisor.wait_for_log("stopping, up to 60 s")
        os.kill(supervisor.pid, signal.SIGINT)

        assert supervisor.wait(20) == 0
        shown = desk.json("jobs", "show", job_id)
        assert (shown["status"], shown["attempt"]) == ("queued", 0)


def test_a_second_signal_that_comes_when_a_worker_has_said_good_bye_is_no_failure(desk: Desk) -> None:
    """Its handlers are gone before it is: the signal ended it, and the fleet with 1."""
    with fleet(desk, app="fleet_app:leaving") as supervisor:
        up(supervisor, 2)
        os.kill(supervisor.pid, signal.SIGINT)
        wait_until(lambda: supervisor.log().count("it hears no more") == 2, what="both have said good-bye")

        os.kill(supervisor.pid, signal.SIGINT)

        assert supervisor.wait(10) == 0


def test_children_end_when_their_supervisor_is_killed(desk: Desk) -> None:
    with fleet(desk) as supervisor:
        children = up(supervisor, 2)

        supervisor.kill()

        wait_until(lambda: all(map(gone, children.values())), timeout=15, what="the children have ended")
        assert "its supervisor is gone" in supervisor.log()
    assert desk.json("workers") == []  # they said good-bye


def test_a_child_that_does_not_end_is_killed_and_that_is_no_success(desk: Desk) -> None:
    with fleet(desk, "--grace", "0s") as supervisor:
        children = up(supervisor, 2)
        os.kill(children[2], signal.SIGSTOP)

        supervisor.terminate()  # 15 s beyond the grace

        assert supervisor.wait(40) == 1
        assert "process 2 does not end; killed" in supervisor.log()
        assert gone(children[2])


@pytest.mark.parametrize(
    ("app", "said"), [("fleet_app:nothing", "has no 'nothing'"), ("absent:app", "absent")]
)
def test_what_hinders_all_is_said_once_and_ends_the_fleet(desk: Desk, app: str, said: str) -> None:
    with fleet(desk, app=app, processes=4) as supervisor:
        assert supervisor.wait() == 2, "another start of the same would not help"

        assert len(re.findall("error: ", supervisor.log())) == 1
        assert said in supervisor.log()


def test_sighup_restarts_one_after_the_other(desk: Desk) -> None:
    with fleet(desk) as supervisor:
        before = up(supervisor, 2)

        os.kill(supervisor.pid, signal.SIGHUP)

        supervisor.wait_for_log("rolling restart is done", timeout=PATIENCE)
        after = pids(supervisor)
        assert before[1] != after[1]
        assert before[2] != after[2]
        told = [line for line in supervisor.log().splitlines() if "pid" in line or "slots" in line]
        # The second is ended only once the first has come up again.
        assert supervisor.log().index(f"process 1 is pid {after[1]}") < supervisor.log().index(
            "process 2 has ended to be restarted"
        )
        assert len(told) == 8, told
        supervisor.terminate()
        assert supervisor.wait() == 0


def test_a_rolling_restart_into_a_broken_app_keeps_the_rest(desk: Desk, tmp_path: Any) -> None:
    module = tmp_path / "rolled.py"
    module.write_text("from streamworker import App\napp = App('rolled')\n")
    command = WorkerProcess(
        "rolled:app",
        *("--processes", "2", "--grace", "5s"),
        redis_url=desk.url,
        namespace=desk.namespace,
        cwd=tmp_path,
    )
    with command as supervisor:
        before = up(supervisor, 2)
        module.write_text("raise RuntimeError('a bad deploy')\n")

        os.kill(supervisor.pid, signal.SIGHUP)

        supervisor.wait_for_log("rolling restart ended at process 1", timeout=PATIENCE)
        assert not gone(before[2])
        module.write_text("from streamworker import App\napp = App('rolled')\n")
        up(supervisor, 3)  # the first comes back by itself
        supervisor.terminate()
        assert supervisor.wait() == 0


def stands_still(pid: int) -> bool:
    """Whether the kernel has stopped it; the signal is there before that."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_one_endpoint_answers_for_all(desk: Desk) -> None:
    port = free_port()
    with fleet(desk, "--metrics-port", str(port), "--concurrency", "4") as supervisor:
        wait_until(lambda: get(port, "/readyz")[0] == 200, timeout=PATIENCE, what="the fleet is ready")
        children = pids(supervisor)
        status, body = get(port, "/readyz")
        ready = json.loads(body)
        assert (status, ready["redis"], ready["slots"]) == (200, "ok", {"capacity": 8, "in_use": 0})
        assert 0 <= ready["age_seconds"] < 2
        assert set(ready["processes"]) == {"1", "2"}
        job_ids = [desk.call("enqueue", "where", "{}").stdout.strip() for _ in range(3)]
        job_ids.append(desk.call("enqueue", "flaky", "{}").stdout.strip())
        open_ones = {"queued", "claimed", "processing"}
        wait_until(
            lambda: open_ones.isdisjoint(map(desk.status, job_ids)), what="the jobs have come to something"
        )

        samples: list[Sample] = []

        def scrape() -> None:
            families = text_string_to_metric_families(get(port, "/metrics")[1])
            samples[:] = [sample for family in families for sample in family.samples]

        def total(name: str, **labels: str) -> float:
            wanted = labels.items()
            return sum(each.value for each in samples if each.name == name and wanted <= each.labels.items())

        processed = "streamworker_jobs_processed_total"

        def all_counted() -> bool:  # Redis knows of an outcome before its worker has heard so
            scrape()
            return total(processed) == len(job_ids)

        wait_until(all_counted, what="every outcome is counted")
        assert total(processed, lane="normal", task="where", outcome="succeeded") == 3
        assert total(processed, lane="normal", task="flaky", outcome="retried") == 1
        assert total("streamworker_retries_scheduled_total", task="flaky", error_code="other") == 1
        assert total("streamworker_claims_total", lane="normal", result="won") == 4
        assert total("streamworker_job_wait_seconds_count", task="where") == 3
        assert {each.labels["proc"] for each in samples} == {"1", "2"}

        os.kill(children[2], signal.SIGSTOP)
        wait_until(lambda: stands_still(children[2]), what="none of its threads answers any more")
        status, body = get(port, "/readyz")
        assert (status, json.loads(body)["processes"]["1"]["status"]) == (503, "ready")
        wait_until(lambda: get(port, "/healthz")[0] == 503, timeout=15, what="the stalled child is seen")
        os.kill(children[2], signal.SIGCONT)
        wait_until(lambda: get(port, "/healthz")[0] == 200, timeout=15, what="it runs again")
        supervisor.terminate()
        assert supervisor.wait() == 0


def test_one_process_answers_by_itself_and_warns_of_what_blocks_its_loop(desk: Desk) -> None:
    port = free_port()
    arguments = ("--metrics-port", str(port))
    with WorkerProcess("fleet_app:app", *arguments, redis_url=desk.url, namespace=desk.namespace) as worker:
        wait_until(lambda: get(port, "/readyz")[0] == 200, timeout=PATIENCE, what="the worker is ready")
        job_id = desk.call("enqueue", "block", '{"seconds": 1.5}').stdout.strip()
        worker.wait_for_log("the event loop stood still for 1.")

        assert f"running: block ({job_id})" in worker.log()
        assert get(port, "/healthz")[0] == 200
        text = get(port, "/metrics")[1]
        assert 'streamworker_jobs_processed_total{lane="normal",outcome="succeeded",task="block"}' in text
        assert "proc=" not in text
        worker.terminate()
        assert worker.wait() == 0


def test_a_port_that_is_taken_is_one_line(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for processes in ("1", "2"):
            with WorkerProcess(
                *("fleet_app:app", "--metrics-port", port, "--processes", processes),
                redis_url=desk.url,
                namespace=desk.namespace,
            ) as worker:
                assert worker.wait() == 1
                (line,) = [line for line in worker.log().splitlines() if "pid" not in line]
                assert line.startswith(f"error: no metrics on 127.0.0.1:{port}: ")


def test_readiness_follows_redis(own_valkey: Any, namespace: str) -> None:
    server = own_valkey(appendonly=True)
    port = free_port()
    with WorkerProcess(
        *("fleet_app:app", "--metrics-port", str(port)),
        redis_url=server.url,
        namespace=namespace,
        env={"STREAMWORKER_LEASE": "2s"},
    ) as worker:
        wait_until(lambda: get(port, "/readyz")[0] == 200, timeout=PATIENCE, what="the worker is ready")

        server.kill()
        wait_until(lambda: get(port, "/readyz")[0] == 503, what="it has no session")
        assert json.loads(get(port, "/readyz")[1])["redis"] == "no session"
        assert get(port, "/healthz")[0] == 200
        server.restart()
        wait_until(lambda: get(port, "/readyz")[0] == 200, timeout=15, what="it has a session again")

        assert re.search(r'redis_errors_total\{kind="connection"\} [1-9]', get(port, "/metrics")[1])
        worker.terminate()
        assert worker.wait() == 0
