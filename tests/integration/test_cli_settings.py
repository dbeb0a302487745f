"""What operators set at run time, with its time and its way back, as they type it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from streamworker.core.breaker import Breaker
from streamworker.core.gates import breaker_of
from streamworker.ops import retries, tune
from streamworker.settings import read
from streamworker.store import scripts
from streamworker.store.manifest import Declaration
from streamworker.store.queue import Queue
from tests.integration.cli_desk import Desk
from tests.integration.test_cli_overload import audit, declare
from tests.integration.test_explain import publish
from tests.servers import BenchServer

pytestmark = pytest.mark.usefixtures("no_leaks")
LIMIT = "rate:task:mail"
GATE = breaker_of("carrier")
HOSTILE = "\x1b[31mred\x1b[0m\tfor=1;for=5 `$(reboot)`\nsecond line"


@pytest.fixture
def desk(valkey: BenchServer, namespace: str) -> Iterator[Desk]:
    with Desk(valkey.url, namespace) as desk:
        yield desk


def worker(desk: Desk, concurrency: int = 32, lanes: str = "priority,normal") -> None:
    """A worker that is alive."""
    facts = ("app", "shop", "lanes", lanes, "concurrency", str(concurrency))
    desk.run(scripts.session(worker=f"w-{concurrency}", own=0, liveness_ms=60_000, rows=facts))


def declare_slots(desk: Desk) -> None:
    rows = ["slots:priority", "4,4", "slots:normal", "4,1"]
    desk.run(scripts.declare(clock="", lanes="priority normal", rows=rows))


def expire(desk: Desk, ms: int) -> None:
    """Let everything with a time be set so much earlier, and a keeper look."""
    for key, text in desk.redis.hgetall(desk.keys.settings).items():
        till, _, rest = text.partition(b" ")
        if till != b"0":
            desk.redis.hset(desk.keys.settings, key, b"%d %b" % (int(till) - ms, rest))
            desk.redis.zadd(desk.keys.timers, {b"setting:" + key: int(till) - ms})
    for index, line in enumerate(desk.redis.lrange(desk.keys.changes, 0, -1)):
        number, at, rest = line.split(b" ", 2)
        desk.redis.lset(desk.keys.changes, index, b"%b %d %b" % (number, int(at) - ms, rest))
    desk.run(scripts.wake(clock="", worker="keeper", retention_ms=1000, limit=100))


def rows(desk: Desk) -> dict[str, dict[str, Any]]:
    """`settings --json`, by what and name."""
    return {f"{row['what']} {row['name']}": row for row in desk.json("settings")}


# --- slots -----------------------------------------------------------------------------------------------


def test_the_slots_of_a_lane_are_set_for_all_workers_and_taken_back(desk: Desk) -> None:
    declare_slots(desk)
    worker(desk)

    found = desk.json("slots", "priority", "--reserved", "12", "--weight", "9", "--reason", "orders are late")

    assert (found["reserved"], found["weight"]) == (12, 9)
    assert found["declared"] == {"reserved": 4, "weight": 4}
    assert (found["set"]["reason"], found["set"]["until"]) == ("orders are late", None)
    assert audit(desk) == "- 0 slots priority 12,9 orders are late"
    assert desk.redis.hget(desk.keys.policies, "slots").startswith(b"slots priority 12,9 ")
    assert desk.json("slots", "priority", "--weight", "2")["reserved"] == 12, "what is not said stays"
    assert [row["reserved"] for row in desk.json("slots")] == [4, 12]
    assert "orders" not in desk.call("slots", "normal").stdout
    assert desk.json("slots", "priority", "--reset")["reserved"] == 4
    assert desk.redis.hget(desk.keys.policies, "slots") is None
    assert "nothing is set" in desk.refused("slots", "priority", "--reset")


def test_more_reserved_slots_than_a_worker_has_are_refused_and_scaled_down_if_so_asked(desk: Desk) -> None:
    declare_slots(desk)
    worker(desk, 32)
    worker(desk, 8)

    said = desk.refused("slots", "priority", "--reserved", "20")

    assert "worker w-8" in said
    assert "--clamp" in said
    assert rows(desk) == {}
    assert desk.json("slots", "priority", "--reserved", "20", "--clamp")["reserved"] == 20
    assert desk.json("slots", "priority", "--reserved", "12")["reserved"] == 12, (
        "fewer than before are no harm"
    )


def test_a_worker_that_does_not_serve_the_lane_does_not_count(desk: Desk) -> None:
    declare_slots(desk)
    worker(desk, 8, "normal")

    assert desk.json("slots", "priority", "--reserved", "20")["reserved"] == 20


def test_a_lane_that_nobody_declares_is_warned_of(desk: Desk) -> None:
    assert "nothing in" in desk.call("slots", "bulk", "--reserved", "2").stderr
    assert "no worker declares" in desk.refused("slots", "other")


@pytest.mark.parametrize(
    "arguments",
    [
        ["slots", "--reserved", "3"],
        ["slots", "priority", "--reserved", "3", "--reset"],
        ["slots", "priority", "--for", "10m"],
        ["slots", "priority", "--reserved", "-1"],
        ["slots", "priority", "--weight", "0"],
        ["slots", "backlog", "--weight", "2"],
        ["slots", "Not A Lane", "--weight", "2"],
        ["slots", "priority", "--weight", "2", "--for", "soon"],
        ["slots", "priority", "--weight", "2", "--for", "10ms"],
        ["retries", "--multiply", "3"],
        ["retries", "mail", "--multiply", "3", "--reset"],
        ["retries", "mail", "--for", "10m"],
        ["retries", "mail", "--multiply", "0.01"],
        ["retries", "mail", "--multiply", "nan"],
        ["retries", "mail", "--multiply", "1"],
        ["retries", "mail", "--jitter", "1"],
        ["retries", "mail", "--stop-code", "Not A Code"],
        ["retries", "not a task", "--multiply", "3"],
        ["limits", "set", "rate:a b", "5/s"],
        ["throttle", "lane:normal", "--off", "--for", "10m"],
        ["drain", "--for", "10m"],
        ["undo"],
        ["undo", "3", "--last"],
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(desk: Desk, arguments: list[str]) -> None:
    assert desk.refused(*arguments, code=2)
    assert desk.json("settings") == []
    assert desk.json("settings", "--changes") == []


# --- retries ---------------------------------------------------------------------------------------------


def test_retries_are_calmed_and_codes_stopped_and_all_of_it_taken_back(desk: Desk) -> None:
    found = desk.json("retries", "mail", "--multiply", "3", "--jitter", "0.3", "--reason", "the bank is slow")

    assert (found["task"], found["multiply"], found["jitter"], found["stop_codes"]) == ("mail", 3, 0.3, [])
    assert audit(desk) == "- 0 retries mail multiply=3.0,jitter=0.3 the bank is slow"
    desk.call("retries", "mail", "--stop-code", "card_gone", "--stop-code", "http_404")
    found = desk.json("retries", "mail", "--stop-code", "timeout")
    assert (found["multiply"], found["stop_codes"]) == (3, ["card_gone", "http_404", "timeout"])
    assert "back-off times 3" in desk.call("retries").stdout
    assert desk.json("retries", "*", "--multiply", "2")["task"] == "*"
    assert [row["task"] for row in desk.json("retries")] == ["*", "mail"]
    assert desk.json("retries", "mail", "--reset") == {"task": "mail", "set": None}
    assert "nothing is set" in desk.refused("retries", "mail", "--reset")


def test_changes_beside_each_other_at_once_are_all_kept(desk: Desk) -> None:
    async def together() -> None:
        queue = Queue(read(desk.namespace, redis_url=desk.url, namespace=desk.namespace))
        try:
            await asyncio.gather(
                retries.set_retries(queue, "mail", multiply=3, actor="ana@host"),
                retries.set_retries(queue, "mail", jitter=0.5, actor="bo@host"),
                retries.set_retries(queue, "mail", stop=["gone"], actor="cy@host"),
            )
        finally:
            await queue.close()

    asyncio.run(together())

    assert rows(desk)["retries mail"]["value"] == "back-off times 3; jitter 0.5; no retry of gone"


def nearly(one: str, other: str) -> bool:
    """Whether two moments are less than ten seconds apart: what is left of a time is counted in a command."""
    return abs(datetime.fromisoformat(one) - datetime.fromisoformat(other)) < timedelta(seconds=10)


# --- a time ----------------------------------------------------------------------------------------------

TIMED = [
    (["limits", "set", LIMIT, "5/s"], "limit", LIMIT, "reset"),
    (["throttle", "lane:normal", "--rate", "5/s"], "throttle", "lane:normal", "throttle"),
    (["drain", "--off"], "drain", "backlog", "drain"),
    (["slots", "normal", "--weight", "7"], "slots", "normal", "slots"),
    (["retries", "mail", "--multiply", "3"], "retries", "mail", "retries"),
]


@pytest.mark.parametrize(("arguments", "what", "name", "verb"), TIMED)
def test_a_setting_with_a_time_falls_back_by_itself_and_says_so(
    desk: Desk, arguments: list[str], what: str, name: str, verb: str
) -> None:
    desk.call(*arguments, "--for", "10m", "--reason", "a hot day")
    row = rows(desk)[f"{what} {name}"]
    assert (row["reason"], row["then"]) == ("a hot day", None)
    assert row["until"] is not None
    assert ";for=600000 a hot day" in audit(desk)

    expire(desk, 599_000)
    assert f"{what} {name}" in rows(desk)
    expire(desk, 1_001)

    assert rows(desk) == {}
    assert audit(desk) == f"- 0 {verb} {name} - its time is over"
    assert desk.redis.zcard(desk.keys.timers) <= 1  # of a limit, its waiters are looked at
    assert "the time of change 1 was over" in desk.refused("undo", "--last")


@pytest.mark.parametrize(("arguments", "what", "name", "verb"), TIMED)
def test_what_holds_for_good_holds_again_after_the_time_of_another(
    desk: Desk, arguments: list[str], what: str, name: str, verb: str
) -> None:
    other = ["--on"] if what == "drain" else arguments[1:]
    lasting = {"limit": ["limits", "set", LIMIT, "9/s"], "drain": ["drain", "--rate", "9/s"]}.get(
        what, [arguments[0], *other[:-1], "9/s" if what == "throttle" else "9"]
    )
    desk.call(*lasting, "--reason", "as agreed")
    before = rows(desk)
    desk.call(*arguments, "--for", "10m")
    desk.call(*(word.replace("5/s", "6/s") for word in arguments), "--for", "20m")
    assert rows(desk)[f"{what} {name}"]["then"] == before[f"{what} {name}"]["value"]

    expire(desk, 1_200_001)

    assert rows(desk) == before
    assert audit(desk).endswith("its time is over")


def test_a_lasting_setting_ends_the_time_of_another(desk: Desk) -> None:
    desk.call("limits", "set", LIMIT, "5/s", "--for", "10m")

    desk.call("limits", "set", LIMIT, "6/s")

    assert rows(desk)[f"limit {LIMIT}"]["until"] is None
    assert desk.redis.zscore(desk.keys.timers, f"setting:limit {LIMIT}") is None


@pytest.mark.parametrize(
    ("timed", "more", "name", "value", "after"),
    [
        (["drain", "--off"], ["drain", "--rate", "20/s"], "drain backlog", "off, 20 per", "on, 20 per"),
        (
            ["retries", "mail", "--multiply", "3"],
            ["retries", "mail", "--stop-code", "gone"],
            "retries mail",
            "back-off times 3; no retry of gone",
            "no retry of gone",
        ),
        (
            ["slots", "normal", "--weight", "7"],
            ["slots", "normal", "--reserved", "2"],
            "slots normal",
            "2 reserved, weight 7",
            "2 reserved",
        ),
    ],
    ids=["drain", "retries", "slots"],
)
def test_what_has_a_time_does_not_outlive_it_by_a_change_beside_it(
    desk: Desk, timed: list[str], more: list[str], name: str, value: str, after: str
) -> None:
    desk.call(*timed, "--for", "10m")
    until = rows(desk)[name]["until"]

    desk.call(*more)

    row = rows(desk)[name]
    assert row["value"].startswith(value), "what is not said stays"
    assert row["then"].startswith(after)
    assert nearly(row["until"], until), "and stays no longer"
    expire(desk, 600_001)
    row = rows(desk)[name]
    assert row["value"].startswith(after)
    assert row["until"] is None
    desk.call("undo", "--last")
    row = rows(desk)[name]
    assert row["then"] is None, "the change for good can be taken back after that time too"
    assert nearly(row["until"], until)


# --- settings and undo -----------------------------------------------------------------------------------


def test_settings_list_all_that_is_set_with_who_and_why(desk: Desk) -> None:
    for arguments, *_ in TIMED:
        desk.call(*arguments, "--reason", "why")
    desk.call("pause", "tenant:acme", "--for", "10m", "--reason", "why")
    desk.call("breakers", "open", "carrier", "--reason", "why")

    found = rows(desk)

    assert set(found) == {
        f"limit {LIMIT}",
        "throttle lane:normal",
        "drain backlog",
        "slots normal",
        "retries mail",
        "pause tenant:acme",
        "breaker carrier",
    }
    assert {row["reason"] for row in found.values()} == {"why"}
    assert all("@" in row["by"] and row["since"] for row in found.values())
    assert found["retries mail"]["value"] == "back-off times 3"
    assert found["slots normal"]["value"] == "weight 7"
    assert found["throttle lane:normal"]["value"] == "5 per 1s, burst 5; others to backlog"
    assert "tenant:acme" in desk.call("settings").stdout


def test_nothing_set_is_said(desk: Desk) -> None:
    assert desk.json("settings") == []
    assert "no operator has set" in desk.call("settings").stderr
    assert "no operator has changed" in desk.call("settings", "--changes").stderr
    assert "no change is known" in desk.refused("undo", "--last")


UNDONE = [
    *(arguments for arguments, *_ in TIMED),
    ["pause", "tenant:acme"],
    ["pause", "lane:normal", "--for", "10m"],
    ["breakers", "open", "carrier", "--for", "10m"],
    ["breakers", "close", "carrier"],
]


@pytest.mark.parametrize("arguments", UNDONE, ids=" ".join)
def test_the_last_change_is_taken_back_and_done_again(desk: Desk, arguments: list[str]) -> None:
    desk.call(*arguments, "--reason", "a try")

    undone = desk.json("undo", "--last", "--reason", "no help")

    assert undone["undone"]["reason"] == "a try"
    assert rows(desk) == {}
    last, first = desk.json("settings", "--changes")
    assert (last["undoes"], first["undoes"]) == (first["id"], None)
    assert "takes back 1" in last["reason"]
    assert last["reason"].endswith("no help")
    assert "taken back already" in desk.refused("undo", "1")
    desk.call("undo", str(last["id"]))
    assert len(rows(desk)) == 1, "an undo that is taken back is a redo"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["limits", "set", LIMIT, "5/s", "--for", "1h"], ["limits", "set", LIMIT, "7/s"]),
        (["limits", "set", LIMIT, "5/s"], ["limits", "reset", LIMIT]),
        (["throttle", "lane:normal", "--rate", "5/s"], ["throttle", "lane:normal", "--off"]),
        (["drain", "--off"], ["drain", "--reset"]),
        (["drain", "--rate", "5/s", "--off"], ["drain", "--on"]),
        (["slots", "normal", "--weight", "7"], ["slots", "normal", "--reserved", "2"]),
        (["retries", "mail", "--multiply", "3"], ["retries", "mail", "--stop-code", "gone"]),
        (["pause", "tenant:acme"], ["resume", "tenant:acme"]),
        (["pause", "tenant:acme", "--for", "1h"], ["pause", "tenant:acme"]),
        (["pause", "tenant:acme"], ["pause", "tenant:acme", "--for", "1h"]),
        (["breakers", "open", "carrier"], ["breakers", "close", "carrier"]),
        (["breakers", "open", "carrier"], ["breakers", "auto", "carrier"]),
    ],
    ids=" ".join,
)
def test_what_stood_before_holds_again(desk: Desk, first: list[str], second: list[str]) -> None:
    desk.run(scripts.declare(clock="", lanes="normal", rows=[breaker_of("carrier"), Breaker().figures]))
    desk.call(*first)
    before = _values(desk)
    desk.call(*second)
    assert _values(desk) != before

    desk.call("undo", "--last")

    assert _values(desk) == before
    desk.call("undo", "--last")
    assert _values(desk) == {}, "and the change before is the last by now"


def _values(desk: Desk) -> dict[str, tuple[Any, ...]]:
    """What holds, and whether for a time."""
    return {name: (row["value"], row["until"] is None, row["then"]) for name, row in rows(desk).items()}


def test_an_undo_is_refused_when_the_same_thing_was_changed_since(desk: Desk) -> None:
    desk.call("limits", "set", LIMIT, "5/s")
    desk.call("pause", "tenant:acme")
    desk.call("limits", "set", LIMIT, "6/s")

    said = desk.refused("undo", "1")

    assert "was changed since" in said
    assert "streamworker undo 3" in said
    assert rows(desk)[f"limit {LIMIT}"]["value"].startswith("6 per 1s")
    desk.call("undo", "2")
    desk.call("undo", "3")
    desk.call("undo", "1")
    assert rows(desk) == {}
    assert "no change 9" in desk.refused("undo", "9")


def test_hostile_text_is_shown_and_not_run(desk: Desk) -> None:
    desk.call("limits", "set", LIMIT, "5/s", "--reason", HOSTILE)
    desk.call("retries", "mail", "--multiply", "2", "--reason", HOSTILE)

    for shown in (desk.call("settings"), desk.call("settings", "--changes"), desk.call("retries")):
        assert "\x1b" not in shown.output
    found = rows(desk)

    assert found[f"limit {LIMIT}"]["reason"] == " ".join(HOSTILE.split())
    assert found[f"limit {LIMIT}"]["until"] is None, "a reason sets no time"
    (first, _) = desk.json("settings", "--changes")[::-1]
    assert first["reason"] == " ".join(HOSTILE.split())
    desk.call("undo", "--last", "--reason", HOSTILE)
    desk.call("undo", "--last", "--reason", HOSTILE)
    assert rows(desk) == {}


def test_only_the_last_changes_are_kept(desk: Desk) -> None:
    for number in range(205):
        words = ["limit", LIMIT, f"{number + 1},1000,1", "-"]
        desk.run(scripts.tune(clock="", actor="me", retention_ms=1000, rows=words))

    assert desk.redis.llen(desk.keys.changes) == 200
    assert desk.json("settings", "--changes")[0]["id"] == 205


# --- what is in force ------------------------------------------------------------------------------------


def test_lanes_and_explain_show_what_is_in_force_and_where_it_comes_from(desk: Desk) -> None:
    declare_slots(desk)
    declare(desk)
    desk.call("slots", "normal", "--weight", "7", "--for", "10m", "--reason", "late")
    desk.call("retries", "add", "--multiply", "3", "--reason", "calm")
    desk.call("throttle", "lane:normal", "--rate", "100/s", "--reason", "flood")
    desk.call("breakers", "open", "carrier", "--reason", "repairs")
    publish(desk, add=Declaration("normal", timeout=20.0, retry="30s, 2m", of_lane=("retry",)))
    job_id = desk.put("add", gates=f"0 {GATE}|{Breaker().figures}")

    lane = next(one for one in desk.json("lanes") if one["lane"] == "normal")
    policy = {rule["what"]: rule for rule in desk.json("explain", job_id, "--sample", "0")["policy"]}

    assert (lane["slots"]["reserved"], lane["slots"]["weight"]) == (4, 7)
    assert lane["slots"]["set"]["reason"] == "late"
    assert policy["slots"]["value"] == "4 reserved, weight 7"
    assert "late" in policy["slots"]["source"]
    assert "@" in policy["slots"]["source"]
    assert policy["retries"]["value"] == "back-off times 3"
    assert "calm" in policy["retries"]["source"]
    assert policy["retry"]["source"] == "its lane, as workers declared it"
    assert policy["timeout"]["source"] == "its task, as workers published it"
    assert policy[GATE]["value"] == "open"
    assert "repairs" in policy[GATE]["source"]
    assert policy["throttle lane:normal"]["value"].startswith("100 per 1s")
    assert "flood" in policy["throttle lane:normal"]["source"]


def test_who_acts_is_one_word_whatever_a_program_says(desk: Desk) -> None:
    async def pause() -> None:
        queue = Queue(read(desk.namespace, redis_url=desk.url, namespace=desk.namespace))
        await tune.pause(queue, "tenant:acme", actor="ana of\nops", reason="x")
        await tune.set_limit(queue, LIMIT, "5,1000,5", actor=" ", reason="x")
        await queue.close()

    asyncio.run(pause())

    assert {row["by"] for row in rows(desk).values()} == {"anaofops", "unknown"}
