"""`enqueue`, `jobs`, `lanes` and `workers` on a real server: what they print, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from streamworker.core.gates import Gate, GateKind
from streamworker.core.ids import new_job_id
from streamworker.core.outcome import Fail, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.request import Options, new_job
from streamworker.store import routing, scripts
from streamworker.store.manifest import Declaration, publish_call
from tests.integration.cli_desk import Desk
from tests.servers import BenchServer, ServerFactory

JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
NOWHERE = "019f8f2e-0000-7000-8000-000000000000"
#: Tries to set the title of the terminal, colour it, clear it, and pass for markup.
HOSTILE = "\x1b]0;owned\x07\x1b[31m[red]oops[/red]\x9b2J\nsecond line"


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


@pytest.fixture
def any_desk(server: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(server.url, namespace) as one:
        yield one


# --- enqueue ---------------------------------------------------------------------------------------------


def publish(desk: Desk, *tasks: str) -> None:
    """What a worker of an app with these tasks, and the usual lanes, leaves behind."""
    declared = {task: Declaration(lane="normal") for task in tasks}
    desk.run(publish_call(declared, routing.NO_RULES), tag=desk.keys.namespace_tag)
    desk.run(scripts.declare(clock="", lanes="normal priority", rows=[]))


def test_enqueue_prints_the_id_and_nothing_else(any_desk: Desk) -> None:
    publish(any_desk, "add")
    result = any_desk.call(
        "enqueue", "add", '{"a": 1}', "--lane", "priority", "--tenant", "acme", "--correlation-id", "c-1"
    )

    assert JOB_ID.fullmatch(result.stdout.rstrip("\n"))
    assert result.stderr == ""
    (claim,) = any_desk.claim(lane="priority")
    assert claim.job_id == result.stdout.rstrip("\n")
    assert json.loads(claim.envelope) == {"t": "add", "a": {"a": 1}, "n": "acme", "c": "c-1"}


def test_a_typing_error_is_told_of_and_the_job_waits(desk: Desk) -> None:
    """It is accepted: a deploy may bring what is missing."""
    never = desk.call("enqueue", "add")
    publish(desk, "add", "subtract")

    unknown = desk.call("enqueue", "substract")
    nowhere = desk.call("enqueue", "add", "{}", "--lane", "priorty")
    backlog = desk.call("enqueue", "add", "{}", "--lane", "backlog")

    waits = "warning: the job waits for a worker that knows its task:"
    assert f"{waits} no worker of {desk.namespace} has published a task; is the name right?" in never.stderr
    assert f"{waits} no task is named 'substract'; did you mean 'subtract'?" in unknown.stderr
    assert nowhere.stderr == (
        "warning: no app has a lane priorty, there are normal, priority; the job waits there\n"
    )
    assert backlog.stderr == ""
    assert all(desk.status(each.stdout.strip()) == "queued" for each in (never, unknown, nowhere, backlog))


def test_enqueue_as_json(desk: Desk) -> None:
    placed = desk.json("enqueue", "add")

    assert placed == {"id": placed["id"], "disposition": "ACCEPTED"}
    assert desk.status(placed["id"]) == "queued"


def test_enqueue_later(desk: Desk) -> None:
    placed = desk.json("enqueue", "add", "{}", "--delay", "1h", "--deadline", "2h")

    assert placed["disposition"] == "SCHEDULED"
    assert desk.claim() == []
    assert desk.redis.zscore(desk.keys.schedule, placed["id"]) is not None
    assert desk.redis.zscore(desk.keys.deadlines, placed["id"]) is not None


def test_enqueue_reads_stdin(desk: Desk) -> None:
    desk.call("enqueue", "add", "-", stdin='{"text": "ü"}')

    (claim,) = desk.claim()
    assert json.loads(claim.envelope)["a"] == {"text": "ü"}


def test_enqueue_refuses_what_is_not_utf8_on_stdin(desk: Desk) -> None:
    assert desk.refused("enqueue", "add", "-", stdin=b'{"a": "\xff"}', code=2).startswith(
        "stdin is not UTF-8"
    )
    assert desk.refused("enqueue", "add", "-", stdin="[]", code=2).startswith("stdin must be a JSON object")
    assert desk.claim() == []


def test_the_same_key_is_the_same_job_and_says_so_on_stderr(desk: Desk) -> None:
    first = desk.call("enqueue", "add", '{"a": 1}', "--key", "k").stdout

    second = desk.call("enqueue", "add", '{"a": 1}', "--key", "k")

    assert second.stdout == first
    assert "the key is in use with the same arguments, so this is the earlier job, queued" in second.stderr
    assert desk.json("enqueue", "add", '{"a": 1}', "--key", "k")["disposition"] == "DUPLICATE"


def test_a_key_with_other_arguments_names_its_holder_and_enqueues_nothing(desk: Desk) -> None:
    holder = desk.call("enqueue", "add", '{"a": 1}', "--key", "k").stdout.strip()

    line = desk.refused("enqueue", "add", '{"a": 2}', "--key", "k")

    assert f"held by job {holder} with other arguments" in line
    assert [claim.job_id for claim in desk.claim(5)] == [holder]


def test_the_option_wins_over_the_environment(desk: Desk) -> None:
    job_id = desk.call("enqueue", "add", "--app", f"{desk.namespace}-other").stdout.strip()

    assert desk.status(job_id) == "missing"
    with Desk(desk.url, f"{desk.namespace}-other") as other:
        assert other.status(job_id) == "queued"


# --- jobs show -------------------------------------------------------------------------------------------


def move(version: int, before: str | None, after: str, reason: str, **more: Any) -> dict[str, Any]:
    return {
        "version": version,
        "from": before,
        "to": after,
        "reason": reason,
        "worker": None,
        "fence": 0,
        **more,
    }


def without_times(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert all(MOMENT.fullmatch(row["at"]) for row in history)
    return [{name: value for name, value in row.items() if name != "at"} for row in history]


def test_a_job_that_succeeded(any_desk: Desk) -> None:
    job_id = any_desk.put("add", {"a": 1}, key="order:7", tenant="acme")
    (claim,) = any_desk.claim()
    any_desk.settle(claim, Success(b'{"sum": 3}'))

    shown = any_desk.json("jobs", "show", job_id)

    for name in ("enqueued_at", "started_at", "finished_at"):
        assert MOMENT.fullmatch(shown[name])
    history = without_times(shown.pop("history"))
    assert shown == {
        "id": job_id,
        "task": "add",
        "lane": "normal",
        "tenant": "acme",
        "key": "order:7",
        "status": "succeeded",
        "attempt": 1,
        "error_class": None,
        "error_code": None,
        "error": None,
        "result": {"sum": 3},
        "enqueued_at": shown["enqueued_at"],
        "started_at": shown["started_at"],
        "finished_at": shown["finished_at"],
        "history_complete": True,
    }
    held = {"worker": "w1", "fence": claim.fence}
    assert history == [
        move(1, None, "queued", "enqueued"),
        move(2, "queued", "claimed", "claimed", **held),
        move(3, "claimed", "processing", "started", **held),
        move(4, "processing", "succeeded", "returned", **held),
    ]


def test_the_names_of_jobs_show_stand_in_their_order(desk: Desk) -> None:
    shown = desk.json("jobs", "show", desk.put())

    assert list(shown) == [
        *("id", "task", "lane", "tenant", "key", "status", "attempt", "error_class", "error_code", "error"),
        *("result", "enqueued_at", "started_at", "finished_at", "history", "history_complete"),
    ]
    assert list(shown["history"][0]) == ["version", "from", "to", "at", "worker", "fence", "reason"]


def test_a_long_result_is_shown_whole(desk: Desk) -> None:
    job_id = desk.put()
    desk.settle(desk.claim()[0], Success(json.dumps("x" * 5000).encode()))

    assert desk.json("jobs", "show", job_id)["result"] == "x" * 5000


def test_a_job_that_waits_for_its_retry_shows_its_last_error(desk: Desk) -> None:
    job_id = desk.put(key="k")
    retry = Retry(60_000, ErrorClass.TRANSIENT, "timeout", "Timeout: no answer", "p", Reason.ERROR)
    desk.settle(desk.claim()[0], retry)

    shown = desk.json("jobs", "show", job_id)

    assert (shown["status"], shown["attempt"]) == ("retry_scheduled", 1)
    assert (shown["error_class"], shown["error_code"]) == ("transient", "timeout")
    assert shown["error"] == "Timeout: no answer"
    assert (shown["key"], shown["result"], shown["finished_at"]) == ("k", None, None)


def test_a_dead_job_shows_its_error(desk: Desk) -> None:
    long_key = "a key that is longer than its readable form may be " * 3
    job_id = desk.dead(error="Bad: line one\nline two", key=long_key)

    shown = desk.json("jobs", "show", job_id)

    assert (shown["status"], shown["error_class"], shown["error_code"]) == (
        "failed_terminal",
        "persistent",
        "bad_total",
    )
    assert shown["error"] == "Bad: line one\nline two"
    assert shown["key"] == long_key  # from the dead letter: the record has only a digest


def test_a_running_job_shows_who_has_it(desk: Desk) -> None:
    job_id = desk.put()
    (claim,) = desk.claim()
    desk.mark(claim)

    shown = desk.json("jobs", "show", job_id)

    assert shown["status"] == "processing"
    assert MOMENT.fullmatch(shown["started_at"])
    assert shown["history"][-1]["worker"] == "w1"
    assert shown["history"][-1]["fence"] == claim.fence


def test_the_key_of_a_finished_job_comes_back_with_its_colons(desk: Desk) -> None:
    job_id = desk.put("a.b", key="shipment:7:%3A#v5")
    desk.settle(desk.claim()[0], Success(b""))

    assert desk.json("jobs", "show", job_id)["key"] == "shipment:7:%3A#v5"


def test_a_long_key_of_a_finished_job_is_gone_and_is_not_invented(desk: Desk) -> None:
    job_id = desk.put(key="k" * 200)
    desk.settle(desk.claim()[0], Success(b""))

    assert desk.json("jobs", "show", job_id)["key"] is None


def test_a_dead_job_outlives_its_record(desk: Desk) -> None:
    job_id = desk.dead(key="k", tenant="acme")
    before = desk.json("jobs", "show", job_id)
    desk.forget(job_id)

    shown = desk.json("jobs", "show", job_id)

    assert shown == before
    assert shown["history_complete"]


def test_a_finished_job_whose_record_expired_is_told_from_the_log(desk: Desk) -> None:
    job_id = desk.put("add", tenant="acme", lane="priority")
    desk.settle(desk.claim(lane="priority")[0], Success(b"7"))
    before = desk.json("jobs", "show", job_id)
    desk.forget(job_id)

    shown = desk.json("jobs", "show", job_id)

    assert shown == {**before, "result": None}  # only the record had it


def test_a_replayed_job_keeps_the_history_of_both_epochs(desk: Desk) -> None:
    job_id = desk.dead()
    desk.call("dlq", "replay", job_id)

    shown = desk.json("jobs", "show", job_id)

    assert shown["status"] == "queued"
    assert (shown["attempt"], shown["error"], shown["error_code"]) == (0, None, None)
    assert [row["to"] for row in shown["history"]] == [
        "queued", "claimed", "processing", "failed_terminal", "queued"
    ]  # fmt: skip
    assert shown["history_complete"]


def test_a_trimmed_log_makes_the_history_incomplete(desk: Desk) -> None:
    job_id = desk.put()
    desk.settle(desk.claim()[0], Success(b""))
    desk.redis.xtrim(desk.keys.events, maxlen=1, approximate=False)

    shown = desk.json("jobs", "show", job_id)

    assert [row["version"] for row in shown["history"]] == [3, 4]
    assert not shown["history_complete"]
    assert "no longer has every move" in desk.call("jobs", "show", job_id).stderr


def test_history_is_found_whatever_the_ids_of_the_log_say(desk: Desk) -> None:
    job_id = desk.put()
    # The clock was an hour ahead when the job was enqueued: its moves lie before where one would look first.
    record = desk.record(job_id)
    assert record is not None
    later = record.fields | {"at": str(round(time.time() * 1000) + 3_600_000)}
    desk.redis.set(desk.keys.job(job_id), dataclasses.replace(record, fields=later).line())

    shown = desk.json("jobs", "show", job_id)

    assert [row["version"] for row in shown["history"]] == [1]
    assert shown["history_complete"]


def test_history_is_found_among_many_entries(desk: Desk) -> None:
    before = [desk.put() for _ in range(450)]
    job_id = before[220]
    for claim in desk.claim(450):
        desk.settle(claim, Success(b""))

    shown = desk.json("jobs", "show", job_id)

    assert [row["version"] for row in shown["history"]] == [1, 2, 3, 4]
    assert shown["history_complete"]


def test_a_job_whose_record_cannot_be_read_is_told_from_the_log(desk: Desk) -> None:
    job_id = desk.put("add", lane="priority")
    desk.redis.set(desk.keys.job(job_id), "nonsense")

    shown = desk.json("jobs", "show", job_id)

    assert (shown["status"], shown["task"], shown["lane"]) == ("queued", "add", "priority")
    assert desk.json("lanes")[0]["oldest_age_seconds"] is None
    desk.redis.delete(desk.keys.job(job_id))


@pytest.mark.parametrize("command", [("jobs", "show"), ("jobs", "cancel")])
def test_a_job_that_nobody_knows(desk: Desk, command: tuple[str, str]) -> None:
    assert desk.refused(*command, NOWHERE).startswith(f"job {NOWHERE} is not known")
    assert desk.refused(*command, "nonsense", code=2).startswith("job id 'nonsense': a job id is a UUIDv7")


def test_jobs_show_for_people_lets_no_control_character_through(desk: Desk) -> None:
    job_id = desk.dead(error=HOSTILE, key=HOSTILE)

    printed = desk.call("jobs", "show", job_id).stdout

    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", printed)
    assert r"\x1b]0;owned\x07\x1b[31m[red]oops[/red]\x9b2J" in printed
    assert "second line" in printed
    assert re.search(r"^ +4 +processing +failed_terminal ", printed, re.MULTILINE)


# --- jobs cancel -----------------------------------------------------------------------------------------


def test_cancelling_a_job_that_waits_ends_it(any_desk: Desk) -> None:
    job_id = any_desk.put()

    assert any_desk.json("jobs", "cancel", job_id) == {"id": job_id, "outcome": "cancelled"}

    shown = any_desk.json("jobs", "show", job_id)
    assert (shown["status"], shown["error_code"]) == ("failed_terminal", "cancelled")
    assert shown["history"][-1]["reason"] == "cancelled"
    assert "@" in shown["history"][-1]["worker"]  # who did it


def test_cancelling_a_job_that_runs_tells_its_handler(desk: Desk) -> None:
    job_id = desk.put()
    (claim,) = desk.claim()
    desk.mark(claim)

    assert "its handler is told" in desk.call("jobs", "cancel", job_id).stdout

    assert desk.status(job_id) == "processing"
    flagged = desk.record(job_id)
    assert flagged is not None
    assert flagged.text("cx") == "cancelled"
    assert desk.json("jobs", "cancel", job_id)["outcome"] == "flagged"


def test_cancelling_a_job_that_is_over_fails_and_changes_nothing(desk: Desk) -> None:
    job_id = desk.put()
    desk.settle(desk.claim()[0], Success(b""))
    before = desk.record(job_id)

    assert "is over already: succeeded" in desk.refused("jobs", "cancel", job_id)
    cancelled = desk.put()
    for _ in range(2):  # the second as after a reply that was lost
        assert desk.json("jobs", "cancel", cancelled)["outcome"] == "cancelled"

    assert desk.record(job_id) == before


# --- hasten ----------------------------------------------------------------------------------------------


def test_hastening_a_job_that_is_delayed_makes_it_due(any_desk: Desk) -> None:
    delayed = any_desk.json("enqueue", "add", "{}", "--delay", "1h")["id"]

    assert any_desk.json("jobs", "hasten", delayed) == {"items": [{"id": delayed, "outcome": "due"}]}

    assert (any_desk.redis.zscore(any_desk.keys.schedule, delayed) or 0) <= time.time() * 1000 + 5_000
    assert any_desk.json("jobs", "hasten", delayed)["items"][0]["outcome"] == "due"  # said again


def test_hastening_what_waits_for_no_time_says_what_it_is(desk: Desk) -> None:
    waits, unknown = desk.put(), new_job_id(now_ms=1, random=bytes(8))
    before = desk.record(waits)
    delayed = desk.json("enqueue", "add", "{}", "--delay", "1h")["id"]

    none = desk.call("jobs", "hasten", waits, unknown, code=1)
    some = desk.call("jobs", "hasten", waits, delayed)

    assert none.stdout == ""
    assert f"{waits} waits for no time: it is queued" in none.stderr
    assert f"{unknown}: there is no such job" in none.stderr
    assert some.stdout == f"{delayed} is due now\n"
    assert desk.record(waits) == before
    assert "a job id is a UUIDv7" in desk.refused("jobs", "hasten", "7", code=2)


# --- lanes -----------------------------------------------------------------------------------------------


def test_lanes_count_what_waits_and_what_runs(any_desk: Desk) -> None:
    for _ in range(3):
        any_desk.put()
    any_desk.put(lane="priority", delay="1h")
    any_desk.claim()

    found = any_desk.json("lanes")

    age = found[0].pop("oldest_age_seconds")
    assert 0 <= age < 60
    assert [lane.pop("slots") for lane in found] == [None, None], "no operator has set any"
    assert found == [
        {"lane": "normal", "depth": 2, "in_flight": 1, "scheduled": 0, "paused": False},
        # A delay is not due, so nothing waits there.
        {"lane": "priority", "depth": 0, "in_flight": 0, "scheduled": 1, "oldest_age_seconds": None,
         "paused": False},
    ]  # fmt: skip
    assert re.search(r"^normal +2 +1 +0 +\d", any_desk.call("lanes").stdout, re.MULTILINE)


def put_at(desk: Desk, moment: int) -> str:
    """A job that was enqueued at that moment, in ms."""
    job = new_job("add", {}, Options.of())
    desk.run(scripts.enqueue(clock=str(moment), rows=job.row()))
    return job.job_id


def test_the_oldest_job_is_the_first_that_waits_and_not_one_that_runs(desk: Desk) -> None:
    now = round(time.time() * 1000)
    put_at(desk, now - 900_000)
    put_at(desk, now - 600_000)
    put_at(desk, now - 300_000)
    desk.claim()

    lane = desk.json("lanes")[0]

    assert 600 <= lane["oldest_age_seconds"] < 660


def test_a_job_that_came_back_is_as_old_as_its_enqueue(desk: Desk) -> None:
    put_at(desk, round(time.time() * 1000) - 900_000)
    desk.put()
    retry = Retry(0, ErrorClass.TRANSIENT, "timeout", "", "p", Reason.ERROR)
    desk.settle(desk.claim()[0], retry)

    lane = desk.json("lanes")[0]

    assert lane["depth"] == 2
    assert 900 <= lane["oldest_age_seconds"] < 960


def test_an_entry_whose_job_is_over_is_not_the_oldest(desk: Desk) -> None:
    desk.redis.xadd(desk.keys.stream("normal"), {"id": "gone", "env": "{}"})
    put_at(desk, round(time.time() * 1000) - 300_000)

    lane = desk.json("lanes")[0]

    assert 300 <= lane["oldest_age_seconds"] < 360
    desk.redis.delete(desk.keys.stream("normal"))


def test_no_lanes_yet(desk: Desk) -> None:
    assert desk.json("lanes") == []
    assert "no job was ever enqueued" in desk.call("lanes").stderr


# --- workers ---------------------------------------------------------------------------------------------


def test_workers_are_those_who_are_alive(any_desk: Desk) -> None:
    any_desk.put()
    any_desk.claim()

    (worker,) = any_desk.json("workers")

    assert 0 < worker.pop("expires_in_seconds") <= 60
    assert worker == {
        "id": "w1",
        "app": "shop",
        "host": "h1",
        "pid": 17,
        "lanes": ["normal", "priority"],
        "concurrency": 8,
        "started_at": "2026-01-01T00:00:00.123Z",
        "session": 1,
        "version": None,  # of a worker that said nothing of it
        "lease_ms": None,
    }
    assert re.search(
        r"^w1 +shop +h1 +17 +normal, priority +8 ", any_desk.call("workers").stdout, re.MULTILINE
    )
    # The lanes of a worker are known before they had a job.
    assert [row["lane"] for row in any_desk.json("lanes")] == ["normal", "priority"]


def test_workers_are_found_without_a_look_at_all_keys(own_valkey: ServerFactory, namespace: str) -> None:
    server = own_valkey()
    with Desk(server.url, namespace) as desk:
        for name in ("here", "gone"):
            desk.run(scripts.session(worker=name, own=0, liveness_ms=60_000, rows=["app", "shop"]))
        desk.redis.delete(desk.keys.worker("gone"))

        assert [worker["id"] for worker in desk.json("workers")] == ["here"]

        assert "cmdstat_scan" not in desk.redis.info("commandstats")


def test_no_workers(desk: Desk) -> None:
    assert desk.json("workers") == []
    assert "streamworker run MODULE:APP" in desk.call("workers").stderr


def test_what_a_worker_says_of_itself_is_data(desk: Desk) -> None:
    call = scripts.session(worker="w2", own=0, liveness_ms=60_000, rows=["host", HOSTILE, "pid", "x"])
    desk.run(call)

    printed = desk.call("workers").stdout

    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", printed)
    assert desk.json("workers")[0]["pid"] is None


# --- tasks -----------------------------------------------------------------------------------------------


def test_tasks_are_listed_with_what_they_declare(desk: Desk) -> None:
    pack = Declaration(
        lane="priority",
        key="order:{order}",
        arguments=("order", "box"),
        required=("order",),
        timeout=90.0,
        retry="4 attempts",
        gates=(Gate(GateKind.RATE, "task", "5,1000,5"),),
    )
    declared = {"pack": pack, "mail": Declaration(lane="normal", takes_more=True)}
    desk.run(publish_call(declared, routing.NO_RULES), tag=desk.keys.namespace_tag)

    mail, packs = desk.json("tasks")
    shown = desk.call("tasks").stdout

    assert (mail["task"], mail["lane"], mail["arguments"], mail["key"]) == ("mail", "normal", [], None)
    assert (packs["key"], packs["window_seconds"], packs["timeout_seconds"]) == ("order:{order}", 86_400, 90)
    assert (packs["arguments"], packs["required"]) == (["order", "box"], ["order"])
    assert packs["gates"] == ["rate:task"]
    assert re.search(r"pack +order, \[box\] +priority +1m30s +4 attempts +order:\{order\}", shown)


def test_no_tasks(desk: Desk) -> None:
    assert desk.json("tasks") == []
    assert "has published a task" in desk.call("tasks").stderr


def test_failures_keep_their_class(desk: Desk) -> None:
    job_id = desk.put()
    desk.settle(desk.claim()[0], Fail(ErrorClass.UNKNOWN, "key_error", "KeyError: 'x'"))

    assert desk.json("jobs", "show", job_id)["error_class"] == "unknown"
