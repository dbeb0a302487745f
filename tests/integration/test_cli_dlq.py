"""`dlq` on a real server: what is listed, what is replayed, and what is left alone and why."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamworker.core.outcome import Success
from tests.integration.cli_desk import Desk
from tests.processes import APPS, PYTHONPATH
from tests.servers import BenchServer

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
NOWHERE = "019f8f2e-0000-7000-8000-000000000000"
HOSTILE = "\x1b]0;owned\x07[bold]oops[/bold]\nsecond line"
#: Seconds that a command at a terminal may take.
PATIENCE = 30.0


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as one:
        yield one


@pytest.fixture
def any_desk(server: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(server.url, namespace) as one:
        yield one


# --- list and show ---------------------------------------------------------------------------------------


def test_the_list_has_a_stable_shape(any_desk: Desk) -> None:
    job_id = any_desk.dead("invoice", {"n": 1}, tenant="acme", key="k")

    listed = any_desk.json("dlq", "list")

    (item,) = listed["items"]
    assert MOMENT.fullmatch(item.pop("dead_at"))
    assert listed == {"total": 1, "items": [item]}
    assert item == {
        "id": job_id,
        "task": "invoice",
        "lane": "normal",
        "tenant": "acme",
        "entity": None,
        "error_class": "persistent",
        "error_code": "bad_total",
        "error": "Bad: the total is wrong",
        "attempts": 1,
        "correlation_id": None,
    }


def test_the_newest_come_first_and_the_total_counts_all(desk: Desk) -> None:
    ids = [desk.dead() for _ in range(55)]

    listed = desk.json("dlq", "list", "--limit", "52")

    assert listed["total"] == 55
    assert [item["id"] for item in listed["items"]] == ids[:2:-1]
    assert desk.json("dlq", "list", "-n", "0") == {"total": 55, "items": []}
    assert "50 of 55 dead letters" in desk.call("dlq", "list").stderr


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [("--task", "b", [1]), ("--code", "other", [2]), ("--lane", "priority", [3]), ("--tenant", "acme", [4])],
)
def test_the_list_can_be_narrowed(desk: Desk, option: str, value: str, expected: list[int]) -> None:
    ids = [
        desk.dead("a"),
        desk.dead("b"),
        desk.dead("a", code="other"),
        desk.dead("a", lane="priority"),
        desk.dead("a", tenant="acme"),
    ]

    listed = desk.json("dlq", "list", option, value)

    assert [item["id"] for item in listed["items"]] == [ids[index] for index in expected]
    assert listed["total"] == len(expected)


def test_a_class_that_there_is_not_is_wrong_usage(desk: Desk) -> None:
    line = desk.refused("dlq", "list", "--class", "permanent", code=2)

    assert "is not one of 'transient', 'persistent', 'unknown'" in line


def test_show_has_the_arguments_and_all_else_that_is_known(desk: Desk) -> None:
    job_id = desk.dead("invoice", {"n": 1}, key="k" * 100, correlation_id="c-1")

    shown = desk.json("dlq", "show", job_id)

    assert shown["args"] == {"n": 1}
    assert (shown["key"], shown["correlation_id"], shown["reason"]) == ("k" * 100, "c-1", "error")
    assert (shown["starts"], shown["strikes"], shown["epoch"], shown["worker"]) == (1, 0, 0, "w1")
    assert MOMENT.fullmatch(shown["enqueued_at"])


def test_a_job_without_a_dead_letter(desk: Desk) -> None:
    alive = desk.put()

    assert desk.refused("dlq", "show", alive).startswith(f"job {alive} has no dead letter")
    assert desk.refused("dlq", "show", "x", code=2).startswith("job id 'x'")


def test_errors_and_payloads_are_data(desk: Desk) -> None:
    job_id = desk.dead("add", {"text": HOSTILE}, error=HOSTILE, key=HOSTILE)

    for command in (("dlq", "list"), ("dlq", "show", job_id)):
        printed = desk.call(*command).output

        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", printed)
        assert r"\x1b]0;owned\x07[bold]oops[/bold]" in printed
    assert desk.json("dlq", "list")["items"][0]["error"] == HOSTILE


def test_a_cut_envelope_does_not_break_the_list(desk: Desk) -> None:
    desk.redis.xadd(desk.keys.dlq, {"id": NOWHERE, "task": "add", "env": b"\xff{"})

    assert desk.json("dlq", "list")["total"] == 1
    assert desk.json("dlq", "show", NOWHERE)["args"] is None


# --- replay ----------------------------------------------------------------------------------------------


def test_a_replayed_job_is_queued_again_and_its_letter_is_gone(any_desk: Desk) -> None:
    job_id = any_desk.dead("invoice", {"n": 1})

    assert any_desk.json("dlq", "replay", job_id) == {"eligible": 1, "replayed": 1, "skipped": []}

    assert any_desk.letters() == []
    assert any_desk.status(job_id) == "queued"
    (claim,) = any_desk.claim()
    assert (claim.job_id, claim.attempt, claim.epoch) == (job_id, 1, 1)
    assert any_desk.json("jobs", "show", job_id)["history"][4]["worker"].count("@") == 1  # who asked


def test_a_job_whose_record_expired_can_be_replayed(desk: Desk) -> None:
    job_id = desk.dead("invoice", {"n": 1}, key="k", tenant="acme")
    desk.forget(job_id)

    assert desk.json("dlq", "replay", job_id)["replayed"] == 1

    shown = desk.json("jobs", "show", job_id)
    assert (shown["status"], shown["task"], shown["tenant"], shown["key"]) == (
        "queued",
        "invoice",
        "acme",
        "k",
    )


def test_replaying_twice_says_that_there_is_nothing_left(desk: Desk) -> None:
    job_id = desk.dead()
    desk.call("dlq", "replay", job_id)

    again = desk.json("dlq", "replay", job_id, code=1)

    assert again == {"eligible": 0, "replayed": 0, "skipped": [{"id": job_id, "reason": "not_found"}]}
    assert len(desk.claim(5)) == 1


def test_a_job_whose_key_another_has_is_skipped(desk: Desk) -> None:
    job_id = desk.dead("invoice", {"n": 1}, key="k")
    other = desk.put("invoice", {"n": 1}, key="k")
    expected = {"eligible": 0, "replayed": 0, "skipped": [{"id": job_id, "reason": "key_taken"}]}

    assert desk.json("dlq", "replay", job_id, "--dry-run", code=1) == expected
    assert desk.json("dlq", "replay", job_id, code=1) == expected

    assert f"its key is held by job {other}" in desk.call("dlq", "replay", job_id, code=1).stderr
    assert desk.letters() == [job_id]
    assert desk.status(job_id) == "failed_terminal"


def test_a_key_whose_job_is_lost_holds_nothing_up(desk: Desk) -> None:
    job_id = desk.dead("invoice", {"n": 1}, key="k")
    other = desk.put("invoice", {"n": 1}, key="k")
    desk.redis.delete(desk.keys.job(other))

    assert desk.json("dlq", "replay", job_id, "--dry-run")["eligible"] == 1
    assert desk.json("dlq", "replay", job_id)["replayed"] == 1


def test_a_dry_run_changes_nothing(desk: Desk) -> None:
    ids = [desk.dead("a"), desk.dead("a"), desk.dead("b")]
    before = desk.redis.xrange(desk.keys.dlq)

    assert desk.json("dlq", "replay", "--task", "a", "--dry-run") == {
        "eligible": 2,
        "replayed": 0,
        "skipped": [],
    }
    assert desk.call("dlq", "discard", *ids, "--dry-run").stdout == "3 could be discarded\n"

    assert desk.redis.xrange(desk.keys.dlq) == before


def test_a_whole_task_is_replayed_with_yes(desk: Desk) -> None:
    ids = [desk.dead("a") for _ in range(120)]  # more than one page, more than one call
    other = desk.dead("b")

    assert desk.json("dlq", "replay", "--task", "a", "--yes")["replayed"] == 120

    assert desk.letters() == [other]
    assert {claim.job_id for claim in desk.claim(200)} == set(ids)


def test_filters_narrow_together(desk: Desk) -> None:
    wanted = desk.dead("a", code="late", tenant="acme")
    rest = [desk.dead("a", code="late"), desk.dead("a", tenant="acme"), desk.dead("b", code="late")]

    found = desk.json("dlq", "replay", "--task", "a", "--code", "late", "--tenant", "acme", "--yes")

    assert found["replayed"] == 1
    assert desk.letters() == rest
    assert desk.status(wanted) == "queued"


def test_filters_that_match_nothing_are_no_failure(desk: Desk) -> None:
    assert desk.json("dlq", "replay", "--task", "a", "--yes") == {
        "eligible": 0,
        "replayed": 0,
        "skipped": [],
    }


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_several_need_a_yes_when_nobody_can_be_asked(desk: Desk, verb: str) -> None:
    ids = [desk.dead("a"), desk.dead("a")]

    for arguments in (["--task", "a"], ids):
        line = desk.refused("dlq", verb, *arguments, code=2)

        assert f"would {verb} several dead letters" in line
        assert "add --yes" in line
    assert desk.letters() == ids


def test_the_same_id_twice_is_one(desk: Desk) -> None:
    job_id = desk.dead()

    assert desk.json("dlq", "replay", job_id, job_id)["replayed"] == 1


def test_some_of_several_can_be_replayed(desk: Desk) -> None:
    job_id = desk.dead()

    found = desk.json("dlq", "replay", job_id, NOWHERE, "--yes")

    assert found == {"eligible": 1, "replayed": 1, "skipped": [{"id": NOWHERE, "reason": "not_found"}]}


def test_a_letter_without_its_envelope_stays(desk: Desk) -> None:
    desk.redis.xadd(desk.keys.dlq, {"id": NOWHERE, "task": "add", "epoch": "0", "env": ""})

    found = desk.json("dlq", "replay", NOWHERE, code=1)

    assert found["skipped"] == [{"id": NOWHERE, "reason": "no_envelope"}]
    assert desk.letters() == [NOWHERE]


def test_the_app_can_say_what_would_fail_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(APPS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    unknown = desk.dead("no_such_task", {"a": 1})
    wrong = desk.dead("add", {"c": 1})
    good = desk.dead("add", {"a": 1})

    found = desk.json("dlq", "replay", unknown, wrong, good, "--check", "cli_app:app", "--yes")

    assert found == {
        "eligible": 1,
        "replayed": 1,
        "skipped": [{"id": unknown, "reason": "unknown_task"}, {"id": wrong, "reason": "bad_arguments"}],
    }
    assert desk.letters() == [unknown, wrong]


# --- discard ---------------------------------------------------------------------------------------------


def test_a_discarded_job_leaves_the_list_and_stays_failed(any_desk: Desk) -> None:
    job_id = any_desk.dead()

    assert any_desk.json("dlq", "discard", job_id) == {"eligible": 1, "discarded": 1, "skipped": []}

    assert any_desk.letters() == []
    shown = any_desk.json("jobs", "show", job_id)
    assert (shown["status"], shown["error_code"]) == ("failed_terminal", "discarded")


def test_discarding_what_is_no_dead_letter_fails(desk: Desk) -> None:
    job_id = desk.put()
    desk.settle(desk.claim()[0], Success(b""))

    assert desk.json("dlq", "discard", job_id, code=1)["skipped"] == [{"id": job_id, "reason": "not_found"}]
    assert desk.status(job_id) == "succeeded"


# --- at a terminal ---------------------------------------------------------------------------------------


def at_a_terminal(desk: Desk, *arguments: str, answer: str) -> tuple[int, str]:
    """Run a command whose three streams are a terminal, and answer its question."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "streamworker", *arguments],
        cwd=Path.cwd(),
        env={**os.environ, **desk.env, "PYTHONPATH": PYTHONPATH, "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    seen, answered, until = b"", False, time.monotonic() + PATIENCE
    try:
        while time.monotonic() < until:
            if not select.select([master], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(master, 65_536)
            except OSError:  # Linux says EIO when the other end is closed
                break
            if not data:
                break
            seen += data
            if b"[y/N]" in seen and not answered:
                answered = True
                os.write(master, answer.encode())
        return process.wait(PATIENCE), seen.decode()
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_person_is_asked_and_no_changes_nothing(desk: Desk) -> None:
    ids = [desk.dead("a"), desk.dead("a"), desk.dead("b")]

    code, seen = at_a_terminal(desk, "dlq", "replay", "--task", "a", answer="n\n")

    assert "replay 2 dead letters? [y/N]" in seen
    assert "nothing was changed" in seen
    assert code == 1
    assert desk.letters() == ids


def test_a_person_who_says_yes_is_obeyed(desk: Desk) -> None:
    ids = [desk.dead("a"), desk.dead("a"), desk.dead("b")]

    code, seen = at_a_terminal(desk, "dlq", "discard", "--task", "a", answer="y\n")

    assert "2 discarded" in seen
    assert code == 0
    assert desk.letters() == ids[2:]


def test_a_terminal_gets_colours_and_nothing_from_the_payload(desk: Desk) -> None:
    job_id = desk.dead("add", error=HOSTILE)

    code, seen = at_a_terminal(desk, "jobs", "show", job_id, answer="")

    assert code == 0
    assert "\x1b[31mfailed_terminal" in seen
    assert "\x1b]0;" not in seen
    assert r"\x1b]0;owned\x07" in seen


def test_no_color_is_honoured(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = desk.dead()
    monkeypatch.setenv("NO_COLOR", "1")

    _, seen = at_a_terminal(desk, "jobs", "show", job_id, answer="")

    assert "\x1b[31m" not in seen
    assert "failed_terminal" in seen
