"""`runbook backlog`: what it sees is what is there, and what it runs is what was asked for."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamworker.core.outcome import Retry
from streamworker.core.states import ErrorClass
from streamworker.store import scripts
from tests.integration.cli_desk import Desk
from tests.processes import PYTHONPATH
from tests.servers import BenchServer

HOSTILE = "\x1b]0;owned\x07"
QUICK = ("--sample", "0.2")


@pytest.fixture
def desk(valkey: BenchServer, namespace: str, no_leaks: None) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as desk:
        yield desk


def steps(found: dict[str, Any]) -> dict[str, Any]:
    return {told["step"]: told for told in found["steps"]}


def changes(told: dict[str, Any]) -> list[str]:
    return [command["line"] for command in told["commands"] if command["kind"] == "change"]


def put(desk: Desk, name: str, backlog: str = "") -> None:
    """A job of acme."""
    job = scripts.NewJob(name, "pack", "normal", b"{}", backlog=backlog, tenant="acme")
    desk.run(scripts.enqueue(clock="", rows=job.row()))


@contextmanager
def producing(desk: Desk, backlog: str = "") -> Iterator[None]:
    """Jobs of acme keep coming meanwhile."""
    over = threading.Event()

    def produce() -> None:
        with Desk(desk.url, desk.namespace) as other:
            number = 0
            while not over.wait(0.005):
                number += 1
                put(other, f"more{number}", backlog)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# --- what it sees


def test_of_a_quiet_namespace_it_says_so(desk: Desk) -> None:
    desk.claim(1)  # a worker is there

    found = desk.json("runbook", "backlog", *QUICK)

    assert found["stable"] is True
    assert list(steps(found)) == [
        "lane", "dependency", "throttle", "critical", "drain", "retries", "letters", "replay", "note"
    ]  # fmt: skip
    assert (found["figures"]["workers"], found["figures"]["slots"]) == (1, 8)
    assert (found["ran"], found["after"]) == ([], None)
    assert found["aim"].startswith("Restore stability first")


def test_without_workers_it_says_so(desk: Desk) -> None:
    desk.put()

    found = desk.json("runbook", "backlog", *QUICK)

    assert found["stable"] is False
    assert steps(found)["lane"]["why"] == "no_worker"


def test_a_tenant_that_floods_is_named(desk: Desk) -> None:
    desk.claim(1)
    desk.put(tenant="quiet")
    for number in range(120):
        put(desk, f"first{number}")

    with producing(desk):
        found = desk.json("runbook", "backlog", *QUICK)

    told = steps(found)["throttle"]
    assert told["why"] == "tenant_floods"
    (line,) = changes(told)
    assert line.startswith("streamworker throttle tenant:acme --rate ")


def test_a_tenant_that_fills_the_backlog_is_found_by_a_sample(desk: Desk) -> None:
    desk.claim(1)
    for number in range(150):
        put(desk, f"first{number}", "asked")

    with producing(desk, "asked"):
        found = desk.json("runbook", "backlog", *QUICK)

    told = steps(found)["throttle"]
    assert told["why"] == "tenant_floods"
    assert "newest jobs in the backlog" in told["says"][0]
    assert found["figures"]["backlog"]["depth"] >= 150


def test_retries_are_counted_by_task_and_code(desk: Desk) -> None:
    for _ in range(60):
        desk.put("ship")
    for claim in desk.claim(60):
        desk.settle(claim, Retry(60_000, ErrorClass.TRANSIENT, "http_503", "503"))

    found = desk.json("runbook", "backlog", *QUICK)

    told = steps(found)["retries"]
    assert told["why"] == "storm"
    assert "60 jobs of ship wait for a retry, of http_503" in told["says"][0]
    (line,) = changes(told)
    assert line.startswith("streamworker retries ship --multiply 3 --jitter 0.3 --for 30m")


@pytest.mark.parametrize(
    ("declared", "why"), [("90,20,10000,10000,3,60000", "well"), ("20,10,10000,10000,3,60000", "failing")]
)
def test_a_dependency_is_judged_by_its_own_breaker(desk: Desk, declared: str, why: str) -> None:
    desk.claim(1)
    desk.redis.hset(desk.keys.policies, "declared:breaker:dependency:bank", declared)
    desk.redis.set(desk.keys.breaker("bank"), "1 14 5 0 0", px=60_000)

    told = steps(desk.json("runbook", "backlog", *QUICK))["dependency"]

    assert told["why"] == why
    assert len(changes(told)) == (why == "failing")


def test_letters_are_grouped_and_a_dry_run_comes_before_a_replay(desk: Desk) -> None:
    for _ in range(3):
        desk.dead("ship", code="bad_total")

    found = steps(desk.json("runbook", "backlog", *QUICK))

    assert found["letters"]["why"] == "some"
    assert "3 of ship with bad_total" in found["letters"]["says"][1]
    look, change = found["replay"]["commands"]
    assert (look["kind"], look["argv"][-3]) == ("look", "--dry-run")
    assert change["kind"] == "change"
    assert "--limit 20 --yes" in change["line"]


def test_what_operators_have_set_is_listed_with_its_way_back(desk: Desk) -> None:
    desk.call("pause", "tenant:acme", "--reason", "noise")
    desk.call("throttle", "lane:normal", "--rate", "5/s")
    desk.call("drain", "--off")
    desk.call("limits", "set", "rate:task:mail", "5/s")
    desk.call("breakers", "open", "carrier")
    desk.call("slots", "normal", "--weight", "3", "--for", "10m")
    desk.call("retries", "mail", "--multiply", "2")

    told = steps(desk.json("runbook", "backlog", *QUICK))["note"]

    assert [" ".join(command["argv"][1:-2]) for command in told["commands"]] == [
        "breakers auto carrier",
        "drain --reset",
        "limits reset rate:task:mail",
        "resume tenant:acme",
        "retries mail --reset",
        "slots normal --reset",
        "throttle lane:normal --off",
    ]
    assert any("slots normal" in said and "until" in said for said in told["says"])
    for command in told["commands"]:
        assert command["kind"] == "later"
        desk.call(*command["argv"][1:])
    assert steps(desk.json("runbook", "backlog", *QUICK))["note"]["why"] == "nothing_set"


# --- what it runs


def test_without_a_terminal_and_without_a_yes_nothing_is_run(desk: Desk) -> None:
    desk.put(lane="priority")
    desk.claim(0)
    desk.call("pause", "lane:priority")

    shown = desk.call("runbook", "backlog", *QUICK).stdout

    assert "4. Favour the critical lane: paused" in shown
    assert "$ streamworker resume lane:priority" in shown
    assert desk.json("lanes")[-1]["paused"] is True


def test_a_step_that_is_named_is_run_and_noted(desk: Desk, tmp_path: Path) -> None:
    desk.put(lane="priority")
    desk.call("pause", "lane:priority", "--reason", "before")
    note = tmp_path / "note.md"

    done = desk.call("runbook", "backlog", *QUICK, "--yes", "critical", "--report", str(note))

    assert "   | lane:priority runs again" in done.stdout
    assert not desk.json("lanes")[-1]["paused"]
    text = note.read_text()
    assert f"# Incident: the backlog of {desk.namespace}" in text
    reason = "runbook: lane priority is the critical one"
    assert f"$ streamworker resume lane:priority --reason '{reason}' --app {desk.namespace}\n" in text
    (audit,) = [line for line in text.splitlines() if line.startswith("| ") and "| resume |" in line]
    assert "lane:priority" in audit
    assert reason in audit
    assert "| pause |" not in text, "that was before"


def test_what_was_run_is_told_to_programs(desk: Desk) -> None:
    desk.put(lane="priority")
    desk.call("pause", "lane:priority")

    found = desk.json("runbook", "backlog", *QUICK, "--yes", "critical,drain")

    (ran,) = found["ran"]
    assert (ran["step"], ran["exit_code"]) == ("critical", 0)
    assert ran["argv"][1:3] == ["resume", "lane:priority"]
    assert found["after"]["lanes"][0]["lane"] == "priority"


@pytest.mark.parametrize("steps", ["", "everything", "lane,,coffee"])
def test_a_step_that_is_none_is_refused(desk: Desk, steps: str) -> None:
    assert "lane, dependency, throttle" in desk.refused("runbook", "backlog", "--yes", steps, code=2)


def test_a_note_never_takes_the_place_of_a_file(desk: Desk, tmp_path: Path) -> None:
    there = tmp_path / "note.md"
    there.write_text("mine")

    assert "is there already" in desk.refused("runbook", "backlog", "--report", str(there), code=2)
    nowhere = tmp_path / "no" / "note.md"
    assert "another place" in desk.refused("runbook", "backlog", "--report", str(nowhere), code=2)
    assert there.read_text() == "mine"


class Terminal:
    """The walk at a terminal of its own; a context manager."""

    def __init__(self, desk: Desk, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.seen = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "streamworker", "runbook", "backlog", *QUICK, *arguments],
            env={**os.environ, **desk.env, "PYTHONPATH": PYTHONPATH, "TERM": "xterm", "COLUMNS": "200"},
            stdin=slave, stdout=slave, stderr=slave,
        )  # fmt: skip
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def until(self, text: str) -> None:
        """Read until that is seen."""
        until = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < until, f"no {text!r} in:\n{self.seen}"
            if select.select([self._master], [], [], 0.1)[0]:
                self.seen += os.read(self._master, 65_536).decode()

    def answer(self, text: str, question: str) -> None:
        """Answer the question about that command; what was before it is forgotten."""
        self.until(question)
        self.until("run it? [y/N/q] ")
        self.seen = ""
        os.write(self._master, f"{text}\n".encode())

    def code(self) -> int:
        """How it ended."""
        try:
            while data := os.read(self._master, 65_536):
                self.seen += data.decode()
        except OSError:  # the other side is closed
            pass
        return self._process.wait(30)


def test_at_a_terminal_it_asks_and_runs_what_gets_a_yes(desk: Desk, tmp_path: Path) -> None:
    desk.put(lane="priority")
    desk.call("pause", "lane:priority")
    note = tmp_path / "note.md"

    with Terminal(desk, "--report", str(note)) as terminal:
        terminal.answer("", "streamworker lanes")
        terminal.answer("n", "streamworker throttle")
        terminal.answer("y", "streamworker resume lane:priority")
        terminal.answer("q", "streamworker drain")
        assert terminal.code() == 0, terminal.seen

    assert not desk.json("lanes")[-1]["paused"]
    assert note.read_text().count("step 4:") == 1


# --- hostile names


def test_hostile_text_is_shown_and_not_run(desk: Desk, tmp_path: Path) -> None:
    desk.dead("ship", code="boom", error=f"{HOSTILE}| ~~<img src=x>~~ [a](b)")
    desk.put(gates=f"0 entity:order:{HOSTILE}")
    note = tmp_path / "note.md"

    shown = desk.call("runbook", "backlog", *QUICK, "--report", str(note)).stdout

    assert "\\x1b]0;owned\\x07" in shown
    assert "\x1b" not in shown
    text = note.read_text()
    assert not any(ord(char) < 32 and char != "\n" for char in text)
    assert "\\<img src=x\\>" in text
    assert "\\[a\\]\\(b\\)" in text
