"""`streamworker gates`, `pause`, `resume` and `limits`, as an operator types them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from streamworker.cli.main import command_line
from streamworker.core.gates import Gate, GateKind
from streamworker.store import routing, scripts
from streamworker.store.manifest import Declaration, publish_call
from tests.integration.cli_desk import Desk
from tests.servers import BenchServer

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def desk(valkey: BenchServer, namespace: str) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as desk:
        yield desk


def enqueue(desk: Desk, *names: str, gates: str = "0 entity:order:7", tenant: str = "") -> None:
    env = b'{"t":"pack","a":{}}'
    jobs = [scripts.NewJob(name, "pack", "normal", env, gates=gates, tenant=tenant) for name in names]
    rows = [word for job in jobs for word in job.row()]
    desk.run(scripts.enqueue(clock="", rows=rows))


def audit(desk: Desk) -> str:
    """The last audit line of the log."""
    found = desk.redis.xrevrange(desk.keys.events, count=20)
    return next(fields[b"a"].decode() for _, fields in found if b"a" in fields)


def test_gates_lists_who_holds_and_who_waits(desk: Desk) -> None:
    enqueue(desk, "a", "b", "c")
    desk.claim(9)

    (row,) = desk.json("gates")
    assert (row["gate"], row["holders"], row["waiting"]) == ("entity:order:7", 1, {"normal": 2})
    found = desk.json("gates", "entity:order:7")
    assert [one["id"] for one in found["holders"]] == ["a"]
    assert [one["id"] for one in found["waiters"]] == ["b", "c"]
    assert "entity:order:7" in desk.call("gates").stdout
    assert "b" in desk.call("gates", "entity:order:7").stdout


def test_gates_says_when_there_are_none(desk: Desk) -> None:
    assert desk.json("gates") == []
    assert "no gate of" in desk.call("gates").stderr


def test_what_is_no_gate_is_refused(desk: Desk) -> None:
    assert "streamworker gates" in desk.refused("gates", "nonsense", code=2)


def test_a_pause_stands_in_the_log_with_who_and_why(desk: Desk) -> None:
    said = desk.json("pause", "tenant:acme", "--reason", "they flood us", "--for", "10m")

    assert (said["scope"], said["state"], said["reason"]) == ("tenant:acme", "paused", "they flood us")
    assert said["until"] is not None
    assert audit(desk) == "- 0 pause tenant:acme 600000 they flood us"
    assert [row["gate"] for row in desk.json("gates")] == ["pause:tenant:acme"]
    shown = desk.call("gates", "pause:tenant:acme").stdout
    assert "paused since" in shown
    assert f"until {said['until']}" in shown
    enqueue(desk, "a", gates="", tenant="acme")
    desk.claim(9)
    assert desk.json("gates")[0]["gate"] == "pause:tenant:acme"
    assert desk.json("gates", "pause:tenant:acme")["paused"]["by"] == said["by"]

    assert desk.json("resume", "tenant:acme", "--over", "0")["resumed"] is True
    assert desk.json("gates") == []
    assert "not paused" in desk.refused("resume", "tenant:acme")


def test_a_paused_lane_shows_in_lanes(desk: Desk) -> None:
    enqueue(desk, "a", gates="")
    desk.call("pause", "lane:normal")

    (lane,) = desk.json("lanes")

    assert (lane["paused"], lane["depth"]) == (True, 1)
    desk.call("resume", "lane:normal")


def test_a_resume_opens_over_a_minute_or_at_once(desk: Desk) -> None:
    enqueue(desk, *(f"j{i}" for i in range(5)), gates="")
    desk.call("pause", "lane:normal")
    desk.call("resume", "lane:normal")
    assert len(desk.claim(9)) == 1
    assert desk.json("gates", "pause:lane:normal")["paused"]["state"] == "ramp"

    desk.call("resume", "lane:normal", "--at-once")

    assert len(desk.claim(9)) == 4
    assert desk.json("gates") == []


def test_doctor_tells_of_a_pause_that_nobody_may_think_of(desk: Desk) -> None:
    def told() -> dict[str, str]:
        checks = json.loads(
            CliRunner().invoke(command_line("doctor"), ["doctor", "--json"], env=desk.env).stdout
        )
        (found,) = [each for each in checks["checks"] if each["check"] == "pauses"]
        return dict(found)

    desk.call("pause", "lane:normal", "--for", "10m")
    assert told()["severity"] == "ok"
    desk.call("pause", "lane:bulk")
    found = told()

    assert found["severity"] == "warning"
    assert "lane:bulk by" in found["found"]
    assert "lane:normal" not in found["found"]
    assert "`streamworker resume lane:bulk`" in found["advice"]


@pytest.mark.parametrize("scope", ["normal", "lane:", "queue:normal", "tenant:a b"])
def test_what_cannot_be_paused_is_refused(desk: Desk, scope: str) -> None:
    assert "lane:NAME" in desk.refused("pause", scope, code=2)


@pytest.mark.parametrize("duration", ["0", "0.0001s", "999ms"])
def test_a_pause_for_no_time_is_refused(desk: Desk, duration: str) -> None:
    assert "shorter than a second" in desk.refused("pause", "lane:normal", "--for", duration, code=2)
    assert desk.json("gates") == []


def test_limits_shows_what_is_declared_and_set(desk: Desk) -> None:
    desk.run(scripts.declare(clock="", lanes="normal", rows=["rate:task:pack", "50,1000,50"]))
    enqueue(desk, *(f"j{i}" for i in range(4)), gates="0 rate:task:pack|50,1000,50")

    desk.call("limits", "set", "rate:task:pack", "100/s", "--burst", "2", "--reason", "their new plan")

    (row,) = desk.json("limits")
    assert row["declared"] == {"tokens": 50, "period_ms": 1000, "burst": 50}
    assert row["set"] == row["in_force"] == {"tokens": 100, "period_ms": 1000, "burst": 2}
    assert audit(desk) == "- 0 limit rate:task:pack 100,1000,2 their new plan"
    assert "100 per 1s, burst 2" in desk.call("limits").stdout
    assert len(desk.claim(9)) == 2
    assert desk.json("limits", "reset", "rate:task:pack")["reset"] is True
    assert desk.json("limits")[0]["set"] is None
    assert "no operator has set" in desk.refused("limits", "reset", "rate:task:pack")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("entity:order:7", "5"), "neither rate: nor concurrency:"),
        (("rate:task:pack", "fast"), "rate"),
        (("concurrency:task:pack", "0"), "whole number"),
        (("concurrency:task:pack", "5", "--burst", "2"), "belongs to a rate"),
    ],
)
def test_limits_that_mean_nothing_are_refused(desk: Desk, arguments: tuple[str, ...], said: str) -> None:
    assert said in desk.refused("limits", "set", *arguments, code=2)


def test_the_app_may_be_named_before_the_verb_or_after(desk: Desk) -> None:
    desk.call("limits", "--app", desk.namespace, "set", "concurrency:task:pack", "5")
    desk.call("limits", "set", "concurrency:task:pack", "6", "--app", desk.namespace)

    assert desk.json("limits")[0]["set"] == 6


# --- names that nobody knows ------------------------------------------------------------------------------


def declare(desk: Desk) -> None:
    """As a worker's start does: a task with a lane, a dependency and limits of each kind of scope."""
    gates = (
        *(Gate(GateKind.CONCURRENCY, scope, "5") for scope in ("user:{user_id}", "task", "lane")),
        Gate(GateKind.PAUSE, "dependency:carrier"),
        Gate(GateKind.RATE, "tenant", "50,1000,50"),
    )
    declared = Declaration(lane="bulk", arguments=("user_id",), gates=gates)
    call = publish_call({"send": declared}, routing.NO_RULES)
    desk.redis.eval(call.script.text, 1, desk.keys.namespace_tag, *call.argv)


