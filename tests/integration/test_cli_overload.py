"""`streamworker drain` and `throttle`, as an operator types them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamworker.store import scripts
from tests.integration.cli_desk import Desk
from tests.servers import BenchServer

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def desk(valkey: BenchServer, namespace: str) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as desk:
        yield desk


def defer(desk: Desk, *names: str, lane: str = "normal") -> None:
    jobs = [scripts.NewJob(name, "pack", lane, b'{"t":"pack","a":{}}', backlog="asked") for name in names]
    desk.run(scripts.enqueue(clock="", rows=[word for job in jobs for word in job.row()]))


def declare(desk: Desk, figures: str = "100,1000,20") -> None:
    desk.run(scripts.declare(clock="", lanes="normal", rows=["drain", figures, "admission", ""]))


def audit(desk: Desk) -> str:
    """The last audit line of the log."""
    found = desk.redis.xrevrange(desk.keys.events, count=20)
    return next(fields[b"a"].decode() for _, fields in found if b"a" in fields)


def test_drain_shows_what_waits_and_how_it_is_drained(desk: Desk) -> None:
    declare(desk)
    defer(desk, "a", "b")
    defer(desk, "c", lane="bulk")

    found = desk.json("drain")

    assert (found["on"], found["rate"], found["burst"], found["depth"]) == (True, "100/s", 20, 3)
    assert found["set"] is None
    assert [(row["lane"], row["depth"]) for row in found["lanes"]] == [("bulk", 1), ("normal", 2)]
    assert found["lanes"][0]["oldest_age_seconds"] >= 0
    said = desk.call("drain")
    assert "the drain is on (100/s, burst 20); 3 jobs" in said.stderr + said.stdout


def test_the_rate_is_set_with_who_and_why_and_taken_back(desk: Desk) -> None:
    declare(desk)

    found = desk.json("drain", "--rate", "5/s", "--burst", "7", "--reason", "the database is slow")
    assert (found["rate"], found["burst"], found["declared"]) == ("5/s", 7, "100/s")
    assert found["set"]["reason"] == "the database is slow"
    assert audit(desk) == "- 0 drain backlog on 5,1000,7 the database is slow"

    assert desk.json("drain", "--off")["rate"] == "5/s", "what is not said stays"
    found = desk.json("drain", "--reset")
    assert (found["on"], found["rate"], found["set"]) == (True, "100/s", None)
    assert "streamworker drain" in desk.refused("drain", "--reset")


def test_the_drain_is_turned_off_and_on(desk: Desk) -> None:
    declare(desk)

    assert desk.json("drain", "--off")["on"] is False
    assert "the drain is off" in desk.call("drain").stderr
    assert desk.json("drain", "--on")["on"] is True


def test_a_paused_backlog_is_said_to_be(desk: Desk) -> None:
    declare(desk)
    desk.call("pause", "lane:backlog")

    assert desk.json("drain")["paused"] is True
    assert "the drain is paused" in desk.call("drain").stderr


@pytest.mark.parametrize("arguments", [["--rate", "fast"], ["--burst", "0"], ["--reset", "--on"]])
def test_what_makes_no_sense_is_refused(desk: Desk, arguments: list[str]) -> None:
    declare(desk)

    assert desk.refused("drain", *arguments, code=2)


def test_lanes_show_the_backlog_once_it_had_a_job(desk: Desk) -> None:
    desk.put("first")
    assert [row["lane"] for row in desk.json("lanes")] == ["normal"]

    defer(desk, "a", "b")
    *_, row = desk.json("lanes")

    assert (row["lane"], row["depth"], row["in_flight"], row["paused"]) == ("backlog", 2, 0, False)
    assert row["oldest_age_seconds"] >= 0
    desk.call("drain", "--off")
    assert desk.json("lanes")[-1]["paused"] is True


def test_a_lane_is_throttled_and_let_go(desk: Desk) -> None:
    assert desk.json("throttle") == []

    found = desk.json("throttle", "lane:normal", "--rate", "2/h", "--overflow", "reject", "--reason", "loop")

    said = [found[name] for name in ("scope", "rate", "burst", "overflow")]
    assert said == ["lane:normal", "2/h", 1, "reject"]
    assert found["reason"] == "loop"
    assert audit(desk) == "- 0 throttle lane:normal 2,3600000,1 reject loop"
    assert desk.json("throttle") == [found]
    assert "lane:normal" in desk.call("throttle").stdout
    desk.call("enqueue", "pack", "{}")
    assert "throttled" in desk.refused("enqueue", "pack", "{}")

    lifted = {"scope": "lane:normal", "rate": None, "lifted": True}
    assert desk.json("throttle", "lane:normal", "--off") == lifted
    desk.call("enqueue", "pack", "{}")
    assert "is not throttled" in desk.refused("throttle", "lane:normal", "--off")


def test_a_tenant_is_throttled_into_the_backlog(desk: Desk) -> None:
    desk.call("throttle", "tenant:acme", "--rate", "1/h")

    first = desk.json("enqueue", "pack", "{}", "--tenant", "acme")
    second = desk.json("enqueue", "pack", "{}", "--tenant", "acme")

    assert (first["disposition"], second["disposition"]) == ("ACCEPTED", "DEFERRED")


@pytest.mark.parametrize(
    "arguments",
    [
        ["acme", "--rate", "1/s"],
        ["lane:backlog", "--rate", "1/s"],
        ["lane:normal"],
        ["lane:normal", "--rate", "1/s", "--off"],
        ["lane:normal", "--rate", "1/s", "--overflow", "drop"],
    ],
)
def test_a_throttle_that_makes_no_sense_is_refused(desk: Desk, arguments: list[str]) -> None:
    assert desk.refused("throttle", *arguments, code=2)
    assert desk.json("throttle") == []


def test_limits_do_not_list_the_drain(desk: Desk) -> None:
    declare(desk)

    assert desk.json("limits") == []
