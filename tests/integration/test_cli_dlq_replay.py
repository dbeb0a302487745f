"""Replaying many dead letters: what is skipped and why, how fast, when it stops, and that it goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from streamworker.core.outcome import Fail, Success
from streamworker.core.states import ErrorClass
from streamworker.store import manifest, routing
from streamworker.store.manifest import Declaration
from tests.integration.cli_desk import Desk
from tests.processes import PYTHONPATH
from tests.servers import BenchServer
from tests.waiting import wait_until

#: Dead letters of the test that interrupts: `make soak` has 10,000.
LETTERS = int(os.environ.get("STREAMWORKER_DLQ_LETTERS", "300"))


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


def publish(desk: Desk, **tasks: Declaration) -> None:
    """What a worker says of its tasks when it starts."""
    call = manifest.publish_call(tasks, routing.NO_RULES)
    desk.run(call, tag=desk.keys.namespace_tag)


def skipped(found: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {each["id"]: each["reason"] for each in found["skipped"]}


def test_what_failed_again_after_a_replay_wants_another_look(desk: Desk) -> None:
    job_id = desk.dead("a")
    desk.call("dlq", "replay", job_id)
    (claim,) = desk.claim()
    desk.settle(claim, Fail(ErrorClass.PERSISTENT, "bad_total", "again"))

    refused = desk.json("dlq", "replay", job_id, code=1)

    assert skipped(refused) == {job_id: "replayed_before"}
    assert "--again" in desk.call("dlq", "replay", job_id, code=1).stderr
    assert desk.json("dlq", "replay", job_id, "--again")["replayed"] == 1


def test_what_no_worker_could_run_is_left_alone(desk: Desk) -> None:
    pay = Declaration("normal", arguments=("order", "cents"), required=("order",))
    publish(desk, pay=pay, log=Declaration("normal", arguments=("what",), takes_more=True))
    unknown = desk.dead("gone", {})
    missing = desk.dead("pay", {"cents": 1})
    more = desk.dead("pay", {"order": 1, "tip": 2})
    good = [desk.dead("pay", {"order": 1}), desk.dead("log", {"anything": 1})]

    found = desk.json("dlq", "replay", "--newer", "1h", "--yes")

    assert (found["eligible"], found["replayed"]) == (2, 2)
    assert skipped(found) == {unknown: "unknown_task", missing: "bad_arguments", more: "bad_arguments"}
    assert {claim.job_id for claim in desk.claim(9)} == set(good)


def test_a_worker_says_which_arguments_its_tasks_need() -> None:
    from tests.apps.cli_app import app

    declared = app.find("add").declaration()

    assert declared.required
    assert set(declared.required) <= set(declared.arguments)
    assert Declaration.decode("add", b"1 " + declared.encode()).required == declared.required


def test_a_rate_is_kept_and_a_limit_ends_it(desk: Desk) -> None:
    ids = [desk.dead("a") for _ in range(30)]
    began = time.monotonic()

    found = desk.json("dlq", "replay", "--task", "a", "--yes", "--rate", "40", "--limit", "24")

    assert time.monotonic() - began >= (24 - 4) / 40  # calls of 4, the first at once
    assert (found["eligible"], found["replayed"]) == (30, 24)
    assert desk.letters() == ids[24:]


def test_it_stops_when_most_of_them_fail_again(desk: Desk) -> None:
    for _ in range(200):
        desk.dead("a")
    over = threading.Event()

    def worker() -> None:
        with Desk(desk.url, desk.namespace) as other:
            while not over.is_set():
                claims = other.claim(10, worker="w2")
                for claim in claims:
                    other.settle(claim, Fail(ErrorClass.PERSISTENT, "bad_total", "again"), worker="w2")
                over.wait(0.01)

    thread = threading.Thread(target=worker)
    thread.start()
    try:
        found = desk.json("dlq", "replay", "--task", "a", "--yes", "--rate", "50", code=1)
    finally:
        over.set()
        thread.join()

    assert found["eligible"] == 200
    assert 20 <= found["replayed"] < 200
    assert "failed again" in found["stopped"]
    assert desk.json("dlq", "list", "-n", "0")["total"] == 200  # what failed again, and what never left


def test_nothing_is_replayed_into_a_log_that_has_reached_its_bound(desk: Desk) -> None:
    """A replay's line carries the envelope: it grew by all letters while enqueues were refused."""
    ids = [desk.dead("a") for _ in range(3)]
    redis, keys = desk.redis, desk.keys
    redis.hset(keys.policies, mapping={"mirror": "m1", "mirror_bound": "1000"})
    redis.hset(keys.stats, "log_bytes", "1000")

    found = desk.json("dlq", "replay", "--task", "a", "--yes", code=1)
    assert (found["eligible"], found["replayed"]) == (3, 0)
    assert "the log has reached its bound" in found["stopped"]
    assert desk.letters() == ids

    redis.hset(keys.stats, "log_bytes", "10")
    assert desk.json("dlq", "replay", "--task", "a", "--yes")["replayed"] == 3


def test_each_eligible_letter_moves_once_however_often_it_is_begun_and_stopped(desk: Desk) -> None:
    """Interrupted twice, killed once, and then run twice at once."""
    publish(desk, a=Declaration("normal", arguments=("n",), required=("n",)))
    rng = random.Random(7)
    bad = {number for number in range(LETTERS) if rng.random() < 0.3}
    ids = [desk.dead("a", {} if number in bad else {"n": number}) for number in range(LETTERS)]
    good = {ids[number] for number in range(LETTERS) if number not in bad}
    rate = str(LETTERS / 3)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "streamworker", "dlq", "replay", "--task", "a", "--yes", "--rate", rate],
            env={**os.environ, **desk.env, "PYTHONPATH": PYTHONPATH},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def left() -> int:
        return int(desk.redis.xlen(desk.keys.dlq))

    def some_have_moved(before: int) -> bool:
        return left() < before

    for how in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        before = left()
        one = start()
        wait_until(partial(some_have_moved, before), timeout=60, what="some letters have moved")
        one.send_signal(how)
        _, said = one.communicate(timeout=30)
        assert one.returncode == (130 if how is signal.SIGINT else -signal.SIGKILL)
        assert "Traceback" not in said
    assert left() > len(bad)  # it was not over yet
    both = [start(), start()]
    told = [each.communicate(timeout=120) for each in both]

    assert [each.returncode for each in both] == [0, 0], told
    moved = Counter(claim.job_id for _ in range(LETTERS // 100 + 1) for claim in desk.claim(100))
    assert moved == Counter(good)
    assert set(desk.letters()) == {ids[number] for number in bad}
    assert all(f"{len(bad)} bad_arguments" in said or "bad_arguments" in said for _, said in told)
    for claim_id in list(good)[:3]:
        record = desk.record(claim_id)
        assert record is not None
        assert record.epoch == 1


def test_a_success_of_a_replayed_job_takes_the_letter_away_for_good(desk: Desk) -> None:
    job_id = desk.dead("a", key="k")
    desk.call("dlq", "replay", job_id)
    desk.settle(desk.claim()[0], Success(b"1"))

    assert desk.status(job_id) == "succeeded"
    assert skipped(desk.json("dlq", "replay", job_id, code=1)) == {job_id: "not_found"}
