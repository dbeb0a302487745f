"""More faults of a worker's process, beyond the list of cases: what handlers do to it, signals, its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from streamworker import JobFailed, Status, SyncClient
from tests.integration.apart import children_of
from tests.integration.history import Observer
from tests.processes import WorkerProcess
from tests.proxy import Proxy
from tests.servers import BenchServer
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    "STREAMWORKER_CASES_SCALE" not in os.environ, reason="starts many processes: make soak-rounds runs it"
)

#: Starts a worker of `more_jobs`, and returns once it claims jobs.
Start = Callable[..., WorkerProcess]


@pytest.fixture(params=["asyncio", "uvloop"])
def start(valkey: BenchServer, namespace: str, request: pytest.FixtureRequest) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(*arguments: str, url: str = valkey.url, up: str = "slots", **env: str) -> WorkerProcess:
            worker = WorkerProcess(
                "more_jobs:app", *arguments, redis_url=url, namespace=namespace,
                env={"STREAMWORKER_LEASE": "2s", "STREAMWORKER_LOOP": request.param, **env},
            )  # fmt: skip
            stack.enter_context(worker)
            worker.wait_for_log(up, timeout=30)
            return worker

        yield begin


@pytest.fixture
def client(valkey: BenchServer, namespace: str) -> Iterator[SyncClient]:
    with SyncClient(valkey.url, app="more", namespace=namespace) as client:
        yield client


@pytest.fixture
def observer(valkey: BenchServer, namespace: str) -> Iterator[Observer]:
    with Observer(valkey.url, namespace) as observer:
        yield observer


def working(worker: WorkerProcess, client: SyncClient, seconds: float = 1.0) -> str:
    """A job that runs now."""
    job = client.enqueue("work", {"seconds": seconds})
    worker.wait_for_log("works 1")
    return job.id


# --- what handlers do ------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["exit_in_a_task", "exit_in_a_group"])
def test_an_exit_in_a_handlers_task_ends_its_job_and_nothing_else(
    start: Start, client: SyncClient, task: str
) -> None:
    """It ended the event loop: the worker was gone, and what else ran was charged an attempt and put off."""
    worker = start()
    neighbour = working(worker, client)

    with pytest.raises(JobFailed) as failed:
        client.result(client.enqueue(task).id, timeout=10)

    assert failed.value.error_class == "unknown"
    assert "SystemExit" in failed.value.error
    assert client.result(neighbour, timeout=10) == 1
    assert worker.returncode is None


def test_a_handler_that_stops_the_loop_stops_nothing(start: Start, client: SyncClient) -> None:
    worker = start()
    neighbour = working(worker, client)

    assert client.result(client.enqueue("stop_the_loop").id, timeout=10) == "went on"
    assert client.result(neighbour, timeout=10) == 1


def test_a_handler_that_cancels_all_tasks_ends_its_worker_in_one_line(
    start: Start, client: SyncClient
) -> None:
    """With a traceback, and nobody could tell from it what had happened."""
    worker = start()

    assert client.result(client.enqueue("cancel_all").id, timeout=10) == 1

    assert worker.wait(10) == 1
    assert "cancelled all tasks" in worker.log()
    assert "Traceback" not in worker.log()


def test_handlers_that_fill_the_threads_of_the_loop_do_not_cut_the_worker_off(
    valkey: BenchServer, start: Start, client: SyncClient
) -> None:
    """To connect anew it has to look up a name, which waited for a thread as long as the handlers did."""
    with Proxy(valkey.port) as proxy:
        worker = start("--concurrency", "12", "--lanes", "normal", url=f"redis://localhost:{proxy.port}/0")
        for _ in range(11):
            client.enqueue("block_threads", {"seconds": 15})
        wait_until(lambda: worker.log().count("blocks a thread") == 11, what="all of them run at once")

        proxy.cut_all()
        began = time.monotonic()
        assert client.result(client.enqueue("work", {"seconds": 0}).id, timeout=10) == 1

    assert time.monotonic() - began < 5


@pytest.mark.parametrize("task", ["end_a_fork", "end_a_fork_apart"])
def test_a_handler_can_end_what_it_forked(start: Start, client: SyncClient, task: str) -> None:
    """SIGTERM to the child did not end it, and through the pipe that it had inherited stopped the worker."""
    worker = start()

    assert client.result(client.enqueue(task).id, timeout=20) == -signal.SIGTERM

    assert "stopping" not in worker.log()
    assert client.result(client.enqueue("work", {"seconds": 0}).id, timeout=10) == 1


@pytest.mark.parametrize("task", ["fork_and_return", "fork_and_return_here", "fork_and_wait"])
def test_a_handler_that_comes_back_in_a_fork_as_well_does_so_once(
    start: Start, client: SyncClient, observer: Observer, task: str
) -> None:
    """The fork went on as a second worker of the same name, and ran what the first one held."""
    worker = start()
    neighbour = working(worker, client, 2.0)

    assert client.result(client.enqueue(task).id, timeout=10) == 1
    wait_until(lambda: not children_of(worker.pid), what="the fork has ended")
    assert client.result(neighbour, timeout=10) == 1

    assert worker.log().count("works 1") == 1
    assert observer.record(neighbour).starts == 1


# --- the end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task", ["block_threads", "leave_a_task_behind", "leave_a_thread_behind", "leave_a_process_behind"]
)
def test_what_handlers_began_does_not_keep_a_worker_from_its_end(
    start: Start, client: SyncClient, task: str
) -> None:
    """The interpreter waits for threads, and the loop for tasks, that nobody waits for any more."""
    worker = start("--grace", "100ms")
    job = client.enqueue(task, {"seconds": 60} if task == "block_threads" else {})
    if task == "block_threads":
        worker.wait_for_log("blocks a thread")
    else:
        client.result(job.id, timeout=10)

    worker.terminate()

    assert worker.wait(10) == 0
    assert client.get(job.id).status in (Status.QUEUED, Status.SUCCEEDED)


def test_a_worker_whose_slots_are_all_lost_says_so_and_ends(start: Start, client: SyncClient) -> None:
    """It was ready for ever, and ran nothing any more."""
    worker = start("--concurrency", "2", "--metrics-port", "0", MORE_WEDGED="1.5")
    port = re.findall(r"/metrics on [0-9.]+:(\d+)", worker.log())[0]
    hanging = [client.enqueue("hang") for _ in range(2)]
    for job in hanging:
        with pytest.raises(JobFailed):
            client.result(job.id, timeout=10)

    worker.wait_for_log("all 2 slots are taken")
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz")

    assert b"wedged" in answer.value.read()
    assert worker.wait(10) == 1


# --- signals ---------------------------------------------------------------------------------------------


def test_a_worker_whose_app_never_starts_can_be_stopped(start: Start) -> None:
    """A lifespan that waits for a database was deaf to SIGTERM."""
    worker = start(up="hangs at its start", MORE_HANG="start")

    worker.terminate()

    assert worker.wait(10) == 0


@pytest.mark.parametrize("how", ["ignore", "default", "no wake-up"])
def test_a_signal_that_a_handler_sets_aside_is_heard_again(
    start: Start, client: SyncClient, observer: Observer, how: str
) -> None:
    """The worker was deaf to SIGTERM, or died of it with all that it ran."""
    worker = start("--grace", "10s")
    client.result(client.enqueue("set_aside", {"how": how}).id, timeout=10)
    worker.wait_for_log("set aside")
    job = working(worker, client, 1.0)

    worker.terminate()

    assert worker.wait(10) == 0
    assert observer.record(job).status is Status.SUCCEEDED


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_a_closed_terminal_or_a_quit_hands_back(
    start: Start, client: SyncClient, observer: Observer, number: signal.Signals
) -> None:
    """Both killed a worker at once: what it ran came back after the lease, charged, with a strike."""
    worker = start("--grace", "10s")
    job = working(worker, client, 1.0 if number is signal.SIGHUP else 30.0)

    for _ in range(2 if number is signal.SIGHUP else 1):  # a shell and the kernel say it both
        os.kill(worker.pid, number)
    code = worker.wait(10)

    record = observer.record(job)
    assert code == 0
    if number is signal.SIGHUP:
        assert record.status is Status.SUCCEEDED
    else:
        assert (record.status, record.attempt, record.strikes) == (Status.QUEUED, 0, 0)


def test_one_stop_of_a_unit_is_one_signal_however_many_hear_it(
    start: Start, client: SyncClient, observer: Observer
) -> None:
    """systemd sends SIGTERM to all processes of a unit, and the supervisor passes its own on."""
    fleet = start("--processes", "2", "--grace", "20s", up="slots")
    wait_until(lambda: fleet.log().count("slots, lanes") == 2, what="both are up", timeout=30)
    job = client.enqueue("work", {"seconds": 1.5})
    fleet.wait_for_log("works 1")

    for child in children_of(fleet.pid):
        os.kill(child, signal.SIGTERM)
    wait_until(lambda: len(re.findall(r"stopping, up to", fleet.log())) == 2, what="both have heard it")
    fleet.terminate()

    assert fleet.wait(20) == 0
    assert "second signal" not in fleet.log()
    assert client.get(job.id).status is Status.SUCCEEDED
    assert observer.record(job.id).attempt == 1


_FLEET = """
import sys, tempfile
from streamworker.settings import Endpoint
from streamworker.worker.supervisor import Supervisor

def refuse(**options):
    raise FileNotFoundError("no usable temporary directory")

tempfile.TemporaryDirectory = refuse
endpoint = Endpoint("127.0.0.1", 0) if sys.argv[1:] else None
command = [sys.executable, "-c", "raise SystemExit(3)"]
sys.exit(Supervisor(command, processes=2, grace=1.0, endpoint=endpoint).run())
"""


def test_a_fleet_needs_no_folder_unless_it_is_asked_for_metrics() -> None:
    """With a read-only root and no tmpfs it ended with a traceback."""
    bare = subprocess.run([sys.executable, "-c", _FLEET], check=False, capture_output=True, text=True)
    asked = subprocess.run([sys.executable, "-c", _FLEET, "m"], check=False, capture_output=True, text=True)

    assert bare.returncode == 3
    assert "ConfigurationError: metrics of several processes need a folder" in asked.stderr