@pytest.mark.parametrize(
    "scope", ["lane:bulk", "lane:normal", "tenant:any", "task:send", "dependency:carrier"]
)
def test_a_pause_of_what_is_declared_warns_of_nothing(desk: Desk, scope: str) -> None:
    declare(desk)
    enqueue(desk, "a", gates="")

    done = desk.call("pause", scope, "--json")

    assert json.loads(done.stdout)["known"] is True
    assert done.stderr == ""


@pytest.mark.parametrize("scope", ["lane:bluk", "task:sned", "dependency:carier"])
def test_a_pause_of_what_nobody_knows_holds_and_warns(desk: Desk, scope: str) -> None:
    """It may be declared by the next deploy."""
    declare(desk)

    done = desk.call("pause", scope, "--json")

    said = json.loads(done.stdout)
    assert (said["state"], said["known"], said["reason"]) == ("paused", False, None)
    assert f"nothing in {desk.namespace} declares {scope}" in done.stderr


KNOWN = (
    "concurrency:user:7",
    "concurrency:user:{user_id}@send",
    "concurrency:task:send",
    "concurrency:lane:bulk",
)
UNKNOWN = ("concurrency:usr:7", "concurrency:task:sned", "concurrency:order:7")


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_a_limit_that_no_task_declares_warns(desk: Desk, name: str) -> None:
    declare(desk)

    done = desk.call("limits", "set", name, "9", "--json")

    known = name in KNOWN
    assert json.loads(done.stdout) == {"name": name, "set": 9, "known": known}
    assert (f"no task of {desk.namespace} declares {name}" in done.stderr) is not known


def test_lanes_shows_how_long_the_oldest_has_waited_at_a_gate(desk: Desk) -> None:
    enqueue(desk, "a", "b", gates="0 concurrency:task:pack|1")
    desk.claim(9)
    key = desk.keys.job("b")
    first, *more = desk.redis.get(key).decode().split("\n")
    words = first.split(" ")
    long_ago = str(int(words[-1]) - 600_000)  # when it was enqueued is the last word
    desk.redis.set(key, "\n".join([" ".join([*words[:-1], long_ago]), *more]))

    row = next(row for row in desk.json("lanes") if row["lane"] == "normal")

    assert row["depth"] == 1
    assert 600 <= row["oldest_age_seconds"] < 660
