"""`streamworker run` and the shell around it: real processes, signals, servers that refuse or stay silent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.cli_desk import Desk
from tests.processes import REPOSITORY, WorkerProcess
from tests.servers import BenchServer, ServerFactory
from tests.waiting import wait_until


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


def start(*arguments: str, url: str, namespace: str = "cli") -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWORKER_")}
    return subprocess.Popen(
        [sys.executable, "-m", "streamworker", *arguments],
        cwd=REPOSITORY,
        env={**env, "STREAMWORKER_REDIS_URL": url, "STREAMWORKER_NAMESPACE": namespace},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


def test_a_job_goes_from_the_shell_to_its_result(desk: Desk) -> None:
    with WorkerProcess("cli_app:app", redis_url=desk.url, namespace=desk.namespace) as worker:
        job_id = desk.call("enqueue", "add", '{"a": 1, "b": 2}').stdout.strip()
        wait_until(lambda: desk.status(job_id) == "succeeded", what="the job has succeeded")

        shown = desk.json("jobs", "show", job_id)
        assert shown["result"] == 3
        assert shown["history_complete"]
        (alive,) = desk.json("workers")
        assert (alive["app"], alive["pid"], alive["lanes"]) == ("cli", worker.pid, ["priority", "normal"])

        worker.terminate()
        assert worker.wait() == 0
    assert desk.json("workers") == []


def test_a_worker_serves_only_the_lanes_it_is_told(desk: Desk) -> None:
    waiting = desk.put("add", {"a": 1})
    arguments = ("--lanes", " priority ,", "--concurrency", "3", "--grace", "1s")
    with WorkerProcess("cli_app:app", *arguments, redis_url=desk.url, namespace=desk.namespace) as worker:
        job_id = desk.call("enqueue", "add", '{"a": 1}', "--lane", "priority").stdout.strip()
        wait_until(lambda: desk.status(job_id) == "succeeded", what="the job has succeeded")

        (alive,) = desk.json("workers")
        assert (alive["lanes"], alive["concurrency"]) == (["priority"], 3)
        assert desk.status(waiting) == "queued"
        worker.terminate()
        assert worker.wait() == 0


def test_the_log_of_a_worker_lets_no_control_character_through(desk: Desk) -> None:
    with WorkerProcess("cli_app:app", redis_url=desk.url, namespace=desk.namespace) as worker:
        job_id = desk.put("spit", {"text": "\x1b[2J\x1b]0;owned\x07"})
        wait_until(lambda: desk.status(job_id) == "failed_terminal", what="the job has failed")
        worker.wait_for_log("spitting")

        assert r"spitting \x1b[2J\x1b]0;owned\x07" in worker.log()
        assert "\x1b" not in worker.log()


@pytest.mark.parametrize("again", [None, signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_worker_gracefully(desk: Desk, again: signal.Signals | None) -> None:
    """One that came when the loop had ended was a traceback."""
    app = "cli_app:app" if again is None else "fleet_app:lingering"
    with WorkerProcess(app, redis_url=desk.url, namespace=desk.namespace) as worker:
        wait_until(lambda: desk.json("workers"), what="the worker is up")

        os.kill(worker.pid, signal.SIGINT)
        if again is not None:
            worker.wait_for_log("the interpreter ends")
            os.kill(worker.pid, again)

        assert worker.wait(10) == 0
        assert "Traceback" not in worker.log()
        assert "KeyboardInterrupt" not in worker.log()


def test_the_level_of_the_log_can_be_chosen(desk: Desk) -> None:
    arguments = ("--log-level", "ERROR")
    with WorkerProcess("cli_app:app", *arguments, redis_url=desk.url, namespace=desk.namespace) as worker:
        wait_until(lambda: desk.json("workers"), what="the worker is up")
        worker.terminate()
        assert worker.wait() == 0

        assert worker.log() == ""


def test_a_wrong_password_is_said_and_not_printed(own_valkey: ServerFactory) -> None:
    server = own_valkey(config={"requirepass": "right-password"})
    url = server.url.replace("right-password", "wrong-password")

    for arguments in (("lanes",), ("enqueue", "add"), ("run", "tests.apps.cli_app:app")):
        code, out, err = ended(start(*arguments, url=url))

        assert (code, out) == (1, "")
        (line,) = err.splitlines()
        assert "refused the password" in line
        assert "STREAMWORKER_REDIS_URL" in line
        assert "wrong-password" not in err
        assert "right-password" not in err


@pytest.mark.parametrize(
    "arguments", [("lanes",), ("enqueue", "add", "{}"), ("run", "tests.apps.cli_app:app")]
)
def test_nobody_at_the_address_is_one_line(arguments: tuple[str, ...]) -> None:
    code, out, err = ended(start(*arguments, url="redis://:s3cret@127.0.0.1:1/0"))

    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith("error: no connection to redis://:***@127.0.0.1:1/0: ")
    assert "start Redis there" in line


def test_a_server_that_may_drop_jobs_is_refused(own_valkey: ServerFactory) -> None:
    server = own_valkey(config={"maxmemory-policy": "allkeys-lru"})

    code, out, err = ended(start("run", "tests.apps.cli_app:app", url=server.url))

    assert (code, out) == (1, "")
    assert err.splitlines()[-1].endswith("set `maxmemory-policy noeviction`")
    assert "Traceback" not in err


def test_ctrl_c_while_redis_does_not_answer_is_quiet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        process = start("lanes", url=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1)  # it has asked, and waits for the answer
            process.send_signal(signal.SIGINT)
            code, out, err = ended(process)

    assert (code, out, err) == (130, "", "")


def test_what_is_no_redis_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(30)
        process = start("lanes", url=f"redis://127.0.0.1:{other.getsockname()[1]}/0")
        with other.accept()[0] as connection:
            connection.recv(1)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        other.close()
        code, out, err = ended(process)

    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")


def test_json_is_all_that_a_failing_command_does_not_print(desk: Desk) -> None:
    job_id = desk.put()

    shown = json.loads(desk.call("jobs", "show", job_id, "--json").stdout)
    assert shown["id"] == job_id
    assert desk.refused("jobs", "show", "x", "--json", code=2).startswith("job id 'x'")
